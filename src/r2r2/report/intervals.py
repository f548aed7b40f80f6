"""Lines with their intervals, from the values of seeds."""

from collections.abc import Callable, Sequence

import numpy as np

from r2r2.report.charts import Line
from r2r2.report.learning_curve import compared
from r2r2.report.palette import Style
from r2r2.report.study import Series
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import interval
from r2r2.stats.samples import Floats, Sample
from r2r2.stats.suites import SEED

DRAWS = 1000  # for a band along a curve, whose ends are read by eye
SAID = (
    "Bold lines are means over seeds with 95 % bootstrap intervals, thin lines single "
    "seeds. Means go as far as every seed has come and is finite."
)


def mean_band(name: str, style: Style, x: Floats, values: Floats) -> Line:
    """The mean over seeds of values [seeds, points], with its 95 % interval.

    Example:
        >>> values = np.array([[1.0, 4.0], [3.0, 4.0]])
        >>> line = mean_band("td7", Style(0), np.arange(2.0), values)
        >>> line.y, line.low, line.high, line.note
        (array([2., 4.]), array([1., 4.]), array([3., 4.]), '2 seeds')
    """
    sample = Sample(("",), (len(values),), np.ascontiguousarray(values.T))
    return statistic_band(name, style, x, sample, mean_score)


def statistic_band(
    name: str,
    style: Style,
    x: Floats,
    sample: Sample,
    statistic: Callable[[Sample], Floats],
) -> Line:
    """A statistic at every point, with its interval where every task has two runs.

    Args:
        name: of the line.
        style: of the line.
        x: where, [points].
        sample: the values of all runs, [points, runs].
        statistic: of `report.statistics`.
    """
    low = high = None
    if len(x) and min(sample.counts) > 1:
        rng = np.random.default_rng(SEED)
        low, high = interval(statistic, sample, rng, samples=DRAWS)
    tasks, runs = len(sample.counts), sum(sample.counts)
    note = f"{runs} seed{'s' if runs > 1 else ''}"
    if tasks > 1:
        note = f"{runs} runs on {tasks} tasks"
    return Line(name, style, x, statistic(sample), low, high, note=note)


def seeds_and_mean(name: str, style: Style, seeds: Sequence[Series]) -> Line:
    """A thin line for each seed, and their mean where all of them are, and are finite.

    Example:
        >>> one = Series(np.array([0.0, 10.0]), np.array([1.0, 3.0]))
        >>> seeds_and_mean("td7", Style(0), [one, one]).y
        array([1., 3.])
        >>> other = one._replace(values=np.array([5.0, np.nan]))
        >>> seeds_and_mean("td7", Style(0), [one, other]).y
        array([3.])
    """
    line = mean_band(name, style, *shared(seeds))
    more = len(seeds) > 1 or np.isfinite(ending(seeds[0]))
    return line._replace(each=tuple(map(_drawable, seeds)) if more else ())


def shared(seeds: Sequence[Series]) -> tuple[Floats, Floats]:
    """Steps [n] and values [seeds, n] of seeds before the first that is not finite.

    A mean that went on without a seed would jump up where the worst one diverges.

    Example:
        >>> one = Series(np.array([0.0, 10.0]), np.array([np.nan, 3.0]))
        >>> shared([one])
        (array([], dtype=float64), array([], shape=(1, 0), dtype=float64))
    """
    until = min(map(ending, seeds))
    kept = [(one.steps[one.steps < until], one.values) for one in seeds]
    pairs = [(steps, values[: len(steps)]) for steps, values in kept]
    if not all(len(steps) for steps, _ in pairs):
        return np.empty(0), np.empty((len(seeds), 0))
    return compared(pairs)


def ending(seed: Series) -> float:
    """The first step at which a seed is not finite; infinity where it always is.

    Example:
        >>> ending(Series(np.array([5.0, 10.0]), np.array([1.0, np.inf])))
        10.0
    """
    bad = seed.steps[~np.isfinite(seed.values)]
    return float(bad[0]) if len(bad) else np.inf


def _drawable(seed: Series) -> tuple[Floats, Floats]:
    good = np.isfinite(seed.values)
    return seed.steps[good], seed.values[good]
