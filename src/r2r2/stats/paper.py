"""The paper's numbers, and how far its aggregates follow from its tables.

`published/` holds every score, time and effective rank printed in the paper: per task the mean and
standard deviation over five seeds, raw and normalized, and aggregates with 95 % intervals. Scores
of single seeds were not published. For the aggregates this means (tests check all of it):

- **Means** follow from the normalized table: all 81 agree within 0.01, the rounding to two digits
  on both sides; the largest difference is 0.0075.
- **The normalized table** follows from the raw table with the base agent at UTD 1. Where rounding
  does not explain a difference, 0.0005 is missing, as if entries had been rounded to three digits
  and then to two. Minimalist phi on humanoid-run is imprecise: its base of 1.2 has two significant
  figures, so by the raw table 58.16 lies between 53.4 and 58.3.
- **Intervals of means** do not follow exactly, because quantiles need the seeds. But the variance
  of a resample's mean is a function of mean and deviation per task alone. With `synthetic_seeds`,
  published widths are 1.01 times those of pooled resampling (the median of 81, from 0.78 to 1.08)
  and 1.95 times those of stratified resampling (from 0.9 to 6.4); see `bootstrap.py`.
- **IQMs** do not follow: which scores lie in the middle half depends on the seeds. Those of
  synthetic seeds differ from the published ones by at most 0.05, with a median of 0.01.
"""

import csv
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from r2r2.config.errors import invalid_value
from r2r2.stats.samples import Floats

FOLDER = Path(__file__).parent / "published"
SEEDS = 5
SUITES = ("gym-mujoco", "dmc-hard")
ALL = "all11"
# The agent that normalized scores are relative to, at UTD 1.
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


class CellKey(NamedTuple):
    """A cell of the paper's tables of scores."""

    task: str
    agent: str
    utd: int


class MeanStd(NamedTuple):
    """Mean and standard deviation (ddof 1, inferred) over the paper's five seeds."""

    mean: float
    std: float


class Aggregate(NamedTuple):
    """A statistic of normalized scores over a suite, with its 95 % interval."""

    suite: str  # one of `SUITES`, or `ALL`
    statistic: Literal["mean", "iqm"]
    agent: str
    utd: int
    value: float
    low: float
    high: float
    in_main_table: bool  # else in the appendix


class TrainingTime(NamedTuple):
    """Seconds per decision step."""

    agent: str
    task: str
    utd: int
    seconds: float
    hardware: str


@functools.cache
def raw_scores() -> dict[CellKey, MeanStd]:
    """Return the paper's scores as returns."""
    return _read_scores("raw_scores.csv")


@functools.cache
def normalized_scores() -> dict[CellKey, MeanStd]:
    """Return the paper's scores relative to the base agent at UTD 1."""
    return _read_scores("normalized_scores.csv")


@functools.cache
def aggregates() -> tuple[Aggregate, ...]:
    """Return the paper's aggregates; means over all tasks are in both of its tables."""
    parsed: list[Aggregate] = []
    for row in _read_rows("aggregates.csv"):
        name, _, table = row["statistic"].partition("(")
        value, low, high = (float(row[key]) for key in ("value", "ci_low", "ci_high"))
        statistic: Literal["mean", "iqm"] = "mean" if name == "mean" else "iqm"
        key = row["suite"], statistic, row["agent"], int(row["utd"])
        parsed.append(Aggregate(*key, value, low, high, bool(table)))
    return tuple(parsed)


def aggregate(suite: str, statistic: str, agent: str, utd: int) -> Aggregate | None:
    """Return one of the paper's aggregates, the appendix's where both tables have it."""
    # The main table rounds an end of 11.04 to 11.0.
    matches = [a for a in aggregates() if a[:4] == (suite, statistic, agent, utd)]
    return min(matches, key=lambda a: a.in_main_table, default=None)


@functools.cache
def training_times() -> tuple[TrainingTime, ...]:
    """Return the paper's training times."""
    times: list[TrainingTime] = []
    for row in _read_rows("training_time.csv"):
        utd, seconds = int(row["utd"]), float(row["seconds_per_step"])
        times.append(TrainingTime(row["agent"], row["env"], utd, seconds, row["hardware"]))
    return tuple(times)


@functools.cache
def effective_ranks() -> dict[CellKey, float]:
    """Return the paper's effective ranks of Z; it states no formula, batch or step for them."""
    return {
        CellKey(row["env"], row["agent"], int(row["utd"])): float(row["effective_rank"])
        for row in _read_rows("effective_ranks.csv")
    }


@functools.cache
def tasks(suite: str = ALL) -> tuple[str, ...]:
    """Return the tasks of a suite, in the paper's order."""
    if suite not in (*SUITES, ALL):
        raise invalid_value("suite", f"one of {', '.join((*SUITES, ALL))}", suite)
    names = [row["env"] for row in _read_rows("raw_scores.csv") if suite in (row["suite"], ALL)]
    return tuple(dict.fromkeys(names))


def find_suite(task: str) -> str | None:
    """Return the paper's suite that contains a task, or None."""
    return next((suite for suite in SUITES if task in tasks(suite)), None)


def synthetic_seeds(score: MeanStd, seeds: int = SEEDS) -> Floats:
    """Return evenly spaced scores with a given mean and deviation, [seeds].

    They replace the scores of single seeds, which were not published: results that depend on
    mean and deviation alone are exact, all others are approximate.
    """
    even = np.arange(seeds) - (seeds - 1) / 2
    scores: Floats = score.mean + score.std * even / even.std(ddof=1)
    return scores


def _read_scores(name: str) -> dict[CellKey, MeanStd]:
    return {
        CellKey(r["env"], r["agent"], int(r["utd"])): MeanStd(float(r["mean"]), float(r["std"]))
        for r in _read_rows(name)
    }


def _read_rows(name: str) -> Sequence[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
