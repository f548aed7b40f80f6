"""What passes between a fleet and its environments, as arrays over one memory.

Every environment has a slot: a row of each array. Worker processes map the same memory,
so that no observation is ever pickled, nor sent. Orders stand there too: what goes
through a worker's pipe are hints to look, for who has stopped looking, and the end; and
what is rare, the stories of failures and the states of environments.
"""

import mmap
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.spec import Spec

IDLE = -1  # in place of the slot that a worker is at


class Slots(NamedTuple):
    """The arrays, a row for each of N environments."""

    action: NDArray[np.float64]  # [N, action], in [-1, 1]
    seed: NDArray[np.int64]  # [N], of the episode to begin when the running one ends
    next_obs: NDArray[np.float64]  # [N, obs], at an episode's end the one it ended in
    obs: NDArray[np.float64]  # [N, obs], acted on next: another if an episode began
    reward: NDArray[np.float64]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]; a time limit
    order: NDArray[np.uint8]  # [N], what is to be done; 0 for nothing
    # By worker, in the first cells of [N]:
    busy: NDArray[np.int64]  # the slot it is at, for when it dies or hangs
    asked: NDArray[np.int64]  # how many times it was given orders
    done: NDArray[np.int64]  # the last of these it finished; below 0: a parcel comes
    asleep: NDArray[np.bool_]  # it waits at its pipe, not at `asked`
    awaited: NDArray[np.bool_]  # the main process waits at the pipe, not at `done`


def shapes(count: int, spec: Spec) -> dict[str, tuple[tuple[int, ...], type]]:
    """Shape and type of each array, for `count` environments."""
    return {
        "action": ((count, spec.action_dim), np.float64),
        "seed": ((count,), np.int64),
        "next_obs": ((count, spec.obs_dim), np.float64),
        "obs": ((count, spec.obs_dim), np.float64),
        "reward": ((count,), np.float64),
        "terminated": ((count,), np.bool_),
        "truncated": ((count,), np.bool_),
        "order": ((count,), np.uint8),
        "busy": ((count,), np.int64),
        "asked": ((count,), np.int64),
        "done": ((count,), np.int64),
        "asleep": ((count,), np.bool_),
        "awaited": ((count,), np.bool_),
    }


def memory_size(count: int, spec: Spec) -> int:
    """Bytes for `count` environments, each array's beginning aligned.

    Example:
        >>> memory_size(1, Spec(obs_dim=3, action_dim=1))
        832
    """
    return sum(_aligned(*entry) for entry in shapes(count, spec).values())


def slots_over(memory: mmap.mmap, count: int, spec: Spec) -> Slots:
    """The arrays, as views of a memory of `memory_size`."""
    arrays: dict[str, NDArray[np.generic]] = {}
    begin = 0
    for name, (shape, kind) in shapes(count, spec).items():
        size = int(np.prod(shape))
        arrays[name] = np.frombuffer(memory, kind, size, begin).reshape(shape)
        begin += _aligned(shape, kind)
    return Slots(**cast(dict[str, Any], arrays))


def _aligned(shape: tuple[int, ...], kind: type) -> int:
    """Bytes of an array up to a cache line's end: no two workers write one."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return -(-size // 64) * 64
