"""Numbers that say how good many runs on many tasks were.

Each is a function of scores, an array [runs, tasks] or a dictionary of scores by task;
tasks count the same however many runs they have. Where all have the same number, the
values are those of rliable (Agarwal et al., 2021). `bootstrap.py` makes their
intervals.
"""

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError
from r2r2.stats.samples import Floats, Given, Sample, check_same_tasks, sample_of

# A quarter of the weight, give or take the rounding of its sum.
QUARTER = 0.25 + 1e-9


def mean_score(scores: Given) -> Floats:
    r"""The mean over tasks of each task's mean over runs.

    $$\frac{1}{T} \sum_t \frac{1}{N_t} \sum_n x_{t,n}$$

    Example:
        >>> float(mean_score({"a": [1.0, 3.0], "b": [6.0]}))
        4.0
    """
    found: Floats = _task_means(sample_of(scores)).mean(axis=-1)
    return found


def median_score(scores: Given) -> Floats:
    """The median over tasks of each task's mean over runs.

    Raises:
        UserError: Pooled resampling has mixed the tasks.

    Example:
        >>> float(median_score({"a": [1.0, 3.0], "b": [6.0], "c": [9.0]}))
        6.0
    """
    sample = sample_of(scores)
    if not sample.tasks:
        raise UserError(
            "resampling is 'pooled', which mixes the tasks that a median is taken "
            "over; allowed is 'stratified'"
        )
    found: Floats = np.median(_task_means(sample), axis=-1)
    return found


def iqm(scores: Given) -> Floats:
    r"""The interquartile mean: the mean of the middle half of all scores.

    From either end of the ordered scores whole ones are cut off, as many as weigh a
    quarter at most; a score of a task with $N_t$ runs weighs $1 / (T N_t)$. Of N
    scores with equal weights that is the integer part of N / 4.

    Example:
        >>> float(iqm([[1.0, 10.0], [2.0, 100.0]]))
        6.0
    """
    sample = sample_of(scores)
    # By weight first: of scores that are equal the lightest then always goes first,
    # whatever the order of the tasks.
    columns = np.argsort(sample.weights, kind="stable")
    values, weights = sample.values[..., columns], sample.weights[columns]
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    weight = weights[order]
    below = np.cumsum(weight, axis=-1)
    above = 1 - below + weight  # its own weight and all above it
    kept = np.where((below > QUARTER) & (above > QUARTER), weight, 0.0)
    found: Floats = (kept * ordered).sum(axis=-1) / kept.sum(axis=-1)
    return found


def optimality_gap(scores: Given, target: float = 1.0) -> Floats:
    r"""How far scores fall short of a target on average; none makes up for another.

    $$\gamma - \mathrm{mean}(\min(x, \gamma))$$

    Example:
        >>> float(optimality_gap([[0.5, 3.0]]))
        0.25
    """
    sample = sample_of(scores)
    return target - mean_score(
        sample._replace(values=np.minimum(sample.values, target))
    )


def performance_profile(scores: Given, thresholds: ArrayLike) -> Floats:
    """The share of scores above each threshold, [thresholds].

    Args:
        scores: whose.
        thresholds: a score equal to one is not above it.

    Example:
        >>> performance_profile([[0.5, 3.0]], [0.0, 1.0, 3.0])
        array([1. , 0.5, 0. ])
    """
    sample = sample_of(scores)
    levels = np.asarray(thresholds, dtype=np.float64)
    if levels.ndim != 1:
        raise UserError(f"thresholds have shape {levels.shape}; allowed is a row")
    order = np.argsort(levels)
    rows = sample.values.reshape(-1, sample.values.shape[-1])
    found = np.empty((len(rows), len(levels)))
    found[:, order] = _weight_above(rows, sample.weights, levels[order])
    return found.reshape(*sample.values.shape[:-1], len(levels))


def probability_of_improvement(ours: Given, theirs: Given) -> Floats:
    r"""How probable it is that a run of ours beats one of theirs on the same task.

    $$\frac{1}{T} \sum_t \frac{1}{N_t M_t} \sum_{n,m} [x_{t,n} > y_{t,m}]
    + \tfrac{1}{2} [x_{t,n} = y_{t,m}]$$

    Raises:
        UserError: The tasks are not the same.

    Example:
        >>> better, worse = [[1.0], [4.0]], [[1.0], [2.0]]
        >>> float(probability_of_improvement(better, worse))  # (1/2 + 0 + 1 + 1) / 4
        0.625
    """
    one, other = sample_of(ours), sample_of(theirs)
    check_same_tasks(one.tasks, other.tasks, "the second")
    shares = []
    for place, task in enumerate(one.tasks):
        x = one.part(place)[..., :, np.newaxis]
        y = other.part(other.tasks.index(task))[..., np.newaxis, :]
        wins = (x > y).mean(axis=(-2, -1)) + (x >= y).mean(axis=(-2, -1))
        shares.append(wins / 2)
    found: Floats = np.mean(shares, axis=0)
    return found


def _task_means(sample: Sample) -> Floats:
    """Each task's mean over runs, [..., tasks]."""
    sums: Floats = np.add.reduceat(sample.values, sample.starts, axis=-1)
    found: Floats = sums / np.array(sample.counts)
    return found


def _weight_above(rows: Floats, weights: Floats, levels: Floats) -> Floats:
    """The weight of the scores above each of ordered levels, [rows, levels].

    One pass that counts how many levels lie below a score: to compare all scores with
    every level takes ten times as long.
    """
    bins = len(levels) + 1
    below = np.searchsorted(levels, rows, side="left")
    places = below + bins * np.arange(len(rows))[:, np.newaxis]
    each = np.broadcast_to(weights, rows.shape)
    size = len(rows) * bins
    sums = np.bincount(places.ravel(), weights=each.ravel(), minlength=size)
    held = np.asarray(sums, dtype=np.float64).reshape(-1, bins)
    return np.cumsum(held[:, :0:-1], axis=-1)[:, ::-1]
