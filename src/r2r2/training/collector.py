"""Steps of environments: members collect transitions, evaluations advance."""

from typing import Any

from r2r2.envs.vector.step_types import NO_EPISODE, StepRequest, StepResult, concat_requests
from r2r2.training.recovery import Recovery
from r2r2.training.state import TrainState


class Collector:
    """Steps training and evaluation environments and records the results."""

    def __init__(self, state: TrainState, recovery: Recovery):
        self._state, self._recovery = state, recovery

    def begin(self) -> None:
        """Begin the first episode of every member."""
        state = self._state
        members = range(len(state.members))
        seeds = [state.rollout.seed(member) for member in members]
        state.rollout.obs[:], faults = state.pool.try_reset(members, seeds)
        state.fleet.set_first_obs(state.rollout.obs)
        for fault in faults:
            self._recovery.recover(fault)

    def step(self, members: list[int]) -> None:
        """Make one step of `members` and of every running evaluation, all at once."""
        state, requests = self._state, list[StepRequest]()
        if members:
            requests.append(self._act(members))
        if state.evals.busy:
            requests.append(state.evals.request())
        if not requests:
            return
        result = self._step_pool(requests)
        if state.evals.busy:
            state.evals.record(result.rows(len(members), len(result.reward)))
        if members:
            self._record(members, requests[0], result)
        for fault in result.faults:
            self._recovery.recover(fault)

    def run_deferred_evals(self) -> None:
        """Run the evaluations that wait for the shared environment."""
        self._state.evals.run_deferred(self._recovery.recover)

    def _act(self, members: list[int]) -> StepRequest:
        """Update the normalizer with the current observations, and act on them."""
        state, rollout = self._state, self._state.rollout
        last = rollout.reward[members], rollout.ended[members]
        state.normalizer.observe(members, rollout.obs[members], *last)
        obs = state.normalizer.normalize(rollout.obs)
        actions = state.fleet.act(obs, rollout.steps, state.schedule.warm)
        return rollout.request(members, actions[members])

    def _step_pool(self, requests: list[StepRequest]) -> StepResult:
        pool = self._state.pool
        if not self._state.shared_env:
            return pool.step(concat_requests(requests))
        (request,) = requests
        result = pool.step(request._replace(seeds=[NO_EPISODE]))
        if result.ended.any():
            self.run_deferred_evals()
            obs, faults = pool.try_reset([0], request.seeds)
            result = result._replace(obs=obs, faults=faults)
        return result

    def _record(self, members: list[int], request: StepRequest, result: StepResult) -> None:
        """Record a step of the members whose slot did not fail."""
        state = self._state
        # An evaluation in a shared environment may just have stopped the member.
        failed = {fault.slot for fault in result.faults} | state.stopped.keys()
        good = [row for row, member in enumerate(members) if member not in failed]
        if len(good) < len(members):
            members = [members[row] for row in good]
            request = request._replace(actions=request.actions[good])
        if not members:
            return
        columns: list[Any] = [column[good] for column in result.arrays]
        transition, episodes = state.rollout.record(members, request, StepResult(*columns))
        state.fleet.add(members, transition)
        for episode in episodes:
            member = episode.member
            state.log.episode(episode, state.counts(member), not state.schedule.warm[member])
        if checkpointed := state.schedule.record_step(members, state.rollout.steps, episodes):
            state.fleet.checkpoint_policies(checkpointed)
            for member in checkpointed:
                state.log.event("policy_checkpoint", member, state.counts(member))
        for member in members:
            self._record_counts(member)

    def _record_counts(self, member: int) -> None:
        """Record a member's progress; drop its pending burst after its last step."""
        state = self._state
        decisions, updates = state.counts(member)
        if not state.config.agent.policy_checkpoints:  # updates come before the evaluation
            updates += int(state.schedule.pending[member])
        state.evals.record_step(member, (decisions, updates))
        if decisions == state.config.steps:
            if skipped := state.schedule.skip_pending(member):
                state.log.event("end", member, state.counts(member), {"updates_not_made": skipped})
