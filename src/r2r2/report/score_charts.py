"""Charts of single numbers: scores against UTD, ablations and times."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from r2r2.report.charts import (
    Axis,
    Chart,
    Line,
    Note,
    NoteKind,
    Panel,
    count_text,
    gap_notes,
    make_notes,
)
from r2r2.report.curve_charts import (
    BASE_SCORE,
    method_line,
    published_line,
    suite_line,
    suite_notes,
)
from r2r2.report.score_tables import suite_title
from r2r2.report.study import RunTiming, Study, format_seeds
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import bootstrap_interval, ordered_tasks

PUBLISHED_SEEDS = count_text(paper.SEEDS, "seed")
GROUP_WIDTH = 0.6  # share of the distance between ticks used for markers side by side
MAX_SPACING = 0.14  # between neighboring markers


def suites_by_utd(study: Study) -> Chart | None:
    """Return mean normalized scores over suites against UTD."""
    points: dict[str, list[Line]] = {}
    for result in study.suites:
        agent, utd, *_ = method = result.method
        if utd is None or not result.estimates:
            continue
        suite = suite_title(study, result.suite)
        panel = points.setdefault(f"{suite}, relative to {study.base_label(method)}", [])
        mean, runs = result.estimates["mean"], sum(map(len, result.scores.values()))
        values = mean.value, mean.pooled, count_text(runs, "run")
        panel.append(_point(suite_line(study, result), *values, utd))
        published = paper.aggregate(result.suite, "mean", agent, utd)
        if published is not None:
            bounds = Interval(np.asarray(published.low), np.asarray(published.high))
            values = published.value, bounds, PUBLISHED_SEEDS
            panel.append(_point(published_line(agent), *values, utd))
    suites = dict.fromkeys(result.suite for result in study.suites if result.estimates)
    missing = [note for suite in suites for note in suite_notes(study, suite)]
    template = Chart(
        "score-by-utd",
        "Score against UTD",
        "Mean of normalised scores, with 95 % bootstrap intervals over the pooled "
        f"scores, as the paper appears to compute them. {BASE_SCORE}",
        Axis("UTD"),
        Axis("normalised score, mean"),
        notes=(*missing, *_unknown_utd_notes(study)),
    )
    return _utd_chart(points, template)


def tasks_by_utd(study: Study) -> Chart | None:
    """Return raw scores on every task against UTD."""
    points: dict[str, list[Line]] = {}
    known = [cell for cell in study.cells if cell.method.utd is not None]
    for cell in known:
        agent, utd, *_ = cell.method
        if utd is None or not len(cell.scores):
            continue
        panel = points.setdefault(cell.task, [])
        panel.append(_score_point(study, cell, utd))
        published = paper.raw_scores().get(paper.CellKey(cell.task, agent, utd))
        if published is not None:
            detail = f"{PUBLISHED_SEEDS}, standard deviation {published.std:,g}"
            panel.append(_point(published_line(agent), published.mean, None, detail, utd))
    template = Chart(
        "score-by-utd-tasks",
        "Score against UTD, task by task",
        "Mean over seeds of the score, which is the mean return of a seed's last ten "
        "evaluations, with 95 % bootstrap intervals.",
        Axis("UTD"),
        Axis("score"),
        notes=(*_no_mean_notes(study, known), *_unknown_utd_notes(study)),
    )
    return _utd_chart(points, template)


def _unknown_utd_notes(study: Study) -> tuple[Note, ...]:
    """Return a note on methods whose UTD is unknown, which come from files."""
    unknown = [study.label(method) for method in study.methods if method.utd is None]
    return make_notes(NoteKind.UNKNOWN_UTD, unknown)


def _no_mean_notes(study: Study, cells: Iterable[Cell]) -> tuple[Note, ...]:
    """Return a note on cells whose scores have no mean, with reasons."""
    gaps = [(study.label(c.method), c.task, _no_mean_reason(c)) for c in cells]
    return gap_notes(NoteKind.NO_MEAN, (gap for gap in gaps if gap[-1]))


def _no_mean_reason(cell: Cell) -> str:
    """Return why the scores of a cell have no mean; empty if they have one."""
    scored = [seed for seed in cell.seeds if seed.points]
    if not scored:
        return "no evaluation yet"
    bad = [seed.seed for seed in scored if not np.isfinite(seed.score)]
    if not bad:
        return ""
    seeds, verb = ("seeds", "are") if len(bad) > 1 else ("seed", "is")
    count = f"{len(scored) - len(bad)} of {len(scored)} seeds"
    return f"{count}; {seeds} {format_seeds(bad)} {verb} not finite"


def _score_point(study: Study, cell: Cell, utd: float = 0) -> Line:
    """Return the mean score of a cell with its interval, or the reason for no mean."""
    line = method_line(study, cell.method, [cell.task])
    if reason := _no_mean_reason(cell):
        return _point(line, np.nan, None, reason, utd)
    bounds = bootstrap_interval(mean_score, {cell.task: cell.scores})
    detail = count_text(len(cell.scores), "seed")
    return _point(line, float(cell.scores.mean()), bounds, detail, utd)


def _point(line: Line, value: float, bounds: Interval | None, detail: str, x: float = 0) -> Line:
    """Return a line with a marker or bar for one value."""
    low, high = bounds or (np.nan, np.nan)
    return line._replace(
        x=np.array([float(x)]),
        y=np.array([value]),
        low=np.array([low]),
        high=np.array([high]),
        detail=detail,
        marker="filled" if line.marker == "none" else line.marker,
    )


def _utd_chart(points: Mapping[str, Sequence[Line]], template: Chart) -> Chart | None:
    """Return a chart of points by panel; None if all have the same UTD."""
    lines = [line for panel in points.values() for line in panel]
    utds = sorted({int(line.x[0]) for line in lines})
    if len(utds) < 2:
        return None
    caption = template.caption
    if any(line.marker == "hollow" for line in lines):
        caption += " Hollow markers: the paper's numbers."
    ticks = tuple((float(place), str(utd)) for place, utd in enumerate(utds))
    panels = [Panel(title, _utd_lines(panel, utds)) for title, panel in points.items()]
    return template._replace(caption=caption, x=Axis("UTD", ticks=ticks), panels=panels)


def _utd_lines(points: Sequence[Line], utds: Sequence[int]) -> list[Line]:
    """Join points with equal names to lines, with points of a UTD side by side."""
    names = list(dict.fromkeys(point.name for point in points))
    spacing = min(MAX_SPACING, GROUP_WIDTH / len(names))
    lines = []
    for number, name in enumerate(names):
        by_utd = {int(point.x[0]): point for point in points if point.name == name}
        places = [place for place, utd in enumerate(utds) if utd in by_utd]
        joined = [by_utd[utds[place]] for place in places]
        lines.append(
            joined[0]._replace(
                x=np.array(places, dtype=np.float64),
                y=np.array([point.y for point in joined]).ravel(),
                low=np.array([point.low for point in joined]).ravel(),
                high=np.array([point.high for point in joined]).ravel(),
                detail=tuple(point.detail_text for point in joined),
                partial=tuple(label for point in joined for label in point.partial),
                offset=spacing * (number - (len(names) - 1) / 2),
            )
        )
    return lines


def ablations(study: Study) -> list[Chart]:
    """Return a chart for each base agent and UTD with variants, a panel for each task.

    A variant differs from another method with the same base by settings, not only by its agent.
    Results of files have unknown settings and are not variants.
    """
    groups: dict[tuple[str, int | None], dict[str, list[Cell]]] = {}
    for cell in study.cells:
        if cell.method in study.run_methods:
            agent, utd, *_ = cell.method
            key = paper.BASES.get(agent, agent), utd
            groups.setdefault(key, {}).setdefault(cell.task, []).append(cell)
    charts = []
    for (family, utd), by_task in groups.items():
        panels = tuple(
            Panel(task, [_score_point(study, cell) for cell in cells])
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
                    Axis("method"),
                    panels,
                    rows=True,
                    notes=_no_mean_notes(study, itertools.chain(*by_task.values())),
                )
            )
    return charts


def timing(study: Study) -> Chart | None:
    """Return seconds per decision step; a panel for each set of tasks, which runs step together."""
    by_tasks: dict[tuple[str, ...], dict[Method, list[RunTiming]]] = {}
    for run in study.runs:
        if run.timing is not None:
            by_method = by_tasks.setdefault(ordered_tasks(run.tasks), {})
            by_method.setdefault(run.results.method, []).append(run.timing)
    panels = []
    for tasks in sorted(by_tasks, key=lambda names: study.tasks.index(names[0])):
        times = by_tasks[tasks]
        lines = [
            _time_bar(method_line(study, method, tasks, utd=True), times[method])
            for method in study.methods
            if method in times
        ]
        settings = {(method.agent, method.utd) for method in times}
        for time in paper.training_times():
            if time.task in tasks and (time.agent, time.utd) in settings:
                line = published_line(time.agent, f", UTD {time.utd}")
                lines.append(_point(line, time.seconds, None, f"{time.task}, {time.hardware}"))
        panels.append(Panel(", ".join(tasks), lines))
    chart = Chart(
        "timing",
        "Time",
        "Wall-clock time per decision step of one member, including updates. A run trains its "
        "members together: one step of the whole run takes this time multiplied by the number of "
        "members. Hollow markers: the paper's numbers, on other hardware.",
        Axis("seconds per decision step"),
        Axis("method"),
        panels,
        rows=True,
    )
    return chart if any(line.points for line in chart.lines) else None


def _time_bar(line: Line, times: Sequence[RunTiming]) -> Line:
    """Add the mean over a method's runs on the same tasks, if they have a rate."""
    known = [time for time in times if np.isfinite(time.seconds_per_step)]
    members = sum(time.members for time in known)
    detail = f"{count_text(len(known), 'run')}, {count_text(members, 'member')}"
    if len(known) < len(times):
        detail += f"; {len(times) - len(known)} too short to measure"
    mean = float(np.mean([t.seconds_per_step for t in known])) if known else np.nan
    return _point(line, mean, None, detail)
