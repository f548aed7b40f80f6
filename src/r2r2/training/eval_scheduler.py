"""Points of the learning curve: whose is due, played beside training."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent
from r2r2.config.run import RunConfig
from r2r2.envs.errors import Fault
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import StepRequest, StepResult
from r2r2.training.evaluation import (
    Episodes,
    EvalPolicies,
    Evaluator,
    Playing,
    Underway,
    play_to_end,
)
from r2r2.training.run_log import Counts, RunLog
from r2r2.training.value_bias import ValueBiases


class DeferredEval(NamedTuple):
    """An evaluation that waits for the environment: its counts and its policy."""

    counts: Counts
    evaluated: EvalPolicies


class SavedEvals(NamedTuple):
    """Evaluations under way and due, on the host."""

    evaluated: list[EvalPolicies]  # of those under way, if some are, and of those held
    obs: NDArray[np.float64]  # [slots under way, obs]
    notes: dict[str, Any]  # as JSON has it


class EvalScheduler:
    """Evaluates members as they come to the steps where a point is due.

    Nothing that is learnt depends on an evaluation, so training goes on beside it; it
    waits only where a member is due again before its last evaluation is done.

    With one environment for both, `lent`, an evaluation waits for the end of the
    episode, and training for that of the evaluation.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        members: Sequence[Member],
        pool: EnvPool,
        journal: RunLog,
        lent: bool,
    ):
        self._gap = config.eval_every // config.eval_average
        self._episodes = config.eval_episodes
        self._pool, self._journal = pool, journal
        slots = range(len(members), len(pool.slots))
        episodes = Episodes(members, slots, self._episodes, "evaluate")
        self._evaluator = Evaluator(agent, episodes, len(members))
        self.lent = lent
        self._held: list[DeferredEval] = []
        self._counts: dict[int, Counts] = {}  # by member under evaluation
        self._begun = np.zeros(len(members), dtype=int)
        # Who waits for its policy to be taken, with its counts at that step.
        self.due: dict[int, Counts] = {}
        self.biases = ValueBiases(config.agent.discount)

    @property
    def width(self) -> int:
        """Episodes of an evaluation that are played at once."""
        return self._evaluator.episodes.width

    @property
    def busy(self) -> bool:
        """Whether episodes are under way."""
        return bool(self._evaluator.busy)

    @property
    def pending(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.busy or self.due or self._held)

    def reached(self, member: int, counts: Counts) -> None:
        """Says how far a member has come, with all updates up to that step."""
        if counts[0] % self._gap == 0:
            self.due[member] = counts

    @property
    def beginning(self) -> dict[int, Counts]:
        """Whose evaluation can begin now."""
        members = sorted(set(self.due) - set(self._evaluator.busy))
        return {member: self.due[member] for member in members}

    def begin(self, evaluated: EvalPolicies) -> tuple[Fault, ...]:
        """Takes what is evaluated of those due, as it is now; gives what failed."""
        counts = self.beginning
        for member in counts:
            del self.due[member]
        if not counts:
            return ()
        if self.lent:
            kept = jax.device_put(evaluated.policies, may_alias=False)
            self._held.append(
                DeferredEval(counts[0], evaluated._replace(policies=kept))
            )
            return ()
        self._counts |= counts
        return self._start(list(counts), evaluated)

    def first_states(self, member: int) -> NDArray[np.float64]:
        """What a member's episodes that have just begun began with, [E, obs]."""
        return self._evaluator.episodes.standing(member)

    def turn(self) -> StepRequest:
        """The next step of every episode under way."""
        return self._evaluator.turn()

    def take(self, step: StepResult) -> None:
        """Books a turn, and the evaluations that it finished."""
        self.biases.take(self._evaluator.episodes.playing, step)
        for member, returns in self._evaluator.take(step):
            counts = self._counts.pop(member)
            self._journal.evaluation(member, counts, returns)
            if found := self.biases.done(member):
                self._journal.event("value", member, counts, found)

    def between_episodes(self, mend: Callable[[Fault], None]) -> None:
        """Plays what waits for the one environment, to the end; `mend` what fails."""
        while self._held:  # none any more, once the member is stopped
            (counts, evaluated), *_ = self._held
            for fault in self._start([0], evaluated):
                mend(fault)
            for returns in play_to_end(self._evaluator, self._pool, mend).values():
                self._journal.evaluation(0, counts, returns)
            self._held = self._held[1:]

    def again(self, slot: int) -> tuple[int, int] | None:
        """The member whose episode in a slot failed, and the seed to begin it with."""
        episodes = self._evaluator.episodes
        found = episodes.at(slot)
        return (found.member, episodes.seed_again(found)) if found else None

    def begun(self, slot: int, obs: NDArray[np.float64]) -> None:
        """A slot's episode had to begin again, with `obs`."""
        episodes = self._evaluator.episodes
        episodes.begun(slot, obs)
        if one := episodes.at(slot):
            self.biases.begun(one, same=not episodes.replaced(one))

    def forget(self, member: int) -> None:
        """A member that is stopped is not evaluated any more."""
        self._evaluator.episodes.forget(member)
        self._counts.pop(member, None)
        self.biases.done(member)
        self.due.pop(member, None)
        if self.lent:
            self._held = []

    def running(self) -> dict[int, int]:
        """The slots of episodes under way, each with its episode's seed."""
        episodes = self._evaluator.episodes
        return {one.slot: episodes.seed(one) for one in episodes.playing}

    def saved(self) -> SavedEvals:
        """All of it, to be saved."""
        episodes = self._evaluator.episodes
        obs, playing, returns, first, failed = episodes.underway()
        notes = {
            "width": episodes.width,
            "begun": self._begun.tolist(),
            "due": [[member, *counts] for member, counts in self.due.items()],
            "counts": [[member, *counts] for member, counts in self._counts.items()],
            "held": [list(held.counts) for held in self._held],
            "playing": [list(one) for one in playing],
            "returns": [[member, *x] for member, x in returns.items()],
            "first": list(map(list, first.items())),
            "failed": [[*which, times] for which, times in failed.items()],
            "biases": list(map(list, self.biases.notes())),
        }
        evaluated = [self._evaluator.kept()] if self.busy else []
        evaluated += [jax.device_get(held.evaluated) for held in self._held]
        rows = np.array(list(obs.values())).reshape(-1, self._pool.spec.obs_dim)
        return SavedEvals(evaluated, rows, notes)

    def restore(self, saved: SavedEvals) -> tuple[Fault, ...]:
        """Stands where the saved ones stood; gives what failed.

        Where this machine plays another number of episodes at once, evaluations begin
        again: they come to the same.
        """
        notes, faults = saved.notes, tuple[Fault, ...]()
        self._begun[:] = notes["begun"]
        self.due = {member: (d, u) for member, d, u in notes["due"]}
        self._counts = {member: (d, u) for member, d, u in notes["counts"]}
        playing = [Playing(*one) for one in notes["playing"]]
        evaluated = list(saved.evaluated)
        again = bool(playing) and notes["width"] != self._evaluator.episodes.width
        self.biases.restore(notes.get("biases", []), again)
        if again:
            members = sorted({one.member for one in playing})
            self._begun[members] -= 1
            faults = self._start(members, evaluated.pop(0))
        elif playing:
            rows = {one.slot: x for one, x in zip(playing, saved.obs, strict=True)}
            returns = {member: x for member, *x in notes["returns"]}
            failed = {(m, number): n for m, number, n in notes.get("failed", [])}
            underway = Underway(rows, playing, returns, dict(notes["first"]), failed)
            self._evaluator.go_on(evaluated.pop(0), underway)
        counts = [(decisions, updates) for decisions, updates in notes["held"]]
        self._held = [
            DeferredEval(*pair) for pair in zip(counts, evaluated, strict=True)
        ]
        return faults

    def _start(
        self, members: Sequence[int], evaluated: EvalPolicies
    ) -> tuple[Fault, ...]:
        first = [int(self._begun[member]) * self._episodes for member in members]
        self._begun[list(members)] += 1
        return self._evaluator.begin(self._pool, members, evaluated, first)
