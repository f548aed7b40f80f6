"""Charts of lines: learning curves, profiles, effective ranks and spectra."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from r2r2.report.charts import (
    AGENT_STYLES,
    Axis,
    Chart,
    Line,
    Note,
    NoteKind,
    Panel,
    align_seeds,
    count_text,
    gap_notes,
    make_notes,
    method_styles,
)
from r2r2.report.score_tables import rank_note, suite_title
from r2r2.report.study import Series, Study, describe_suite, format_seeds
from r2r2.stats import paper
from r2r2.stats.aggregates import mean_score, performance_profile
from r2r2.stats.bootstrap import interval
from r2r2.stats.samples import Floats, Sample, as_sample
from r2r2.stats.scores import Method
from r2r2.stats.suites import SEED, STATISTICS, SuiteResult, normalise_scores

CURVE_RESAMPLES = 1000  # per interval along a curve, which is read by eye
PROFILE_RESAMPLES = 2000
PROFILE_THRESHOLDS = 80
MAX_MISSING_TASKS = 4  # named in a note; of more, the number is given
RANK, SPREAD = "effective_rank", "spread"  # fields of diagnostics
BASE_SCORE = "A normalised score of 1 is the base agent's mean at UTD 1."
CURVES_CAPTION = (
    "Bold lines: means over seeds with 95 % bootstrap intervals. Thin lines: single "
    "seeds. Means stop where any seed stops or is not finite."
)
CURVE_STATISTICS = {"mean": "mean", "iqm": "IQM"}  # of aggregates, the paper's first
# The seeds of each method on each task.
SeedSeries = Mapping[tuple[Method, str], Mapping[int, Series]]
Published = Mapping[paper.CellKey, float]


def method_line(study: Study, method: Method, tasks: Iterable[str], utd: bool = False) -> Line:
    """Return a line without points for a method's results on some tasks."""
    cells = [study.cell(method, task) for task in tasks]
    partial = any(cell is not None and not cell.complete for cell in cells)
    return Line(
        study.label(method, utd=utd),
        method_styles(study.methods)[method],
        # With its UTD: the method may be complete at another one.
        partial=(study.label(method),) if partial else (),
    )


def suite_line(study: Study, result: SuiteResult) -> Line:
    """Return a line without points for a method's result over a suite."""
    partial = () if result.complete else (study.label(result.method),)
    return method_line(study, result.method, ())._replace(partial=partial)


def suite_notes(study: Study, suite: str) -> tuple[Note, ...]:
    """Return a note on the methods without statistics over a suite, with reasons."""
    items = []
    for result in study.suites:
        if result.suite == suite and not result.estimates:
            missing = len(result.missing_tasks)
            many = f"{missing} of {len(result.tasks)} tasks missing"
            reason = many if missing > MAX_MISSING_TASKS else describe_suite(result)
            items.append(f"{study.label(result.method)} ({reason})")
    return make_notes(NoteKind.NO_STATISTIC, items, suite_title(study, suite))


def _with_statistic(
    line: Line,
    sample: Sample,
    statistic: Callable[[Sample], Floats],
    resamples: int = CURVE_RESAMPLES,
) -> Line:
    """Add a statistic [points] of runs, with intervals if every task has two runs."""
    if len(line.x) and min(sample.counts) > 1:
        low, high = interval(statistic, sample, np.random.default_rng(SEED), samples=resamples)
        line = line._replace(low=low, high=high)
    tasks, runs = len(sample.counts), sum(sample.counts)
    detail = f"{runs} runs on {tasks} tasks" if tasks > 1 else count_text(runs, "seed")
    return line._replace(y=statistic(sample), detail=detail)


def with_mean(line: Line, x: Floats, values: Floats) -> Line:
    """Add the mean over seeds of values [seeds, points], with 95 % intervals."""
    sample = Sample(("",), (len(values),), np.ascontiguousarray(values.T))
    return _with_statistic(line._replace(x=x), sample, mean_score)


def _finite_common_steps(seeds: Sequence[Series]) -> tuple[Floats, Floats]:
    """Return steps [n] and values [seeds, n] from before any seed becomes non-finite."""
    # A mean that continued without a seed would jump up where the worst seed diverges.
    end = min(map(_first_nonfinite_step, seeds))
    pairs = [(s.steps[s.steps < end], s.values[s.steps < end]) for s in seeds]
    if not all(len(steps) for steps, _ in pairs):
        return np.empty(0), np.empty((len(seeds), 0))
    return align_seeds(pairs)


