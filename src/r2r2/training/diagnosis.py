"""Diagnosis of every member's representation and values at each evaluation."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from r2r2.diagnostics.latent_probe import LatentProbe, Number, ProbeLatents
from r2r2.diagnostics.representation import Diagnosis
from r2r2.replay.normalizer import Scales
from r2r2.storage.events import FieldValue
from r2r2.training.evaluation import normalize_obs
from r2r2.training.run_log import Counts
from r2r2.training.state import TrainState

DiagnosisResult = tuple[Diagnosis, dict[str, Number]]
DIGITS = 6  # of a singular value in the log


class Diagnoser:
    """Logs a diagnosis of every member at every evaluation.

    The events of an evaluation are `diagnostics` (numbers), `spectrum` (singular
    values, largest first), `value` when its episodes are over, and `collapse` if the
    representation has collapsed, which also causes a message when it first happens.
    """

    def __init__(self, state: TrainState, probe: LatentProbe):
        self._state, self._probe = state, probe
        self._warned = False
        self._thread = ThreadPoolExecutor(1)  # decompositions take longer than many updates
        self._running: list[tuple[int, Counts, Future[DiagnosisResult]]] = []

    def diagnose(self, due: Mapping[int, Counts], scales: Scales | None) -> None:
        """Diagnose members whose evaluations just began, while no updates run; log errors.

        Beside an accelerator, `collect` logs the diagnoses later.
        """
        for member, counts in due.items():
            if member in self._state.stopped:  # its environments failed to start
                continue
            try:
                latents, values = self._probe_member(member, scales)
            except Exception as error:  # libraries and devices may raise anything
                self._log_failure(member, counts, error)
                continue
            self._running.append((member, counts, self._thread.submit(latents.diagnose)))
            if len(values):
                self._state.evals.value_bias.begin(member, values)
        self.collect(wait=not self._state.fleet.accelerated)

    def collect(self, wait: bool) -> None:
        """Log the diagnoses that are done, or all of them."""
        while self._running and (wait or self._running[0][2].done()):
            member, counts, future = self._running.pop(0)
            try:
                diagnosis, numbers = future.result()
            except Exception as error:  # libraries may raise anything
                self._log_failure(member, counts, error)
            else:
                self._log(member, counts, diagnosis, numbers)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _probe_member(
        self, member: int, scales: Scales | None
    ) -> tuple[ProbeLatents, NDArray[np.floating]]:
        """Return a member's latents and the values of its evaluation episodes, if they run."""
        fleet = self._state.fleet
        states, data = fleet.states, fleet.data(scales)
        latents = self._probe.latents(member, data, states, int(fleet.opened[member]))
        obs = self._state.evals.first_obs(member)
        if not len(obs):
            return latents, obs
        values = self._probe.values(member, states, normalize_obs(scales, member, obs))
        unit = 1.0 if scales is None else float(scales.reward[member])
        return latents, unit * values

    def _log_failure(self, member: int, counts: Counts, error: Exception) -> None:
        state, name = self._state, self._state.members[member].name
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        state.log.event("diagnosis_failed", member, counts, {"why": why})
        if not self._warned:
            state.on_message(f"the representation of {name} could not be diagnosed ({why})")
        self._warned = True

    def _log(
        self, member: int, counts: Counts, diagnosis: Diagnosis, numbers: Mapping[str, Number]
    ) -> None:
        state = self._state
        state.log.event("diagnostics", member, counts, numbers)
        values = [float(f"{x:.{DIGITS}g}") for x in diagnosis.singular_values]
        state.log.event("spectrum", member, counts, {"singular_values": values})
        if not diagnosis.collapsed:
            state.collapsed.discard(member)
            return
        names = "effective_rank", "spread", "dead"
        why: dict[str, FieldValue] = {name: getattr(diagnosis, name) for name in names}
        state.log.event("collapse", member, counts, why)
        if member not in state.collapsed:
            state.collapsed.add(member)
            state.on_message(
                f"warning: at step {counts[0]:,} the representation of "
                f"{state.members[member].name} has collapsed: effective rank "
                f"{diagnosis.effective_rank:.1f} of {len(values)}, spread "
                f"{diagnosis.spread:.2f}, {diagnosis.dead} dead coordinates"
            )


def make_diagnoser(state: TrainState) -> Diagnoser | None:
    """Return the diagnoser of a run; None for an agent without an encoder."""
    weights = state.config.agent.representation
    if state.agent.encode is None or weights is None:
        return None
    seeds = [member.seed for member in state.members]
    probe = LatentProbe(state.agent, weights, seeds, state.config.diagnostics)
    return Diagnoser(state, probe)
