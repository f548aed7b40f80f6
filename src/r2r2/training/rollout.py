"""Training episodes of every member on the host: observations, counts and seeds."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.step_types import StepRequest, StepResult

LONG_EPISODE = 10_000  # decision steps after which an episode is reported


def warn_endless(task: str) -> None:
    """Warn, once per task, about an episode of `LONG_EPISODE` decision steps."""
    warnings.warn(
        f"env {task!r}: an episode has not ended after {LONG_EPISODE} decision steps; "
        "--max-episode-steps limits the episodes of a new run",
        stacklevel=1,  # the same place for training and evaluation
    )


class Episode(NamedTuple):
    """A finished episode."""

    member: int
    number: int  # index among the member's episodes, from 0
    length: int  # decision steps
    total: float  # undiscounted return


class HostTransition(NamedTuple):
    """One step of K members on the host, with the fields of `replay.Transition`."""

    action: NDArray[np.floating]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    next_obs: NDArray[np.float64]
    obs: NDArray[np.float64]
    lost: NDArray[np.bool_]


class Rollout:
    """Tracks each member through its training episodes; member m uses pool slot m.

    The reset of episode `index` is seeded by (seed, index) alone.
    """

    def __init__(self, members: Sequence[Member], spec: Spec):
        size = len(members)
        self._members, self._spec = tuple(members), spec
        self.obs = np.zeros((size, spec.obs_dim))  # observations to act on
        self.steps = np.zeros(size, dtype=int)  # decision steps done, [S]
        self.reward = np.zeros(size)  # of the last step, [S]
        self.ended = np.zeros(size, dtype=bool)  # whether it ended an episode, [S]
        self._episode = np.zeros(size, dtype=int)
        self._length = np.zeros(size, dtype=int)
        self._total = np.zeros(size)
        self._next_seeds = [self._seed(member, 1) for member in range(size)]

    def request(self, members: Sequence[int], actions: NDArray[np.floating]) -> StepRequest:
        """Return one decision step of `members`; actions is [K, action], in [-1, 1]."""
        return StepRequest(members, actions, [self._next_seeds[m] for m in members])

    def next_seed(self, member: int) -> int:
        """Return the seed of a member's next episode."""
        return self._next_seeds[member]

    def record(
        self, members: NDArray[np.int_], actions: NDArray[np.floating], step: StepResult
    ) -> tuple[HostTransition, list[Episode]]:
        """Record steps [K]; return their transitions and the episodes that they finished.

        Those of a member are in order, and only its last may end an episode.
        """
        before, ended = self._length.copy(), step.ended
        np.add.at(self.steps, members, 1)
        np.add.at(self._length, members, 1)
        np.add.at(self._total, members, step.reward)
        self.obs[members], self.reward[members] = step.obs, step.reward
        self.ended[members] = ended
        if max(self._length.tolist()) >= LONG_EPISODE:
            self._warn_long(before)
        episodes = [self._finish(member) for member in members[ended].tolist()]
        flags = step.terminated, ended
        observations = step.next_obs, step.obs
        lost = np.zeros(len(members), dtype=bool)
        return HostTransition(actions, step.reward, *flags, *observations, lost), episodes

    def _warn_long(self, before: NDArray[np.int_]) -> None:
        """Warn about the episodes that have become long since their lengths were `before` [S]."""
        long = (before < LONG_EPISODE) & (self._length >= LONG_EPISODE)
        for task in {self._members[member].task for member in np.flatnonzero(long)}:
            warn_endless(task)

    def seed(self, member: int) -> int:
        """Return the seed of a member's current episode."""
        return self._seed(member, int(self._episode[member]))

    def drop(self, member: int) -> Episode:
        """End a member's episode here, so that no reward is counted twice, and return it."""
        self.reward[member], self.ended[member] = 0, True
        return self._finish(member)

    def begin(self, member: int, obs: NDArray[np.float64]) -> HostTransition:
        """Record the first observation [obs] after a drop; return it for the replay."""
        self.obs[member] = obs
        action, false = np.zeros((1, self._spec.action_dim)), np.zeros(1, dtype=bool)
        return HostTransition(action, np.zeros(1), false, false, obs[None], obs[None], ~false)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by their name in checkpoints."""
        return {
            "obs": self.obs,
            "steps": self.steps,
            "reward": self.reward,
            "ended": self.ended,
            "episode": self._episode,
            "length": self._length,
            "total": self._total,
        }

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of a checkpoint."""
        for name, array in self.arrays().items():
            array[...] = saved[name]
        for member in range(len(self._members)):
            self._next_seeds[member] = self._seed(member, int(self._episode[member]) + 1)

    def _finish(self, member: int) -> Episode:
        number, length = int(self._episode[member]), int(self._length[member])
        episode = Episode(member, number, length, float(self._total[member]))
        self._episode[member] += 1
        self._length[member] = self._total[member] = 0
        self._next_seeds[member] = self._seed(member, number + 2)
        return episode

    def _seed(self, member: int, index: int) -> int:
        return episode_seed(self._members[member].seed, "train", index)
