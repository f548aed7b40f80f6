"""Who owes how many updates: after every step, or in bursts between assessments."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.training.policy_checkpointing import (
    AssessmentState,
    after_episode,
    after_updates,
)
from r2r2.training.rollout import Episode


class Schedule:
    """Each member's warm-up, updates made and updates owed, on the host.

    Warm-up ends after `warmup` steps or, where the agent says so, with the first
    episode that ends at or after them; its steps are not made up for.
    """

    def __init__(self, config: RunConfig, size: int):
        self._config = config
        agent = config.agent
        self._assessment = agent.assessment if agent.policy_checkpoints else None
        fresh = AssessmentState(
            self._assessment.early_episodes if self._assessment else 0
        )
        self.trackers = [fresh] * size
        self._whole = config.agent.warmup_ends_with_episode
        at_once = not self._whole and not config.warmup
        self.warm = np.full(size, at_once)  # past its warm-up
        self.made = np.zeros(size, dtype=int)
        self.owed = np.zeros(size, dtype=int)
        self.forgiven = np.zeros(size, dtype=int)  # owed at the run's end

    def after_step(
        self, members: Sequence[int], steps: np.ndarray, episodes: Sequence[Episode]
    ) -> list[int]:
        """Books a step of `members`; gives those whose policy is to be kept now."""
        kept: list[int] = []
        if self._assessment:
            warm = [episode for episode in episodes if self.warm[episode.member]]
            kept = [episode.member for episode in warm if self._assess(episode)]
        else:
            who = [member for member in members if self.warm[member]]
            self.owed[who] += self._config.utd
        over = [episode.member for episode in episodes] if self._whole else members
        for member in over:
            self.warm[member] |= steps[member] >= self._config.warmup
        return kept

    def book(self, members: Sequence[int], count: int) -> None:
        """Counts updates of `members` as made."""
        if self._assessment:
            for member in members:
                self.trackers[member] = after_updates(
                    self._assessment,
                    self.trackers[member],
                    int(self.made[member]),
                    count,
                    self._config.utd,
                )
        self.made[list(members)] += count
        self.owed[list(members)] -= count

    def forgive(self, member: int) -> int:
        """Drops the burst that a member owes at its run's end; says how many."""
        if not self._assessment:
            return 0
        self.forgiven[member], self.owed[member] = self.owed[member], 0
        return int(self.forgiven[member])

    def go_on(self, members: NDArray[np.bool_]) -> None:
        """Members [S] that were done get more steps: they owe what was forgiven."""
        self.owed[members] += self.forgiven[members]
        self.forgiven[members] = 0

    def drop(self, episode: Episode) -> None:
        """Books an episode that was given up: its steps are trained on, no more."""
        member, tracker = episode.member, self.trackers[episode.member]
        if self._assessment and self.warm[member]:
            steps = tracker.steps + episode.length
            self.trackers[member] = tracker._replace(steps=steps)

    def stop(self, member: int) -> None:
        """A member that is stopped owes nothing, however far the run is to go."""
        self.owed[member] = self.forgiven[member] = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name, to be saved; `restore` puts such arrays back."""
        columns = zip(*self.trackers, strict=True)
        trackers = dict(
            zip(AssessmentState._fields, map(np.array, columns), strict=True)
        )
        return trackers | {
            "warm": self.warm,
            "made": self.made,
            "owed": self.owed,
            "forgiven": self.forgiven,
        }

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Stands where the saved one stood."""
        for name in ("warm", "made", "owed", "forgiven"):
            getattr(self, name)[...] = saved[name]
        columns = [saved[name].tolist() for name in AssessmentState._fields]
        self.trackers = [AssessmentState(*row) for row in zip(*columns, strict=True)]

    def _assess(self, episode: Episode) -> bool:
        member = episode.member
        tracker, order = after_episode(
            self.trackers[member], episode.length, episode.total, self._config.utd
        )
        self.trackers[member] = tracker
        self.owed[member] += order.updates
        return order.keep
