"""Normalized scores, and their statistics over suites of tasks.

A suite is shown if the study has any of its tasks. Statistics are over all tasks of a suite or not
computed: over fewer tasks they would describe another suite.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError
from r2r2.stats import paper
from r2r2.stats.aggregates import iqm, mean_score, median_score, optimality_gap
from r2r2.stats.bootstrap import Interval, Resampling, interval
from r2r2.stats.samples import Floats, ScoresLike
from r2r2.stats.scores import Cell, Method, Shortfall, ShortfallKind

SEED = 0  # of every generator of a report: the same runs give the same report
SAMPLES = 10_000  # per interval: its ends are accurate to 1 % of its width
THIS_REPORT = "this report"  # the suite of all tasks of a study
MISSING = (Shortfall(ShortfallKind.MISSING),)
STATISTICS: dict[str, Callable[[ScoresLike], Floats]] = {
    "mean": mean_score,
    "iqm": iqm,
    "median": median_score,
    "optimality gap": optimality_gap,
}


class NormalizedCell(NamedTuple):
    """A cell relative to its base on the same task."""

    cell: Cell
    base: Cell | None  # None where it is missing
    scores: Floats  # [seeds]; empty where they cannot be normalized
    shortfalls: tuple[Shortfall, ...]  # of the cell and of its base

    @property
    def complete(self) -> bool:
        """Whether it may be compared with the paper's cell as a reproduction."""
        return not self.shortfalls


class Estimate(NamedTuple):
    """A statistic with its 95 % intervals, None where there are none."""

    value: float
    stratified: Interval | None  # resampled within tasks
    pooled: Interval | None  # over all scores, as the paper's appear to be


class SuiteResult(NamedTuple):
    """One method on one suite, in normalized scores."""

    suite: str  # one of the paper's, its `ALL`, or `THIS_REPORT`
    tasks: tuple[str, ...]
    method: Method
    scores: Mapping[str, Floats]  # by task, where there are any
    estimates: Mapping[str, Estimate]  # by statistic; empty if a task has no scores
    shortfalls: Mapping[str, tuple[Shortfall, ...]]  # by task, where there are any

    @property
    def complete(self) -> bool:
        """Whether it may be compared with the paper's as a reproduction."""
        return not self.shortfalls

    @property
    def missing_tasks(self) -> tuple[str, ...]:
        """The tasks that the method was not run on."""
        return tuple(t for t in self.tasks if self.shortfalls.get(t) == MISSING)


def normalise_scores(scores: ArrayLike, base: ArrayLike) -> Floats:
    r"""Return scores relative to the mean of a base's, [seeds]; 1 equals the base.

    $$1 + (S - \bar S_\mathrm{base}) / |\bar S_\mathrm{base}|$$

    Higher is better for a negative base too. With a base near zero every difference becomes large:
    show raw scores beside these.

    Raises:
        UserError: The base has no scores, or their mean is zero or not finite.

    Example:
        >>> normalise_scores([150.0, 50.0], [90.0, 110.0])
        array([1.5, 0.5])
        >>> normalise_scores([-50.0], [-100.0])
        array([1.5])
    """
    if not np.size(base):
        raise UserError("base: expected at least one score, got none")
    mean = np.mean(np.asarray(base, dtype=np.float64))
    if not (np.isfinite(mean) and mean):
        raise UserError(f"base: expected scores with a finite mean != 0, got {mean}")
    normalized: Floats = 1 + (np.asarray(scores, dtype=np.float64) - mean) / abs(mean)
    return normalized


def default_base(method: Method) -> Method:
    """Return the paper's base of a method, or its own agent, at UTD 1 with the same settings."""
    return method._replace(agent=paper.BASES.get(method.agent, method.agent), utd=1)


def normalize_cells(
    cells: Sequence[Cell], base_of: Callable[[Method], Method] = default_base
) -> list[NormalizedCell]:
    """Return every cell relative to its base among the cells, in their order."""
    by_key = {(cell.method, cell.task): cell for cell in cells}
    return [_normalize(cell, base_of(cell.method), by_key) for cell in cells]


def _normalize(
    cell: Cell, base_method: Method, cells: Mapping[tuple[Method, str], Cell]
) -> NormalizedCell:
    base = cells.get((base_method, cell.task))
    scores = np.empty(0)
    if base is None:
        extra = [Shortfall(ShortfallKind.NO_BASE, base_method)]
        return NormalizedCell(cell, None, scores, (*cell.shortfalls, *extra))
    try:
        scores = normalise_scores(cell.scores, base.scores)
    except UserError:
        mean = str(base.scores.mean()) if len(base.scores) else "no scores"
        extra = [Shortfall(ShortfallKind.UNUSABLE_BASE, mean)]
    else:
        inherited = () if base is cell else base.shortfalls
        extra = [shortfall._replace(of_base=True) for shortfall in inherited]
    return NormalizedCell(cell, base, scores, (*cell.shortfalls, *extra))


def ordered_tasks(tasks: Iterable[str]) -> tuple[str, ...]:
    """Return each task once, those of the paper first and in its order."""
    unique = dict.fromkeys(tasks)
    return tuple(dict.fromkeys([*(task for task in paper.tasks() if task in unique), *unique]))


def suites_for(tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the suites to show for some tasks, each with all of its tasks."""
    names = [s for s in paper.SUITES if set(paper.tasks(s)) & set(tasks)]
    if len(names) == len(paper.SUITES):
        names.append(paper.ALL)
    suites = {name: paper.tasks(name) for name in names}
    if not any(set(tasks) == set(members) for members in suites.values()):
        suites[THIS_REPORT] = tuple(tasks)
    return suites


def suite_results(cells: Sequence[NormalizedCell]) -> list[SuiteResult]:
    """Return the result of every method on every suite that has a task of the cells."""
    tasks = ordered_tasks(one.cell.task for one in cells)
    return [
        _suite_result(suite, members, method, cells)
        for suite, members in (suites_for(tasks) if tasks else {}).items()
        for method in dict.fromkeys(one.cell.method for one in cells)
    ]


def bootstrap_interval(
    statistic: Callable[[ScoresLike], Floats],
    scores: Mapping[str, Floats],
    resampling: Resampling = "stratified",
) -> Interval | None:
    """Return an interval, or None where a task has a single run."""
    # Pooled intervals would exist for single runs, but say nothing about seeds.
    if any(len(of_task) < 2 for of_task in scores.values()):
        return None
    return interval(statistic, scores, np.random.default_rng(SEED), resampling, SAMPLES)


def _suite_result(
    suite: str, tasks: tuple[str, ...], method: Method, cells: Sequence[NormalizedCell]
) -> SuiteResult:
    by_task = {one.cell.task: one for one in cells if one.cell.method == method}
    scores = {t: by_task[t].scores for t in tasks if t in by_task and len(by_task[t].scores)}
    lacking = {t: by_task[t].shortfalls if t in by_task else MISSING for t in tasks}
    shortfalls = {task: of_task for task, of_task in lacking.items() if of_task}
    estimates: dict[str, Estimate] = {}
    finite = all(np.isfinite(of_task).all() for of_task in scores.values())
    if len(scores) == len(tasks) and finite:
        for name, statistic in STATISTICS.items():
            stratified, pooled = bootstrap_interval(statistic, scores), None
            if name != "median":  # it is over tasks, which pooling mixes
                pooled = bootstrap_interval(statistic, scores, "pooled")
            estimates[name] = Estimate(float(statistic(scores)), stratified, pooled)
    return SuiteResult(suite, tasks, method, scores, estimates, shortfalls)
