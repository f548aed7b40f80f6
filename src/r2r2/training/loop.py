"""Training: one run, one page.

Members collect, train and are evaluated each at its own pace. A turn of the loop is one
decision step of those who collect, while those who owe updates make some.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.agents.registry import make_agent
from r2r2.compute.update import RunLengths
from r2r2.compute.update_grouping import next_update_call
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.replay.normalizer import initial_statistics, make_normalizer
from r2r2.storage.checkpoints import Checkpoint
from r2r2.training.checkpointer import CheckpointWriter
from r2r2.training.collector import Collector
from r2r2.training.diagnosis import diagnosing_for
from r2r2.training.eval_scheduler import EvalScheduler
from r2r2.training.evaluation import EvalPolicies
from r2r2.training.fleet import Fleet
from r2r2.training.memory import replay_rows
from r2r2.training.nonfinite import NOT_FINITE, not_finite
from r2r2.training.resume import resume, save
from r2r2.training.rollout import Rollout
from r2r2.training.run_log import RunLog
from r2r2.training.schedule import Schedule
from r2r2.training.state import HostState, OnMessage, RunState, ignore_message

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
    stopped: NDArray[np.bool_]  # [S], who will not go on
    collapsed: tuple[int, ...] = ()  # of the others, whose representation has


OnProgress = Callable[[Progress], None]


def fleet_members(config: RunConfig) -> tuple[Member, ...]:
    """The fleet's members in order: seeds within tasks."""
    return tuple(Member(task, seed) for task in config.env for seed in config.seeds)


