"""Steps that wait on the host until the device has time to store them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.interact.rollout import Seen
from r2r2.learn.bursts import filled

STEPS = 32  # stored by one program at once; a transfer of each would cost more


class Steps(NamedTuple):
    """Several steps, the oldest first."""

    members: NDArray[np.int_]  # [T, S], those who made each, the first repeated
    packed: NDArray[np.floating]  # [T, S, all fields of Seen side by side]
    opened: NDArray[np.int_]  # [T, S], rows that each opens in every ring


class Arrivals:
    """A queue of steps of a fleet of `size`, each with `fields` numbers a member."""

    def __init__(self, size: int, fields: int):
        self._size, self._fields = size, fields
        self._steps: list[Any] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, members: Sequence[int], seen: Seen) -> None:
        """Takes in a step of `members`, whose fields are [K, ...]."""
        who = filled(tuple(range(len(members))), self._size)
        opened = np.zeros(self._size, dtype=int)
        opened[list(members)] = 1 + seen.ended
        packed = np.column_stack(seen)[who]
        self._steps.append((np.asarray(members)[who], packed, opened))

    def take(self) -> tuple[Steps, int]:
        """The oldest steps, at most `STEPS`, and how many.

        Several are filled up to `STEPS` with others, which are not to be stored.
        """
        steps, self._steps = self._steps[:STEPS], self._steps[STEPS:]
        count = len(steps)
        steps += steps[:1] * (STEPS - count if count > 1 else 0)
        return Steps(*map(np.stack, zip(*steps, strict=True))), count

    @property
    def steps(self) -> Steps:
        """All of them, to be saved."""
        if self._steps:
            return Steps(*map(np.stack, zip(*self._steps, strict=True)))
        none = np.zeros((0, self._size), dtype=int)
        return Steps(none, np.zeros((0, self._size, self._fields)), none)

    @steps.setter
    def steps(self, steps: Steps) -> None:
        self._steps = list(zip(*steps, strict=True))
