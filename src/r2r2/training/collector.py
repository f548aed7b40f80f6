"""What a run does on the host: steps of members and evaluations, booked and mended."""

from typing import Any

from r2r2.envs.errors import Fault
from r2r2.envs.vector.step_types import (
    NO_EPISODE,
    StepRequest,
    StepResult,
    concat_requests,
)
from r2r2.storage.events import FieldValue
from r2r2.training.evaluation import EvalPolicies
from r2r2.training.run_log import Counts
from r2r2.training.state import RunState


class Collector:
    """Plays turns, and mends what fails in them.

    Args:
        run: its parts.
        lent: whether training and evaluation share one environment.
    """

    def __init__(self, run: RunState, lent: bool):
        self._config, self._pool, self._journal = run.config, run.pool, run.journal
        self._fleet, self._host, self._lent = run.fleet, run.host, lent
        self._say = run.say

    def counts(self, member: int) -> Counts:
        """Decision steps and updates of a member, as they stand."""
        rollout, schedule = self._host.rollout, self._host.schedule
        return int(rollout.steps[member]), int(schedule.made[member])

    def step(self, members: list[int]) -> None:
        """One step of those who collect and of every evaluation, all at once."""
        rollout, points, turns = (
            self._host.rollout,
            self._host.points,
            list[StepRequest](),
        )
        if members:
            warm = self._host.schedule.warm
            self._observe(members)
            obs = self._host.normaliser.normalize(rollout.obs)
            actions = self._fleet.act(obs, rollout.steps, warm)
            turns.append(rollout.turn(members, actions[members]))
        if points.busy:
            turns.append(points.turn())
        if not turns:
            return
        step = self._play(turns)
        if points.busy:
            points.take(step.rows(len(members), len(step.reward)))
        if members:
            self._book(members, turns[0], step)
        for fault in step.faults:
            self.mend(fault)

    def _observe(self, members: list[int]) -> None:
        """The statistics learn from what is about to be acted on."""
        rollout = self._host.rollout
        past = rollout.reward[members], rollout.ended[members]
        self._host.normaliser.observe(members, rollout.obs[members], *past)

    def _play(self, turns: list[StepRequest]) -> StepResult:
        if not self._lent:
            return self._pool.step(concat_requests(turns))
        (turn,) = turns
        step = self._pool.step(turn._replace(seeds=[NO_EPISODE]))
        if step.ended.any():
            self.end_of_lending()
            obs, faults = self._pool.try_reset([0], turn.seeds)
            step = step._replace(obs=obs, faults=faults)
        return step

    def end_of_lending(self) -> None:
        """Plays what waits for the one environment, between episodes of training."""
        self._host.points.between_episodes(self.mend)

    def _book(self, members: list[int], turn: StepRequest, step: StepResult) -> None:
        # An evaluation in between may have stopped the member of a lent environment.
        failed = {fault.slot for fault in step.faults} | self._host.stopped.keys()
        good = [place for place, member in enumerate(members) if member not in failed]
        if len(good) < len(members):
            members = [members[place] for place in good]
            turn = turn._replace(actions=turn.actions[good])
        if not members:
            return
        rollout, schedule = self._host.rollout, self._host.schedule
        columns: list[Any] = [column[good] for column in step.arrays]
        seen, episodes = rollout.take(members, turn, StepResult(*columns))
        self._fleet.add(members, seen)
        for episode in episodes:
            counts = self.counts(episode.member)
            self._journal.episode(episode, counts, not schedule.warm[episode.member])
        if kept := schedule.after_step(members, rollout.steps, episodes):
            self._fleet.checkpoint_policies(kept)
            for member in kept:
                self._journal.event("policy_checkpoint", member, self.counts(member))
        for member in members:
            self._host.points.reached(member, self._counts_then(member))
            if rollout.steps[member] == self._config.steps:
                self._forgive(member)

    def _counts_then(self, member: int) -> Counts:
        """A member's counts as of the evaluation of its present step.

        With policy checkpoints it may owe a burst, which does not change what is
        evaluated; without, its step's updates come first.
        """
        decisions, updates = self.counts(member)
        if not self._config.agent.policy_checkpoints:
            updates += int(self._host.schedule.owed[member])
        return decisions, updates

    def _forgive(self, member: int) -> None:
        if owed := self._host.schedule.forgive(member):
            fields = {"updates_not_made": owed}
            self._journal.event("end", member, self.counts(member), fields)

    def begin(self) -> None:
        """Begins every member's first episode."""
        rollout, members = self._host.rollout, range(self._fleet.size)
        seeds = [rollout.seed(member) for member in members]
        rollout.obs[:], faults = self._pool.try_reset(members, seeds)
        self._fleet.set_first_obs(rollout.obs)
        for fault in faults:
            self.mend(fault)

    def mend(self, fault: Fault) -> None:
        """Begins anew what ran in a slot that failed, or stops the member.

        What fails on the way comes next.
        """
        waiting = [fault]
        while waiting:
            fault = waiting.pop(0)
            training = fault.slot < len(self._host.members)
            again = self._restart(fault) if training else self._repeat(fault)
            waiting = [*again, *waiting]

    def _restart(self, fault: Fault) -> tuple[Fault, ...]:
        """Drops a member's training episode and begins the next one, if one is due."""
        rollout, member = self._host.rollout, fault.slot
        done = rollout.steps[member] >= self._config.steps
        if done or member in self._host.stopped:
            return ()
        episode = rollout.drop(member)
        self._host.schedule.drop(episode)
        fields = {"episode": episode.number, "length": episode.length}
        self._note("episode_dropped", member, fault, fields)
        if member in self._host.stopped:
            return ()
        obs, faults = self._pool.try_reset([member], [rollout.seed(member)])
        self._fleet.add([member], rollout.begin(member, obs[0]))
        return faults

    def _repeat(self, fault: Fault) -> tuple[Fault, ...]:
        """Begins an episode of an evaluation again; the second time, another one."""
        points, slot = self._host.points, fault.slot
        if (playing := points.again(slot)) is None:
            return ()
        member, seed = playing
        self._note("evaluation_repeated", member, fault, {})
        if member in self._host.stopped:
            return ()
        obs, faults = self._pool.try_reset([slot], [seed])
        points.begun(slot, obs[0])
        return faults

    def evaluate(self, evaluated: EvalPolicies) -> None:
        """Begins the evaluations that are due, of policies as they are now."""
        for fault in self._host.points.begin(evaluated):
            self.mend(fault)

    def _note(
        self, event: str, member: int, fault: Fault, fields: dict[str, int]
    ) -> None:
        """Writes a fault down; a member's own count towards its stop."""
        faults, why = self._host.faults, fault.detail.splitlines()[-1]
        faults[member] = faults.get(member, 0) + fault.own_failure
        told: dict[str, FieldValue] = {**fields, "why": why, "own": fault.own_failure}
        told["failures"] = faults[member]
        self._journal.event(event, member, self.counts(member), told)
        if fault.own_failure and faults[member] == 1:
            self._say(
                f"an environment of {self._host.members[member].name} failed ({why}); "
                "the episode is dropped and another begun; after more than "
                f"{self._config.env_faults} failures the member is stopped"
            )
        if faults[member] > self._config.env_faults:
            why = f"its environment failed {faults[member]} times: {why}"
            report = {"why": why, "last_failure": fault.detail.splitlines()}
            self._journal.report(member, report)
            self.stop(member, why)

    def stop(self, member: int, why: str) -> None:
        """Ends a member's run here; the others go on."""
        if member in self._host.stopped:
            return
        self._host.stopped[member] = why
        self._host.schedule.stop(member)
        self._host.points.forget(member)
        self._journal.stop(member, self.counts(member), why)
