"""Charts of lines: learning curves, profiles, effective ranks and spectra."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    method_styles,
)
from r2r2.report.completeness import describe_suite, format_seeds
from r2r2.report.learning_curve import align_seeds
from r2r2.report.score_tables import suite_title
from r2r2.report.study import Series, Study, TaskCurve
from r2r2.stats.aggregates import iqm, mean_score, performance_profile
from r2r2.stats.bootstrap import interval
from r2r2.stats.samples import Floats, Sample, as_sample
from r2r2.stats.scores import Method
from r2r2.stats.suites import SEED, NormalizedCell, SuiteResult, normalise_scores

CURVE_RESAMPLES = 1000  # per interval along a curve, which is read by eye
PROFILE_RESAMPLES = 2000
PROFILE_THRESHOLDS = 80
MAX_MISSING_TASKS = 4  # named in a note; of more, the number is given
RANK = "effective_rank"
STEPS = Axis("environment steps")
BASE_SCORE = "A normalised score of 1 is the base agent's mean at UTD 1."
CURVES_CAPTION = (
    "Bold lines: means over seeds with 95 % bootstrap intervals. Thin lines: single "
    "seeds. Means stop where any seed stops or is not finite."
)

# The seeds of each method on each task.
SeedSeries = Mapping[tuple[Method, str], Mapping[int, Series]]


# Lines with intervals, from the values of seeds.


def method_line(
    study: Study, method: Method, tasks: Iterable[str], utd: bool = False
) -> Line:
    """Return a line without points for a method's results on some tasks."""
    cells = [study.cell(method, task) for task in tasks]
    partial = any(cell is not None and not cell.complete for cell in cells)
    return Line(
        study.label(method, utd=utd),
        method_styles(study.methods)[method],
        np.empty(0),
        np.empty(0),
        # With its UTD: the method may be complete at another one.
        partial=(study.label(method),) if partial else (),
    )


def with_mean(line: Line, x: Floats, values: Floats) -> Line:
    """Add the mean over seeds of values [seeds, points], with 95 % intervals."""
    sample = Sample(("",), (len(values),), np.ascontiguousarray(values.T))
    return with_statistic(line._replace(x=x), sample, mean_score)


def with_statistic(
    line: Line,
    sample: Sample,
    statistic: Callable[[Sample], Floats],
    resamples: int = CURVE_RESAMPLES,
) -> Line:
    """Add a statistic [points] of runs, with intervals if every task has two runs."""
    if len(line.x) and min(sample.counts) > 1:
        rng = np.random.default_rng(SEED)
        low, high = interval(statistic, sample, rng, samples=resamples)
        line = line._replace(low=low, high=high)
    tasks, runs = len(sample.counts), sum(sample.counts)
    detail = f"{runs} runs on {tasks} tasks" if tasks > 1 else count_text(runs, "seed")
    return line._replace(y=statistic(sample), detail=detail)


def with_seeds(line: Line, seeds: Sequence[Series]) -> Line:
    """Add the mean over seeds, and a thin line for each seed.

    The mean ends before the first step at which a seed is not finite.
    """
    line = with_mean(line, *finite_common_steps(seeds))
    thin = len(seeds) > 1 or np.isfinite(first_nonfinite_step(seeds[0]))
    return line._replace(seeds=tuple(map(_finite_part, seeds)) if thin else ())


def finite_common_steps(seeds: Sequence[Series]) -> tuple[Floats, Floats]:
    """Return steps [n] and values [seeds, n] from before any seed becomes non-finite.

    A mean that continued without a seed would jump up where the worst seed diverges.
    """
    end = min(map(first_nonfinite_step, seeds))
    pairs = []
    for seed in seeds:
        steps = seed.steps[seed.steps < end]
        pairs.append((steps, seed.values[: len(steps)]))
    if not all(len(steps) for steps, _ in pairs):
        return np.empty(0), np.empty((len(seeds), 0))
    return align_seeds(pairs)


def first_nonfinite_step(seed: Series) -> float:
    """Return the first step at which a seed is not finite, or infinity."""
    steps = seed.steps[~np.isfinite(seed.values)]
    return float(steps[0]) if len(steps) else np.inf


