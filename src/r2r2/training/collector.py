"""Steps of environments: members collect transitions, evaluations advance."""

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.envs.spec import Fault
from r2r2.envs.vector.pool import EnvPool, TakenRows
from r2r2.envs.vector.step_types import NO_EPISODE, StepResult
from r2r2.envs.vector.streams import EXPLORE, RANDOM, StreamPlan
from r2r2.replay.normalizer import Scales
from r2r2.training.acting import ExplorationNoise, explores_ahead, parameters
from r2r2.training.callbacks import step_info
from r2r2.training.recovery import Recovery
from r2r2.training.rollout import Rollout
from r2r2.training.saved_config import fleet_members
from r2r2.training.schedule import Schedule
from r2r2.training.state import TrainState
from r2r2.training.time_account import ACTING, ENVIRONMENTS, EVALUATION, TRANSFER, UPDATES

IDLE_SECONDS = 5e-5  # between two checks for rows, when there is nothing else to do
MAX_IDLE_SECONDS = 5e-3  # longest wait before all slots are checked


class FirstEpisodes(NamedTuple):
    """The first observations of all members, and the slots that failed."""

    obs: NDArray[np.float64]  # [S, obs]
    faults: tuple[Fault, ...]


def begin_episodes(config: RunConfig, pool: EnvPool, shared_env: bool = False) -> FirstEpisodes:
    """Begin every member's first episode; workers play the warm-up while programs compile."""
    members = fleet_members(config)
    rollout, schedule = Rollout(members, pool.spec), Schedule(config, len(members))
    slots = range(len(members))
    obs, faults = pool.try_reset(slots, [rollout.seed(member) for member in slots])
    failed = {fault.slot for fault in faults}
    steps = min(config.steps, schedule.random_steps(0))
    pool.play(
        {
            slot: StreamPlan(
                RANDOM, 0, steps, NO_EPISODE if shared_env else rollout.next_seed(slot)
            )
            for slot in slots
            if slot not in failed and not schedule.warm[slot]
        }
    )
    return FirstEpisodes(obs, faults)


