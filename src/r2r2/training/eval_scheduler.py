"""Evaluations at fixed steps and at the end: the points of the learning curve."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.diagnostics.value_bias import ValueBiasTracker
from r2r2.envs.spec import Fault, Member
from r2r2.envs.vector.pool import EnvPool, TakenRows
from r2r2.training.evaluation import EvalEpisodes, EvalPolicies, Evaluator, SavedPolicy, play_to_end
from r2r2.training.run_log import Counts, RunLog


class DeferredEval(NamedTuple):
    """An evaluation that waits for the shared environment."""

    counts: Counts
    policies: EvalPolicies


class SavedEvals(NamedTuple):
    """Running and deferred evaluations on the host."""

    policies: list[EvalPolicies]  # of the running ones, if any, and of each deferred
    obs: NDArray[np.float64]  # [running slots, obs]
    notes: dict[str, Any]  # JSON values
    best: dict[int, SavedPolicy]  # by member


class EvalScheduler:
    """Evaluates members when they reach an evaluation step, and at their last step.

    Training does not depend on evaluations, so it continues beside them; it waits only
    if a member is due again before its last evaluation has finished. The episodes of an
    evaluation are a function of its step, so that those of a run that gets more steps
    later do not depend on the evaluation at its earlier end.

    With `shared_env`, one environment serves both: an evaluation waits for the end of
    the training episode, and training waits for the evaluation.
    """

    def __init__(
        self,
        config: RunConfig,
        members: Sequence[Member],
        pool: EnvPool,
        log: RunLog,
        shared_env: bool,
    ):
        self._interval = config.eval_every // config.eval_average
        self._steps, self._episodes = config.steps, config.eval_episodes
        self._pool, self._log, self.shared_env = pool, log, shared_env
        slots = range(len(members), len(pool.slots))
        episodes = EvalEpisodes(members, slots, self._episodes, "evaluate")
        self._evaluator = Evaluator(episodes, len(members))
        self._cancelled: dict[int, Counts] = {}  # of members that were stopped
        self._deferred: list[DeferredEval] = []
        self._counts: dict[int, Counts] = {}  # by member under evaluation
        self._best: dict[int, SavedPolicy] = {}  # by member
        # Members whose policy must still be copied, with their counts at that step.
        self.due: dict[int, Counts] = {}
        self.value_bias = ValueBiasTracker(config.agent.discount)

    @property
    def width(self) -> int:
        """The number of episodes of an evaluation that run at once."""
        return self._evaluator.episodes.width

    @property
    def busy(self) -> bool:
        """Whether episodes are running."""
        return bool(self._evaluator.episodes.busy)

    @property
    def pending(self) -> bool:
        """Whether any evaluation is running, due or deferred."""
        return bool(self.busy or self.due or self._deferred)

    @property
    def startable(self) -> dict[int, Counts]:
        """The members whose evaluation can start now."""
        members = sorted(set(self.due) - set(self._evaluator.episodes.busy))
        return {member: self.due[member] for member in members}

    def is_due_at(self, step: int) -> bool:
        """Return whether a member is evaluated after this decision step, as after its last one."""
        return step % self._interval == 0 or step == self._steps

    def steps_until_due(self, step: int) -> int:
        """Return the decision steps after `step` until an evaluation is due."""
        return min(self._interval - step % self._interval, max(1, self._steps - step))

    def start(self, policies: EvalPolicies) -> tuple[Fault, ...]:
        """Start the evaluations that can start; return the slots that failed."""
        counts = self.startable
        for member in counts:
            del self.due[member]
        if not counts:
            return ()
        if self.shared_env:
            copy = policies._replace(policies=jax.tree.map(np.array, policies.policies))
            self._deferred.append(DeferredEval(counts[0], copy))
            return ()
        return self._begin(counts, policies)

    def first_obs(self, member: int) -> NDArray[np.float64]:
        """Return the first observations of an evaluation that just began, [E, obs]."""
        episodes = self._evaluator.episodes
        return np.array([episodes.obs[x.slot] for x in episodes.running if x.member == member])

    def obs_by_slot(self) -> dict[int, NDArray[np.float64]]:
        """Return the observations with which the running episodes began, or were resumed."""
        return dict(self._evaluator.episodes.obs)

    def play(self) -> None:
        """Have the workers play the running episodes."""
        self._evaluator.play(self._pool)

    def take(self, wait: bool) -> TakenRows:
        """Record steps that workers have made, and log the evaluations that they finished."""
        episodes = self._evaluator.episodes
        slots = [episode.slot for episode in episodes.running]
        taken = self._pool.take(slots, wait, lambda _: sys.maxsize)
        for slot, reward in zip(taken.slots, taken.reward, strict=True):
            if episode := episodes.in_slot(slot):
                self.value_bias.record(episode.member, episode.number, float(reward))
        for member, returns in episodes.record(taken):
            counts = self._counts.pop(member)
            self._finish(member, counts, returns)
            if summary := self.value_bias.finish(member):
                self._log.event("value", member, counts, summary)
        return taken

    def run_deferred(self, recover: Callable[[Fault], None]) -> None:
        """Run the deferred evaluations in the shared environment, to their end."""
        while self._deferred:  # emptied by `cancel` if the member is stopped
            (counts, policies), *_ = self._deferred
            for fault in self._begin({0: counts}, policies):
                recover(fault)
            for returns in play_to_end(self._evaluator, self._pool, recover).values():
                self._finish(0, self._counts.pop(0), returns)
            self._deferred = self._deferred[1:]

    def _finish(self, member: int, counts: Counts, returns: NDArray[np.float64]) -> None:
        """Log an evaluation, and save its policy if it is the member's best so far."""
        mean, earlier = float(returns.mean()), self._log.best_mean(member)
        if member in self._best:  # perhaps at the end of the run before it got more steps
            earlier = max(earlier, float(self._best[member].mean))
        cut = self._evaluator.episodes.cut_episodes(member)
        self._log.evaluation(member, counts, returns, cut)
        if mean > earlier:
            policy = self._evaluator.member_policy(member)
            best = SavedPolicy(*policy, np.asarray(counts[0]), np.asarray(mean))
            self._best[member] = best
            self._log.save_best_weights(member, best)

    def retry(self, slot: int) -> tuple[int, int] | None:
        """Return the member of a failed slot's episode and the seed to restart it."""
        episodes = self._evaluator.episodes
        episode = episodes.in_slot(slot)
        return (episode.member, episodes.retry_seed(episode)) if episode else None

    def restart(self, slot: int, obs: NDArray[np.float64]) -> None:
        """Restart a slot's episode from `obs`."""
        episodes = self._evaluator.episodes
        episodes.restart(slot, obs)
        if episode := episodes.in_slot(slot):
            same_start = not episodes.has_new_start(episode)
            self.value_bias.restart(episode.member, episode.number, same_start)

    def cancel(self, member: int) -> None:
        """Cancel all evaluations of a member that is stopped."""
        self._evaluator.episodes.cancel(member)
        running, due = self._counts.pop(member, None), self.due.pop(member, None)
        self.value_bias.finish(member)
        deferred = self._deferred[0].counts if self.shared_env and self._deferred else None
        if counts := running or due or deferred:
            self._cancelled[member] = counts
        if self.shared_env:
            self._deferred = []

    def running_seeds(self) -> dict[int, int]:
        """Return the seed of each running episode by its slot."""
        episodes = self._evaluator.episodes
        return {episode.slot: episodes.seed(episode) for episode in episodes.running}

    def saved(self) -> SavedEvals:
        """Return everything that a checkpoint must hold."""
        episodes = self._evaluator.episodes
        notes = episodes.notes() | {
            "due": [[member, *counts] for member, counts in self.due.items()],
            "counts": [[member, *counts] for member, counts in self._counts.items()],
            "cancelled": [[member, *counts] for member, counts in self._cancelled.items()],
            "held": [list(deferred.counts) for deferred in self._deferred],
            "biases": list(map(list, self.value_bias.rows())),
        }
        policies = [self._evaluator.policies()] if self.busy else []
        policies += [jax.device_get(deferred.policies) for deferred in self._deferred]
        obs = np.array([episodes.obs[episode.slot] for episode in episodes.running])
        obs = obs.reshape(-1, self._pool.spec.obs_dim)
        return SavedEvals(policies, obs, notes, dict(self._best))

    def restore(self, saved: SavedEvals, stopped: Collection[int] = ()) -> tuple[Fault, ...]:
        """Continue saved evaluations, or repeat them if the width differs; return the faults.

        Evaluations in which a member was stopped are due again, unless it is still `stopped`.
        """
        notes, faults = saved.notes, tuple[Fault, ...]()
        self._best = dict(saved.best)
        self._log.restore_best_weights(self._best)
        self.due = {member: (d, u) for member, d, u in notes["due"]}
        self._cancelled = {member: (d, u) for member, d, u in notes.get("cancelled", [])}
        for member in self._cancelled.keys() - {*stopped}:
            self.due[member] = self._cancelled.pop(member)
        self._counts = {member: (d, u) for member, d, u in notes["counts"]}
        running, policies = bool(notes["playing"]), list(saved.policies)
        again = running and notes["width"] != self.width
        self.value_bias.restore(notes.get("biases", []), again)
        if again:
            members = sorted({member for member, *_ in notes["playing"]})
            faults = self._begin({m: self._counts[m] for m in members}, policies.pop(0))
        elif running:
            self._evaluator.episodes.restore(notes, saved.obs)
            self._evaluator.restore(self._pool, policies.pop(0))
        deferred = zip(notes["held"], policies, strict=True)
        self._deferred = [DeferredEval((d, u), policy) for (d, u), policy in deferred]
        return faults

    def _begin(self, counts: Mapping[int, Counts], policies: EvalPolicies) -> tuple[Fault, ...]:
        """Start evaluations of members with these counts; return the slots that failed."""
        self._counts |= counts
        # An end between two evaluation steps uses the episodes of the next one.
        first = [(step - 1) // self._interval * self._episodes for step, _ in counts.values()]
        return self._evaluator.begin(self._pool, list(counts), policies, first)
