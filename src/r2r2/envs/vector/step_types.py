"""What is asked of the slots of a pool, and what they return."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from r2r2.config.fields import NO_ARGS, JsonObject
from r2r2.envs.make import Env, EnvBuilder, adapt_env, make_raw_env
from r2r2.envs.spec import Fault, Member
from r2r2.envs.suites import is_builtin

NO_EPISODE = -1  # instead of a seed: start no new episode

STREAM = "stream/"  # prefix of what a saved state holds of a slot that plays
FAULT = f"{STREAM}fault"  # why a slot that plays has failed, after the rows that it made

SavedState = dict[str, NDArray[Any]]  # arrays of kinds b, i, u and f, by name


def text_to_array(text: str) -> NDArray[np.uint32]:
    """Return a text as its code points, which any text has."""
    return np.array([ord(character) for character in text], np.uint32)


def array_to_text(array: NDArray[Any]) -> str:
    """Return the text of an array, or raise ValueError if it is not that of one."""
    if array.dtype != np.uint32 or array.ndim != 1 or not array.size:
        raise ValueError(f"expected uint32[characters], got {array.dtype}{list(array.shape)}")
    return "".join(map(chr, array.tolist()))


class EnvFactory(NamedTuple):
    """Builds an environment, in whichever process."""

    task: str
    action_repeat: int
    builder: EnvBuilder | None = None  # used instead of the task's id
    max_steps: int = 0  # environment steps until an episode is truncated; 0: no such limit
    fallback: int = 0  # the same for a task without a time limit
    args: JsonObject = NO_ARGS  # keyword arguments of the constructor

    @property
    def is_builtin(self) -> bool:
        """Whether the environment comes with Gymnasium or dm_control, and is known to work."""
        return self.builder is None and self.args == NO_ARGS and is_builtin(self.task)

    def make(self) -> Any:
        """Return a new environment, not yet checked."""
        return make_raw_env(self.task, args=self.args.to_dict(), builder=self.builder)

    def adapt(self, env: Any) -> Env:
        """Check an environment and return it as agents see it."""
        return adapt_env(self.task, env, self.action_repeat, self.max_steps, self.fallback)

    def build(self) -> Env:
        """Return a new environment as agents see it."""
        return self.adapt(self.make())


class EnvSlot(NamedTuple):
    """One slot of a pool: whose environment it holds, and for which purpose."""

    member: Member
    factory: EnvFactory
    purpose: str  # 'training' or 'evaluation'


class StepRequest(NamedTuple):
    """The actions of some slots."""

    slots: Sequence[int]
    actions: NDArray[np.floating]  # [K, action], in [-1, 1]
    seeds: Sequence[int]  # of the episode to start if the current one ends


def concat_requests(requests: Sequence[StepRequest]) -> StepRequest:
    """Concatenate requests for different slots."""
    return StepRequest(
        slots=[slot for request in requests for slot in request.slots],
        actions=np.concatenate([request.actions for request in requests]),
        seeds=[seed for request in requests for seed in request.seeds],
    )


class StepResult(NamedTuple):
    """The outcome of one step, with a row per requested slot; the arrays are new.

    In the row of a failed slot the reward is 0, nothing ended, and both observations
    are the last valid one.
    """

    next_obs: NDArray[np.float64]  # [K, obs], outcome of the action, also at the end
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K], by a time limit
    obs: NDArray[np.float64]  # [K, obs], to act on: `next_obs`, or of a new episode
    # All slots of the pool that lost their episode, requested or not; those whose
    # environment failed come first.
    faults: tuple[Fault, ...] = ()

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All fields except the faults, [K, ...] each."""
        return tuple(cast(Any, self)[:-1])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whether the episode ended, [K]."""
        return self.terminated | self.truncated

    def rows(self, begin: int, end: int) -> "StepResult":
        """Return some of the rows, with all faults."""
        rows: Any = (array[begin:end] for array in self.arrays)
        return StepResult(*rows)._replace(faults=self.faults)

    def with_faults(self, slots: Sequence[int], faults: tuple[Fault, ...]) -> "StepResult":
        """Return the result with faults, and neutral values in the failed rows."""
        failed = np.isin(slots, [fault.slot for fault in faults])
        return self._replace(
            next_obs=np.where(failed[:, None], self.obs, self.next_obs),
            reward=np.where(failed, 0.0, self.reward),
            terminated=self.terminated & ~failed,
            truncated=self.truncated & ~failed,
            faults=faults,
        )
