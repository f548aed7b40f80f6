"""What a tuning study has found: records of its trials, a table, the best config, a picture."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from r2r2.config.toml_io import to_toml
from r2r2.experiments.tuning_file import TuningStudy
from r2r2.report.charts import Axis, Chart, Line, Marker, Panel, Style
from r2r2.report.figures import render_chart
from r2r2.stats.samples import Floats
from r2r2.stats.scores import LAST_NAME, SCORE_NAME
from r2r2.storage.files import atomic_write, storage_errors
from r2r2.training.run_config import finalize_config

BEST_FILE, TABLE_FILE, PICTURE_FILE = "best.toml", "trials.csv", "history.png"

TrialState = Literal["complete", "pruned", "diverged", "failed", "unfinished"]


class TrialRecord(NamedTuple):
    """A trial of a study, as far as it is known."""

    number: int  # from 1
    state: TrialState
    value: float  # of the objective; of a pruned trial, so far; NaN: none
    values: Mapping[str, Any]  # of the parameters, by dotted name
    seconds: float  # of training
    why: str  # it did not complete
    run: Path  # folder


class TuningResult(NamedTuple):
    """The result of a study so far."""

    study: TuningStudy
    folder: Path
    trials: tuple[TrialRecord, ...]
    interrupted: bool  # the same call continues the study
    importances: Mapping[str, float]  # of the parameters; empty if there are too few trials

    @property
    def best(self) -> TrialRecord | None:
        """The complete trial with the largest objective, the first one of equals."""
        return best_trial(self.trials)

    @property
    def best_config(self) -> Path | None:
        """The file with the config of the best trial, for `r2r2 train --config`."""
        return self.folder / BEST_FILE if self.best else None

    def __repr__(self) -> str:
        """Return the folder, the number of trials and the best one, on one line."""
        best, count = self.best, len(self.trials)
        text = f"best {best.value:g}, trial {best.number}" if best else "none complete"
        return f"<TuningResult {self.folder}: {count} trial{'s' * (count != 1)}, {text}>"


def best_trial(trials: Iterable[TrialRecord]) -> TrialRecord | None:
    """Return the complete trial with the largest objective, the first one of equals."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: trial.value, default=None)


def objective_name(study: TuningStudy) -> str:
    """Return what a study maximises, in words."""
    name = SCORE_NAME if study.settings.objective == "score" else LAST_NAME
    statistic = "IQM" if study.settings.statistic == "iqm" else "mean"
    scaled = ", scaled" if study.scales else ""
    return f"{name}{scaled}, {statistic} over seeds{' and tasks' if len(study.scales) > 1 else ''}"


def shown_values(study: TuningStudy, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of parameters as text, by their shortest unique names."""
    names = [parameter.name for parameter in study.space]
    return {
        (x.name if names.count(x.name) == 1 else x.path): format_value(values[x.path])
        for x in study.space
        if x.path in values
    }


def format_value(value: object) -> str:
    """Return a value of a parameter for people.

    Example:
        >>> format_value(0.00031415926), format_value(256), format_value(True)
        ('0.000314159', '256', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_tables(study: TuningStudy, folder: Path, trials: Sequence[TrialRecord]) -> None:
    """Write the table of trials, and the config of the best one, if there is one."""
    with storage_errors(folder):
        atomic_write(folder / TABLE_FILE, _table(study, folder, trials))
        if best := best_trial(trials):
            config = finalize_config(study.config(best.values))
            about = f"the best of {len(trials)} trials" if len(trials) > 1 else "the only trial"
            head = f"# Trial {best.number} of the study {study.name!r}, {about}: {best.value:g}\n"
            head += f"# ({objective_name(study)})\n"
            atomic_write(folder / BEST_FILE, head + to_toml(config))


def _table(study: TuningStudy, folder: Path, trials: Sequence[TrialRecord]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    paths = [parameter.path for parameter in study.space]
    writer.writerow(["trial", "state", "value", "seconds", *paths, "run", "why"])
    for trial in trials:
        value = "" if math.isnan(trial.value) else repr(trial.value)
        values = [trial.values.get(path, "") for path in paths]
        run = trial.run.relative_to(folder).as_posix()
        facts = trial.number, trial.state, value, round(trial.seconds, 1)
        writer.writerow([*facts, *values, run, trial.why])
    return text.getvalue()


def draw_history(study: TuningStudy, path: Path, trials: Sequence[TrialRecord]) -> bool:
    """Draw the objective of all trials and the best one so far; return False without any."""
    shown = [trial for trial in trials if not math.isnan(trial.value)]
    if not shown:
        return False
    kinds: tuple[tuple[TrialState, int, Marker], ...] = (
        *(("complete", 0, "filled"), ("pruned", 8, "hollow"), ("diverged", 9, "hollow")),
    )
    lines = []
    for state, color, marker in kinds:
        of_kind = [trial for trial in shown if trial.state == state]
        if of_kind:
            x, y = (np.array([t[n] for t in of_kind], dtype=np.float64) for n in (0, 2))
            lines.append(Line(state, Style(color), x, y, marker=marker, connected=False))
    numbers, best = _best_so_far(shown)
    if len(numbers):
        lines.append(Line("best so far", Style(1), numbers, best))
    title = f"{study.title or study.name}: {len(trials)} trials"
    axes = Axis("trial"), Axis(objective_name(study))
    chart = Chart("history", title, "", *axes, panels=[Panel(title, lines)])
    with storage_errors(path):
        atomic_write(path, render_chart(chart)["png"])
    return True


def _best_so_far(trials: Sequence[TrialRecord]) -> tuple[Floats, Floats]:
    """Return trials and their best objective so far, as the corners of a staircase."""
    numbers: list[int] = []
    values: list[float] = []
    for trial in trials:
        best = values[-1] if values else -math.inf
        if trial.state == "complete" and trial.value > best:
            numbers += [trial.number] * (2 if values else 1)
            values += [*values[-1:], trial.value]
    last = trials[-1].number
    if values and numbers[-1] != last:
        numbers, values = [*numbers, last], [*values, values[-1]]
    return np.array(numbers, dtype=np.float64), np.array(values, dtype=np.float64)
