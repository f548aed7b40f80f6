"""Who owes how many updates: after every step, or in bursts between assessments."""

from collections.abc import Iterable, Sequence

import numpy as np

from r2r2.config.run import RunConfig
from r2r2.interact.assessment import Tracker, after_episode, after_updates
from r2r2.interact.rollout import Episode


class Schedule:
    """Each member's warm-up, updates made and updates owed, on the host.

    Warm-up ends with the first episode that ends at or after `warmup` steps; its steps
    are not made up for.
    """

    def __init__(self, config: RunConfig, size: int):
        self._config = config
        self._assessment = config.agent.assessment
        fresh = Tracker(self._assessment.early_episodes)
        self.trackers = [fresh] * size
        self.warm = np.zeros(size, dtype=bool)  # past its warm-up
        self.made = np.zeros(size, dtype=int)
        self.owed = np.zeros(size, dtype=int)

    def after_step(
        self, members: Sequence[int], steps: np.ndarray, episodes: Iterable[Episode]
    ) -> list[int]:
        """Books a step of `members`; gives those whose policy is to be kept now."""
        bursts = self._config.agent.policy_checkpoints
        if not bursts:
            who = [member for member in members if self.warm[member]]
            self.owed[who] += self._config.utd
        kept: list[int] = []
        for episode in episodes:
            if bursts and self.warm[episode.member] and self._assess(episode):
                kept.append(episode.member)
            if steps[episode.member] >= self._config.warmup:
                self.warm[episode.member] = True
        return kept

    def book(self, members: Sequence[int], count: int) -> None:
        """Counts updates of `members` as made."""
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
        if not self._config.agent.policy_checkpoints:
            return 0
        owed, self.owed[member] = int(self.owed[member]), 0
        return owed

    def _assess(self, episode: Episode) -> bool:
        member = episode.member
        tracker, order = after_episode(
            self.trackers[member], episode.length, episode.total, self._config.utd
        )
        self.trackers[member] = tracker
        self.owed[member] += order.updates
        return order.keep
