"""Scores relative to a base agent, and the scores of a suite, complete or refused."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from r2r2.config.errors import UserError
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.stats.scores import Cell, Method


class Normalised(NamedTuple):
    """A cell relative to its base on the same task."""

    cell: Cell
    base: Cell | None  # None where there is none
    scores: Floats  # [seeds]; none where they cannot be had
    shortfalls: tuple[str, ...]  # the cell's, and its base's

    @property
    def complete(self) -> bool:
        """Whether it may be set beside the paper's as a reproduction."""
        return not self.shortfalls


class SuiteScores(NamedTuple):
    """Normalised scores by task, as statistics take them, and what they lack."""

    scores: dict[str, Floats]
    shortfalls: tuple[str, ...]  # each with its task

    @property
    def complete(self) -> bool:
        """Whether a statistic of them may be set beside the paper's."""
        return not self.shortfalls


def normalise_scores(scores: ArrayLike, base: ArrayLike) -> Floats:
    r"""Scores relative to the mean of a base's, [seeds]: 1 is as good as the base.

    $$1 + (S - \bar S_\mathrm{base}) / |\bar S_\mathrm{base}|$$

    Higher is better for a base below zero as well. A base near zero makes any
    difference large: raw scores belong beside these.

    Raises:
        UserError: The base has no scores, or their mean is zero or not finite.

    Example:
        >>> normalise_scores([150.0, 50.0], [90.0, 110.0])
        array([1.5, 0.5])
        >>> normalise_scores([-50.0], [-100.0])
        array([1.5])
    """
    if not np.size(base):
        raise UserError("base has no scores; allowed is one or more")
    level = np.mean(np.asarray(base, dtype=np.float64))
    if not (np.isfinite(level) and level):
        raise UserError(f"base has a mean of {level}; allowed is a finite one but 0")
    found: Floats = 1 + (np.asarray(scores, dtype=np.float64) - level) / abs(level)
    return found


def usual_base(method: Method) -> Method:
    """The paper's base of a method, at UTD 1 and with the same departures.

    An agent that the paper does not have is its own base.

    Example:
        >>> usual_base(Method("simbav2-spl+r2r2", 20))
        Method(agent='simbav2', utd=1, departures=())
    """
    base = paper.BASES.get(method.agent, method.agent)
    return method._replace(agent=base, utd=1)


def normalised(
    cells: Sequence[Cell], base_of: Callable[[Method], Method] = usual_base
) -> list[Normalised]:
    """Every cell relative to its base among the cells, in their order.

    Args:
        cells: a base that is missing is named in `shortfalls`.
        base_of: which method is the base of which.

    Example:
        >>> from r2r2.stats.scores import Results, Row, cells_of
        >>> def runs(utd, value):
        ...     rows = [Row("x", "Hopper-v5", 0, "return", 1000, value)]
        ...     return Results(Method("td7", utd), rows)
        >>> found = normalised(cells_of([runs(1, 100.0), runs(20, 130.0)]))
        >>> [one.scores for one in found]
        [array([1.]), array([1.3])]
    """
    by_key = {(cell.method, cell.task): cell for cell in cells}
    found: list[Normalised] = []
    for cell in cells:
        wanted = base_of(cell.method)
        base = by_key.get((wanted, cell.task))
        if base is None:
            lack = f"its base, {wanted}, is missing"
            found.append(_without(cell, None, lack))
            continue
        try:
            scores = normalise_scores(cell.scores, base.scores)
        except UserError as refusal:
            found.append(_without(cell, base, f"its {refusal}"))
            continue
        found.append(Normalised(cell, base, scores, _shortfalls(cell, base)))
    return found


def suite_scores(
    cells: Iterable[Normalised], method: Method, tasks: Sequence[str]
) -> SuiteScores:
    """A method's normalised scores on all tasks of a suite.

    Raises:
        UserError: A task has no scores; statistics of fewer tasks are another suite's.

    Example:
        >>> suite_scores([], Method("td7", 20), ["Hopper-v5"])
        Traceback (most recent call last):
        r2r2.config.errors.UserError: td7, UTD 20 has no scores on Hopper-v5; ...
    """
    own = {one.cell.task: one for one in cells if one.cell.method == method}
    missing = [task for task in tasks if task not in own or not len(own[task].scores)]
    if missing:
        raise UserError(
            f"{method} has no scores on {', '.join(missing)}; allowed are all tasks of "
            "the suite"
        )
    lacks = [f"{task}: {lack}" for task in tasks for lack in own[task].shortfalls]
    return SuiteScores({task: own[task].scores for task in tasks}, tuple(lacks))


def _without(cell: Cell, base: Cell | None, lack: str) -> Normalised:
    none = np.empty(0)
    return Normalised(cell, base, none, (*cell.shortfalls, lack))


def _shortfalls(cell: Cell, base: Cell) -> tuple[str, ...]:
    if base is cell:
        return cell.shortfalls
    return (*cell.shortfalls, *(f"its base: {lack}" for lack in base.shortfalls))
