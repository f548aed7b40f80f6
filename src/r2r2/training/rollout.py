"""Where each member stands in its episodes, and what its steps gave."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.step_types import StepRequest, StepResult


class Episode(NamedTuple):
    """An episode that ended."""

    member: int
    number: int  # of the member's episodes, from 0
    length: int  # decision steps
    total: float  # undiscounted return


class HostTransition(NamedTuple):
    """A step of some members on the host, in the fields of `replay.Experience`."""

    action: NDArray[np.floating]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    next_obs: NDArray[np.float64]
    obs: NDArray[np.float64]
    lost: NDArray[np.bool_]


class Rollout:
    """Counts members through their episodes; member m has the pool's slot m.

    The reset of episode `index` is seeded by (seed, index) alone.

    Example:
        >>> from r2r2.envs.vector.pool import EnvPool
        >>> from r2r2.envs.vector.step_types import EnvSlot
        >>> from r2r2.envs.vector.step_types import EnvFactory
        >>> one = Member("Pendulum-v1", 0)
        >>> places = [EnvSlot(one, EnvFactory("Pendulum-v1", 1), "training")]
        >>> with EnvPool(places, workers=0) as pool:
        ...     rollout = Rollout([one], pool.spec)
        ...     rollout.obs = pool.reset([0], rollout.seeds)
        ...     turn = rollout.turn([0], np.zeros((1, 1)))
        ...     seen, ended = rollout.take([0], turn, pool.step(turn))
        >>> rollout.steps.tolist(), ended
        ([1], [])
    """

    def __init__(self, members: Sequence[Member], spec: Spec):
        size = len(members)
        self._members, self._spec = tuple(members), spec
        self.obs = np.zeros((size, spec.obs_dim))  # acted on next
        self.steps = np.zeros(size, dtype=int)  # decision steps made, [S]
        self.reward = np.zeros(size)  # of the last step, [S]
        self.ended = np.zeros(size, dtype=bool)  # whether it ended an episode, [S]
        self._episode = np.zeros(size, dtype=int)
        self._length = np.zeros(size, dtype=int)
        self._total = np.zeros(size)
        self.seeds = [self._seed(member, 0) for member in range(size)]
        self._next_seeds = [self._seed(member, 1) for member in range(size)]

    def turn(
        self, members: Sequence[int], actions: NDArray[np.floating]
    ) -> StepRequest:
        """One decision step of `members`; actions is [K, action], in [-1, 1]."""
        return StepRequest(members, actions, [self._next_seeds[m] for m in members])

    def take(
        self, members: Sequence[int], turn: StepRequest, step: StepResult
    ) -> tuple[HostTransition, list[Episode]]:
        """Books what the turn gave."""
        who = list(members)
        self.steps[who] += 1
        self._length[who] += 1
        self._total[who] += step.reward
        self.obs[who], self.reward[who] = step.obs, step.reward
        self.ended[who] = step.ended
        episodes = [self._finish(int(member)) for member in np.array(who)[step.ended]]
        seen = HostTransition(
            action=turn.actions,
            reward=step.reward,
            terminated=step.terminated,
            ended=step.ended,
            next_obs=step.next_obs,
            obs=step.obs,
            lost=np.zeros(len(who), dtype=bool),
        )
        return seen, episodes

    def seed(self, member: int) -> int:
        """The seed of a member's running episode."""
        return self._seed(member, int(self._episode[member]))

    def drop(self, member: int) -> Episode:
        """Gives a member's running episode up; the next one takes its place.

        What it saw last counts as an end, so that no reward is collected twice.
        """
        self.reward[member], self.ended[member] = 0, True
        return self._finish(member)

    def begin(self, member: int, obs: NDArray[np.float64]) -> HostTransition:
        """Takes the first observation [obs] after a drop; gives what replay is told."""
        self.obs[member] = obs
        action, none = np.zeros((1, self._spec.action_dim)), np.zeros(1, dtype=bool)
        return HostTransition(
            action, np.zeros(1), none, none, obs[None], obs[None], ~none
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name, to be saved; `restore` puts such arrays back."""
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
        """Stands where the saved one stood."""
        for name, array in self.arrays().items():
            array[...] = saved[name]
        for member in range(len(self._members)):
            index = int(self._episode[member])
            self._next_seeds[member] = self._seed(member, index + 1)

    def _finish(self, member: int) -> Episode:
        done = Episode(
            member=member,
            number=int(self._episode[member]),
            length=int(self._length[member]),
            total=float(self._total[member]),
        )
        self._episode[member] += 1
        self._length[member] = 0
        self._total[member] = 0
        self._next_seeds[member] = self._seed(member, int(self._episode[member]) + 1)
        return done

    def _seed(self, member: int, index: int) -> int:
        return episode_seed(self._members[member].seed, "train", index)
