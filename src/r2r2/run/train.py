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
from r2r2.envs.pool import EnvPool
from r2r2.interact.rollout import Rollout
from r2r2.interact.schedule import Schedule
from r2r2.learn.agents.make import make_agent
from r2r2.learn.bursts import next_call
from r2r2.learn.fleet import Fleet, Lengths
from r2r2.measure.evaluate import Evaluator
from r2r2.run.journal import Journal
from r2r2.run.memory import replay_rows

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
    """A run from its first step to its last; `run` is the whole of it."""

    def __init__(self, config: RunConfig, pool: EnvPool, journal: Journal):
        members = pool.members
        self._config, self._journal = config, journal
        agent = make_agent(config.agent, pool.spec, config.utd)
        self._agent = agent
        self._rollout = Rollout(pool)
        self._fleet = Fleet(
            agent,
            pool.spec,
            [member.seed for member in members],
            Lengths(replay_rows(config), config.steps * config.utd),
            self._rollout.obs,
            apart=config.agent.policy_checkpoints,
        )
        self._schedule = Schedule(config, len(members))
        self._evaluator = Evaluator(
            agent, members, config.action_repeat, config.eval_episodes
        )
        self._flying: list[int] = []
        self._due: set[int] = set()
        self._evaluations = np.zeros(len(members), dtype=int)

    def run(self, watch: Watcher) -> None:
        """Trains every member to its last step, then keeps the weights."""
        while len(collecting := self._collecting()) or self._pending():
            if collecting:
                self._collect(collecting)
            self._land(wait=not collecting)
            self._evaluate()
            self._report(watch)
            self._launch(alone=not self._collecting())
        self._journal.weights(self._fleet.states)

    def close(self) -> None:
        """Frees the evaluation's environments."""
        self._evaluator.close()

    def _collecting(self) -> list[int]:
        if self._pending() and not self._config.agent.policy_checkpoints:
            return []  # in lockstep the next step waits for all updates of this one
        free = (self._schedule.owed == 0) & (self._rollout.steps < self._config.steps)
        busy = {*self._flying, *self._due}
        return [int(m) for m in np.flatnonzero(free) if m not in busy]

    def _pending(self) -> bool:
        return bool(self._flying or self._due or self._schedule.owed.any())

    def _collect(self, members: list[int]) -> None:
        rollout, schedule = self._rollout, self._schedule
        actions = self._fleet.act(rollout.obs, rollout.steps, schedule.warm)
        seen, episodes = rollout.step(members, actions[members])
        self._fleet.add(members, seen)
        for episode in episodes:
            counts = self._steps(episode.member)
            self._journal.episode(episode, counts, not schedule.warm[episode.member])
        if kept := schedule.after_step(members, rollout.steps, episodes):
            self._fleet.keep(kept)
            for member in kept:
                self._journal.event("policy_checkpoint", member, self._steps(member))
        gap = self._config.eval_every // self._config.eval_average
        for member in members:
            if rollout.steps[member] % gap == 0:
                self._due.add(member)
            if rollout.steps[member] == self._config.steps:
                self._forgive(member)

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
        self._fleet.train(call, schedule.made)
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
        ready = [
            member
            for member in sorted(self._due)
            if self._schedule.owed[member] == 0 and member not in self._flying
        ]
        for number in sorted({int(self._evaluations[member]) for member in ready}):
            members = [m for m in ready if self._evaluations[m] == number]
            returns = self._evaluator.returns(
                self._agent.evaluated(self._fleet.states),
                members,
                first=number * self._config.eval_episodes,
                purpose="evaluate",
            )
            for member, row in zip(members, returns, strict=True):
                self._journal.evaluation(member, self._steps(member), row)
            self._evaluations[members] += 1
        self._due -= set(ready)

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
