"""Charts of single numbers: scores against UTD, ablations and times."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.report.charts import (
    Axis,
    Chart,
    Gap,
    Line,
    Note,
    NoteKind,
    Panel,
    count_text,
    gap_notes,
    make_notes,
)
from r2r2.report.completeness import format_seeds
from r2r2.report.curve_charts import BASE_SCORE, partial_label, suite_notes
from r2r2.report.palette import AGENT_STYLES, Style, agent_family, method_styles
from r2r2.report.score_tables import suite_title
from r2r2.report.study import RunData, Study
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import bootstrap_interval, ordered_tasks

PUBLISHED = " (paper)"  # after an agent's name
PUBLISHED_CAPTION = " Hollow markers: the paper's numbers."
GROUP_WIDTH = 0.6  # share of the distance between ticks used for markers side by side
MAX_SPACING = 0.14  # between neighbouring markers
METHODS = Axis("method")


class ScoreMarker(NamedTuple):
    """One marker of a chart against UTD."""

    panel: str
    name: str
    style: Style
    utd: int
    value: float
    interval: Interval | None
    detail: str
    partial: tuple[str, ...] = ()
    published: bool = False  # whether it is the paper's number


def suites_by_utd(study: Study) -> Chart | None:
    """Return mean normalised scores over suites against UTD."""
    styles = method_styles(study.methods)
    markers = []
    for result in study.suites:
        method = result.method
        if method.utd is None or not result.estimates:
            continue
        suite = suite_title(study, result.suite)
        panel = f"{suite}, relative to {study.base_label(method)}"
        mean, runs = result.estimates["mean"], sum(map(len, result.scores.values()))
        markers.append(
            ScoreMarker(
                panel,
                study.label(method, utd=False),
                styles[method],
                method.utd,
                mean.value,
                mean.pooled,
                count_text(runs, "run"),
                () if result.complete else (study.label(method),),
            )
        )
        markers += _published_aggregate(panel, result.suite, method.agent, method.utd)
    chart = _utd_chart(
        markers,
        "score-by-utd",
        "Score against UTD",
        "Mean of normalised scores, with 95 % bootstrap intervals over the pooled "
        f"scores, as the paper appears to compute them. {BASE_SCORE}",
        Axis("normalised score"),
    )
    suites = dict.fromkeys(result.suite for result in study.suites if result.estimates)
    missing = [note for suite in suites for note in suite_notes(study, suite)]
    return chart and chart._replace(notes=(*missing, *unknown_utd_notes(study)))


def tasks_by_utd(study: Study) -> Chart | None:
    """Return raw scores on every task against UTD."""
    styles = method_styles(study.methods)
    markers = []
    known = [cell for cell in study.cells if cell.method.utd is not None]
    for cell in known:
        method = cell.method
        agent, utd = method.agent, method.utd
        if utd is None or not len(cell.scores):
            continue
        reason = no_mean_reason(cell)
        markers.append(
            ScoreMarker(
                cell.task,
                study.label(method, utd=False),
                styles[method],
                utd,
                float(cell.scores.mean()),
                None
                if reason
                else bootstrap_interval(mean_score, {cell.task: cell.scores}),
                reason or count_text(len(cell.scores), "seed"),
                partial_label(study, method, [cell.task]),
            )
        )
        markers += _published_score(cell.task, agent, utd)
    chart = _utd_chart(
        markers,
        "score-by-utd-tasks",
        "Score against UTD, task by task",
        "Mean over seeds of the score, which is the mean return of a seed's last ten "
        "evaluations, with 95 % bootstrap intervals.",
        Axis("score"),
    )
    notes = *no_mean_notes(study, known), *unknown_utd_notes(study)
    return chart and chart._replace(notes=notes)


def unknown_utd_notes(study: Study) -> tuple[Note, ...]:
    """Return a note on methods whose UTD is unknown, which come from files."""
    unknown = [study.label(method) for method in study.methods if method.utd is None]
    return make_notes(NoteKind.UNKNOWN_UTD, unknown)


def no_mean_notes(study: Study, cells: Iterable[Cell]) -> tuple[Note, ...]:
    """Return a note on cells whose scores have no mean, with reasons."""
    gaps = [Gap(study.label(c.method), c.task, no_mean_reason(c)) for c in cells]
    return gap_notes(NoteKind.NO_MEAN, (gap for gap in gaps if gap.reason))


def no_mean_reason(cell: Cell) -> str:
    """Return why the scores of a cell have no mean; empty if they have one.

    Example:
        >>> from r2r2.stats.scores import SeedScore
        >>> seeds = [SeedScore(n, score, 1, 9) for n, score in enumerate([1.0, np.nan])]
        >>> no_mean_reason(Cell(Method("td7"), "dog-run", tuple(seeds), ()))
        '1 of 2 seeds; seed 1 is not finite'
    """
    scored = [seed for seed in cell.seeds if seed.points]
    if not scored:
        return "no evaluation yet"
    bad = [seed.seed for seed in scored if not np.isfinite(seed.score)]
    if not bad:
        return ""
    seeds, verb = ("seeds", "are") if len(bad) > 1 else ("seed", "is")
    count = f"{len(scored) - len(bad)} of {len(scored)} seeds"
    return f"{count}; {seeds} {format_seeds(bad)} {verb} not finite"


def _published_aggregate(
    panel: str, suite: str, agent: str, utd: int
) -> Iterable[ScoreMarker]:
    aggregate = paper.aggregate(suite, "mean", agent, utd)
    if aggregate is not None:
        interval = Interval(np.asarray(aggregate.low), np.asarray(aggregate.high))
        yield _published_marker(panel, agent, utd, aggregate.value, interval)


def _published_score(task: str, agent: str, utd: int) -> Iterable[ScoreMarker]:
    score = paper.raw_scores().get(paper.CellKey(task, agent, utd))
    if score is not None:
        marker = _published_marker(task, agent, utd, score.mean, None)
        detail = f"{marker.detail}, standard deviation {score.std:,g}"
        yield marker._replace(detail=detail)


def _published_marker(
    panel: str, agent: str, utd: int, value: float, interval: Interval | None
) -> ScoreMarker:
    return ScoreMarker(
        panel,
        agent + PUBLISHED,
        AGENT_STYLES[agent],
        utd,
        value,
        interval,
        count_text(paper.SEEDS, "seed"),
        published=True,
    )


def _utd_chart(
    markers: Sequence[ScoreMarker], name: str, title: str, caption: str, y: Axis
) -> Chart | None:
    """Return a chart of markers; None if all have the same UTD."""
    utds = sorted({marker.utd for marker in markers})
    if len(utds) < 2:
        return None
    panels = tuple(
        Panel(panel, _utd_lines([m for m in markers if m.panel == panel], utds))
        for panel in dict.fromkeys(marker.panel for marker in markers)
    )
    if any(marker.published for marker in markers):
        caption += PUBLISHED_CAPTION
    ticks = tuple((float(place), str(utd)) for place, utd in enumerate(utds))
    return Chart(name, title, caption, Axis("UTD", ticks=ticks), y, panels)


def _utd_lines(markers: Sequence[ScoreMarker], utds: Sequence[int]) -> tuple[Line, ...]:
    """Return a line for each name, with markers of the same UTD side by side."""
    names = list(dict.fromkeys(marker.name for marker in markers))
    spacing = min(MAX_SPACING, GROUP_WIDTH / len(names))
    lines = []
    for number, name in enumerate(names):
        by_utd = {m.utd: m for m in markers if m.name == name}
        line = _utd_line([by_utd[utd] for utd in sorted(by_utd)], utds)
        offset = spacing * (number - (len(names) - 1) / 2)
        lines.append(line._replace(offset=offset))
    return tuple(lines)


def _utd_line(markers: Sequence[ScoreMarker], utds: Sequence[int]) -> Line:
    bounds = np.array([m.interval or (np.nan, np.nan) for m in markers])
    first = markers[0]
    return Line(
        first.name,
        first.style,
        np.array([float(utds.index(m.utd)) for m in markers]),
        np.array([m.value for m in markers]),
        bounds[:, 0],
        bounds[:, 1],
        detail=tuple(m.detail for m in markers),
        marker="hollow" if first.published else "filled",
        connected=not first.published,
        partial=tuple(label for m in markers for label in m.partial),
    )


def ablations(study: Study) -> list[Chart]:
    """Return a chart for each base agent and UTD with variants, a panel for each task.

    A variant differs from another method with the same base by settings, not only by
    its agent. Results of files have unknown settings and are not variants.
    """
    from_runs = {run.results.method for run in study.runs if run.status != "file"}
    groups: dict[tuple[str, int | None], dict[str, list[Cell]]] = {}
    for cell in study.cells:
        if cell.method in from_runs:
            key = agent_family(cell.method.agent), cell.method.utd
            groups.setdefault(key, {}).setdefault(cell.task, []).append(cell)
    charts = []
    for (family, utd), by_task in groups.items():
        panels = tuple(
            Panel(task, tuple(_score_bar(study, cell) for cell in cells))
            for task, cells in by_task.items()
            if len({cell.method.settings for cell in cells}) > 1
        )
        if panels:
            charts.append(
                Chart(
                    f"ablations-{family}-utd-{utd}",
                    f"Ablations of {family}" + ("" if utd is None else f", UTD {utd}"),
                    "Mean over seeds of the score, with 95 % bootstrap intervals, of "
                    "agents with the same base and their variants.",
                    Axis("score"),
                    METHODS,
                    panels,
                    rows=True,
                    notes=no_mean_notes(study, itertools.chain(*by_task.values())),
                )
            )
    return charts


def timing(study: Study) -> Chart | None:
    """Return seconds per decision step, with a panel for each set of tasks of a run.

    A run steps all its tasks together, so its time belongs to all of them.
    """
    by_tasks: dict[tuple[str, ...], dict[Method, list[RunData]]] = {}
    for run in study.runs:
        if run.timing is not None:
            by_method = by_tasks.setdefault(ordered_tasks(run.tasks), {})
            by_method.setdefault(run.results.method, []).append(run)
    panels = []
    for tasks in sorted(by_tasks, key=lambda names: study.tasks.index(names[0])):
        runs = by_tasks[tasks]
        lines = [_time_bar(study, m, runs[m]) for m in study.methods if m in runs]
        settings = {(method.agent, method.utd) for method in runs}
        published = [
            _published_time(time)
            for time in paper.training_times()
            if time.task in tasks and (time.agent, time.utd) in settings
        ]
        panels.append(Panel(", ".join(tasks), (*lines, *published)))
    if not any(np.isfinite(line.y).any() for panel in panels for line in panel.lines):
        return None
    caption = (
        "Wall-clock time per decision step of one member, including updates. A run "
        "trains its members together: one step of the whole run takes this time "
        "multiplied by the number of members. Hollow markers: the paper's numbers, on "
        "other hardware."
    )
    x = Axis("seconds per decision step")
    return Chart("timing", "Time", caption, x, METHODS, tuple(panels), rows=True)


def _time_bar(study: Study, method: Method, runs: Sequence[RunData]) -> Line:
    """Return the mean over a method's runs on the same tasks, if they have a rate."""
    times = [run.timing for run in runs if run.timing is not None]
    known = [time for time in times if np.isfinite(time.seconds_per_step)]
    members = sum(time.members for time in known)
    detail = f"{count_text(len(known), 'run')}, {count_text(members, 'member')}"
    if len(known) < len(times):
        detail += f"; {len(times) - len(known)} too short to measure"
    mean = float(np.mean([t.seconds_per_step for t in known])) if known else np.nan
    bar = _bar(study.label(method), method_styles(study.methods)[method], mean, detail)
    return bar._replace(partial=partial_label(study, method, runs[0].tasks))


def _published_time(time: paper.TrainingTime) -> Line:
    name = f"{time.agent}, UTD {time.utd}{PUBLISHED}"
    detail = f"{time.task}, {time.hardware}"
    bar = _bar(name, AGENT_STYLES[time.agent], time.seconds, detail)
    return bar._replace(marker="hollow")


def _score_bar(study: Study, cell: Cell) -> Line:
    """Return the mean over the seeds of a cell, or why it has none."""
    reason = no_mean_reason(cell)
    name, style = study.label(cell.method, utd=False), method_styles(study.methods)
    mean = np.nan if reason else float(cell.scores.mean())
    detail = reason or count_text(len(cell.scores), "seed")
    bar = _bar(name, style[cell.method], mean, detail)
    bar = bar._replace(partial=partial_label(study, cell.method, [cell.task]))
    bounds = (
        None if reason else bootstrap_interval(mean_score, {cell.task: cell.scores})
    )
    if bounds is None:
        return bar
    return bar._replace(low=np.array([bounds.low]), high=np.array([bounds.high]))


def _bar(name: str, style: Style, value: float, detail: str) -> Line:
    return Line(name, style, np.zeros(1), np.array([value]), detail=detail)
