"""Charts of single numbers: ablations, and the time that runs took."""

import numpy as np

from r2r2.report import paper
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.palette import AGENTS, Style, family_of, styles_of
from r2r2.report.scores import Cell
from r2r2.report.statistics import mean_score
from r2r2.report.study import Study
from r2r2.report.suites import interval_of
from r2r2.report.utd_charts import THEIRS

NAMES = Axis("method")
CAPTION = (
    "Mean over seeds of a seed's score, with 95 % bootstrap intervals, of agents with "
    "the same base and of their variants."
)


def ablations(study: Study) -> list[Chart]:
    """A chart for each base and UTD at which an agent has variants, task by task.

    A variant differs from another method with the same base in more than its agent.
    Of results of a file the settings are not known: they are no variants.
    """
    own = {run.results.method for run in study.runs if run.status != "file"}
    groups: dict[tuple[str, int | None], dict[str, list[Cell]]] = {}
    for cell in study.cells:
        where = family_of(cell.method.agent), cell.method.utd
        if cell.method in own and np.isfinite(cell.scores).any():
            groups.setdefault(where, {}).setdefault(cell.task, []).append(cell)
    charts = []
    for (family, utd), by_task in groups.items():
        panels = [
            Panel(task, tuple(_scored(study, cell) for cell in cells))
            for task, cells in by_task.items()
            if len({cell.method.departures for cell in cells}) > 1
        ]
        if panels:
            name = f"ablations-{family}-utd-{utd}"
            title = f"Ablations of {family}" + ("" if utd is None else f", UTD {utd}")
            axes = Axis("score"), NAMES
            charts.append(Chart(name, title, CAPTION, *axes, tuple(panels), rows=True))
    return charts


def timing(study: Study) -> Chart | None:
    """Seconds per decision step of every method, the paper's beside them."""
    styles = styles_of(study.methods)
    lines: list[Line] = []
    told: set[tuple[str, int | None]] = set()
    for method in study.methods:
        times = [
            run.timing
            for run in study.runs
            if run.results.method == method and run.timing is not None
        ]
        seconds = [time.seconds_per_step for time in times]
        if not np.isfinite(seconds).any():
            continue
        members = sum(time.members for time in times)
        note = f"{len(times)} run{'s' if len(times) > 1 else ''}, {members} members"
        mean = float(np.nanmean(seconds))
        lines.append(_bar(study.label(method), styles[method], mean, note))
        told.add((method.agent, method.utd))
    if not lines:
        return None
    for time in paper.times():
        if (time.agent, time.utd) in told:
            name = f"{time.agent}, UTD {time.utd}{THEIRS}"
            note = f"{time.task}, {time.hardware}"
            bar = _bar(name, AGENTS[time.agent], time.seconds, note)
            lines.append(bar._replace(mark="hollow"))
    caption = (
        "Wall-clock time per decision step of one member, updates included; a run "
        "trains its members together, so that its own step takes as many times as "
        "long as it has members. The paper's are of another machine (hollow)."
    )
    like = Chart(
        "timing", "Time", caption, Axis("seconds per decision step"), NAMES, ()
    )
    return like._replace(panels=(Panel("", tuple(lines)),), rows=True)


def _scored(study: Study, cell: Cell) -> Line:
    """The mean over the seeds of a cell, with its interval."""
    scores = cell.scores[np.isfinite(cell.scores)]
    note = f"{len(scores)} seed{'s' if len(scores) != 1 else ''}"
    name, style = study.label(cell.method, utd=False), styles_of(study.methods)
    bar = _bar(name, style[cell.method], float(scores.mean()), note)
    within = interval_of(mean_score, {cell.task: scores})
    if within is None:
        return bar
    return bar._replace(low=np.array([within.low]), high=np.array([within.high]))


def _bar(name: str, style: Style, value: float, note: str) -> Line:
    return Line(name, style, np.zeros(1), np.array([value]), note=note)
