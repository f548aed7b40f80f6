"""Training: one run, one page.

Members collect, train and are evaluated each at its own pace. A turn of the loop is one
decision step of those who collect, while those who owe updates make some.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool, Step, Turn, joined
from r2r2.envs.slots import NO_EPISODE
from r2r2.interact.normalise import first_statistics, normaliser_for
from r2r2.interact.rollout import Rollout
from r2r2.interact.schedule import Schedule
from r2r2.learn.agents.make import make_agent
from r2r2.learn.bursts import next_call
from r2r2.learn.fleet import Fleet, Lengths
from r2r2.measure.evaluate import Evaluated
from r2r2.run.journal import Journal
from r2r2.run.memory import replay_rows
from r2r2.run.points import Points

# Updates per compiled call: a call has no end before its updates have, and a person
# who waits wants to see the bar move.
CALL = 250
# The same while others collect on the same cores: small, so that they go on too.
SHARED_CALL = 16


class Progress(NamedTuple):
    """What a watcher is shown, after every turn."""

    decisions: NDArray[np.int_]  # [S], decision steps made
    updates: NDArray[np.int_]  # [S]
    warm: NDArray[np.bool_]  # [S], past warm-up
    point: int  # decision step of the last evaluation that every member has, or 0
    returns: NDArray[np.float64]  # [S], at that point; NaN before the first


Watcher = Callable[[Progress], None]


def members_of(config: RunConfig) -> tuple[Member, ...]:
    """The fleet's members in order: seeds within tasks."""
    return tuple(Member(task, seed) for task in config.env for seed in config.seeds)


