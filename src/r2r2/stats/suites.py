"""Statistics of each method over suites of tasks, with intervals or why there are none.

A suite is shown where the study has any of its tasks. Statistics are over all of its
tasks or not at all: those of fewer tasks would be another suite's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.stats import paper
from r2r2.stats.aggregates import iqm, mean_score, median_score, optimality_gap
from r2r2.stats.bootstrap import Interval, Resampling, interval
from r2r2.stats.normalization import Normalised
from r2r2.stats.samples import Floats, Given
from r2r2.stats.scores import Method

SEED = 0  # of every generator of a report: the same runs give the same report
SAMPLES = 10_000  # per interval: its ends are sure to 1 % of its width
HERE = "this report"  # the suite of all tasks of a study

STATISTICS: dict[str, Callable[[Given], Floats]] = {
    "mean": mean_score,
    "iqm": iqm,
    "median": median_score,
    "optimality gap": optimality_gap,
}
MIXABLE = ("mean", "iqm", "optimality gap")  # which have a meaning over mixed tasks


class Estimate(NamedTuple):
    """A statistic with its 95 % intervals, where there are some."""

    value: float
    stratified: Interval | None  # resampled within tasks
    pooled: Interval | None  # over all scores, as the paper's seem to be


class SuiteResult(NamedTuple):
    """One method on one suite, in normalised scores."""

    suite: str  # one of the paper's, its `ALL`, or `HERE`
    tasks: tuple[str, ...]
    method: Method
    scores: Mapping[str, Floats]  # by task; of those that have some
    estimates: Mapping[str, Estimate]  # by statistic; none where a task is missing
    shortfalls: tuple[str, ...]  # each with its task

    @property
    def complete(self) -> bool:
        """Whether it may be set beside the paper's as a reproduction."""
        return not self.shortfalls


def ordered_tasks(tasks: Iterable[str]) -> tuple[str, ...]:
    """Each task once, those of the paper first and in its order.

    Example:
        >>> ordered_tasks(["cartpole-swingup", "dog-run", "Ant-v5", "dog-run"])
        ('Ant-v5', 'dog-run', 'cartpole-swingup')
    """
    found = dict.fromkeys(tasks)
    known = [task for task in paper.tasks() if task in found]
    return tuple(dict.fromkeys([*known, *found]))


def suites_of(tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The suites to show for some tasks, each with all the tasks that it has.

    Example:
        >>> list(suites_of(["Hopper-v5"]))
        ['gym-mujoco', 'this report']
        >>> list(suites_of(["Hopper-v5", "dog-run", "cartpole-swingup"]))
        ['gym-mujoco', 'dmc-hard', 'all11', 'this report']
    """
    touched = [s for s in paper.SUITES if set(paper.tasks(s)) & set(tasks)]
    names = [*touched, paper.ALL] if len(touched) == len(paper.SUITES) else touched
    found = {name: paper.tasks(name) for name in names}
    if not any(set(tasks) == set(known) for known in found.values()):
        found[HERE] = tuple(tasks)
    return found


def suite_results(cells: Sequence[Normalised]) -> list[SuiteResult]:
    """Every method on every suite that has to do with the cells.

    Example:
        >>> suite_results([])
        []
    """
    tasks = ordered_tasks(one.cell.task for one in cells)
    methods = list(dict.fromkeys(one.cell.method for one in cells))
    return [
        _result(name, within, method, cells)
        for name, within in (suites_of(tasks) if tasks else {}).items()
        for method in methods
    ]


def interval_of(
    statistic: Callable[[Given], Floats],
    scores: Mapping[str, Floats],
    resampling: Resampling = "stratified",
) -> Interval | None:
    """An interval, or None where a task has one run only: nothing to draw among.

    Pooled ones would exist, but say nothing of how seeds vary.

    Example:
        >>> interval_of(mean_score, {"a": np.array([1.0])}) is None
        True
    """
    if any(len(found) < 2 for found in scores.values()):
        return None
    rng = np.random.default_rng(SEED)
    return interval(statistic, scores, rng, resampling, SAMPLES)


def estimate(statistic: str, scores: Mapping[str, Floats]) -> Estimate:
    """One of `STATISTICS` of scores by task.

    Example:
        >>> estimate("mean", {"a": np.array([1.0, 1.0])}).value
        1.0
    """
    function = STATISTICS[statistic]
    mixed = interval_of(function, scores, "pooled") if statistic in MIXABLE else None
    value = float(function(scores))
    return Estimate(value, interval_of(function, scores), mixed)


def _result(
    name: str, tasks: tuple[str, ...], method: Method, cells: Sequence[Normalised]
) -> SuiteResult:
    own = {one.cell.task: one for one in cells if one.cell.method == method}
    scores = {t: own[t].scores for t in tasks if t in own and len(own[t].scores)}
    lacks: list[str] = []
    for task in tasks:
        if task not in own:
            lacks.append(f"{task} is missing")
        else:
            lacks += [f"{task}: {lack}" for lack in own[task].shortfalls]
    estimates: dict[str, Estimate] = {}
    finite = all(np.isfinite(found).all() for found in scores.values())
    if len(scores) == len(tasks) and finite:
        estimates = {statistic: estimate(statistic, scores) for statistic in STATISTICS}
    return SuiteResult(name, tasks, method, scores, estimates, tuple(lacks))
