"""Members looked into as their evaluations begin, and warned of."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.diagnostics.latent_probe import LatentProbe, Number
from r2r2.diagnostics.representation import Diagnosis
from r2r2.replay.normalizer import Scales
from r2r2.storage.events import FieldValue
from r2r2.training.evaluation import obs_normalizer
from r2r2.training.run_log import Counts
from r2r2.training.state import RunState

DIGITS = 6  # of a singular value in the log


class Found(NamedTuple):
    """What there is to be said of a member whose evaluation begins."""

    diagnosis: Diagnosis
    numbers: Mapping[str, Number]
    expected: NDArray[np.floating] | None  # of its episodes, [E], in the task's units


class Diagnosing:
    """Writes a diagnosis of every member at every evaluation.

    An evaluation's events are `diagnostics` (numbers), `spectrum` (the singular values,
    largest first) and, when its episodes are over, `value`; `collapse` where the
    representation has collapsed, of which people are told when it comes to that.

    Args:
        run: its parts.
        examiner: looks into its members.
    """

    def __init__(self, run: RunState, examiner: LatentProbe):
        self._fleet, self._journal, self._host = run.fleet, run.journal, run.host
        self._say, self._examiner = run.say, examiner
        self._told = False  # that it failed

    def look(self, due: Mapping[int, Counts], scales: Scales | None) -> None:
        """Looks into members whose evaluations have just begun; none may be training.

        What fails here is noted and costs the member this diagnosis, nothing else.

        Args:
            due: who, and how far they are.
            scales: of all members.
        """
        for member, counts in due.items():
            if member in self._host.stopped:  # its environments failed at the start
                continue
            try:
                found = self._examined(member, scales)
            except Exception as error:  # of libraries and devices: it may be any
                self._failed(member, counts, error)
                continue
            self._write(member, counts, found)
            if found.expected is not None:
                self._host.points.biases.begin(member, found.expected)

    def _examined(self, member: int, scales: Scales | None) -> Found:
        states, data = self._fleet.states, self._fleet.data(scales)
        opened = int(self._fleet.opened[member])
        found, numbers = self._examiner.diagnose(member, data, states, opened)
        obs = self._host.points.first_states(member)
        if not len(obs):  # a lent environment's evaluation comes later
            return Found(found, numbers, None)
        seen = obs_normalizer(scales, member)(obs)
        values = self._examiner.values(member, states, seen)
        unit = 1.0 if scales is None else float(scales.reward[member])
        return Found(found, numbers, unit * values)

    def _failed(self, member: int, counts: Counts, error: Exception) -> None:
        name = self._host.members[member].name
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        self._journal.event("diagnosis_failed", member, counts, {"why": why})
        if not self._told:
            self._say(f"the representation of {name} could not be looked into ({why})")
        self._told = True

    def _write(self, member: int, counts: Counts, found: Found) -> None:
        diagnosis, collapsed = found.diagnosis, self._host.collapsed
        self._journal.event("diagnostics", member, counts, found.numbers)
        values = [float(f"{x:.{DIGITS}g}") for x in diagnosis.singular_values]
        self._journal.event("spectrum", member, counts, {"singular_values": values})
        if not diagnosis.collapsed:
            collapsed.discard(member)
            return
        names = "effective_rank", "spread", "dead"
        why: dict[str, FieldValue] = {name: getattr(diagnosis, name) for name in names}
        self._journal.event("collapse", member, counts, why)
        if member not in collapsed:
            collapsed.add(member)
            self._say(
                f"warning: at step {counts[0]:,} the representation of "
                f"{self._host.members[member].name} has collapsed: effective rank "
                f"{diagnosis.effective_rank:.1f} of {len(values)}, spread "
                f"{diagnosis.spread:.2f}, {diagnosis.dead} dead coordinates"
            )


def diagnosing_for(run: RunState) -> Diagnosing | None:
    """What diagnoses a run's members; none where the agent has no encoder."""
    weights = run.config.agent.representation
    if run.agent.encode is None or weights is None:
        return None
    seeds = [member.seed for member in run.host.members]
    return Diagnosing(run, LatentProbe(run.agent, weights, seeds))
