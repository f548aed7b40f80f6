"""The chart of the singular values of Z."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from r2r2.report import intervals as bands
from r2r2.report.baselines import base_label, base_of
from r2r2.report.chart_notes import (
    NO_MEAN,
    Gap,
    broken,
    gaps_noted,
    lacking,
    left_out,
    noted,
)
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.completeness import seed_list
from r2r2.report.intervals import mean_band, shared, statistic_band
from r2r2.report.members import members_by_seed
from r2r2.report.palette import Style, styles_of
from r2r2.report.score_tables import suite_title
from r2r2.report.study import Series, Study, TaskCurve
from r2r2.stats.aggregates import iqm, performance_profile
from r2r2.stats.bootstrap import interval
from r2r2.stats.normalization import Normalised, normalise_scores
from r2r2.stats.samples import Floats, Sample
from r2r2.stats.scores import Method
from r2r2.stats.suites import SEED, SuiteResult

RESAMPLES = 2000  # for the band of a profile
LEVELS = 80  # thresholds of a profile
UNKNOWN = "Environment steps are drawn as decisions, as action repeat is not known, of"
APART = "Not here, as seeds have no steps in common"
BASE = "the base agent's mean score at UTD 1 being 1"


def aggregate_curves(study: Study) -> Chart | None:
    """IQMs of normalised scores over all tasks, against decision steps."""
    caption = (
        f"Interquartile mean of normalised scores over {{over}}, {BASE}, with 95 % "
        "bootstrap intervals (seeds resampled within tasks). Decision steps are "
        "environment steps divided by a run's action repeat, for files by the suite's."
    )
    axes = Axis("decision steps"), Axis("normalised score, IQM")
    like = Chart("aggregate", "Aggregate learning curves", caption, *axes, ())
    chart = _with_panels(study, like, functools.partial(_curve, study))
    whole = _widest(study)
    curves = [_curve_of(study, one.method, task) for one in whole for task in one.tasks]
    ends = broken(study, (curve[:3] for curve in curves))
    taken = noted(UNKNOWN, (curve.task for curve in curves if not curve.repeat))
    return chart and chart._replace(notes=(*chart.notes, *ends, *taken))


def profiles(study: Study) -> Chart | None:
    """The share of runs above each normalised score."""
    caption = (
        f"Share of runs whose normalised score is above a threshold, over {{over}}, "
        f"{BASE}, with 95 % bootstrap intervals."
    )
    axes = Axis("normalised score"), Axis("share of runs above it", shared=True)
    like = Chart("profiles", "Performance profiles", caption, *axes, ())
    return _with_panels(study, like, functools.partial(_profile, study))


def _widest(study: Study) -> list[SuiteResult]:
    """Methods with scores on all of a suite, the last that has any such method."""
    found = [one for one in study.suites if one.estimates]
    return [one for one in found if one.suite == found[-1].suite]


def _with_panels(
    study: Study,
    like: Chart,
    line: Callable[[SuiteResult, str, Style], Line | None],
) -> Chart | None:
    """A chart with a panel for each base and UTD; None where no line can be drawn."""
    styles = styles_of(study.methods)
    panels: dict[str, list[Line]] = {}
    whole = _widest(study)
    absent: list[str] = []
    for result in whole:
        method = result.method
        found = line(result, study.label(method, utd=False), styles[method])
        if found is None:
            absent.append(study.label(method))
            continue
        lacks = () if result.complete else (study.label(method),)
        utd = "" if method.utd is None else f"UTD {method.utd}, "
        title = f"{utd}relative to {base_label(study, method)}"
        lines = panels.setdefault(title, [])
        lines.append(found._replace(lacks=lacks))
    if not panels:
        return None
    drawn = tuple(Panel(title, tuple(lines)) for title, lines in panels.items())
    suite = whole[0].suite
    caption = like.caption.format(over=suite_title(study, suite))
    notes = *left_out(study, suite), *noted(APART, absent)
    return like._replace(caption=caption, panels=drawn, notes=notes)


def _curve(study: Study, result: SuiteResult, name: str, style: Style) -> Line | None:
    """The IQM over tasks, as far as every seed of every task has come."""
    own = [
        one
        for one in study.normalised
        if one.cell.method == result.method and one.cell.task in result.tasks
    ]
    by_task = {one.cell.task: _relative(study, one) for one in own}
    counts = tuple(map(len, by_task.values()))
    if not counts or 0 in counts:
        return None
    steps, values = shared([seed for seeds in by_task.values() for seed in seeds])
    sample = Sample(tuple(by_task), counts, np.ascontiguousarray(values.T))
    return statistic_band(name, style, steps, sample, iqm) if len(steps) else None


def _relative(study: Study, one: Normalised) -> list[Series]:
    """Normalised returns of each seed of a cell, by decision step."""
    cell, base = one.cell, one.base
    curve = _curve_of(study, cell.method, cell.task)
    repeat = curve.repeat or 1
    if base is None:
        return []
    return [
        Series(seed.steps / repeat, normalise_scores(seed.values, base.scores))
        for seed in curve.seeds.values()
    ]


def _curve_of(study: Study, method: Method, task: str) -> TaskCurve:
    which = method, task
    return next(c for c in study.curves if (c.method, c.task) == which)


def _profile(study: Study, result: SuiteResult, name: str, style: Style) -> Line:
    """Shares above thresholds that all methods with the same base have."""
    base = base_of(study, result.method)
    like = [one for one in _widest(study) if base_of(study, one.method) == base]
    every = np.concatenate([x for one in like for x in one.scores.values()])
    margin = 0.05 * (np.ptp(every) or 1.0)
    levels = np.linspace(every.min() - margin, every.max() + margin, LEVELS)
    statistic = functools.partial(performance_profile, thresholds=levels)
    low = high = None
    if min(map(len, result.scores.values())) > 1:
        rng = np.random.default_rng(SEED)
        low, high = interval(statistic, result.scores, rng, samples=RESAMPLES)
    note = f"{sum(map(len, result.scores.values()))} runs"
    share = statistic(result.scores)
    return Line(name, style, levels, share, low, high, note=note)


RANK = "effective_rank"
STEPS = Axis("environment steps")

# The seeds of each method on each task.
Seeds = Mapping[tuple[Method, str], Mapping[int, Series]]


def task_curves(study: Study) -> list[Chart]:
    """Returns against steps: a chart for each UTD, a panel for each task."""
    found = {(curve.method, curve.task): curve.seeds for curve in study.curves}
    caption = f"Return of an evaluation's episodes. {bands.SAID}"
    axes = STEPS, Axis("return")
    return _by_utd(study, found, Chart("curves", "Learning curves", caption, *axes, ()))


def rank_charts(study: Study) -> list[Chart]:
    """Effective ranks against steps: a chart for each UTD, a panel for each task."""
    found: dict[tuple[Method, str], dict[int, Series]] = {}
    for (method, task, seed), member in members_by_seed(study).items():
        if RANK in member.diagnostics:
            by_seed = found.setdefault((method, task), {})
            by_seed[seed] = member.diagnostics[RANK]
    caption = (
        "Exponential of the entropy of Z's normalised singular values, on a fixed "
        f"batch from replay. {bands.SAID}"
    )
    axes = STEPS, Axis("effective rank")
    return _by_utd(study, found, Chart("rank", "Effective rank", caption, *axes, ()))


def _by_utd(study: Study, found: Seeds, like: Chart) -> list[Chart]:
    """A chart for each UTD; results whose UTD is not known are in every one."""
    known: list[int | None] = [*sorted({m.utd for m, _ in found if m.utd is not None})]
    charts = []
    for utd in known or [None]:
        here = {which: s for which, s in found.items() if which[0].utd in (utd, None)}
        panels = tuple(_panels(study, here))
        if panels:
            name, title = like.name, like.title
            if utd is not None:
                name, title = f"{name}-utd-{utd}", f"{title}, UTD {utd}"
            notes = broken(study, ((*which, s) for which, s in here.items()))
            chart = like._replace(name=name, title=title, panels=panels, notes=notes)
            charts.append(chart)
    return charts


def _panels(study: Study, found: Seeds) -> list[Panel]:
    styles = styles_of(study.methods)
    panels = []
    for task in study.tasks:
        lines = []
        for method in study.methods:
            seeds = found.get((method, task), {})
            if seeds:
                name, style = study.label(method, utd=False), styles[method]
                line = bands.seeds_and_mean(name, style, tuple(seeds.values()))
                lines.append(line._replace(lacks=lacking(study, method, [task])))
        if lines:
            panels.append(Panel(task, tuple(lines)))
    return panels


# Below this share of the largest a singular value is rounding, and 12 decades of it
# would leave no room for the others.
LEAST = 1e-6
HEAD, MOST = 16, 64  # values drawn of a long spectrum: the first, and others evenly


def spectrum_chart(study: Study) -> Chart | None:
    """The singular values of Z at the last evaluation, a panel for task and UTD."""
    styles = styles_of(study.methods)
    panels: dict[str, list[Line]] = {}
    absent: list[Gap] = []
    for (task, method), by_seed in _found(study).items():
        spectra = np.stack(list(by_seed.values()))
        bad = [str(s) for s, one in by_seed.items() if not np.isfinite(one).all()]
        title = task if method.utd is None else f"{task}, UTD {method.utd}"
        if bad:
            why = f"seed {seed_list(bad)} not finite"
        elif not spectra.any():
            why = "all values are zero"
        else:
            line = _line(study.label(method, utd=False), styles[method], spectra)
            line = line._replace(lacks=lacking(study, method, [task]))
            panels.setdefault(title, []).append(line)
            continue
        absent.append(Gap(study.label(method), task, why))
    if not panels:
        return None
    return Chart(
        "spectra",
        "Spectra of the representation",
        "Singular values of Z at the last evaluation of every seed, largest first, on "
        "a logarithmic scale: means over seeds with 95 % bootstrap intervals, and 0 "
        "where a seed has no such value. What is below a millionth of the largest of "
        "every seed is left out, and of long spectra only some 80 values are drawn.",
        Axis("index of the singular value"),
        Axis("singular value", log=True, shared=True),
        tuple(Panel(title, tuple(lines)) for title, lines in panels.items()),
        notes=gaps_noted(NO_MEAN, absent),
    )


def _found(study: Study) -> Mapping[tuple[str, Method], Mapping[int, Floats]]:
    """The last spectrum of each seed, by task and method in the order of a report.

    Those of one method have the same length, that of the longest: what a collapsed
    seed lacks is zero.
    """
    last: dict[tuple[str, Method], dict[int, Floats]] = {}
    for (method, task, seed), member in members_by_seed(study).items():
        if member.spectra:
            by_seed = last.setdefault((task, method), {})
            by_seed[seed] = member.spectra[-1].singular_values
    methods = study.methods

    def place(which: tuple[str, Method]) -> tuple[int, ...]:
        task, method = which
        return study.tasks.index(task), method.utd or 0, methods.index(method)

    return {which: _padded(last[which]) for which in sorted(last, key=place)}


def _padded(by_seed: Mapping[int, Floats]) -> dict[int, Floats]:
    most = max(map(len, by_seed.values()))
    return {s: np.pad(one, (0, most - len(one))) for s, one in by_seed.items()}


def _line(name: str, style: Style, spectra: Floats) -> Line:
    """The mean over seeds of spectra [seeds, values], as far as one has any."""
    length = max(map(_worth_drawing, spectra))
    even = np.linspace(0, length - 1, min(length, MOST)).round().astype(np.int64)
    places = np.unique(np.concatenate([np.arange(min(length, HEAD)), even]))
    line = mean_band(name, style, places + 1.0, spectra[:, places])
    if line.low is None:
        return line
    # An end at zero has no place on the scale.
    floor = np.minimum(LEAST * line.y[0], line.y)
    return line._replace(low=np.maximum(line.low, floor))


def _worth_drawing(values: Floats) -> int:
    return int(np.count_nonzero(values > LEAST * values[:1]))