class Training:
    """A run from its first step to its last; `run` is the whole of it.

    Args:
        config: the run.
        pool: slots of the members, then those of their evaluation.
        journal: where it is written down.
        saver: writes its checkpoints, if it is to have some.
        lent: whether training and evaluation share one environment.
        say: called with sentences for people.
    """

    def __init__(
        self,
        config: RunConfig,
        pool: EnvPool,
        journal: RunLog,
        saver: CheckpointWriter | None = None,
        lent: bool = False,
        say: OnMessage = ignore_message,
    ):
        members = fleet_members(config)
        self._config, self._journal, self._lent = config, journal, lent
        self._agent = make_agent(config.agent, pool.spec, config.utd)
        self._rollout = Rollout(members, pool.spec)
        self._fleet = Fleet(
            self._agent,
            pool.spec,
            [member.seed for member in members],
            RunLengths(replay_rows(config), config.steps * config.utd),
            act_on_cpu=config.agent.policy_checkpoints,
        )
        fresh = initial_statistics(len(members), pool.spec.obs_dim)
        self._normaliser = make_normalizer(config.agent, fresh)
        self._schedule = Schedule(config, len(members))
        self._points = EvalScheduler(config, self._agent, members, pool, journal, lent)
        self._host = HostState(
            members,
            self._rollout,
            self._schedule,
            self._normaliser,
            self._points,
            faults={},
            stopped={},
            collapsed=set(),
        )
        self._saver = saver
        parts = config, self._agent, pool, journal, self._fleet, self._host
        self._run = RunState(*parts, say)
        self._collector = Collector(self._run, lent)
        self._diagnosing = diagnosing_for(self._run)
        self._flying: list[int] = []

    @property
    def stopped(self) -> dict[str, str]:
        """The members that were stopped, each with why."""
        host = self._host
        return {host.members[m].name: why for m, why in host.stopped.items()}

    def begin(self) -> None:
        """Begins every member's first episode."""
        self._collector.begin()

    def go_on(self, checkpoint: Checkpoint) -> None:
        """Stands where a checkpoint was taken, in place of `begin`."""
        if self._saver is None:
            raise ValueError("what cannot be saved cannot be gone on with")
        resume(self._run, self._collector, self._saver, checkpoint)
        self._schedule.go_on(self._rollout.steps < self._config.steps)

    def run(self, watch: OnProgress) -> None:
        """Trains every member to its last step, then keeps the weights.

        A watcher that raises KeyboardInterrupt ends it with a checkpoint.
        """
        while self._collecting() or self._pending():
            self._launch(alone=not self._collecting() and not self._points.busy)
            collecting = self._collecting()
            self._collector.step(collecting)
            self._land(wait=not collecting and not self._points.busy)
            self._evaluate()
            self._end_of_lending()
            self._report(watch)
            self._checkpoint()
        spoilt = self._fleet.nonfinite_members()
        self._journal.weights(self._fleet.states, self._normaliser.scales(), spoilt)
        self._save()

    def _collecting(self) -> list[int]:
        schedule = self._schedule
        if not self._config.agent.policy_checkpoints and (
            self._flying or self._points.due or schedule.owed.any()
        ):
            return []  # in lockstep the next step waits for all updates of this one
        free = (schedule.owed == 0) & (self._rollout.steps < self._config.steps)
        busy = {*self._flying, *self._points.due, *self._host.stopped}
        return [int(m) for m in np.flatnonzero(free) if m not in busy]

    def _pending(self) -> bool:
        return bool(self._flying or self._points.pending or self._schedule.owed.any())

    def _launch(self, alone: bool) -> None:
        """Starts updates of those who owe some, if none are under way."""
        schedule = self._schedule
        if self._flying or not schedule.owed.any():
            return
        most = (
            CALL
            if alone or self._fleet.async_updates
            else max(SHARED_CALL, self._config.utd)
        )
        call = next_update_call(
            schedule.made, schedule.owed, self._fleet.update_multiple, most
        )
        self._fleet.train(call, schedule.made, self._normaliser.scales())
        schedule.book(call.members, call.updates)
        self._flying = list(call.members)

    def _land(self, wait: bool) -> None:
        """Lets those whose updates are done act on them.

        Without a device apart, who trains with whom must not hang on the clock: there
        a call always lands one turn after its start.
        """
        if not self._flying or (
            self._fleet.async_updates and not wait and not self._fleet.ready
        ):
            return
        self._fleet.wait()
        for member in self._fleet.nonfinite_members():
            if member not in self._host.stopped:
                not_finite(self._run, self._saver, member)
                self._collector.stop(member, NOT_FINITE)
        landed = [m for m in self._flying if m not in self._host.stopped]
        done = [m for m in landed if self._schedule.owed[m] == 0]
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
        states, scales = self._fleet.states, self._normaliser.scales()
        due = self._points.beginning
        self._collector.evaluate(EvalPolicies(self._agent.eval_policy(states), scales))
        if self._diagnosing is not None:
            self._diagnosing.look(due, scales)

    def _end_of_lending(self) -> None:
        """A lent environment's last evaluations, when no episode will end any more."""
        if self._lent and (self._rollout.steps >= self._config.steps).all():
            self._collector.end_of_lending()

    def _report(self, watch: OnProgress) -> None:
        if self._journal.losses_due(self._rollout.steps) and not self._flying:
            steps = [self._collector.counts(m) for m in range(self._fleet.size)]
            self._journal.losses(self._fleet.read_metrics(), steps)
        stopped = np.isin(np.arange(self._fleet.size), list(self._host.stopped))
        progress = Progress(
            self._rollout.steps,
            self._schedule.made,
            self._schedule.warm,
            *self._journal.common_point(),
            stopped,
            tuple(sorted(self._host.collapsed - self._host.stopped.keys())),
        )
        try:
            watch(progress)
        except KeyboardInterrupt:
            self._land(wait=True)
            self._save()
            raise

    def _checkpoint(self) -> None:
        """Takes a checkpoint if it is due: nothing may be under way on the device."""
        if self._saver is None:
            return
        self._saver.check()
        if not self._flying and self._saver.due(self._host.step()):
            save(self._run, self._saver)

    def _save(self) -> None:
        """Takes a checkpoint and waits until it is written."""
        if self._saver is not None and self._saver.wanted:
            save(self._run, self._saver)
            self._saver.wait()
