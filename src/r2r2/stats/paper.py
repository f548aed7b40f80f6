"""The paper's own numbers, and how far its aggregates follow from its tables.

`published/` holds every score and time that the paper prints: per task the mean and
deviation over five seeds, raw and normalised, and aggregates with 95 % intervals. The
scores of single seeds were not published. So, of the aggregates (tests state all this):

- **Means** follow from the normalised table: all 81 agree within 0.01, which is what
  rounding to two digits on both sides leaves; the largest difference is 0.0075.
- **The normalised table** follows from the raw one with the base agent at UTD 1. Where
  rounding does not leave enough room, 0.0005 is missing, as if entries had been rounded
  to three digits and then to two. Minimalist phi's humanoid-run is vague: its base of
  1.2 is known to two figures, so that by the raw table 58.16 is between 53.4 and 58.3.
- **Intervals of means** do not follow exactly, as quantiles need the seeds. But what
  the mean of a resample varies by is a function of mean and deviation per task alone.
  With `stand_ins` for seeds, published widths are 1.01 times those of pooled
  resampling (the median of 81, from 0.78 to 1.08) and 1.95 times those of stratified
  resampling (from 0.9 to 6.4): hence `bootstrap.py`.
- **IQMs** do not follow: which scores lie in the middle half depends on the seeds.
  Those of stand-ins differ from the published by 0.05 at most, 0.01 in the median.
"""

import csv
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.stats.samples import Floats

FOLDER = Path(__file__).parent / "published"

SEEDS = 5
SUITES = ("gym-mujoco", "dmc-hard")
ALL = "all11"

# What a normalised score of an agent is relative to, at UTD 1.
BASES = {
    "td7": "td7",
    "td7+r2r2": "td7",
    "td7-ln": "td7-ln",
    "td7-ln+r2r2": "td7-ln",
    "minphi": "minphi",
    "minphi+r2r2": "minphi",
    "simbav2": "simbav2",
    "simbav2-spl": "simbav2",
    "simbav2-spl+r2r2": "simbav2",
}


class Which(NamedTuple):
    """A cell of the paper's tables of scores.

    Example:
        >>> raw_scores()[Which("Hopper-v5", "td7", 20)].mean
        3281.9
    """

    task: str
    agent: str
    utd: int


class Spread(NamedTuple):
    """Mean and deviation (ddof 1, inferred) over the paper's five seeds."""

    mean: float
    std: float


class Aggregate(NamedTuple):
    """A statistic of normalised scores over a suite, with its 95 % interval."""

    suite: str  # one of `SUITES`, or `ALL`
    statistic: Literal["mean", "iqm"]
    agent: str
    utd: int
    value: float
    low: float
    high: float
    main: bool  # from the main table, else from the appendix


class Time(NamedTuple):
    """Seconds per decision step."""

    agent: str
    task: str
    utd: int
    seconds: float
    hardware: str


@functools.cache
def raw_scores() -> dict[Which, Spread]:
    """The paper's scores as returns."""
    return _spreads("raw_scores.csv")


@functools.cache
def normalised_scores() -> dict[Which, Spread]:
    """The paper's scores relative to the base agent at UTD 1.

    Example:
        >>> normalised_scores()[Which("dog-run", "td7+r2r2", 20)]
        Spread(mean=1.05, std=0.13)
    """
    return _spreads("normalized_scores.csv")


@functools.cache
def aggregates() -> tuple[Aggregate, ...]:
    """The paper's aggregates; means over all tasks stand in both of its tables.

    Example:
        >>> [x.value for x in aggregates() if x.agent == "td7" and x.utd == 10]
        [1.22, 1.11]
    """
    found: list[Aggregate] = []
    for row in _rows("aggregates.csv"):
        name, _, table = row["statistic"].partition("(")
        value, low, high = (float(row[key]) for key in ("value", "ci_low", "ci_high"))
        statistic: Literal["mean", "iqm"] = "mean" if name == "mean" else "iqm"
        which = row["suite"], statistic, row["agent"], int(row["utd"])
        found.append(Aggregate(*which, value, low, high, bool(table)))
    return tuple(found)


def aggregate(suite: str, statistic: str, agent: str, utd: int) -> Aggregate | None:
    """One of the paper's aggregates, as the appendix has it where both tables do.

    The main table rounds an end of 11.04 to 11.0.

    Example:
        >>> aggregate("all11", "mean", "minphi+r2r2", 20).high
        11.04
    """
    which = suite, statistic, agent, utd
    found = [a for a in aggregates() if a[:4] == which]
    return min(found, key=lambda one: one.main, default=None)


@functools.cache
def times() -> tuple[Time, ...]:
    """The paper's times.

    Example:
        >>> times()[0].seconds
        0.417
    """
    return tuple(
        Time(
            row["agent"],
            row["env"],
            int(row["utd"]),
            float(row["seconds_per_step"]),
            row["hardware"],
        )
        for row in _rows("training_time.csv")
    )


@functools.cache
def tasks(suite: str = ALL) -> tuple[str, ...]:
    """The tasks of a suite, in the paper's order.

    Example:
        >>> tasks("gym-mujoco")
        ('Ant-v5', 'Walker2d-v5', 'Hopper-v5', 'Humanoid-v5')
    """
    if suite not in (*SUITES, ALL):
        raise UserError(f"suite is {suite!r}; allowed are {', '.join((*SUITES, ALL))}")
    rows = _rows("raw_scores.csv")
    found = [row["env"] for row in rows if suite in (row["suite"], ALL)]
    return tuple(dict.fromkeys(found))


def suite_of(task: str) -> str | None:
    """The paper's suite that a task belongs to, if it is one of the paper's.

    Example:
        >>> suite_of("dog-run"), suite_of("cartpole-swingup")
        ('dmc-hard', None)
    """
    return next((suite for suite in SUITES if task in tasks(suite)), None)


def stand_ins(spread: Spread, seeds: int = SEEDS) -> Floats:
    """Scores at even distances that have a given mean and deviation, [seeds].

    In place of the seeds' own, which were not published: what depends on mean and
    deviation alone is exact, all else is not.

    Example:
        >>> stand_ins(Spread(10.0, 1.0), 3)
        array([ 9., 10., 11.])
    """
    even = np.arange(seeds) - (seeds - 1) / 2
    found: Floats = spread.mean + spread.std * even / even.std(ddof=1)
    return found


def _spreads(name: str) -> dict[Which, Spread]:
    return {
        Which(row["env"], row["agent"], int(row["utd"])): Spread(
            float(row["mean"]), float(row["std"])
        )
        for row in _rows(name)
    }


def _rows(name: str) -> Sequence[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
