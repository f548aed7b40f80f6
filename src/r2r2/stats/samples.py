"""Scores of runs on tasks, in the form that every statistic takes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Sample(NamedTuple):
    """Scores of all runs, one task after the other; tasks may differ in runs.

    Leading axes of `values` hold resamples, so that one function serves one sample or thousands.
    """

    tasks: tuple[str, ...]  # empty where pooled resampling has mixed them
    counts: tuple[int, ...]  # runs of each task
    values: Floats  # [..., runs of all tasks]

    @property
    def starts(self) -> Ints:
        """Index of the first score of each task, [tasks]."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    @property
    def weights(self) -> Floats:
        """Weight of each score, [runs of all tasks]: equal for tasks, 1 in all."""
        counts = np.array(self.counts)
        return np.repeat(1 / (counts * len(counts)), counts)

    def task_scores(self, index: int) -> Floats:
        """Return the scores of one task, [..., runs]."""
        start = self.starts[index]
        return self.values[..., start : start + self.counts[index]]


ScoresLike = Sample | Mapping[str, ArrayLike] | ArrayLike


def as_sample(scores: ScoresLike) -> Sample:
    """Return an array [runs, tasks], or scores by task, as a sample; all finite."""
    if isinstance(scores, Sample):
        return scores
    if not isinstance(scores, Mapping):
        table = np.asarray(scores, dtype=np.float64)
        if table.ndim != 2:
            raise UserError(f"scores: expected shape (runs, tasks), got shape {table.shape}")
        scores = {str(task): column for task, column in enumerate(table.T)}
    if not scores:
        raise UserError("scores: expected at least one task, got none")
    parts = [_as_task_scores(task, part) for task, part in scores.items()]
    return Sample(tuple(scores), tuple(map(len, parts)), np.concatenate(parts))


def _as_task_scores(task: str, scores: ArrayLike) -> Floats:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise UserError(
            f"scores of {task!r}: expected a row of at least one score, got shape {array.shape}"
        )
    if not np.isfinite(array).all():
        value = array[~np.isfinite(array)][0]
        raise UserError(
            f"scores of {task!r}: expected finite numbers, got {value}; assign the run "
            "a score, or drop it explicitly"
        )
    return array


def to_rliable(scores: Mapping[str, Mapping[str, ArrayLike]]) -> dict[str, Floats]:
    """Convert scores by algorithm and task to rliable's arrays [runs, tasks].

    Tasks are in the first algorithm's order. rliable itself is not required.

    Raises:
        UserError: Algorithms differ in their tasks, or tasks in their numbers of runs, which
            rliable's arrays cannot express.

    Example:
        >>> to_rliable({"td7": {"Hopper-v5": [1.0, 2.0], "dog-run": [3.0, 4.0]}})
        {'td7': array([[1., 3.],
               [2., 4.]])}
    """
    arrays: dict[str, Floats] = {}
    tasks: tuple[str, ...] = ()
    for algorithm, by_task in scores.items():
        tasks = tasks or tuple(by_task)
        check_same_tasks(tasks, tuple(by_task), algorithm)
        sample = as_sample({task: by_task[task] for task in tasks})
        if len(set(sample.counts)) > 1:
            counts = dict(zip(sample.tasks, sample.counts, strict=True))
            raise UserError(
                f"scores of {algorithm!r}: expected the same number of runs for every "
                f"task, as rliable does, got {counts}"
            )
        arrays[algorithm] = sample.values.reshape(len(tasks), -1).T
    return arrays


def from_rliable(
    scores: Mapping[str, ArrayLike], tasks: Sequence[str]
) -> dict[str, dict[str, Floats]]:
    """Convert rliable's arrays [runs, tasks] to scores by algorithm and task.

    Algorithms may differ in their numbers of runs.

    Raises:
        UserError: An array does not have one column per task, or has a score that is not finite.

    Example:
        >>> from_rliable({"td7": [[1.0, 3.0], [2.0, 4.0]]}, ["Hopper-v5", "dog-run"])
        {'td7': {'Hopper-v5': array([1., 2.]), 'dog-run': array([3., 4.])}}
    """
    by_algorithm: dict[str, dict[str, Floats]] = {}
    for algorithm, array in scores.items():
        sample = as_sample(array)
        if len(sample.counts) != len(tasks):
            raise UserError(
                f"scores of {algorithm!r}: expected one column for each of the "
                f"{len(tasks)} tasks, got {len(sample.counts)}"
            )
        columns = map(sample.task_scores, range(len(tasks)))
        by_algorithm[algorithm] = dict(zip(tasks, columns, strict=True))
    return by_algorithm


def check_same_tasks(ours: Sequence[str], theirs: Sequence[str], name: str) -> None:
    """Raise a `UserError` unless two sets of scores, the second `name`'s, match."""
    missing, unexpected = set(ours) - set(theirs), set(theirs) - set(ours)
    texts = [f"missing {', '.join(sorted(missing))}"] if missing else []
    texts += [f"unexpected {', '.join(sorted(unexpected))}"] if unexpected else []
    if texts:
        got = " and ".join(texts)
        raise UserError(f"scores of {name}: expected the same tasks, got {got}")
