"""Scores of runs on tasks, as every statistic takes them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Sample(NamedTuple):
    """Scores of all runs, one task after the other; tasks may differ in runs.

    Leading axes of `values` hold resamples, so that a statistic of one sample and of
    thousands is the same function.

    Example:
        >>> one = sample_of({"Hopper-v5": [1.0, 2.0, 3.0], "dog-run": [5.0]})
        >>> one.counts, one.part(1)
        ((3, 1), array([5.]))
    """

    tasks: tuple[str, ...]  # none where resampling has mixed them
    counts: tuple[int, ...]  # runs of each task
    values: Floats  # [..., runs of all tasks]

    @property
    def starts(self) -> Ints:
        """Where each task's scores begin, [tasks]."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    @property
    def weights(self) -> Floats:
        """What each score counts, [runs of all tasks]; they sum to 1.

        Tasks count the same however many runs they have.
        """
        counts = np.array(self.counts)
        return np.repeat(1 / (counts * len(counts)), counts)

    def part(self, place: int) -> Floats:
        """The scores of one task, [..., runs]."""
        start = self.starts[place]
        return self.values[..., start : start + self.counts[place]]


Given = Sample | Mapping[str, ArrayLike] | ArrayLike


def sample_of(scores: Given) -> Sample:
    """Scores as a sample.

    Args:
        scores: an array [runs, tasks], or by task the scores of its runs, of which
            tasks may have different numbers.

    Raises:
        UserError: A task has no score, or a score is not a finite number. A run that
            failed is nobody's to leave out silently.

    Example:
        >>> sample_of([[1.0, 2.0], [3.0, 4.0]]).values
        array([1., 3., 2., 4.])
    """
    if isinstance(scores, Sample):
        return scores
    if not isinstance(scores, Mapping):
        table = np.asarray(scores, dtype=np.float64)
        if table.ndim != 2:
            raise UserError(
                f"scores have shape {table.shape}; allowed is [runs, tasks]"
            )
        scores = {str(task): column for task, column in enumerate(table.T)}
    if not scores:
        raise UserError("scores are of no task; allowed is one task or more")
    parts = [_checked(task, part) for task, part in scores.items()]
    counts = tuple(map(len, parts))
    return Sample(tuple(scores), counts, np.concatenate(parts))


def _checked(task: str, scores: ArrayLike) -> Floats:
    part = np.asarray(scores, dtype=np.float64)
    if part.ndim != 1 or not len(part):
        raise UserError(
            f"scores of {task!r} have shape {part.shape}; allowed is one score or more "
            "in a row"
        )
    if not np.isfinite(part).all():
        bad = part[~np.isfinite(part)][0]
        raise UserError(
            f"scores of {task!r} hold {bad}; allowed are finite numbers: give such a "
            "run a score, or leave it out yourself and say so"
        )
    return part


def to_rliable(
    scores: Mapping[str, Mapping[str, ArrayLike]],
) -> dict[str, Floats]:
    """Scores by algorithm and task in rliable's shape: [runs, tasks] by algorithm.

    Tasks are in the first algorithm's order. rliable itself is not needed.

    Raises:
        UserError: Algorithms differ in their tasks, or tasks in their runs, for which
            that shape has no room.

    Example:
        >>> to_rliable({"td7": {"Hopper-v5": [1.0, 2.0], "dog-run": [3.0, 4.0]}})
        {'td7': array([[1., 3.],
               [2., 4.]])}
    """
    found: dict[str, Floats] = {}
    tasks: tuple[str, ...] = ()
    for algorithm, by_task in scores.items():
        tasks = tasks or tuple(by_task)
        check_same_tasks(tasks, tuple(by_task), algorithm)
        sample = sample_of({task: by_task[task] for task in tasks})
        if len(set(sample.counts)) > 1:
            counts = dict(zip(sample.tasks, sample.counts, strict=True))
            raise UserError(
                f"scores of {algorithm!r} are uneven, runs by task {counts}; allowed "
                "in rliable's shape is the same number for every task"
            )
        found[algorithm] = sample.values.reshape(len(tasks), -1).T
    return found


def from_rliable(
    scores: Mapping[str, ArrayLike], tasks: Sequence[str]
) -> dict[str, dict[str, Floats]]:
    """Scores in rliable's shape, [runs, tasks] by algorithm, by algorithm and task.

    Algorithms may differ in runs.

    Raises:
        UserError: An array has not one column per task, or holds a number that is not
            finite.

    Example:
        >>> from_rliable({"td7": [[1.0, 3.0], [2.0, 4.0]]}, ["Hopper-v5", "dog-run"])
        {'td7': {'Hopper-v5': array([1., 2.]), 'dog-run': array([3., 4.])}}
    """
    found: dict[str, dict[str, Floats]] = {}
    for algorithm, given in scores.items():
        sample = sample_of(given)
        if len(sample.counts) != len(tasks):
            raise UserError(
                f"scores of {algorithm!r} have {len(sample.counts)} columns; allowed "
                f"is one for each of the {len(tasks)} tasks"
            )
        found[algorithm] = {task: sample.part(t) for t, task in enumerate(tasks)}
    return found


def check_same_tasks(ours: Sequence[str], theirs: Sequence[str], whose: str) -> None:
    """Refuses to compare scores whose tasks differ, and says in which.

    Example:
        >>> check_same_tasks(["a", "b"], ["b", "a"], "td7")
    """
    missing, surplus = set(ours) - set(theirs), set(theirs) - set(ours)
    if missing or surplus:
        parts = {"lack": missing, "have besides": surplus}
        said = [f"{verb} {', '.join(sorted(x))}" for verb, x in parts.items() if x]
        raise UserError(
            f"scores of {whose} {' and '.join(said)}; allowed are the same tasks for "
            "all that is compared"
        )
