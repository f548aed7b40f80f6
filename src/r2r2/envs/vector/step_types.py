"""What is asked of a pool's slots, and what it gives."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.errors import Fault
from r2r2.envs.make import Env, EnvBuilder, adapt_env, make_env
from r2r2.envs.spec import Member

NO_EPISODE = -1  # in place of a seed: begin none

SavedState = dict[str, NDArray[Any]]  # plain arrays, of kinds b, i, u and f


class EnvFactory(NamedTuple):
    """How to build one environment, in whichever process.

    Example:
        >>> EnvFactory("Pendulum-v1", action_repeat=1).build().action_space.shape
        (1,)
    """

    task: str
    action_repeat: int
    builder: EnvBuilder | None = None  # builds it in place of the task's id

    def build(self) -> Env:
        """The environment as agents see it."""
        if self.builder is None:
            return make_env(self.task, self.action_repeat)
        return adapt_env(self.task, self.builder(), self.action_repeat)


class EnvSlot(NamedTuple):
    """What one slot of a pool is for."""

    member: Member
    factory: EnvFactory
    purpose: str  # 'training' or 'evaluation'


class StepResult(NamedTuple):
    """What one step gave, a row for each slot stepped; the arrays are fresh.

    The row of a slot that failed has no reward, no end, and the last good observation.
    """

    next_obs: NDArray[np.float64]  # [K, obs]; at an episode's end the one it ended in
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]; a time limit
    obs: NDArray[np.float64]  # [K, obs], acted on next
    # The pool's slots that lost their episode, whether they had a part in the turn or
    # not; those whose own failure it was come first.
    faults: tuple[Fault, ...] = ()

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The arrays, [K, ...] each."""
        return tuple(cast(Any, self)[:-1])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whose episode is over, [K]."""
        return self.terminated | self.truncated

    def rows(self, begin: int, end: int) -> "StepResult":
        """Some of the rows, with the faults of all."""
        rows = [column[begin:end] for column in self.arrays]
        return StepResult(*cast(Any, rows))._replace(faults=self.faults)

    def without(self, slots: Sequence[int], faults: tuple[Fault, ...]) -> "StepResult":
        """The step with its faults, and nothing of what the failed of `slots` did."""
        failed = np.isin(slots, [fault.slot for fault in faults])
        return StepResult(
            next_obs=np.where(failed[:, None], self.obs, self.next_obs),
            reward=np.where(failed, 0.0, self.reward),
            terminated=self.terminated & ~failed,
            truncated=self.truncated & ~failed,
            obs=self.obs,
            faults=faults,
        )


class StepRequest(NamedTuple):
    """What some slots are to do."""

    slots: Sequence[int]
    actions: NDArray[np.floating]  # [K, action], in [-1, 1]
    seeds: Sequence[int]  # of the episodes to begin where one ends, or NO_EPISODE


def concat_requests(turns: Sequence[StepRequest]) -> StepRequest:
    """Several turns, of different slots, as one."""
    return StepRequest(
        slots=[slot for turn in turns for slot in turn.slots],
        actions=np.concatenate([turn.actions for turn in turns]),
        seeds=[seed for turn in turns for seed in turn.seeds],
    )
