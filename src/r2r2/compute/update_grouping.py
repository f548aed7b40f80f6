"""Which members train together, and how far, when they owe different numbers.

The choice never changes a member's own sequence of updates: only in whose company, and
in how many calls, they are made.
"""

from typing import NamedTuple

import numpy as np


class UpdateCall(NamedTuple):
    """One compiled call: these members, so many updates each."""

    members: tuple[int, ...]
    updates: int


def next_update_call(
    made: np.ndarray, owed: np.ndarray, phase: int, most: int
) -> UpdateCall:
    """The next call towards making all updates owed; its members agree modulo `phase`.

    Members out of phase first come into it among themselves; then all who still owe go
    on until the first is done, in whole phases, of which the program is the fastest.

    Args:
        made: updates each member has made, [S].
        owed: updates each member owes, [S], some of them positive.
        phase: the fleet's.
        most: updates per call at most.

    Example:
        >>> next_update_call(np.array([0, 4, 8]), np.array([6, 2, 0]), phase=2, most=9)
        UpdateCall(members=(0, 1), updates=2)
    """
    active = np.flatnonzero(owed)
    late = made[active] % phase
    if late.any():
        active = active[late == late.max()]
        most = min(most, phase - late.max())
    count = int(min(most, owed[active].min()))
    if count > phase:
        count -= count % phase
    return UpdateCall(tuple(int(member) for member in active), count)


def choose_stride(call: UpdateCall, made: np.ndarray, longest: int) -> int:
    """`longest` if a call begins and ends with whole strides of it, else 1.

    Example:
        >>> choose_stride(UpdateCall((0,), 4), np.array([2]), longest=2)
        2
    """
    ends = np.append(made[list(call.members)], call.updates)
    return 1 if (ends % longest).any() else longest


def pad_members(members: tuple[int, ...], size: int) -> np.ndarray:
    """The members, with the first repeated until `size`.

    So one compiled program of `size` serves every smaller group.
    """
    return np.asarray(members + members[:1] * (size - len(members)))


def group_sizes(fleet: int, growth: int) -> list[int]:
    """The sizes that groups are filled up to, smallest first: each has its program.

    Example:
        >>> group_sizes(20, growth=4)
        [2, 5, 20]
    """
    sizes = [fleet]
    while sizes[0] > growth // 2:
        sizes.insert(0, -(-sizes[0] // growth))
    return sizes


def group_size(members: int, fleet: int, growth: int) -> int:
    """The size that a group of so many members is filled up to.

    Example:
        >>> group_size(3, fleet=20, growth=4)
        5
    """
    return next(size for size in group_sizes(fleet, growth) if size >= members)
