"""Files changed as chance or malice would change them, and a run to change."""

import contextlib
import copy
import json
import random

import numpy as np

from r2r2 import resolve
from r2r2.api import RunOptions, train
from r2r2.storage.arrays import read_arrays, write_arrays
from r2r2.storage.checkpoints import (
    CHECKSUM_PREFIX,
    checksum,
    file_digest,
    latest_valid,
)
from r2r2.training.run_config import finalize_config

CONFIG = finalize_config(
    resolve(
        {
            "env": "Pendulum-v1",
            "seeds": "0,3",
            "width": 8,
            "latent": 8,
            "batch_size": 8,
            "steps": 90,
            "warmup": 90,
            "replay_size": 150,
            "action_repeat": 10,
            "eval_every": 20,
            "eval_episodes": 2,
        }
    )
)
ALONE = RunOptions(workers=0, checkpoint_every="25")

# What turns up in a text or in a file of numbers where it was not expected.
TOKENS = (
    *(b"\0", b"\xff\xfe", b"\n", b"\r", b'"', b"{", b"}", b"[" * 2000, b"]", b","),
    *(b"=", b"NaN", b"-1", b"1e999", b"9" * 5000, b"null", b"true", b"../", b"\\ud800"),
    *(b"\x1b[2J", b"PK\x05\x06", b"PK\x01\x02", b"\x93NUMPY"),
)
# What turns up in the place of a value that JSON holds.
VALUES = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 10**400, 0.5, -1.5, 1e308, float("nan")),
    *("", "x", "..", "/etc/passwd", "a\0b", "\ud800", "a\nb"),
    *([], [[]], [0], [[0, 0]], [[0, 2, 0]], [[9, 9, 9]], [["x"]], {}, {"x": []}),
)


class Left(KeyboardInterrupt):
    """What ends a run whose evaluations are under way."""


def interrupted(path):
    """Trains a little and leaves the run, two checkpoints in it, evaluating."""

    def leave(progress):
        if progress.decisions.min() >= 31:
            raise Left

    with contextlib.suppress(Left):
        train(CONFIG, path, on_progress=leave, options=ALONE)
    found, _ = latest_valid(path / "checkpoints")
    assert found.metadata["points"]["playing"]
    assert found.metadata["journal"]["events"][0]
    return path


def mutations(content, count, seed):
    """Contents that differ from a good one in a place or a few."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            place = chance.randrange(len(changed) + 1)
            token, few = chance.choice(TOKENS), chance.randrange(1, 20)
            removed, put = chance.choice(
                (
                    *((len(changed), b""), (few, b""), (0, chance.randbytes(few))),
                    *((0, token), (4, token[:4]), (1, chance.randbytes(1))),
                )
            )
            changed[place : place + removed] = put
        yield bytes(changed)


def seal(folder, number, change=lambda manifest: None):
    """Writes a manifest anew over files as they are now, with right checksums."""
    path = folder / f"{number:08}.json"
    manifest = json.loads(path.read_bytes())
    del manifest["blake2b"]
    for name, entry in manifest["files"].items():
        entry["bytes"] = (folder / name).stat().st_size
        entry["blake2b"] = file_digest(folder / name)
    change(manifest)
    rest = json.dumps(manifest)[1:] + "\n"
    path.write_text(CHECKSUM_PREFIX.format(checksum(rest.encode()).hexdigest()) + rest)


def forged_notes(notes, count, seed):
    """Notes with another value somewhere, or without one."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = copy.deepcopy(notes)
        for _ in range(chance.choice((1, 1, 2))):
            holder, key = chance.choice(list(_places(changed)))
            match chance.randrange(4):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.insert(key, copy.deepcopy(holder[key]))
                case _:
                    holder[key] = copy.deepcopy(chance.choice(VALUES))
        yield changed


def _places(inside):
    keys = inside if isinstance(inside, dict) else range(len(inside))
    for key in keys:
        yield inside, key
        if isinstance(inside[key], dict | list):
            yield from _places(inside[key])


def forged_arrays(path, count, seed):
    """Rewrites a file of arrays again and again, whole, with other arrays in it."""
    chance, good = random.Random(seed), read_arrays(path)
    for _ in range(count):
        arrays = dict(good)
        for _ in range(chance.choice((1, 1, 3))):
            _forge(arrays, chance)
        with path.open("wb") as file:
            write_arrays(file, arrays.items())
        yield


NAMES = ("../x", "/x", "x\ny", "0/", "é/x", "9" * 30)
CHANGES = (
    lambda array, chance: array.astype(chance.choice(("f8", "f4", "u8", "i2", "?"))),
    lambda array, _: array.reshape(-1),
    lambda array, _: array[None],
    lambda array, _: array[:0] if array.ndim else np.zeros(0),
    lambda array, _: np.concatenate([np.atleast_1d(array)] * 2),
    lambda array, chance: np.full_like(array, _odd(array.dtype, chance)),
)


def _forge(arrays, chance):
    """One array is changed, renamed, put in another's place, or taken away."""
    name = chance.choice(list(arrays))
    array = arrays.pop(name)
    how = chance.random()
    if how < 0.7:
        arrays[name] = chance.choice(CHANGES)(array, chance)
    elif how < 0.9:
        arrays[chance.choice((*NAMES, *arrays))] = array


def _odd(kind, chance):
    if kind.kind == "f":
        return chance.choice((np.nan, np.inf, -np.inf, 0, -1))
    limits = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return chance.choice((*limits, 0, 1))
