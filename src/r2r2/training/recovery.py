"""Recovery from failures: restart episodes, or stop the member that keeps failing."""

import math
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.envs.spec import Fault
from r2r2.replay.normalizer import make_normalizer
from r2r2.storage.events import FieldValue
from r2r2.training.checkpointing import CheckpointWriter, read_snapshot
from r2r2.training.evaluation import MemberWeights, member_of
from r2r2.training.state import TrainState

NOT_FINITE = "a loss was not finite"


class Recovery:
    """Handles failed environments and non-finite losses."""

    def __init__(self, state: TrainState, writer: CheckpointWriter | None):
        self._state, self._writer = state, writer

    def recover(self, fault: Fault) -> None:
        """Restart the episode of a failed slot, or stop its member; repeat if the restart fails."""
        faults = [fault]
        while faults:
            fault = faults.pop(0)
            training = fault.slot < len(self._state.members)
            restart = self._restart_training if training else self._restart_evaluation
            faults = [*restart(fault), *faults]

    def stop(self, member: int, why: str) -> None:
        """End a member's run; the other members continue."""
        state = self._state
        if member in state.stopped:
            return
        state.stopped[member] = why
        state.schedule.stop(member)
        state.evals.cancel(member)
        state.log.stop(member, state.counts(member), why)

    def stop_nonfinite(self, member: int) -> None:
        """Stop a member whose loss was not finite; report its batch and save good weights."""
        if member in self._state.stopped:
            return
        self.stop(member, NOT_FINITE)
        batch = self._state.fleet.nonfinite_batch(member)
        report = {
            "why": NOT_FINITE,
            "batch": {name: statistics(field) for name, field in batch.items()},
            "weights_of_step": self._save_good_weights(member),
        }
        self._state.log.report(member, report)

    def _restart_training(self, fault: Fault) -> tuple[Fault, ...]:
        """Drop a member's training episode and begin the next one, if any."""
        state, member = self._state, fault.slot
        if state.training_done(member) or member in state.stopped:
            return ()
        episode = state.rollout.drop(member)
        state.schedule.record_dropped(episode)
        fields = {"episode": episode.number, "length": episode.length}
        self._record_fault("episode_dropped", member, fault, fields)
        if member in state.stopped:
            return ()
        obs, faults = state.pool.try_reset([member], [state.rollout.seed(member)])
        state.fleet.add([member], state.rollout.begin(member, obs[0]))
        return faults

    def _restart_evaluation(self, fault: Fault) -> tuple[Fault, ...]:
        """Restart an evaluation episode; from the second time on, another one."""
        state, slot = self._state, fault.slot
        if (retry := state.evals.retry(slot)) is None:
            return ()
        member, seed = retry
        self._record_fault("evaluation_repeated", member, fault, {})
        if member in state.stopped:
            return ()
        obs, faults = state.pool.try_reset([slot], [seed])
        state.evals.restart(slot, obs[0])
        return faults

    def _record_fault(self, event: str, member: int, fault: Fault, fields: dict[str, int]) -> None:
        """Log a failure; stop the member after too many failures of its own environments."""
        state, limit = self._state, self._state.config.env_faults
        why, own_failure = fault.detail.splitlines()[-1], fault.own_failure
        state.failures[member] = count = state.failures.get(member, 0) + own_failure
        details: dict[str, FieldValue] = {
            **fields,
            "why": why,
            "own": own_failure,
            "failures": count,
        }
        state.log.event(event, member, state.counts(member), details)
        if own_failure and count == 1:
            state.on_message(
                f"an environment of {state.members[member].name} failed ({why}{fault.location}); "
                "episode discarded; starting a new one; after more than "
                f"{limit} failures the member is stopped"
            )
        if count > limit:
            why = f"its environment failed {count} times: {why}{fault.location}"
            step, _ = state.counts(member)
            report = {"why": why, "weights_of_step": step}
            state.log.report(member, report | {"last_failure": fault.detail.splitlines()})
            self.stop(member, why)

    def _save_good_weights(self, member: int) -> int | None:
        """Save a member's last checkpointed weights if they are finite; return their step."""
        state = self._state
        checkpoint = self._writer.newest() if self._writer is not None else None
        if checkpoint is None:
            return None
        try:
            snapshot = read_snapshot(state, checkpoint)
        except UserError:  # must not end the other members' run
            return None
        scales = None
        if snapshot.statistics is not None:
            scales = make_normalizer(state.config.agent, snapshot.statistics).scales()
        weights = member_of(MemberWeights(snapshot.fleet.learners.state, scales), member)
        # Weights may be lost an update before a loss shows it.
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
            return None
        state.log.save_weights(member, weights)
        return int(snapshot.rollout["steps"][member])


def statistics(values: NDArray[Any]) -> dict[str, float | int | None]:
    """Return mean, std, min and max of finite numbers, and a count of the others."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    summary: dict[str, float | int | None] = {}
    for name in ("mean", "std", "min", "max"):
        value = float(getattr(finite, name)()) if finite.size else math.nan
        summary[name] = value if math.isfinite(value) else None
    return summary | {"not_finite": int(numbers.size - finite.size)}
