"""The training loop: a run on one page.

Every member collects transitions, updates and is evaluated at its own pace. One
iteration of the loop is one decision step of the members that collect, beside updates
of those that have some pending. `TrainState` holds everything that changes; `Collector`
steps environments, `Recovery` handles failures, `Diagnoser` diagnoses encoders.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.compute.update_loop import UpdateCall, next_update_call, next_update_calls
from r2r2.config.run import RunConfig
from r2r2.envs.vector.pool import EnvPool
from r2r2.replay.normalizer import Scales
from r2r2.storage.checkpoints import Checkpoint
from r2r2.training.callbacks import CheckpointInfo, EndInfo
from r2r2.training.checkpointing import CheckpointWriter, resume, save_checkpoint
from r2r2.training.collector import Collector, FirstEpisodes, begin_episodes
from r2r2.training.diagnosis import make_diagnoser
from r2r2.training.evaluation import EvalPolicies
from r2r2.training.recovery import Recovery
from r2r2.training.run_log import RunLog
from r2r2.training.start_data import NO_DATA, StartData, apply_start_data
from r2r2.training.state import OnMessage, StartedUpdates, ignore, make_state
from r2r2.training.time_account import CHECKPOINTS, EVALUATION, LOGGING, TRANSFER, UPDATES

# Updates per compiled call. A call cannot be interrupted, and a progress display should move.
UPDATES_PER_CALL = 250
# The same while other members collect on the same cores: small, so that they continue.
UPDATES_PER_SHARED_CALL = 16
# The same beside an accelerator, while other members can still join the next call.
UPDATES_PER_OPEN_CALL = 64


REPORT_SECONDS = 0.02  # between two reports of progress beside an accelerator
SWITCH_INTERVAL = 2e-4  # seconds after which a thread that waits for another one may run


class Progress(NamedTuple):
    """The progress of a run, after every iteration of its loop; the arrays are copies."""

    decisions: NDArray[np.int_]  # [S], decision steps
    updates: NDArray[np.int_]  # [S]
    warm: NDArray[np.bool_]  # [S], past warm-up
    point: int  # decision step of the last evaluation that every member has, or 0
    returns: NDArray[np.float64]  # [S], at that point; NaN before the first
    stopped: NDArray[np.bool_]  # [S]
    collapsed: tuple[int, ...] = ()  # other members whose representation has collapsed
    offline: int = 0  # updates on recorded data before the first step; 0: there are none left
    ended_early: bool = False  # the run ends here, by `stop_at_return`


OnProgress = Callable[[Progress], None]


class Training:
    """A finalized run from its first step to its last; `state` is all that changes.

    The pool has the members' slots, then those of their evaluation, or one slot for
    both with `shared_env`. Without a writer, there are no checkpoints. `start` is what
    `load_start_data` returns.
    """

    def __init__(
        self,
        config: RunConfig,
        pool: EnvPool,
        log: RunLog,
        writer: CheckpointWriter | None = None,
        shared_env: bool = False,
        on_message: OnMessage = ignore,
        start: StartData = NO_DATA,
    ):
        self.state = make_state(config, pool, log, shared_env, on_message, start.recorded)
        self._start_data = start
        self._writer = writer
        self._recovery = Recovery(self.state, writer)
        callbacks = self._start_evaluations, self._start_call, self._can_queue
        self._collector = Collector(self.state, self._recovery, *callbacks)
        self.diagnoser = make_diagnoser(self.state)
        self._next_report = 0.0
        self._finished, self._reason = False, ""  # of the run, for its callbacks
        self._broken = False  # an error ended an iteration
        if writer is not None:
            writer.on_written = self._report_checkpoint
        self._switch_interval = sys.getswitchinterval()

    def begin(self, first: FirstEpisodes | None = None) -> None:
        """Begin every member's first episode, unless `begin_episodes` has done so."""
        state = self.state
        state.log.start(0, resumed=False)
        apply_start_data(state, self._start_data)
        self._collector.begin(first or begin_episodes(state.config, state.pool, state.shared_env))

    def resume(self, checkpoint: Checkpoint, retry: bool = False) -> None:
        """Continue from a checkpoint, in place of `begin`; see `checkpointing.resume`."""
        if self._writer is None:
            raise ValueError("resume() requires a CheckpointWriter")
        for fault in resume(self.state, self._writer, checkpoint, retry):
            self._recovery.recover(fault)

    def run(self, on_progress: OnProgress) -> None:
        """Train every member to its last step, then save the weights.

        A KeyboardInterrupt raised by `on_progress` ends the run with a checkpoint, and so does
        whatever a callback raises. `stop_at_return` ends it early, but as finished.
        """
        for progress in self.iterate():
            try:
                on_progress(progress)
            except KeyboardInterrupt:
                self.pause()
                raise

    def iterate(self) -> Iterator[Progress]:
        """Do the same as `run`, and yield the progress after every iteration.

        Beside an accelerator, after some of them and the last one. Between two of them, `pause`
        may be called.
        """
        try:
            yield from self._iterate()
        except GeneratorExit:  # between two iterations
            raise
        except BaseException as error:
            self._broken, self._reason = True, _describe_error(error)
            raise
        self._finished = True

    def _iterate(self) -> Iterator[Progress]:
        state = self.state
        # Two threads take turns at short pieces of work.
        if state.fleet.async_updates or state.config.overlap_acting:
            sys.setswitchinterval(SWITCH_INTERVAL)
        reported = True
        while (collecting := self.collecting()) or self._work_pending():
            self._stop_if_asked()
            if self._ends_early():
                reported = False
                break
            self._start_updates(alone=not collecting and not state.evals.busy)
            collecting = self.collecting()
            self._collector.step(collecting)
            self._finish_updates()
            if state.fleet.async_updates:  # workers need not wait for what follows
                self._collector.start_playing(self.collecting())
            with state.times.part(EVALUATION):
                self._start_evaluations()
            with state.times.part(LOGGING):
                self._log_losses()
            if reported := self._report_due():
                yield self._progress()
            with state.times.part(CHECKPOINTS):
                self._checkpoint_if_due()
        # All members may be stopped before the first iteration.
        if not reported or len(state.stopped) == len(state.members):
            yield self._progress()
        self._report_idle_members()
        skip = state.fleet.nonfinite_members()
        state.log.save_all_weights(state.fleet.states, state.normalizer.scales(), skip)
        if self.diagnoser is not None:
            self.diagnoser.collect(wait=True)
        self.log_time()
        self._checkpoint_and_wait()
        state.log.callbacks.raise_error()

    def pause(self) -> None:
        """Finish the updates in flight and write a checkpoint, from which the run can resume.

        Nothing is written after an error within an iteration: its step is made in part only.
        """
        if not self._broken:
            self._finish_all_updates()
            self._checkpoint_and_wait()

    def close(self) -> None:
        """End the threads of the run, without waiting for programs that are being compiled."""
        sys.setswitchinterval(self._switch_interval)
        self.state.fleet.close()
        if self.diagnoser is not None:
            self.diagnoser.close()
        self.state.log.callbacks.end(self._end_info)

    def _end_info(self) -> EndInfo:
        state = self.state
        names = [member.name for member in state.members]
        returns = dict(zip(names, state.log.latest.tolist(), strict=True))
        stopped = {names[member]: why for member, why in state.stopped.items()}
        reason = self._reason or ("" if self._finished else "interrupted")
        rest = self._finished, reason, returns, stopped
        return EndInfo(state.log.path, state.step(), *rest)

    def _stop_if_asked(self) -> None:
        """Raise what a callback raised, after a checkpoint."""
        callbacks = self.state.log.callbacks
        if not callbacks.stops:
            return
        try:
            self.pause()
        except Exception as error:
            if not callbacks.failed:
                raise
            callbacks.add_note(f"no checkpoint was written: {error}")
        else:
            callbacks.add_note(f"the run stopped at step {self.state.step()}")
        callbacks.raise_stop()

    def _ends_early(self) -> bool:
        """Return whether all members have reached `stop_at_return`, and end the run then."""
        state, target = self.state, self.state.config.stop_at_return
        if math.isinf(target) or state.step() >= state.config.steps:
            return False
        if not state.log.reached(target):
            return False
        self._finish_all_updates()
        self._reason = f"every member has reached a return of {target:g} (stop_at_return)"
        counts = state.step(), int(state.schedule.done.min())
        state.log.end_early(counts, self._reason)
        state.on_message(f"ended at step {counts[0]:,} of {state.config.steps:,}: {self._reason}")
        return True

    def _report_checkpoint(self, checkpoint: Checkpoint) -> None:
        info = CheckpointInfo(checkpoint.arrays.with_suffix(".json"), checkpoint.step)
        self.state.log.callbacks.call("on_checkpoint", lambda: info)

    def collecting(self) -> list[int]:
        """Return the members that can make a decision step now."""
        state, schedule = self.state, self.state.schedule
        if state.fuses_step() and not state.training_done(0):
            return list(range(len(state.members)))
        if self._overlaps():
            return state.free_members()
        if not state.config.agent.policy_checkpoints and (
            state.updating or state.evals.due or schedule.pending.any()
        ):
            return []  # in lockstep, a step waits for all updates of the last one
        busy = {*np.flatnonzero(schedule.pending), *state.updating, *state.evals.due}
        return [member for member in state.free_members() if member not in busy]

    def _overlaps(self) -> bool:
        """Return whether members step while the updates of their previous step are made.

        These must be one call. An evaluation needs the policy after them, so that nobody steps
        meanwhile, and neither during updates before the first step.
        """
        state, pending = self.state, self.state.schedule.pending
        if not state.config.overlap_acting or not pending.any():
            return False
        if state.updating or state.evals.due or (state.rollout.steps[pending > 0] == 0).any():
            return False
        rest = pending.copy()
        call = self._next_call(alone=False)
        rest[list(call.members)] -= call.updates
        return not rest.any() and bool(state.schedule.warm[state.free_members()].any())

    def _work_pending(self) -> bool:
        state = self.state
        return bool(state.updating or state.schedule.pending.any() or state.evals.pending)

    def _start_updates(self, alone: bool) -> None:
        """Start pending updates of some members, unless others are in flight.

        Beside an accelerator, they are started shortly before those in flight end. Updates that
        overlap with a step are started by the collector, after the members act.
        """
        state = self.state
        if state.updates_in_flight and not self._can_queue():
            return
        if not state.schedule.pending.any() or self._overlaps():
            return
        if state.fuses_step():
            if state.training_done(0):  # the last updates, without an action
                scales = state.normalizer.scales()
                obs = state.normalizer.normalize(state.rollout.obs)
                self._collector.update_and_act(scales, obs)
            return
        if state.config.overlap_acting:
            self._collector.refresh_before_updates()
        self._start_call(state.normalizer.scales(), alone)

    def _next_call(self, alone: bool) -> UpdateCall:
        """Return the next call; it is shorter if other members collect on the same cores."""
        config, schedule, fleet = self.state.config, self.state.schedule, self.state.fleet
        limit = UPDATES_PER_CALL
        if not alone and not fleet.async_updates:
            limit = min(limit, max(UPDATES_PER_SHARED_CALL, config.utd))
        return next_update_call(schedule.done, schedule.pending, fleet.update_period, limit)

    def _start_call(self, scales: Scales | None, alone: bool = False) -> None:
        """Start the next call or, beside an accelerator, several that run one after another."""
        state, schedule, fleet = self.state, self.state.schedule, self.state.fleet
        if fleet.async_updates:
            counts = schedule.done, schedule.pending
            all_wait = (schedule.pending[state.free_members()] > 0).all()
            most = UPDATES_PER_CALL if all_wait else UPDATES_PER_OPEN_CALL
            calls = next_update_calls(*counts, fleet.update_period, most)
        else:
            calls = [self._next_call(alone)]
        made, before = schedule.done.copy(), schedule.pending.copy()
        for call in calls:
            schedule.record_updates(call.members, call.updates)
        members = np.flatnonzero(schedule.pending < before).tolist()
        finished = [m for m in members if schedule.pending[m] == 0]
        state.updates_in_flight.append(StartedUpdates(members, finished))
        with state.times.part(TRANSFER):
            fleet.train(calls, made, scales, finished)

    def _finish_updates(self) -> None:
        """Let members act on their new policy once their updates are done.

        On a CPU, which members train together must not depend on timing: there, a call
        always finishes one iteration after its start. Beside an accelerator, the next updates are
        started before these policies are handed out, so that the device does not wait.
        """
        state, fleet = self.state, self.state.fleet
        running = fleet.async_updates and not fleet.ready
        if not fleet.fuses_steps and (not state.updates_in_flight or running):
            return
        finished = self._wait_for_oldest()
        if fleet.async_updates and not self._needs_pause():
            self._start_updates(alone=False)
        self._hand_out(finished)

    def _finish_all_updates(self) -> None:
        while self.state.updates_in_flight:
            self._hand_out(self._wait_for_oldest())

    def _wait_for_oldest(self) -> list[int]:
        """Wait for the oldest updates in flight; return the members with a new policy."""
        state, fleet = self.state, self.state.fleet
        if state.updates_in_flight:
            with state.times.part(UPDATES):
                fleet.finish_oldest()
        for member in fleet.nonfinite_members():
            self._recovery.stop_nonfinite(member)
        finished = state.updates_in_flight.pop(0).finished if state.updates_in_flight else []
        return [member for member in finished if member not in state.stopped]

    def _hand_out(self, members: list[int]) -> None:
        """Let members act on their trained policies."""
        state = self.state
        if members:
            # Otherwise the policy is kept for the next step, see `refresh_before_updates`.
            if not state.config.overlap_acting or not state.rollout.steps[members].any():
                self._collector.refresh(members)
            self._finish_offline_updates(members)

    def _can_queue(self) -> bool:
        """Return whether to start updates behind those in flight, beside an accelerator."""
        state = self.state
        if not state.fleet.async_updates or not state.fleet.ends_soon:
            return False
        return bool(state.schedule.pending.any()) and not self._needs_pause()

    def _needs_pause(self) -> bool:
        """Return whether something is due that waits until no updates are in flight."""
        state, writer = self.state, self._writer
        return bool(
            state.evals.startable
            or state.log.callbacks.stops
            or state.log.losses_due(state.rollout.steps)
            or (writer is not None and writer.due(state.step()))
        )

    def _finish_offline_updates(self, members: list[int]) -> None:
        """Log the end of updates on recorded data alone; their policy is checkpointed."""
        state, count = self.state, self.state.config.prefill_only_updates
        ended = [m for m in members if count and state.counts(m) == (0, count)]
        if not ended:
            return
        for member in ended:
            state.log.event("offline_updates", member, (0, count), {"updates": count})
        if state.config.agent.policy_checkpoints:
            state.fleet.checkpoint_policies(ended)
            for member in ended:
                state.log.event("policy_checkpoint", member, (0, count))
        counts = [state.counts(m) for m in range(len(state.members))]
        state.log.losses(state.fleet.read_metrics(), counts)

    def _start_evaluations(self) -> None:
        """Start due evaluations if the policies to evaluate are ready.

        Policy checkpoints always are: updates do not change them. Without them, the
        updates of the step must be done. In a shared environment, evaluations run
        between training episodes, and at once after the last step.
        """
        state = self.state
        lockstep = not state.config.agent.policy_checkpoints
        waiting = state.updating or (lockstep and state.schedule.pending.any())
        if (due := state.evals.startable) and not waiting:
            scales = state.normalizer.scales()
            policies = state.agent.eval_policy(state.fleet.states)
            for fault in state.evals.start(EvalPolicies(policies, scales)):
                self._recovery.recover(fault)
            if self.diagnoser is not None:
                self.diagnoser.diagnose(due, scales)
        if self.diagnoser is not None:
            self.diagnoser.collect(wait=False)
        if state.shared_env and state.training_done(0):
            self._collector.run_deferred_evals()

    def _log_losses(self) -> None:
        state = self.state
        if state.log.losses_due(state.rollout.steps) and not state.updating:
            counts = [state.counts(m) for m in range(len(state.members))]
            state.log.losses(state.fleet.read_metrics(), counts)
            self.log_time()

    def log_time(self) -> None:
        """Log where the time of this process went so far."""
        state = self.state
        counts = state.step(), int(state.schedule.done.min())
        state.log.event("time", None, counts, state.time_summary().fields())

    def _report_due(self) -> bool:
        """Return whether to report now: every iteration, or at times beside an accelerator."""
        now = time.monotonic()
        due = not self.state.fleet.accelerated or now >= self._next_report
        if due:
            self._next_report = now + REPORT_SECONDS
        return due

    def _progress(self) -> Progress:
        state = self.state
        return Progress(
            state.rollout.steps.copy(),
            state.schedule.done.copy(),
            state.schedule.warm.copy(),
            *state.log.common_point(),
            np.isin(np.arange(len(state.members)), list(state.stopped)),
            tuple(sorted(state.collapsed - state.stopped.keys())),
            self._offline_updates(),
            state.log.ended_early is not None,
        )

    def _offline_updates(self) -> int:
        """Return the number of updates on recorded data alone, while some are still pending."""
        state, count = self.state, self.state.config.prefill_only_updates
        return count if state.step() == 0 and state.schedule.pending.any() else 0

    def _report_idle_members(self) -> None:
        """Name the members that reached their last step without an update."""
        state, idle = self.state, self.state.schedule.done == 0
        names = [x.name for m, x in enumerate(state.members) if idle[m] and m not in state.stopped]
        why = "none came due between the end of warm-up and the last step"
        if state.config.random_only:
            why = "the run is one of random actions only"
        if names:
            state.on_message(f"no updates of {', '.join(names)} were made: {why}")

    def _checkpoint_if_due(self) -> None:
        """Start writing a checkpoint if one is due and no updates are in flight."""
        if self._writer is None:
            return
        self._writer.check()
        if not self.state.updating and self._writer.due(self.state.step()):
            self._save_checkpoint(self._writer)

    def _save_checkpoint(self, writer: CheckpointWriter) -> None:
        if self.diagnoser is not None:
            self.diagnoser.collect(wait=True)
        save_checkpoint(self.state, writer)

    def _checkpoint_and_wait(self) -> None:
        if self._writer is not None and self._writer.enabled:
            self._save_checkpoint(self._writer)
            self._writer.wait()


def _describe_error(error: BaseException) -> str:
    """Return why a run ended, from what ended it."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted"
    return f"{type(error).__name__}: {error}"