def _first_nonfinite_step(seed: Series) -> float:
    steps = seed.steps[~np.isfinite(seed.values)]
    return float(steps[0]) if len(steps) else np.inf


def _nonfinite_notes(study: Study, series: SeedSeries) -> tuple[Note, ...]:
    """Return a note on the steps at which seeds become non-finite."""
    gaps = [
        (study.label(method), task, f"seed {number} at step {step:,.0f}")
        for (method, task), seeds in series.items()
        for number, seed in seeds.items()
        if np.isfinite(step := _first_nonfinite_step(seed))
    ]
    return gap_notes(NoteKind.MEAN_STOPS, gaps)


def _make_panels(lines: Mapping[str, Sequence[Line]]) -> tuple[Panel, ...]:
    return tuple(Panel(*item) for item in lines.items())


def aggregate_curves(study: Study) -> list[Chart]:
    """Return normalized scores over all tasks against decision steps: the mean and the IQM."""
    charts = (_aggregate_chart(study, *item) for item in CURVE_STATISTICS.items())
    return [chart for chart in charts if chart is not None]


def _aggregate_chart(study: Study, name: str, label: str) -> Chart | None:
    template = Chart(
        f"aggregate-{name}",
        f"Aggregate learning curves, {label}",
        f"Normalised scores over {{suite}}, {label} with 95 % bootstrap intervals (seeds resampled "
        "within tasks). The paper shows the mean; the interquartile mean (IQM) leaves out the "
        f"lowest and highest quarter of the scores. {BASE_SCORE} Decision steps are environment "
        "steps divided by the action repeat of the run (for files: of the suite).",
        Axis("decision steps"),
        Axis(f"normalised score, {label}"),
    )
    chart = _suite_chart(study, template, functools.partial(_fill_aggregate, STATISTICS[name]))
    curves = [
        curve
        for result in _widest_suite(study)
        for curve in study.curves
        if curve.method == result.method and curve.task in result.tasks
    ]
    stops = _nonfinite_notes(study, {(c.method, c.task): c.seeds for c in curves})
    repeats = make_notes(NoteKind.UNKNOWN_REPEAT, (c.task for c in curves if not c.repeat))
    return chart and chart._replace(notes=(*chart.notes, *stops, *repeats))


def profiles(study: Study) -> Chart | None:
    """Return the share of runs above each normalized score."""
    template = Chart(
        "profiles",
        "Performance profiles",
        "Share of runs with a normalised score above a threshold, over {suite}, with "
        f"95 % bootstrap intervals. {BASE_SCORE}",
        Axis("normalised score"),
        Axis("share of runs above it", shared=True),
    )
    return _suite_chart(study, template, _fill_profile)


def _widest_suite(study: Study) -> list[SuiteResult]:
    """Return the results over the last suite for which any method has statistics."""
    results = [result for result in study.suites if result.estimates]
    return [result for result in results if result.suite == results[-1].suite]


def _suite_chart(
    study: Study, template: Chart, fill: Callable[[Study, SuiteResult, Line], Line | None]
) -> Chart | None:
    """Return a chart with a panel for each base and UTD; None without any line."""
    panels: dict[str, list[Line]] = {}
    undrawn: list[str] = []
    results = _widest_suite(study)
    for result in results:
        method = result.method
        line = fill(study, result, suite_line(study, result))
        if line is None:
            undrawn.append(study.label(method))
            continue
        utd = "" if method.utd is None else f"UTD {method.utd}, "
        panels.setdefault(f"{utd}relative to {study.base_label(method)}", []).append(line)
    if not panels:
        return None
    suite, undrawn_notes = results[0].suite, make_notes(NoteKind.NO_COMMON_STEPS, undrawn)
    return template._replace(
        caption=template.caption.format(suite=suite_title(study, suite)),
        panels=_make_panels(panels),
        notes=(*suite_notes(study, suite), *undrawn_notes),
    )