def _finite_part(seed: Series) -> tuple[Floats, Floats]:
    finite = np.isfinite(seed.values)
    return seed.steps[finite], seed.values[finite]


# Notes on what charts do not show.


def suite_notes(study: Study, suite: str) -> tuple[Note, ...]:
    """Return a note on the methods without statistics over a suite, with reasons."""
    items = [
        f"{study.label(result.method)} ({_missing_statistic_reason(result)})"
        for result in study.suites
        if result.suite == suite and not result.estimates
    ]
    return make_notes(NoteKind.NO_STATISTIC, items, suite_title(study, suite))


def _missing_statistic_reason(result: SuiteResult) -> str:
    missing = result.missing_tasks
    if len(missing) > MAX_MISSING_TASKS:
        return f"{len(missing)} of {len(result.tasks)} tasks missing"
    return describe_suite(result)


def nonfinite_notes(
    study: Study, curves: Iterable[tuple[Method, str, Mapping[int, Series]]]
) -> tuple[Note, ...]:
    """Return a note on non-finite seeds of curves: method, task, series by seed."""
    gaps = [
        Gap(study.label(method), task, f"seed {number} at step {step:,.0f}")
        for method, task, seeds in curves
        for number, seed in seeds.items()
        if np.isfinite(step := first_nonfinite_step(seed))
    ]
    return gap_notes(NoteKind.MEAN_STOPS, gaps)


# Charts over all tasks of a suite.


def aggregate_curves(study: Study) -> Chart | None:
    """Return IQMs of normalised scores over all tasks, against decision steps."""
    caption = (
        "Interquartile mean of normalised scores over {suite}, with 95 % bootstrap "
        f"intervals (seeds resampled within tasks). {BASE_SCORE} Decision steps are "
        "environment steps divided by the action repeat of the run (for files: of the "
        "suite)."
    )
    axes = Axis("decision steps"), Axis("normalised score, IQM")
    template = Chart("aggregate", "Aggregate learning curves", caption, *axes, ())
    chart = _suite_chart(study, template, _fill_aggregate)
    curves = [
        _task_curve(study, result.method, task)
        for result in _widest_suite(study)
        for task in result.tasks
    ]
    stops = nonfinite_notes(study, (curve[:3] for curve in curves))
    unknown = [curve.task for curve in curves if not curve.repeat]
    repeats = make_notes(NoteKind.UNKNOWN_REPEAT, unknown)
    return chart and chart._replace(notes=(*chart.notes, *stops, *repeats))


def profiles(study: Study) -> Chart | None:
    """Return the share of runs above each normalised score."""
    caption = (
        "Share of runs with a normalised score above a threshold, over {suite}, with "
        f"95 % bootstrap intervals. {BASE_SCORE}"
    )
    axes = Axis("normalised score"), Axis("share of runs above it", shared=True)
    template = Chart("profiles", "Performance profiles", caption, *axes, ())
    return _suite_chart(study, template, _fill_profile)


def _widest_suite(study: Study) -> list[SuiteResult]:
    """Return the results over the last suite for which any method has statistics."""
    results = [result for result in study.suites if result.estimates]
    return [result for result in results if result.suite == results[-1].suite]


def _suite_chart(
    study: Study,
    template: Chart,
    fill: Callable[[Study, SuiteResult, Line], Line | None],
) -> Chart | None:
    """Return a chart with a panel for each base and UTD; None without any line."""
    panels: dict[str, list[Line]] = {}
    results = _widest_suite(study)
    undrawn: list[str] = []
    for result in results:
        method = result.method
        line = fill(study, result, suite_line(study, result))
        if line is None:
            undrawn.append(study.label(method))
            continue
        utd = "" if method.utd is None else f"UTD {method.utd}, "
        title = f"{utd}relative to {study.base_label(method)}"
        panels.setdefault(title, []).append(line)
    if not panels:
        return None
    suite = results[0].suite
    undrawn_notes = make_notes(NoteKind.NO_COMMON_STEPS, undrawn)
    return template._replace(
        caption=template.caption.format(suite=suite_title(study, suite)),
        panels=_make_panels(panels),
        notes=(*suite_notes(study, suite), *undrawn_notes),
    )


