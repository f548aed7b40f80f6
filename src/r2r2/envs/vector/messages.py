"""What goes through a worker's pipe besides hints: stories and states, as plain arrays.

States are large and rarely asked for: they have no place in the shared memory.
"""

import io
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from r2r2.envs.vector.step_types import SavedState

NOTES = "notes"  # no name of a state's array, which all have a slot and a slash


class Parcel(NamedTuple):
    """How orders went, or what they need; both by slot.

    Example:
        >>> parcel = Parcel({3: "the arm fell off"}, {4: {"time": np.float64(0.5)}})
        >>> unpacked(packed(parcel))
        Parcel(stories={3: 'the arm fell off'}, states={4: {'time': array(0.5)}})
    """

    stories: Mapping[int, str] = {}  # of environments that failed
    states: Mapping[int, SavedState] = {}


NOTHING = Parcel()


def packed(parcel: Parcel) -> bytes:
    """A parcel as bytes, with no pickle in it."""
    notes = json.dumps([list(parcel.stories.items()), list(parcel.states)])
    arrays = {NOTES: np.frombuffer(notes.encode(), np.uint8)}
    for slot, state in parcel.states.items():
        arrays |= {f"{slot}/{name}": array for name, array in state.items()}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def unpacked(content: bytes) -> Parcel:
    """The parcel that was packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        stories, slots = json.loads(arrays[NOTES].tobytes())
        states: dict[int, SavedState] = {slot: {} for slot in slots}
        for key in arrays.files:
            slot, slash, name = key.partition("/")
            if slash:
                states[int(slot)][name] = arrays[key]
    return Parcel(dict(stories), states)
