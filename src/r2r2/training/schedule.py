"""When members update: after every step, or in bursts between policy assessments.

TD7's policy checkpointing keeps the behavior policy fixed while it is assessed for
whole episodes, and updates only in between. A policy that passes its assessment
becomes the policy checkpoint, which is the one evaluated.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.common import AssessmentConfig
from r2r2.config.run import RunConfig
from r2r2.training.rollout import Episode


class AssessmentState(NamedTuple):
    """The current assessment of one member's policy."""

    max_episodes: int
    episodes: int = 0
    steps: int = 0  # decision steps since the last updates
    min_return: float = 1e8
    best_min: float = -1e8


class NextAction(NamedTuple):
    """What follows an episode: perhaps a policy checkpoint, then updates."""

    checkpoint: bool
    updates: int


def after_episode(
    state: AssessmentState, length: int, episode_return: float, utd: int
) -> tuple[AssessmentState, NextAction]:
    """Return the assessment after an episode, and what to do next.

    A policy whose worst return falls below the best one so far fails at once; one that
    lasts all its episodes becomes the policy checkpoint. Updates follow either way.
    """
    state = state._replace(
        episodes=state.episodes + 1,
        steps=state.steps + length,
        min_return=min(state.min_return, episode_return),
    )
    failed = state.min_return < state.best_min
    if not failed and state.episodes < state.max_episodes:
        return state, NextAction(checkpoint=False, updates=0)
    best = state.best_min if failed else state.min_return
    fresh = AssessmentState(max_episodes=state.max_episodes, best_min=best)
    return fresh, NextAction(checkpoint=not failed, updates=state.steps * utd)


def after_updates(
    config: AssessmentConfig, state: AssessmentState, done: int, count: int, utd: int
) -> AssessmentState:
    """Return the assessment after `count` updates beyond the first `done`.

    When they contain the switch to long assessments, the best score so far is scaled
    down (up, if it is negative, as in the released code).
    """
    switch = config.switch * (utd if config.count == "decisions" else 1)
    if not done <= switch < done + count:
        return state
    return state._replace(
        max_episodes=config.late_episodes, best_min=state.best_min * config.reset_weight
    )


class Schedule:
    """Warm-up, done and pending updates of every member, on the host.

    Warm-up ends after `warmup` steps or, where the agent config says so, with the first
    episode that ends at or after them; with `random_only`, never. Its steps cause no updates.
    Updates on recorded data alone are pending from the beginning.
    """

    def __init__(self, config: RunConfig, size: int):
        self._config = config
        agent = config.agent
        self._assessment = agent.assessment if agent.policy_checkpoints else None
        episodes = self._assessment.early_episodes if self._assessment else 0
        self._states = [AssessmentState(episodes)] * size
        self._whole_episodes = agent.warmup_ends_with_episode
        self._warmup = math.inf if config.random_only else config.warmup
        # A policy that has learned before acts at once; without it, the first episode is random.
        at_once = not self._whole_episodes or bool(config.prefill or config.init_from)
        self.warm = np.full(size, at_once and not self._warmup)
        self.done = np.zeros(size, dtype=int)
        self.pending = np.full(size, config.prefill_only_updates)
        self.skipped = np.zeros(size, dtype=int)  # pending at the end of the run

    def random_steps(self, step: int) -> int:
        """Return how many more random steps a member in warm-up makes at most, after `step`."""
        if self._whole_episodes or math.isinf(self._warmup):
            return sys.maxsize
        return max(1, int(self._warmup) - step)

    def record_step(
        self,
        members: Sequence[int] | NDArray[np.int_],
        steps: NDArray[np.int_],
        episodes: Sequence[Episode],
    ) -> list[int]:
        """Record a step; return the members whose policy must be checkpointed."""
        stepped = np.asarray(members, dtype=int)
        checkpointed: list[int] = []
        if self._assessment:
            assessed = [episode for episode in episodes if self.warm[episode.member]]
            checkpointed = [x.member for x in assessed if self._record_episode(x)]
        else:
            self.pending[stepped[self.warm[stepped]]] += self._config.utd
        if not self.warm.all():
            ended = np.array([episode.member for episode in episodes], dtype=int)
            checked = ended if self._whole_episodes else stepped
            self.warm[checked] |= steps[checked] >= self._warmup
        return checkpointed

    def record_updates(self, members: Sequence[int], count: int) -> None:
        """Count `count` pending updates of `members` as done."""
        if self._assessment:
            for member in members:
                state, done = self._states[member], int(self.done[member])
                new = after_updates(self._assessment, state, done, count, self._config.utd)
                self._states[member] = new
        index = list(members)
        self.done[index] += count
        self.pending[index] -= count

    def skip_pending(self, member: int) -> int:
        """Drop the burst that is pending at a member's last step; return its length."""
        if not self._assessment:
            return 0
        self.skipped[member], self.pending[member] = self.pending[member], 0
        return int(self.skipped[member])

    def resume_skipped(self, members: NDArray[np.bool_]) -> None:
        """Make skipped updates of members [S] that get more steps pending again."""
        self.pending[members] += self.skipped[members]
        self.skipped[members] = 0

    def record_dropped(self, episode: Episode) -> None:
        """Record an abandoned episode: its steps cause updates but no assessment."""
        member, state = episode.member, self._states[episode.member]
        if self._assessment and self.warm[member]:
            self._states[member] = state._replace(steps=state.steps + episode.length)

    def stop(self, member: int) -> None:
        """Drop all updates of a member that is stopped."""
        self.pending[member] = self.skipped[member] = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by their name in checkpoints."""
        columns = map(np.array, zip(*self._states, strict=True))
        return dict(zip(AssessmentState._fields, columns, strict=True)) | self._counts()

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of a checkpoint."""
        for name, array in self._counts().items():
            array[...] = saved[name]
        columns = [saved[name].tolist() for name in AssessmentState._fields]
        self._states = [AssessmentState(*row) for row in zip(*columns, strict=True)]

    def _counts(self) -> dict[str, NDArray[Any]]:
        return {
            "warm": self.warm,
            "made": self.done,
            "owed": self.pending,
            "forgiven": self.skipped,
        }

    def _record_episode(self, episode: Episode) -> bool:
        """Record an assessed episode; return whether its policy is checkpointed."""
        member = episode.member
        self._states[member], action = after_episode(
            self._states[member], episode.length, episode.total, self._config.utd
        )
        self.pending[member] += action.updates
        return action.checkpoint