def suite_line(study: Study, result: SuiteResult) -> Line:
    """Return a line without points for a method's result over a suite."""
    label = study.label(result.method)
    line = method_line(study, result.method, ())
    return line._replace(partial=() if result.complete else (label,))


def _make_panels(lines: Mapping[str, Sequence[Line]]) -> tuple[Panel, ...]:
    return tuple(Panel(title, tuple(inside)) for title, inside in lines.items())


def _fill_aggregate(study: Study, result: SuiteResult, line: Line) -> Line | None:
    """Add the IQM over tasks, up to the last step that all seeds have reached."""
    by_task = {
        score.cell.task: _normalised_series(study, score)
        for score in study.normalized
        if score.cell.method == result.method and score.cell.task in result.tasks
    }
    counts = tuple(map(len, by_task.values()))
    if not counts or 0 in counts:
        return None
    seeds = [seed for series in by_task.values() for seed in series]
    steps, values = finite_common_steps(seeds)
    if not len(steps):
        return None
    sample = Sample(tuple(by_task), counts, np.ascontiguousarray(values.T))
    return with_statistic(line._replace(x=steps), sample, iqm)


def _normalised_series(study: Study, score: NormalizedCell) -> list[Series]:
    """Return the normalised returns of each seed of a cell, by decision step."""
    base = score.base
    if base is None:
        return []
    curve = _task_curve(study, score.cell.method, score.cell.task)
    return [
        Series(
            seed.steps / (curve.repeat or 1), normalise_scores(seed.values, base.scores)
        )
        for seed in curve.seeds.values()
    ]


def _task_curve(study: Study, method: Method, task: str) -> TaskCurve:
    return next(c for c in study.curves if (c.method, c.task) == (method, task))


def _fill_profile(study: Study, result: SuiteResult, line: Line) -> Line:
    """Add shares above thresholds that all methods with the same base use."""
    base = study.base(result.method)
    scores = np.concatenate(
        [
            task_scores
            for other in _widest_suite(study)
            if study.base(other.method) == base
            for task_scores in other.scores.values()
        ]
    )
    margin = 0.05 * (np.ptp(scores) or 1.0)
    bounds = scores.min() - margin, scores.max() + margin
    thresholds = np.linspace(*bounds, PROFILE_THRESHOLDS)
    statistic = functools.partial(performance_profile, thresholds=thresholds)
    line, sample = line._replace(x=thresholds), as_sample(result.scores)
    return with_statistic(line, sample, statistic, PROFILE_RESAMPLES)


# Charts with a panel for each task.


def task_curves(study: Study) -> list[Chart]:
    """Return returns against steps: a chart for each UTD, a panel for each task."""
    series = {(curve.method, curve.task): curve.seeds for curve in study.curves}
    caption = f"Mean return of each evaluation. {CURVES_CAPTION}"
    axes = STEPS, Axis("return")
    template = Chart("curves", "Learning curves", caption, *axes, ())
    return _charts_by_utd(study, series, template)


def rank_charts(study: Study) -> list[Chart]:
    """Return effective ranks against steps, arranged like learning curves."""
    series: dict[tuple[Method, str], dict[int, Series]] = {}
    for (method, task, seed), member in study.members_by_seed().items():
        if RANK in member.diagnostics:
            series.setdefault((method, task), {})[seed] = member.diagnostics[RANK]
    caption = (
        "Exponential of the entropy of Z's normalised singular values, on a fixed "
        f"batch from replay. {CURVES_CAPTION}"
    )
    axes = STEPS, Axis("effective rank")
    template = Chart("rank", "Effective rank", caption, *axes, ())
    return _charts_by_utd(study, series, template)


def _charts_by_utd(study: Study, series: SeedSeries, template: Chart) -> list[Chart]:
    """Return a chart for each UTD; results with unknown UTD are in all of them."""
    known = {method.utd for method, _ in series if method.utd is not None}
    utds: list[int | None] = [*sorted(known)] or [None]
    charts = []
    for utd in utds:
        shown = {key: s for key, s in series.items() if key[0].utd in (utd, None)}
        panels = _task_panels(study, shown)
        if not panels:
            continue
        notes = nonfinite_notes(study, ((*key, s) for key, s in shown.items()))
        chart = template._replace(panels=panels, notes=notes)
        if utd is not None:
            name, title = f"{chart.name}-utd-{utd}", f"{chart.title}, UTD {utd}"
            chart = chart._replace(name=name, title=title)
        charts.append(chart)
    return charts