def _fill_aggregate(
    statistic: Callable[[Sample], Floats], study: Study, result: SuiteResult, line: Line
) -> Line | None:
    """Add a statistic over tasks, up to the last step that all seeds have reached."""
    counts: dict[str, int] = {}
    seeds: list[Series] = []  # normalized returns by decision step
    for score, curve in zip(study.normalized, study.curves, strict=True):
        base, shown = score.base, curve.task in result.tasks
        if curve.method == result.method and shown and base is not None:
            counts[curve.task] = len(curve.seeds)
            for steps, values in curve.seeds.values():
                decisions = steps / (curve.repeat or 1)
                seeds.append(Series(decisions, normalise_scores(values, base.scores)))
    steps, values = _finite_common_steps(seeds)
    if not len(steps):
        return None
    sample = Sample(tuple(counts), tuple(counts.values()), np.ascontiguousarray(values.T))
    return _with_statistic(line._replace(x=steps), sample, statistic)


def _fill_profile(study: Study, result: SuiteResult, line: Line) -> Line:
    """Add shares above thresholds that all methods with the same base use."""
    base = study.base(result.method)
    compared = [r for r in _widest_suite(study) if study.base(r.method) == base]
    scores = np.concatenate([task for r in compared for task in r.scores.values()])
    margin = 0.05 * (np.ptp(scores) or 1.0)
    thresholds = np.linspace(scores.min() - margin, scores.max() + margin, PROFILE_THRESHOLDS)
    statistic = functools.partial(performance_profile, thresholds=thresholds)
    line, sample = line._replace(x=thresholds), as_sample(result.scores)
    return _with_statistic(line, sample, statistic, PROFILE_RESAMPLES)


def task_curves(study: Study) -> list[Chart]:
    """Return returns against steps: a chart for each UTD, a panel for each task."""
    series = {(curve.method, curve.task): curve.seeds for curve in study.curves}
    caption = f"Mean return of each evaluation. {CURVES_CAPTION}"
    axes = Axis("environment steps"), Axis("return")
    return _charts_by_utd(study, series, Chart("curves", "Learning curves", caption, *axes), {})


def rank_charts(study: Study) -> list[Chart]:
    """Return effective ranks against steps, arranged like learning curves."""
    axes = Axis("environment steps"), Axis("effective rank")
    template = Chart("rank", "Effective rank", f"{rank_note(study)} {CURVES_CAPTION}", *axes)
    return _charts_by_utd(study, _diagnostic(study, RANK), template, paper.effective_ranks())


def constant_share_charts(study: Study) -> list[Chart]:
    """Return the constant mode's share of Z against steps, arranged like learning curves."""
    spreads = _diagnostic(study, SPREAD)
    shares = {
        key: {seed: Series(x.steps, constant_share(x.values)) for seed, x in by_seed.items()}
        for key, by_seed in spreads.items()
    }
    caption = (
        "Share of Z's squared norm that belongs to the mean latent: 1 if all latents are equal, 0 "
        f"if their mean is 0. {CURVES_CAPTION}"
    )
    axes = Axis("environment steps"), Axis("share of the constant mode")
    template = Chart("constant-share", "Share of the constant mode in Z", caption, *axes)
    return _charts_by_utd(study, shares, template, {})


def constant_share(spread: Floats) -> Floats:
    """Return the share of Z's squared norm that the constant mode has, from spreads of Z."""
    return 1 - spread**2


def _diagnostic(study: Study, field: str) -> SeedSeries:
    """Return one number of the diagnostics against steps, of every seed that has it."""
    series: dict[tuple[Method, str], dict[int, Series]] = {}
    for (method, task, seed), member in study.members_by_seed().items():
        if field in member.diagnostics:
            series.setdefault((method, task), {})[seed] = member.diagnostics[field]
    return series


def _charts_by_utd(
    study: Study, series: SeedSeries, template: Chart, published: Published
) -> list[Chart]:
    """Return a chart for each UTD; results with unknown UTD are in all of them."""
    known = {method.utd for method, _ in series if method.utd is not None}
    utds: list[int | None] = [*sorted(known)] or [None]
    charts = []
    for utd in utds:
        shown = {key: s for key, s in series.items() if s and key[0].utd in (utd, None)}
        if not shown:
            continue
        notes = _nonfinite_notes(study, shown)
        panels = _task_panels(study, shown, published)
        chart = template._replace(panels=panels, notes=notes)
        if utd is not None:
            name, title = f"{chart.name}-utd-{utd}", f"{chart.title}, UTD {utd}"
            chart = chart._replace(name=name, title=title)
        charts.append(chart)
    return charts


