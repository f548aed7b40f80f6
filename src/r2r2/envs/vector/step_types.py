"""What is asked of a pool's slots, and what it gives."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.errors import Fault
from r2r2.envs.spec import Member
from r2r2.envs.vector.local_envs import EnvFactory


class EnvSlot(NamedTuple):
    """What one slot of a pool is for."""

    member: Member
    recipe: EnvFactory
    purpose: str  # 'training' or 'evaluation'


class StepResult(NamedTuple):
    """What one step gave, a row for each slot stepped; the arrays are fresh.

    The row of a slot that failed has no reward, no end, and the last good observation.
    """

    reached: NDArray[np.float64]  # [K, obs]; at an episode's end the one it ended in
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]; a time limit
    obs: NDArray[np.float64]  # [K, obs], acted on next
    # The pool's slots that lost their episode, whether they had a part in the turn or
    # not; those whose own failure it was come first.
    faults: tuple[Fault, ...] = ()

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays, [K, ...] each."""
        return tuple(cast(Any, self)[:-1])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whose episode is over, [K]."""
        return self.terminated | self.truncated

    def part(self, begin: int, end: int) -> "StepResult":
        """Some of the rows, with the faults of all."""
        rows = [column[begin:end] for column in self.columns]
        return StepResult(*cast(Any, rows))._replace(faults=self.faults)

    def without(self, slots: Sequence[int], faults: tuple[Fault, ...]) -> "StepResult":
        """The step with its faults, and nothing of what the failed of `slots` did."""
        failed = np.isin(slots, [fault.slot for fault in faults])
        return StepResult(
            reached=np.where(failed[:, None], self.obs, self.reached),
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
