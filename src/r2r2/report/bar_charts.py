"""Charts of single numbers: ablations, and the time that runs took."""

from collections.abc import Sequence

import numpy as np

from r2r2.report import paper
from r2r2.report.absences import lacking, why_no_mean, without_mean
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.palette import AGENTS, Style, family_of, styles_of
from r2r2.report.scores import Cell, Method
from r2r2.report.statistics import mean_score
from r2r2.report.study import RunData, Study
from r2r2.report.suites import interval_of, ordered_tasks
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
        if cell.method in own:
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
            chart = Chart(name, title, CAPTION, *axes, tuple(panels), rows=True)
            cells = [cell for task in by_task.values() for cell in task]
            charts.append(chart._replace(notes=without_mean(study, cells)))
    return charts


def timing(study: Study) -> Chart | None:
    """Seconds per decision step of every method, a panel for the tasks of its runs.

    A run makes the steps of all its tasks at once: its time is theirs together.
    """
    runs: dict[tuple[str, ...], dict[Method, list[RunData]]] = {}
    for run in study.runs:
        if run.timing is not None:
            by_method = runs.setdefault(ordered_tasks(run.tasks), {})
            by_method.setdefault(run.results.method, []).append(run)
    panels = []
    for tasks in sorted(runs, key=lambda names: study.tasks.index(names[0])):
        ours = [
            _timed(study, method, runs[tasks][method])
            for method in study.methods
            if method in runs[tasks]
        ]
        told = {(method.agent, method.utd) for method in runs[tasks]}
        theirs = [
            _their_time(time)
            for time in paper.times()
            if time.task in tasks and (time.agent, time.utd) in told
        ]
        panels.append(Panel(", ".join(tasks), (*ours, *theirs)))
    if not any(np.isfinite(line.y).any() for one in panels for line in one.lines):
        return None
    caption = (
        "Wall-clock time per decision step of one member, updates included; a run "
        "trains its members together, so that its own step takes as many times as "
        "long as it has members. The paper's are of another machine (hollow)."
    )
    axes = Axis("seconds per decision step"), NAMES
    return Chart("timing", "Time", caption, *axes, tuple(panels), rows=True)


def _timed(study: Study, method: Method, runs: Sequence[RunData]) -> Line:
    """The mean over runs of one method on the same tasks; of those that say."""
    times = [run.timing for run in runs if run.timing is not None]
    known = [time for time in times if np.isfinite(time.seconds_per_step)]
    members = sum(time.members for time in known)
    note = f"{_count(len(known), 'run')}, {_count(members, 'member')}"
    if len(known) < len(times):
        note += f"; {len(times) - len(known)} too short to say"
    mean = float(np.mean([t.seconds_per_step for t in known])) if known else np.nan
    bar = _bar(study.label(method), styles_of(study.methods)[method], mean, note)
    return bar._replace(lacks=lacking(study, method, runs[0].tasks))


def _their_time(time: paper.Time) -> Line:
    name = f"{time.agent}, UTD {time.utd}{THEIRS}"
    note = f"{time.task}, {time.hardware}"
    bar = _bar(name, AGENTS[time.agent], time.seconds, note)
    return bar._replace(mark="hollow")


def _scored(study: Study, cell: Cell) -> Line:
    """The mean over the seeds of a cell, with its interval, or why there is none."""
    note = why_no_mean(cell) or _count(len(cell.scores), "seed")
    name, style = study.label(cell.method, utd=False), styles_of(study.methods)
    bar = _bar(name, style[cell.method], np.nan, note)
    bar = bar._replace(lacks=lacking(study, cell.method, [cell.task]))
    if why_no_mean(cell):
        return bar
    within = interval_of(mean_score, {cell.task: cell.scores})
    bar = bar._replace(y=np.array([cell.scores.mean()]))
    if within is None:
        return bar
    return bar._replace(low=np.array([within.low]), high=np.array([within.high]))


def _bar(name: str, style: Style, value: float, note: str) -> Line:
    return Line(name, style, np.zeros(1), np.array([value]), note=note)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
