"""All charts of a study, and the reasons why others are missing."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from r2r2.report.charts import Chart, Note, NoteKind, Panel, make_notes
from r2r2.report.curve_charts import (
    aggregate_curves,
    profiles,
    rank_charts,
    spectrum_chart,
    task_curves,
)
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd, timing
from r2r2.report.study import Study
from r2r2.report.tables import printable


class MissingChart(NamedTuple):
    """A kind of chart that a study has no data for."""

    title: str
    reason: str


class ChartSet(NamedTuple):
    """The charts of a study, in the order of the paper's."""

    charts: tuple[Chart, ...]  # with unique names, which are names of files
    missing: tuple[MissingChart, ...]


class ChartKind(NamedTuple):
    """One kind of chart, and what it requires."""

    title: str
    make: Callable[[Study], Chart | list[Chart] | None]
    requirement: str


COMPLETE_SUITE = (
    "requires a method with scores on all tasks of a suite or of this report, and its "
    "base at UTD 1"
)
KINDS = (
    ChartKind(
        "Score against UTD", suites_by_utd, f"{COMPLETE_SUITE}, at two or more UTDs"
    ),
    ChartKind(
        "Score against UTD, task by task",
        tasks_by_utd,
        "requires runs at two or more UTDs",
    ),
    ChartKind("Aggregate learning curves", aggregate_curves, COMPLETE_SUITE),
    ChartKind("Learning curves", task_curves, "no run has an evaluation yet"),
    ChartKind("Performance profiles", profiles, COMPLETE_SUITE),
    ChartKind(
        "Ablations",
        ablations,
        "requires two variants of an agent on the same task at the same UTD",
    ),
    ChartKind(
        "Spectra of the representation",
        spectrum_chart,
        "no run has recorded finite, nonzero singular values; agents without an "
        "encoder have none",
    ),
    ChartKind(
        "Effective rank",
        rank_charts,
        "no run has recorded diagnostics; agents without an encoder have none",
    ),
    ChartKind("Time", timing, "no run has recorded times, or all were too short"),
)


def make_charts(study: Study) -> ChartSet:
    """Return all charts of a study.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> from r2r2.stats.scores import Method, Results
        >>> from r2r2.report.study import RunData, make_study
        >>> rows = [Row("x", "Hopper-v5", 0, "return", n, 1.0) for n in (1000, 2000)]
        >>> run = RunData("a", "runs/a", "finished", Results(Method("td7", 1), rows))
        >>> [chart.name for chart in make_charts(make_study([run])).charts]
        ['aggregate', 'curves-utd-1', 'profiles']
    """
    charts: dict[str, Chart] = {}
    missing: list[MissingChart] = []
    for kind in KINDS:
        made = kind.make(study)
        of_kind = made if isinstance(made, list) else [made] if made else []
        if not of_kind:
            missing.append(MissingChart(kind.title, kind.requirement))
        for chart in of_kind:
            name = _unique_file_name(chart.name, charts)
            notes = (*chart.notes, *_partial_notes(chart))
            charts[name] = _printable(chart._replace(name=name, notes=notes))
    return ChartSet(tuple(charts.values()), tuple(missing))


def _partial_notes(chart: Chart) -> tuple[Note, ...]:
    lines = [line for panel in chart.panels for line in panel.lines]
    labels = (label for line in lines for label in line.partial)
    return make_notes(NoteKind.PARTIAL, labels)


def _printable(chart: Chart) -> Chart:
    """Return a chart whose names have no unprintable characters."""
    panels = tuple(
        Panel(
            printable(panel.title),
            tuple(line._replace(name=printable(line.name)) for line in panel.lines),
        )
        for panel in chart.panels
    )
    notes = tuple(
        note._replace(items=tuple(map(printable, note.items))) for note in chart.notes
    )
    return chart._replace(title=printable(chart.title), panels=panels, notes=notes)


def _unique_file_name(name: str, taken: Iterable[str]) -> str:
    """Return a name that every file system accepts and that is not taken."""
    stem = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:80]
    number = 1
    unique = stem
    while unique in taken:
        number += 1
        unique = f"{stem}-{number}"
    return unique
