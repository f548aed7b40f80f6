"""Every chart that a study has data for, and why the others are not there."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from r2r2.report.chart_notes import partial
from r2r2.report.charts import Chart, Panel
from r2r2.report.curve_charts import (
    aggregate_curves,
    profiles,
    rank_charts,
    spectrum_chart,
    task_curves,
)
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd, timing
from r2r2.report.study import Study
from r2r2.report.tables import one_line


class Gallery(NamedTuple):
    """The charts of a study in the order of the paper's."""

    charts: tuple[Chart, ...]  # names are those of files, each once
    absent: tuple[tuple[str, str], ...]  # what is not there, and why


class Kind(NamedTuple):
    """One kind of chart, and what it takes."""

    title: str
    charts: Callable[[Study], Chart | list[Chart] | None]
    needs: str


ALL_TASKS = (
    "it takes one method at least with scores on every task of a suite, or of this "
    "report, and those of its base at UTD 1"
)
KINDS = (
    Kind("Score against UTD", suites_by_utd, f"{ALL_TASKS}, at two UTDs or more"),
    Kind(
        "Score against UTD, task by task",
        tasks_by_utd,
        "it takes runs at two UTDs or more",
    ),
    Kind("Aggregate learning curves", aggregate_curves, ALL_TASKS),
    Kind("Learning curves", task_curves, "no run has an evaluation yet"),
    Kind("Performance profiles", profiles, ALL_TASKS),
    Kind(
        "Ablations",
        ablations,
        "it takes two variants of an agent on the same task at the same UTD",
    ),
    Kind(
        "Spectra of the representation",
        spectrum_chart,
        "no run has recorded singular values other than 0, all of them finite; agents "
        "without an encoder have none",
    ),
    Kind(
        "Effective rank",
        rank_charts,
        "no run has recorded diagnostics; agents without an encoder have none",
    ),
    Kind("Time", timing, "no run has recorded how long it took, or it was too short"),
)


def gallery_of(study: Study) -> Gallery:
    """All charts of a study.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> from r2r2.stats.scores import Method, Results
        >>> from r2r2.report.study import RunData, study_of
        >>> rows = [Row("x", "Hopper-v5", 0, "return", n, 1.0) for n in (1000, 2000)]
        >>> run = RunData("a", "runs/a", "finished", Results(Method("td7", 1), rows))
        >>> gallery = gallery_of(study_of([run]))
        >>> [chart.name for chart in gallery.charts]
        ['aggregate', 'curves-utd-1', 'profiles']
        >>> gallery.absent[-1]
        ('Time', 'no run has recorded how long it took, or it was too short')
    """
    charts: dict[str, Chart] = {}
    absent: list[tuple[str, str]] = []
    for kind in KINDS:
        found = list(_listed(kind.charts(study)))
        if not found:
            absent.append((kind.title, kind.needs))
        for chart in found:
            name = _file_name(chart.name, charts)
            notes = (*chart.notes, *partial(chart))
            charts[name] = _printable(chart._replace(name=name, notes=notes))
    return Gallery(tuple(charts.values()), tuple(absent))


def _printable(chart: Chart) -> Chart:
    """A chart without what neither a page nor a picture can show of names."""
    panels = tuple(
        Panel(
            one_line(panel.title),
            tuple(line._replace(name=one_line(line.name)) for line in panel.lines),
        )
        for panel in chart.panels
    )
    notes = tuple(map(one_line, chart.notes))
    return chart._replace(title=one_line(chart.title), panels=panels, notes=notes)


def _listed(found: Chart | list[Chart] | None) -> Iterable[Chart]:
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


def _file_name(name: str, taken: Iterable[str]) -> str:
    """A name that any file system takes, and that no other chart has."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:80]
    number = 1
    unique = plain
    while unique in taken:
        number += 1
        unique = f"{plain}-{number}"
    return unique
