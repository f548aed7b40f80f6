"""Statistics of the scores of many runs on many tasks.

Each is a function of scores, an array [runs, tasks] or a dictionary of scores by task. Every task
has the same weight, however many runs it has. With equal numbers of runs the values are those of
rliable (Agarwal et al., 2021). `bootstrap.py` computes intervals.
"""

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError
from r2r2.stats.samples import Floats, Sample, ScoresLike, as_sample, check_same_tasks

QUARTER = 0.25 + 1e-9  # of the weight, with a tolerance for the rounding of sums


def mean_score(scores: ScoresLike) -> Floats:
    r"""Return the mean over tasks of each task's mean over runs.

    $$\frac{1}{T} \sum_t \frac{1}{N_t} \sum_n x_{t,n}$$

    Example:
        >>> float(mean_score({"a": [1.0, 3.0], "b": [6.0]}))
        4.0
    """
    mean: Floats = _task_means(as_sample(scores)).mean(axis=-1)
    return mean


def median_score(scores: ScoresLike) -> Floats:
    """Return the median over tasks of each task's mean over runs.

    Raises:
        UserError: Pooled resampling has mixed the tasks.

    Example:
        >>> float(median_score({"a": [1.0, 3.0], "b": [6.0], "c": [9.0]}))
        6.0
    """
    sample = as_sample(scores)
    if not sample.tasks:
        raise UserError(
            "resampling: the median is over tasks, which 'pooled' mixes; expected "
            "'stratified', got 'pooled'"
        )
    median: Floats = np.median(_task_means(sample), axis=-1)
    return median


def iqm(scores: ScoresLike) -> Floats:
    r"""Return the interquartile mean, the mean of the middle half of all scores.

    At each end of the sorted scores, as many scores are cut off as weigh a quarter at most; a score
    of a task with $N_t$ runs has the weight $1 / (T N_t)$. Of N scores with equal weights this is
    the integer part of N / 4.

    Example:
        >>> float(iqm([[1.0, 10.0], [2.0, 100.0]]))
        6.0
    """
    sample = as_sample(scores)
    # Sorting by weight first makes the cut of equal scores independent of the order of the tasks.
    columns = np.argsort(sample.weights, kind="stable")
    values, weights = sample.values[..., columns], sample.weights[columns]
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    weight = weights[order]
    below = np.cumsum(weight, axis=-1)
    above = 1 - below + weight  # including its own weight
    middle = np.where((below > QUARTER) & (above > QUARTER), weight, 0.0)
    mean: Floats = (middle * ordered).sum(axis=-1) / middle.sum(axis=-1)
    return mean


def optimality_gap(scores: ScoresLike, target: float = 1.0) -> Floats:
    r"""Return the mean amount by which scores fall short of a target.

    $$\gamma - \mathrm{mean}(\min(x, \gamma))$$

    Example:
        >>> float(optimality_gap([[0.5, 3.0]]))
        0.25
    """
    sample = as_sample(scores)
    return target - mean_score(sample._replace(values=np.minimum(sample.values, target)))


def performance_profile(scores: ScoresLike, thresholds: ArrayLike) -> Floats:
    """Return the share of scores above each threshold, [thresholds].

    Args:
        scores: an array [runs, tasks], or scores by task.
        thresholds: scores equal to a threshold are not above it.

    Example:
        >>> performance_profile([[0.5, 3.0]], [0.0, 1.0, 3.0])
        array([1. , 0.5, 0. ])
    """
    sample = as_sample(scores)
    levels = np.asarray(thresholds, dtype=np.float64)
    if levels.ndim != 1:
        raise UserError(f"thresholds: expected a row, got shape {levels.shape}")
    order = np.argsort(levels)
    rows = sample.values.reshape(-1, sample.values.shape[-1])
    shares = np.empty((len(rows), len(levels)))
    shares[:, order] = _weight_above(rows, sample.weights, levels[order])
    return shares.reshape(*sample.values.shape[:-1], len(levels))


def probability_of_improvement(ours: ScoresLike, theirs: ScoresLike) -> Floats:
    r"""Return the probability that a run of ours beats one of theirs on the same task.

    $$\frac{1}{T} \sum_t \frac{1}{N_t M_t} \sum_{n,m} [x_{t,n} > y_{t,m}]
    + \tfrac{1}{2} [x_{t,n} = y_{t,m}]$$

    Raises:
        UserError: The tasks differ.

    Example:
        >>> better, worse = [[1.0], [4.0]], [[1.0], [2.0]]
        >>> float(probability_of_improvement(better, worse))  # (1/2 + 0 + 1 + 1) / 4
        0.625
    """
    first, second = as_sample(ours), as_sample(theirs)
    check_same_tasks(first.tasks, second.tasks, "the second")
    shares = []
    for index, task in enumerate(first.tasks):
        x = first.task_scores(index)[..., :, np.newaxis]
        y = second.task_scores(second.tasks.index(task))[..., np.newaxis, :]
        shares.append(((x > y).mean(axis=(-2, -1)) + (x >= y).mean(axis=(-2, -1))) / 2)
    probability: Floats = np.mean(shares, axis=0)
    return probability


def _task_means(sample: Sample) -> Floats:
    """Return each task's mean over runs, [..., tasks]."""
    sums: Floats = np.add.reduceat(sample.values, sample.starts, axis=-1)
    means: Floats = sums / np.array(sample.counts)
    return means


def _weight_above(rows: Floats, weights: Floats, levels: Floats) -> Floats:
    """Return the weight of the scores above each of sorted levels, [rows, levels]."""
    # One pass is ten times faster than comparing all scores with every level.
    bins = len(levels) + 1
    below = np.searchsorted(levels, rows, side="left")
    indices = below + bins * np.arange(len(rows))[:, np.newaxis]
    per_score = np.broadcast_to(weights, rows.shape)
    sums = np.bincount(indices.ravel(), weights=per_score.ravel(), minlength=len(rows) * bins)
    by_bin = np.asarray(sums, dtype=np.float64).reshape(-1, bins)
    return np.cumsum(by_bin[:, :0:-1], axis=-1)[:, ::-1]