class Training:
    """A run from its first step to its last; `run` is the whole of it.

    Args:
        config: the run.
        pool: slots of the members, then those of their evaluation.
        journal: where it is written down.
        lent: whether training and evaluation share one environment.
    """

    def __init__(
        self, config: RunConfig, pool: EnvPool, journal: Journal, lent: bool = False
    ):
        members = members_of(config)
        self._config, self._pool, self._journal = config, pool, journal
        agent = make_agent(config.agent, pool.spec, config.utd)
        self._agent = agent
        self._rollout = Rollout(members)
        self._rollout.obs = pool.reset(range(len(members)), self._rollout.seeds)
        self._fleet = Fleet(
            agent,
            pool.spec,
            [member.seed for member in members],
            Lengths(replay_rows(config), config.steps * config.utd),
            self._rollout.obs,
            apart=config.agent.policy_checkpoints,
        )
        fresh = first_statistics(len(members), pool.spec.obs_dim)
        self._normaliser = normaliser_for(config.agent, fresh)
        self._schedule = Schedule(config, len(members))
        self._points = Points(config, agent, members, pool, journal, lent)
        self._lent = lent
        self._flying: list[int] = []

    def run(self, watch: Watcher) -> None:
        """Trains every member to its last step, then keeps the weights."""
        while self._collecting() or self._pending():
            collecting = self._collecting()
            self._step(collecting)
            self._land(wait=not collecting and not self._points.busy)
            self._evaluate()
            self._end_of_lending()
            self._report(watch)
            self._launch(alone=not self._collecting() and not self._points.busy)
        self._journal.weights(self._fleet.states, self._normaliser.scales())

    def _collecting(self) -> list[int]:
        schedule = self._schedule
        if not self._config.agent.policy_checkpoints and (
            self._flying or self._points.due or schedule.owed.any()
        ):
            return []  # in lockstep the next step waits for all updates of this one
        free = (schedule.owed == 0) & (self._rollout.steps < self._config.steps)
        busy = {*self._flying, *self._points.due}
        return [int(m) for m in np.flatnonzero(free) if m not in busy]

    def _pending(self) -> bool:
        return bool(self._flying or self._points.pending or self._schedule.owed.any())

    def _step(self, members: list[int]) -> None:
        """One step of those who collect and of every evaluation, all at once."""
        rollout, turns = self._rollout, []
        if members:
            warm = self._schedule.warm
            self._observe(members)
            obs = self._normaliser.normalise(rollout.obs)
            actions = self._fleet.act(obs, rollout.steps, warm)
            turns.append(rollout.turn(members, actions[members]))
        if self._points.busy:
            turns.append(self._points.turn())
        if not turns:
            return
        step = self._play(turns)
        if self._points.busy:
            self._points.take(step.part(len(members), len(step.reward)))
        if members:
            self._book(members, turns[0], step.part(0, len(members)))

    def _observe(self, members: list[int]) -> None:
        """The statistics learn from what is about to be acted on."""
        rollout = self._rollout
        past = rollout.reward[members], rollout.ended[members]
        self._normaliser.observe(members, rollout.obs[members], *past)

    def _play(self, turns: list[Turn]) -> Step:
        if not self._lent:
            return self._pool.step(joined(turns))
        (turn,) = turns
        step = self._pool.step(turn._replace(seeds=[NO_EPISODE]))
        if step.ended.any():
            self._points.between_episodes()
            step = step._replace(obs=self._pool.reset([0], turn.seeds))
        return step

    def _book(self, members: list[int], turn: Turn, step: Step) -> None:
        rollout, schedule = self._rollout, self._schedule
        seen, episodes = rollout.take(members, turn, step)
        self._fleet.add(members, seen)
        for episode in episodes:
            counts = self._steps(episode.member)
            self._journal.episode(episode, counts, not schedule.warm[episode.member])
        if kept := schedule.after_step(members, rollout.steps, episodes):
            self._fleet.keep(kept)
            for member in kept:
                self._journal.event("policy_checkpoint", member, self._steps(member))
        for member in members:
            self._points.reached(member, self._counts_then(member))
            if rollout.steps[member] == self._config.steps:
                self._forgive(member)

    def _counts_then(self, member: int) -> tuple[int, int]:
        """A member's counts as of the evaluation of its present step.

        With policy checkpoints it may owe a burst, which does not change what is
        evaluated; without, its step's updates come first.
        """
        decisions, updates = self._steps(member)
        if not self._config.agent.policy_checkpoints:
            updates += int(self._schedule.owed[member])
        return decisions, updates

    def _forgive(self, member: int) -> None:
        if owed := self._schedule.forgive(member):
            fields = {"updates_not_made": owed}
            self._journal.event("end", member, self._steps(member), fields)

    def _launch(self, alone: bool) -> None:
        """Starts updates of those who owe some, if none are under way."""
        schedule = self._schedule
        if self._flying or not schedule.owed.any():
            return
        most = (
            CALL if alone or self._fleet.timed else max(SHARED_CALL, self._config.utd)
        )
        call = next_call(schedule.made, schedule.owed, self._agent.phase, most)
        self._fleet.train(call, schedule.made, self._normaliser.scales())
        schedule.book(call.members, call.updates)
        self._flying = list(call.members)

    def _land(self, wait: bool) -> None:
        """Lets those whose updates are done act on them.

        Without a device apart, who trains with whom must not hang on the clock: there
        a call always lands one turn after its start.
        """
        if not self._flying or (
            self._fleet.timed and not wait and not self._fleet.ready
        ):
            return
        self._fleet.wait()
        done = [m for m in self._flying if self._schedule.owed[m] == 0]
        if done:
            self._fleet.refresh(done)
        self._flying = []

    def _evaluate(self) -> None:
        """Begins what is due, where the policy to be evaluated is ready.

        A policy checkpoint always is: a burst does not change it. The acting policy is
        when the updates of its step are made.
        """
        if self._flying or not self._points.due:
            return
        if self._schedule.owed.any() and not self._config.agent.policy_checkpoints:
            return
        evaluated = Evaluated(
            self._agent.evaluated(self._fleet.states), self._normaliser.scales()
        )
        self._points.begin(evaluated)

    def _end_of_lending(self) -> None:
        """A lent environment's last evaluations, when no episode will end any more."""
        if self._lent and (self._rollout.steps >= self._config.steps).all():
            self._points.between_episodes()

    def _report(self, watch: Watcher) -> None:
        if self._journal.losses_due(self._rollout.steps) and not self._flying:
            steps = [self._steps(m) for m in range(self._fleet.size)]
            self._journal.losses(self._fleet.read_metrics(), steps)
        watch(
            Progress(
                self._rollout.steps,
                self._schedule.made,
                self._schedule.warm,
                *self._journal.common_point(),
            )
        )

    def _steps(self, member: int) -> tuple[int, int]:
        """Decision steps and updates of a member, as they stand."""
        return int(self._rollout.steps[member]), int(self._schedule.made[member])
