"""Charts of single numbers: scores against UTD, ablations and times."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.report.charts import (
    AGENT_STYLES,
    Axis,
    Chart,
    Gap,
    Line,
    Note,
    NoteKind,
    Panel,
    agent_family,
    count_text,
    gap_notes,
    make_notes,
)
from r2r2.report.completeness import format_seeds
from r2r2.report.curve_charts import BASE_SCORE, method_line, suite_line, suite_notes
from r2r2.report.score_tables import suite_title
from r2r2.report.study import RunData, Study
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import bootstrap_interval, ordered_tasks

PUBLISHED_SEEDS = count_text(paper.SEEDS, "seed")
GROUP_WIDTH = 0.6  # share of the distance between ticks used for markers side by side
MAX_SPACING = 0.14  # between neighbouring markers
METHODS = Axis("method")


class ScoreMarker(NamedTuple):
    """One marker of a chart against UTD."""

    panel: str
    line: Line  # without points; markers with equal names form one line
    utd: int
    value: float
    interval: Interval | None
    detail: str


def suites_by_utd(study: Study) -> Chart | None:
    """Return mean normalised scores over suites against UTD."""
    markers = []
    for result in study.suites:
        agent, utd, *_ = method = result.method
        if utd is None or not result.estimates:
            continue
        suite = suite_title(study, result.suite)
        panel = f"{suite}, relative to {study.base_label(method)}"
        mean, runs = result.estimates["mean"], sum(map(len, result.scores.values()))
        values = mean.value, mean.pooled, count_text(runs, "run")
        markers.append(ScoreMarker(panel, suite_line(study, result), utd, *values))
        published = paper.aggregate(result.suite, "mean", agent, utd)
        if published is not None:
            bounds = Interval(np.asarray(published.low), np.asarray(published.high))
            values = published.value, bounds, PUBLISHED_SEEDS
            markers.append(ScoreMarker(panel, _published_line(agent), utd, *values))
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
    markers = []
    known = [cell for cell in study.cells if cell.method.utd is not None]
    for cell in known:
        agent, utd, *_ = cell.method
        if utd is None or not len(cell.scores):
            continue
        line = method_line(study, cell.method, [cell.task])
        markers.append(ScoreMarker(cell.task, line, utd, *_mean_score(cell)))
        published = paper.raw_scores().get(paper.CellKey(cell.task, agent, utd))
        if published is not None:
            detail = f"{PUBLISHED_SEEDS}, standard deviation {published.std:,g}"
            values = published.mean, None, detail
            markers.append(ScoreMarker(cell.task, _published_line(agent), utd, *values))
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


def _mean_score(cell: Cell) -> tuple[float, Interval | None, str]:
    """Return the mean score with its interval, and its number of seeds.

    If there is no mean, return NaN and the reason.
    """
    reason = no_mean_reason(cell)
    if reason:
        return np.nan, None, reason
    bounds = bootstrap_interval(mean_score, {cell.task: cell.scores})
    return float(cell.scores.mean()), bounds, count_text(len(cell.scores), "seed")


def _published_line(agent: str, utd: str = "") -> Line:
    name, nothing = f"{agent}{utd} (paper)", np.empty(0)
    line = Line(name, AGENT_STYLES[agent], nothing, nothing)
    return line._replace(marker="hollow", connected=False)


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
    if any(marker.line.marker == "hollow" for marker in markers):
        caption += " Hollow markers: the paper's numbers."
    ticks = tuple((float(place), str(utd)) for place, utd in enumerate(utds))
    return Chart(name, title, caption, Axis("UTD", ticks=ticks), y, panels)


def _utd_lines(markers: Sequence[ScoreMarker], utds: Sequence[int]) -> tuple[Line, ...]:
    """Return a line for each name, with markers of the same UTD side by side."""
    names = list(dict.fromkeys(marker.line.name for marker in markers))
    spacing = min(MAX_SPACING, GROUP_WIDTH / len(names))
    lines = []
    for number, name in enumerate(names):
        by_utd = {m.utd: m for m in markers if m.line.name == name}
        line = _utd_line([by_utd[utd] for utd in sorted(by_utd)], utds)
        offset = spacing * (number - (len(names) - 1) / 2)
        lines.append(line._replace(offset=offset))
    return tuple(lines)


def _utd_line(markers: Sequence[ScoreMarker], utds: Sequence[int]) -> Line:
    bounds = np.array([m.interval or (np.nan, np.nan) for m in markers])
    line = markers[0].line
    return line._replace(
        x=np.array([float(utds.index(m.utd)) for m in markers]),
        y=np.array([m.value for m in markers]),
        low=bounds[:, 0],
        high=bounds[:, 1],
        detail=tuple(m.detail for m in markers),
        marker="filled" if line.marker == "none" else line.marker,
        partial=tuple(label for m in markers for label in m.line.partial),
    )


def ablations(study: Study) -> list[Chart]:
    """Return a chart for each base agent and UTD with variants, a panel for each task.

    A variant differs from another method with the same base by settings, not only by
    its agent. Results of files have unknown settings and are not variants.
    """
    groups: dict[tuple[str, int | None], dict[str, list[Cell]]] = {}
    for cell in study.cells:
        if cell.method in study.run_methods:
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
    return _bar(method_line(study, method, runs[0].tasks, utd=True), mean, None, detail)


def _published_time(time: paper.TrainingTime) -> Line:
    line = _published_line(time.agent, f", UTD {time.utd}")
    return _bar(line, time.seconds, None, f"{time.task}, {time.hardware}")


def _score_bar(study: Study, cell: Cell) -> Line:
    return _bar(method_line(study, cell.method, [cell.task]), *_mean_score(cell))


def _bar(line: Line, value: float, bounds: Interval | None, detail: str) -> Line:
    line = line._replace(x=np.zeros(1), y=np.array([value]), detail=detail)
    if bounds is None:
        return line
    return line._replace(low=np.array([bounds.low]), high=np.array([bounds.high]))
