"""The members' environments and where each of them stands in its episode."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import episode_seed
from r2r2.envs.pool import EnvPool


class Episode(NamedTuple):
    """An episode that ended."""

    member: int
    number: int  # of the member's episodes, from 0
    length: int  # decision steps
    total: float  # undiscounted return


class Seen(NamedTuple):
    """A step of some members on the host, in the fields of `replay.Experience`."""

    action: NDArray[np.floating]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    next_obs: NDArray[np.float64]
    obs: NDArray[np.float64]


class Rollout:
    """Steps members of a pool and begins their next episodes.

    The reset of episode `index` is seeded by (seed, index) alone.

    Example:
        >>> from r2r2.envs.members import Member
        >>> pool = EnvPool([Member("Pendulum-v1", 0)], action_repeat=1)
        >>> rollout = Rollout(pool)
        >>> seen, ended = rollout.step([0], np.zeros((1, 1)))
        >>> rollout.steps.tolist(), ended
        ([1], [])
    """

    def __init__(self, pool: EnvPool):
        size = len(pool.members)
        self._pool = pool
        self.steps = np.zeros(size, dtype=int)  # decision steps made, [S]
        self._episode = np.zeros(size, dtype=int)
        self._length = np.zeros(size, dtype=int)
        self._total = np.zeros(size)
        self.obs = np.stack([self._reset(member) for member in range(size)])

    def step(
        self, members: Sequence[int], actions: NDArray[np.floating]
    ) -> tuple[Seen, list[Episode]]:
        """One decision step of `members`; actions is [K, action], in [-1, 1]."""
        who = list(members)
        result = self._pool.step(actions, who)
        ended = result.terminated | result.truncated
        self.steps[who] += 1
        self._length[who] += 1
        self._total[who] += result.reward
        self.obs[who] = result.obs
        episodes = [self._finish(member) for member in np.array(who)[ended]]
        seen = Seen(
            action=actions,
            reward=result.reward,
            terminated=result.terminated,
            ended=ended,
            next_obs=result.obs,
            obs=self.obs[who],
        )
        return seen, episodes

    def _finish(self, member: int) -> Episode:
        done = Episode(
            member=int(member),
            number=int(self._episode[member]),
            length=int(self._length[member]),
            total=float(self._total[member]),
        )
        self._episode[member] += 1
        self._length[member] = 0
        self._total[member] = 0
        self.obs[member] = self._reset(member)
        return done

    def _reset(self, member: int) -> NDArray[np.float64]:
        seed = self._pool.members[member].seed
        index = int(self._episode[member])
        return self._pool.reset(int(member), episode_seed(seed, "train", index))
