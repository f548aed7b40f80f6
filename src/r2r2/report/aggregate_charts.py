"""Charts of normalised scores over all tasks: against steps and against thresholds.

A normalised score is relative to the base of its method, so that methods with another
base are in another panel.
"""

import functools
from collections.abc import Callable

import numpy as np

from r2r2.report.absences import broken, left_out, noted
from r2r2.report.bands import shared, statistic_band
from r2r2.report.bootstrap import interval
from r2r2.report.charts import Axis, Chart, Line, Panel
from r2r2.report.normalised import Normalised, normalise_scores
from r2r2.report.palette import Style, styles_of
from r2r2.report.relative_to import base_label, base_of
from r2r2.report.samples import Sample
from r2r2.report.score_tables import suite_title
from r2r2.report.scores import Method
from r2r2.report.statistics import iqm, performance_profile
from r2r2.report.study import Series, Study, TaskCurve
from r2r2.report.suites import SEED, SuiteResult

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
