"""Scores of one cell in a few numbers, and numbers in a few digits."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from r2r2.report.completeness import brief
from r2r2.report.tables import Entry
from r2r2.stats.aggregates import mean_score
from r2r2.stats.bootstrap import Interval
from r2r2.stats.samples import Floats
from r2r2.stats.suites import SAMPLES, SEED, interval_of

NONE = Entry("-")

INTERVALS = (
    f"Intervals are 95 % percentile bootstrap intervals of {SAMPLES:,} resamples, "
    f"seeds drawn within tasks, generator seeded with {SEED}; one seed has none."
)
SPREADS = (
    "± is the standard deviation over seeds (ddof 1). The CSV file has 95 % intervals "
    "of the mean too."
)


class Summary(NamedTuple):
    """Scores over seeds."""

    mean: float
    std: float  # ddof 1; NaN of one seed
    low: float  # of the 95 % interval of the mean; NaN of one seed
    high: float
    seeds: int


def summary_of(scores: Floats) -> Summary:
    """The mean over seeds, how far they lie apart, and how sure the mean is.

    Example:
        >>> summary_of(np.array([9.0, 10.0, 11.0]))[:2]
        (10.0, 1.0)
        >>> summary_of(np.array([9.0])).seeds
        1
    """
    if not len(scores) or not np.isfinite(scores).all():
        nan = math.nan
        return Summary(nan, nan, nan, nan, len(scores))
    found = interval_of(mean_score, {"": scores})
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
    return Summary(float(scores.mean()), std, *ends(found), len(scores))


def ends(found: Interval | None) -> tuple[float, float]:
    """The ends of an interval as numbers; NaN where there is none."""
    return (float(found.low), float(found.high)) if found else (math.nan, math.nan)


def rounded(value: float, like: float | None = None) -> str:
    """A number in as many digits as are worth reading, or as many as another has.

    Example:
        >>> [rounded(x) for x in (3281.94, 12.345, 0.01234, -0.5, 0.0)]
        ['3,281.9', '12.35', '0.0123', '-0.500', '0.00']
        >>> rounded(12.345, like=3281.94), rounded(float("nan"))
        ('12.3', 'nan')
    """
    size = abs(value if like is None else like)
    if not math.isfinite(value) or not math.isfinite(size):
        return str(value)
    digits = 1 if size >= 100 else 2 if size >= 1 or not size else 3
    if 0 < size < 0.1:
        digits = 2 - math.floor(math.log10(size))
    return f"{value:,.{min(digits, 9)}f}"


def bracketed(value: float, low: float, high: float, digits: int | None = None) -> str:
    """A number with its interval, if it has one.

    Example:
        >>> bracketed(1.218, 1.1, 1.3, 2), bracketed(250.0, float("nan"), 1.0)
        ('1.22 [1.10, 1.30]', '250.0')
    """
    shown = [
        rounded(x, value) if digits is None else f"{x:.{digits}f}"
        for x in (value, low, high)
    ]
    if math.isnan(low) or math.isnan(high):
        return shown[0]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def interval_entry(
    value: float, low: float, high: float, note: str = "", digits: int | None = None
) -> Entry:
    """A number with its interval, as people and as programs read it.

    Example:
        >>> interval_entry(1.0, 0.5, 1.5, digits=1).text
        '1.0 [0.5, 1.5]'
    """
    numbers = {"value": value, "low": low, "high": high}
    return Entry(bracketed(value, low, high, digits), note, numbers)


def score_entry(scores: Floats, lacks: Sequence[str], relative: bool = False) -> Entry:
    """A cell of a table of scores.

    Args:
        scores: of its seeds.
        lacks: what they lack to be the paper's.
        relative: show two digits and the interval, else the deviation, as the paper.

    Example:
        >>> score_entry(np.array([9.0, 11.0]), ["2 of 5 seeds"])[:2]
        ('10.00 ± 1.41', '2 of 5 seeds')
        >>> score_entry(np.array([]), ["seed 0 has no evaluation"]).text
        '-'
    """
    note = brief(lacks)
    if not len(scores):
        return Entry("-", note)
    found = summary_of(scores)
    if relative:
        text = bracketed(found.mean, found.low, found.high, digits=2)
    else:
        text = rounded(found.mean)
        if found.seeds > 1:
            text += f" ± {rounded(found.std, like=found.mean)}"
    return Entry(text, note, found._asdict())