def _task_panels(study: Study, series: SeedSeries) -> tuple[Panel, ...]:
    panels: dict[str, list[Line]] = {}
    for task in study.tasks:
        for method in study.methods:
            seeds = tuple(series.get((method, task), {}).values())
            if seeds:
                line = with_seeds(method_line(study, method, [task]), seeds)
                panels.setdefault(task, []).append(line)
    return _make_panels(panels)


# Spectra.

# Singular values below this share of the largest are rounding errors, and showing 12
# decades of them would leave no room for the others.
MIN_SHARE = 1e-6
# Values drawn of a long spectrum: the first, and others evenly spaced.
FIRST_VALUES, SPACED_VALUES = 16, 64


def spectrum_chart(study: Study) -> Chart | None:
    """Return the singular values of Z at the last evaluation, by task and UTD."""
    panels: dict[str, list[Line]] = {}
    gaps: list[Gap] = []
    for (task, method), by_seed in _last_spectra(study).items():
        spectra = np.stack(list(by_seed.values()))
        reason = _undrawable_reason(by_seed)
        if reason:
            gaps.append(Gap(study.label(method), task, reason))
            continue
        title = task if method.utd is None else f"{task}, UTD {method.utd}"
        line = _fill_spectrum(method_line(study, method, [task]), spectra)
        panels.setdefault(title, []).append(line)
    if not panels:
        return None
    return Chart(
        "spectra",
        "Spectra of the representation",
        "Singular values of Z at the last evaluation of every seed, largest first, on "
        "a logarithmic scale: means over seeds with 95 % bootstrap intervals; a seed "
        "with fewer values counts as 0. Values below a millionth of the largest in "
        "every seed are omitted, and of long spectra only about 80 values are drawn.",
        Axis("index of the singular value"),
        Axis("singular value", log=True, shared=True),
        _make_panels(panels),
        notes=gap_notes(NoteKind.NO_MEAN, gaps),
    )


def _undrawable_reason(spectra: Mapping[int, Floats]) -> str:
    bad = [seed for seed, s in spectra.items() if not np.isfinite(s).all()]
    if bad:
        return f"seed {format_seeds(bad)} not finite"
    return "" if any(s.any() for s in spectra.values()) else "all values are zero"


def _last_spectra(study: Study) -> Mapping[tuple[str, Method], Mapping[int, Floats]]:
    """Return the last spectrum of each seed, by task and method, in report order.

    Spectra of one method are padded with zeros to the longest: a collapsed seed may
    have fewer values.
    """
    spectra: dict[tuple[str, Method], dict[int, Floats]] = {}
    for (method, task, seed), member in study.members_by_seed().items():
        if member.spectra:
            by_seed = spectra.setdefault((task, method), {})
            by_seed[seed] = member.spectra[-1].singular_values

    def report_order(key: tuple[str, Method]) -> tuple[int, ...]:
        task, method = key
        return study.tasks.index(task), method.utd or 0, study.methods.index(method)

    return {
        key: _zero_padded(spectra[key]) for key in sorted(spectra, key=report_order)
    }


def _zero_padded(spectra: Mapping[int, Floats]) -> dict[int, Floats]:
    length = max(map(len, spectra.values()))
    return {seed: np.pad(s, (0, length - len(s))) for seed, s in spectra.items()}


def _fill_spectrum(line: Line, spectra: Floats) -> Line:
    """Add the mean over seeds of spectra [seeds, values]."""
    length = int((spectra > MIN_SHARE * spectra[:, :1]).sum(axis=1).max())
    spaced = np.linspace(0, length - 1, min(length, SPACED_VALUES)).round()
    first = np.arange(min(length, FIRST_VALUES))
    indices = np.unique(np.concatenate([first, spaced.astype(np.int64)]))
    line = with_mean(line, indices + 1.0, spectra[:, indices])
    if line.low is None:
        return line
    # A logarithmic axis cannot show an interval that ends at zero.
    floor = np.minimum(MIN_SHARE * line.y[0], line.y)
    return line._replace(low=np.maximum(line.low, floor))