def _task_panels(study: Study, series: SeedSeries, published: Published) -> tuple[Panel, ...]:
    """Return a panel for each task: means over seeds, thin lines for seeds, published levels."""
    panels: dict[str, list[Line]] = {}
    for task in study.tasks:
        levels: dict[str, Line] = {}
        for method in study.methods:
            seeds = [*series.get((method, task), {}).values()]
            if not seeds:
                continue
            line = with_mean(method_line(study, method, [task]), *_finite_common_steps(seeds))
            if len(seeds) > 1 or np.isfinite(_first_nonfinite_step(seeds[0])):
                finite = [np.stack(seed)[:, np.isfinite(seed.values)] for seed in seeds]
                line = line._replace(seeds=tuple((x, y) for x, y in finite))
            panels.setdefault(task, []).append(line)
            level = published.get(paper.CellKey(task, method.agent, method.utd or 0))
            if level is not None and len(line.x):  # at which step is not stated
                theirs = published_line(method.agent)._replace(detail="step not stated")
                theirs = theirs._replace(x=line.x[[0, -1]], y=np.full(2, level), connected=True)
                levels.setdefault(theirs.name, theirs)
        panels.get(task, []).extend(levels.values())
    return _make_panels(panels)


def published_line(agent: str, utd: str = "") -> Line:
    """Return a line without points for the paper's numbers."""
    line = Line(f"{agent}{utd} (paper)", AGENT_STYLES[agent])
    return line._replace(marker="hollow", connected=False)


# Share of the largest singular value; below are rounding errors, which need 12 decades of the axis.
MIN_SHARE = 1e-6
# Values drawn of a long spectrum: the first, and others evenly spaced.
FIRST_VALUES, SPACED_VALUES = 16, 64


def spectrum_chart(study: Study) -> Chart | None:
    """Return the singular values of Z at the last evaluation, by task and UTD."""
    panels: dict[str, list[Line]] = {}
    gaps: list[tuple[str, str, str]] = []
    for (task, method), by_seed in _last_spectra(study).items():
        bad = [seed for seed, s in by_seed.items() if not np.isfinite(s).all()]
        if bad or not any(s.any() for s in by_seed.values()):
            reason = f"seed {format_seeds(bad)} not finite" if bad else "all values are zero"
            gaps.append((study.label(method), task, reason))
            continue
        title = task if method.utd is None else f"{task}, UTD {method.utd}"
        line = _fill_spectrum(method_line(study, method, [task]), by_seed.values())
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


def _last_spectra(study: Study) -> Mapping[tuple[str, Method], Mapping[int, Floats]]:
    """Return the last spectrum of each seed, by task and method, in report order."""
    spectra: dict[tuple[str, Method], dict[int, Floats]] = {}
    for (method, task, seed), member in study.members_by_seed().items():
        if member.spectra:
            spectra.setdefault((task, method), {})[seed] = member.spectra[-1].singular_values
    tasks, methods = study.tasks, study.methods
    order = sorted(spectra, key=lambda k: (tasks.index(k[0]), k[1].utd or 0, methods.index(k[1])))
    return {key: spectra[key] for key in order}


def _fill_spectrum(line: Line, by_seed: Collection[Floats]) -> Line:
    """Add the mean over seeds of spectra, which are padded with zeros to the longest.

    A collapsed seed may have fewer values.
    """
    longest = max(map(len, by_seed))
    spectra = np.stack([np.pad(s, (0, longest - len(s))) for s in by_seed])
    length = int((spectra > MIN_SHARE * spectra[:, :1]).sum(axis=1).max())
    spaced = np.linspace(0, length - 1, min(length, SPACED_VALUES)).round()
    first = np.arange(min(length, FIRST_VALUES))
    indices = np.unique(np.concatenate([first, spaced.astype(np.int64)]))
    line = with_mean(line, indices + 1.0, spectra[:, indices])
    if line.low is None:
        return line
    # A logarithmic axis cannot show an interval that ends at zero.
    return line._replace(low=np.maximum(line.low, np.minimum(MIN_SHARE * line.y[0], line.y)))
