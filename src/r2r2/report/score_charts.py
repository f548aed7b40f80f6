"""Charts of single numbers: ablations, and the time that runs took."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.report.baselines import base_label
from r2r2.report.chart_notes import (
    lacking,
    left_out,
    why_no_mean,
    without_mean,
    without_utd,
)
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.curve_charts import BASE
from r2r2.report.palette import AGENTS, Style, family_of, styles_of
from r2r2.report.score_tables import suite_title
from r2r2.report.study import RunData, Study
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import interval_of, ordered_tasks

THEIRS = " (paper)"  # after an agent's name
HOLLOW = " Hollow marks are the paper's own numbers, for comparison."
WIDTH = 0.6  # of a place on the axis is for marks side by side
NEAR = 0.14  # between two of them at most


class Spot(NamedTuple):
    """One mark: where it belongs and what it says."""

    panel: str
    name: str
    style: Style
    utd: int
    value: float
    within: Interval | None
    note: str = ""
    lacks: tuple[str, ...] = ()


def suites_by_utd(study: Study) -> Chart | None:
    """Mean normalised scores over suites against UTD."""
    styles = styles_of(study.methods)
    spots = []
    whole = dict.fromkeys(one.suite for one in study.suites if one.estimates)
    absent = [said for suite in whole for said in left_out(study, suite)]
    for result in study.suites:
        agent, utd, _ = method = result.method
        if utd is not None and result.estimates:
            suite = suite_title(study, result.suite)
            where = f"{suite}, relative to {base_label(study, method)}"
            mean, runs = result.estimates["mean"], sum(map(len, result.scores.values()))
            name, note = study.label(method, utd=False), f"{runs} runs"
            ours = where, name, styles[method], utd, mean.value, mean.pooled, note
            lacks = () if result.complete else (study.label(method),)
            spots += [
                Spot(*ours, lacks),
                *_their_aggregate(where, result.suite, agent, utd),
            ]
    chart = _chart(
        spots,
        "score-by-utd",
        "Score against UTD",
        f"Mean of normalised scores, {BASE}, with 95 % bootstrap intervals over the "
        f"pooled scores, which are the kind that the paper's seem to be.",
        Axis("normalised score"),
    )
    notes = *absent, *without_utd(study)
    return chart and chart._replace(notes=notes)


def tasks_by_utd(study: Study) -> Chart | None:
    """Raw scores on every task against UTD."""
    styles = styles_of(study.methods)
    spots = []
    for cell in study.cells:
        agent, utd, _ = method = cell.method
        if utd is not None and len(cell.scores):
            name, mean = study.label(method, utd=False), float(cell.scores.mean())
            within = (
                None
                if why_no_mean(cell)
                else interval_of(mean_score, {cell.task: cell.scores})
            )
            note = why_no_mean(cell) or _seeds(len(cell.scores))
            ours = cell.task, name, styles[method], utd, mean, within, note
            lacks = lacking(study, method, [cell.task])
            spots += [Spot(*ours, lacks), *_their_score(cell.task, agent, utd)]
    chart = _chart(
        spots,
        "score-by-utd-tasks",
        "Score against UTD, task by task",
        "Mean over seeds of a seed's score, the mean return of its last ten "
        "evaluations, with 95 % bootstrap intervals.",
        Axis("score"),
    )
    known = [cell for cell in study.cells if cell.method.utd is not None]
    notes = *without_mean(study, known), *without_utd(study)
    return chart and chart._replace(notes=notes)


def _their_aggregate(panel: str, suite: str, agent: str, utd: int) -> Iterable[Spot]:
    one = paper.aggregate(suite, "mean", agent, utd)
    if one is not None:
        within = Interval(np.asarray(one.low), np.asarray(one.high))
        named = panel, agent + THEIRS, AGENTS[agent], utd
        yield Spot(*named, one.value, within, _seeds(paper.SEEDS))


def _their_score(task: str, agent: str, utd: int) -> Iterable[Spot]:
    spread = paper.raw_scores().get(paper.Which(task, agent, utd))
    if spread is not None:
        named = task, agent + THEIRS, AGENTS[agent], utd
        note = f"{_seeds(paper.SEEDS)}, deviation {spread.std:,g}"
        yield Spot(*named, spread.mean, None, note)


def _chart(
    spots: Sequence[Spot], name: str, title: str, caption: str, y: Axis
) -> Chart | None:
    """A chart of spots; none where all have the same UTD."""
    utds = sorted({spot.utd for spot in spots})
    if len(utds) < 2:
        return None
    panels = [
        Panel(panel, _lines([spot for spot in spots if spot.panel == panel], utds))
        for panel in dict.fromkeys(spot.panel for spot in spots)
    ]
    if any(spot.name.endswith(THEIRS) for spot in spots):
        caption += HOLLOW
    ticks = tuple((float(place), str(utd)) for place, utd in enumerate(utds))
    return Chart(name, title, caption, Axis("UTD", ticks=ticks), y, tuple(panels))


def _lines(spots: Sequence[Spot], utds: Sequence[int]) -> tuple[Line, ...]:
    """Spots of the same name as one line, and lines beside each other."""
    names = list(dict.fromkeys(spot.name for spot in spots))
    gap = min(NEAR, WIDTH / len(names))
    lines = []
    for number, name in enumerate(names):
        own = sorted((s for s in spots if s.name == name), key=lambda s: s.utd)
        own = list({spot.utd: spot for spot in own}.values())
        x = np.array([float(utds.index(spot.utd)) for spot in own])
        y = np.array([spot.value for spot in own])
        ends = np.array([spot.within or (np.nan, np.nan) for spot in own])
        theirs = name.endswith(THEIRS)
        line = Line(name, own[0].style, x, y, ends[:, 0], ends[:, 1])
        lines.append(
            line._replace(
                note=tuple(spot.note for spot in own),
                mark="hollow" if theirs else "full",
                joined=not theirs,
                lacks=tuple(label for spot in own for label in spot.lacks),
                shift=gap * (number - (len(names) - 1) / 2),
            )
        )
    return tuple(lines)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


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