class Collector:
    """Steps training and evaluation environments and records the results.

    Workers act by themselves during warm-up, and where the behavior policy is fixed for
    whole episodes. Other agents act here, in lockstep with their updates. With `overlap_acting`
    they call `start_updates` between their actions and the step of their environments.
    """

    def __init__(
        self,
        state: TrainState,
        recovery: Recovery,
        start_evaluations: Callable[[], None],
        start_updates: Callable[[Scales | None], None],
        can_queue: Callable[[], bool],
    ):
        self._state, self._recovery, self._can_queue = state, recovery, can_queue
        self._start_evaluations, self._start_updates = start_evaluations, start_updates
        self._explores_ahead = explores_ahead(state.config.agent)
        seeds = [member.seed for member in state.members]
        self._noise = ExplorationNoise(state.agent, seeds)
        self._published: set[int] = set()  # members whose policy their workers have
        if state.fleet.accelerated and not self._explores_ahead:
            state.pool.expect_device_calls()

    def begin(self, first: "FirstEpisodes") -> None:
        """Record the beginning of every member's first episode."""
        state = self._state
        state.rollout.obs[:] = first.obs
        state.fleet.set_first_obs(first.obs)
        for fault in first.faults:
            self._recovery.recover(fault)

    def refresh(self, members: list[int]) -> None:
        """Let members act on their trained policies."""
        with self._state.times.part(TRANSFER):
            self._state.fleet.refresh(members)
        self._published -= {*members}

    def refresh_before_updates(self) -> None:
        """Let members whose updates of a step begin next act on the policy before them.

        It is that of the previous step for the actions that are taken during these updates, or
        after them. It is set here, and not when updates end, so that it does not depend on
        evaluations or on the updates of other members.
        """
        state, schedule, config = self._state, self._state.schedule, self._state.config
        done = schedule.done - config.prefill_only_updates
        begins = (schedule.pending > 0) & (state.rollout.steps > 0) & (done % config.utd == 0)
        if begins.any():
            self.refresh(np.flatnonzero(begins).tolist())

    def step(self, members: list[int]) -> None:
        """Make one step of `members` and of every running evaluation.

        On a CPU all of them are waited for, so that results do not depend on timing.
        Beside an accelerator, those steps are recorded that have been made, except that a
        normalizer learns from every single step.
        """
        state, fleet = self._state, self._state.fleet
        playing = self.start_playing(members)
        acting = [m for m in members if m not in playing]
        if state.evals.busy:
            state.evals.play()
        waits = bool(playing) and (not fleet.async_updates or state.agent.normalizes)
        if acting:
            self._step_in_lockstep(acting)
        elif fleet.async_updates and not waits and (playing or state.updates_in_flight):
            self._wait_for_rows(playing)
        if playing:
            self._record_training(playing, waits)
        if state.evals.busy and not state.shared_env:
            wait = not fleet.accelerated or not (members or state.updates_in_flight)
            self._record_evaluation(wait)

    def _wait_for_rows(self, playing: list[int]) -> None:
        """Wait a little, but no longer than until updates or an episode end, or should start.

        Taking rows one by one would take time from the thread that starts the updates.
        """
        state, end = self._state, time.perf_counter() + MAX_IDLE_SECONDS
        evaluating = state.evals.running_seeds() if state.evals.busy else {}
        if not state.pool.plays_ahead(evaluating):
            return  # these slots make a row only when it is taken
        with state.times.part(UPDATES if state.updates_in_flight else ENVIRONMENTS):
            while time.perf_counter() < end:
                if state.updates_in_flight and (state.fleet.ready or self._can_queue()):
                    return
                if playing and state.pool.should_take(playing):
                    return
                time.sleep(IDLE_SECONDS)

    def start_playing(self, members: list[int]) -> list[int]:
        """Start the next episodes of the members whose workers act, and return these members.

        An interrupted episode continues; members that are playing already are left as they are.
        """
        state, rollout, plans = self._state, self._state.rollout, dict[int, StreamPlan]()
        warm = state.schedule.warm.tolist()
        playing = [m for m in members if self._explores_ahead or not warm[m]]
        for member in playing:
            if state.pool.streams.has_plan(member):
                continue
            step = int(rollout.steps[member])
            left = state.config.steps - step
            seed = NO_EPISODE if state.shared_env else rollout.next_seed(member)
            if warm[member]:
                self._publish(member)
                noise = partial(self._noise, member)
                plans[member] = StreamPlan(EXPLORE, step, left, seed, noise)
            else:
                steps = min(left, state.schedule.random_steps(step))
                plans[member] = StreamPlan(RANDOM, step, steps, seed)
        if plans:
            state.pool.play(plans)
        return playing

    def _publish(self, member: int) -> None:
        """Give a member's policy to its worker."""
        if member not in self._published:
            with self._state.times.part(TRANSFER):
                policy = parameters(self._state.fleet.policies, None, member)
                self._state.pool.streams.set_policy(EXPLORE, member, policy)
            self._published.add(member)

    def _step_in_lockstep(self, members: list[int]) -> None:
        state = self._state
        request = state.rollout.request(members, self._act(members))
        if state.shared_env:
            request = request._replace(seeds=[NO_EPISODE])
        with state.times.part(ENVIRONMENTS):
            result = state.pool.step(request)
        failed = {fault.slot for fault in result.faults}
        self._record(*_without(failed, np.array(members), request.actions, result))
        for fault in result.faults:
            self._recovery.recover(fault)

    def _act(self, members: list[int]) -> Any:
        """Update the normalizer with the current observations, and act on them."""
        state, rollout = self._state, self._state.rollout
        scales = state.normalizer.scales()
        self._observe(members)
        obs = state.normalizer.normalize(rollout.obs)
        if state.fuses_step():
            return self.update_and_act(scales, obs)
        overlaps = state.config.overlap_acting and state.schedule.pending.any()
        if overlaps:
            self.refresh_before_updates()
        with state.times.part(ACTING):
            actions = state.fleet.act(obs, rollout.steps)[members]
        if overlaps:
            self._start_updates(scales)
        return actions

    def update_and_act(self, scales: Scales | None, obs: NDArray[np.floating]) -> Any:
        """Make the pending updates in one call, and start the evaluations that waited for them."""
        state, schedule = self._state, self._state.schedule
        updates, counts = int(schedule.pending[0]), (schedule.done, state.rollout.steps)
        with state.times.part(UPDATES):
            actions = state.fleet.update_and_act(updates, *counts, scales, obs)
        schedule.record_updates(range(len(state.members)), updates)
        if state.evals.due:
            self._start_evaluations()
        return actions

    def _observe(self, members: Any) -> None:
        state, rollout = self._state, self._state.rollout
        last = rollout.reward[members], rollout.ended[members]
        state.normalizer.observe(members, rollout.obs[members], *last)

    def _record_training(self, members: list[int], wait: bool) -> None:
        """Record steps that workers have made.

        Without `wait`, several of a member at once, but not beyond an evaluation.
        """
        state = self._state

        def most(member: int) -> int:
            return state.evals.steps_until_due(int(state.rollout.steps[member]))

        with state.times.part(ENVIRONMENTS):
            taken = state.pool.take(members, wait, most)
        if len(taken.slots):
            if wait:
                self._observe(taken.slots)
            flags = taken.terminated, taken.truncated
            result = StepResult(taken.next_obs, taken.reward, *flags, taken.obs)
            self._record(taken.slots, taken.action, result)
        self._recover(taken)

    def _record_evaluation(self, wait: bool) -> None:
        state = self._state
        with state.times.part(EVALUATION):
            taken = state.evals.take(wait)
        self._recover(taken)

    def _recover(self, taken: TakenRows) -> None:
        for fault in taken.faults:
            self._recovery.recover(fault)

    def run_deferred_evals(self) -> None:
        """Run the evaluations that wait for the shared environment."""
        self._state.evals.run_deferred(self._recovery.recover)

    def _record(self, members: NDArray[np.int_], actions: Any, result: StepResult) -> None:
        """Record steps of members [K]."""
        state = self._state
        if state.shared_env and result.ended.any():
            result = self._begin_shared(result)
        # An evaluation that began or ran meanwhile may just have stopped a member.
        if not result.faults:
            members, actions, result = _without(state.stopped, members, actions, result)
        if result.faults or not len(members):
            return
        before = state.rollout.obs.copy() if state.log.callbacks.wants("on_step") else None
        transition, episodes = state.rollout.record(members, actions, result)
        with state.times.part(TRANSFER):
            state.fleet.add(members, transition)
        if before is not None:
            self._report_steps(members, before, actions, result)
        for episode in episodes:
            member = episode.member
            state.log.episode(episode, state.counts(member), not state.schedule.warm[member])
        if checkpointed := state.schedule.record_step(members, state.rollout.steps, episodes):
            state.fleet.checkpoint_policies(checkpointed)
            for member in checkpointed:
                state.log.event("policy_checkpoint", member, state.counts(member))
        self._record_due(members)

    def _report_steps(
        self,
        members: NDArray[np.int_],
        before: NDArray[np.float64],
        actions: NDArray[np.floating],
        result: StepResult,
    ) -> None:
        """Tell the callbacks of steps of members [K] from the observations `before` [S, obs]."""
        state = self._state
        flags = result.terminated, result.truncated
        rows = actions, result.reward, result.next_obs, *flags, result.obs
        for member in dict.fromkeys(members.tolist()):
            columns = [np.asarray(column)[members == member] for column in rows]
            name, step = state.members[member].name, int(state.rollout.steps[member])
            info = partial(step_info, name, step, before[member], columns)
            state.log.callbacks.call("on_step", info)

    def _begin_shared(self, result: StepResult) -> StepResult:
        """Evaluate between two training episodes, then begin the next one."""
        self.run_deferred_evals()
        state = self._state
        obs, faults = state.pool.try_reset([0], [state.rollout.next_seed(0)])
        for fault in faults:  # the step is lost, as in a worker whose reset fails
            self._recovery.recover(fault)
        return result._replace(obs=obs, faults=faults)

    def _record_due(self, members: NDArray[np.int_]) -> None:
        """Record the evaluations that members [K] have reached."""
        steps = self._state.rollout.steps.tolist()
        for member in dict.fromkeys(members.tolist()):
            if self._state.evals.is_due_at(steps[member]):
                self._record_eval_step(member)

    def _record_eval_step(self, member: int) -> None:
        """Record that an evaluation is due; drop a member's pending burst after its last step."""
        state = self._state
        decisions, updates = state.counts(member)
        if not state.config.agent.policy_checkpoints:  # updates come before the evaluation
            updates += int(state.schedule.pending[member])
        state.evals.due[member] = decisions, updates
        if decisions == state.config.steps:
            if skipped := state.schedule.skip_pending(member):
                state.log.event("end", member, state.counts(member), {"updates_not_made": skipped})


def _without(
    excluded: Collection[int], members: NDArray[np.int_], actions: Any, result: StepResult
) -> tuple[NDArray[np.int_], Any, StepResult]:
    """Return the steps of members [K] that are not excluded, without their faults."""
    if not excluded:
        return members, actions, result
    good = [member not in excluded for member in members.tolist()]
    columns: Any = (column[good] for column in result.arrays)
    return members[good], actions[good], StepResult(*columns)
