"""Points of the learning curve: whose is due, played beside training."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from r2r2.config.run import RunConfig
from r2r2.core import Agent
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool, Step, Turn
from r2r2.measure.evaluate import Evaluated, Evaluator, play_out
from r2r2.run.journal import Counts, Journal


class Held(NamedTuple):
    """An evaluation that waits for the environment: its counts and its policy."""

    counts: Counts
    evaluated: Evaluated


class Points:
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
        journal: Journal,
        lent: bool,
    ):
        self._gap = config.eval_every // config.eval_average
        self._episodes = config.eval_episodes
        self._pool, self._journal = pool, journal
        slots = range(len(members), len(pool.places))
        self._evaluator = Evaluator(agent, members, slots, self._episodes, "evaluate")
        self._lent = lent
        self._held: list[Held] = []
        self._counts: dict[int, Counts] = {}  # by member under evaluation
        self._begun = np.zeros(len(members), dtype=int)
        # Who waits for its policy to be taken, with its counts at that step.
        self.due: dict[int, Counts] = {}

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

    def begin(self, evaluated: Evaluated) -> None:
        """Takes what is evaluated of those due, as it is now."""
        members = sorted(set(self.due) - set(self._evaluator.busy))
        if not members:
            return
        counts = {member: self.due.pop(member) for member in members}
        if self._lent:
            kept = jax.device_put(evaluated.policies, may_alias=False)
            self._held.append(Held(counts[0], evaluated._replace(policies=kept)))
        else:
            self._counts |= counts
            self._start(members, evaluated)

    def turn(self) -> Turn:
        """The next step of every episode under way."""
        return self._evaluator.turn()

    def take(self, step: Step) -> None:
        """Books a turn, and the evaluations that it finished."""
        for member, returns in self._evaluator.take(step):
            self._journal.evaluation(member, self._counts.pop(member), returns)

    def between_episodes(self) -> None:
        """Plays what waits for the one environment, to the end."""
        for counts, evaluated in self._held:
            self._start([0], evaluated)
            found = play_out(self._evaluator, self._pool)
            self._journal.evaluation(0, counts, found[0])
        self._held = []

    def _start(self, members: Sequence[int], evaluated: Evaluated) -> None:
        first = [int(self._begun[member]) * self._episodes for member in members]
        self._evaluator.begin(self._pool, members, evaluated, first)
        self._begun[list(members)] += 1
