"""What a chart does not show, and why: its notes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from r2r2.report.charts import Chart
from r2r2.report.completeness import brief_suite, seed_list
from r2r2.report.intervals import ending
from r2r2.report.score_tables import suite_title
from r2r2.report.study import Series, Study
from r2r2.stats.scores import Cell, Method
from r2r2.stats.suites import SuiteResult

FEW, MANY = 4, 12  # things that a note names: what is partial, what is not there
NO_MEAN = "No mean"
ENDS = "Means end where a seed is not finite"
PARTIAL = "Partial or scaled down, no reproduction"


class Gap(NamedTuple):
    """A method on a task, and why a chart does not show all of it."""

    label: str
    task: str
    why: str


def noted(what: str, names: Iterable[str], most: int = MANY) -> tuple[str, ...]:
    """A note that names the first of some things; none where there are none.

    Example:
        >>> noted("Not here", ["a", "b", "a"])
        ('Not here: a; b',)
        >>> noted("Not here", "abcd", most=3), noted("Not here", [])
        (('Not here: a; b; c and 1 more',), ())
    """
    found = list(dict.fromkeys(names))
    if not found:
        return ()
    others = f" and {len(found) - most} more" if len(found) > most else ""
    return (f"{what}: {'; '.join(found[:most])}{others}",)


def gaps_noted(what: str, gaps: Iterable[Gap]) -> tuple[str, ...]:
    """A note on gaps, those of a method for the same reason together.

    Example:
        >>> gaps_noted("No mean", [Gap("td7", task, "no seed") for task in "ab"])
        ('No mean: td7 on a, b (no seed)',)
    """
    tasks: dict[tuple[str, str], list[str]] = {}
    for label, task, why in gaps:
        tasks.setdefault((label, why), []).append(task)
    names = (f"{k[0]} on {', '.join(on)} ({k[1]})" for k, on in tasks.items())
    return noted(what, names)


def partial(chart: Chart) -> tuple[str, ...]:
    """That methods of a chart lack something to be the paper's, and which do."""
    lines = [line for panel in chart.panels for line in panel.lines]
    return noted(PARTIAL, (label for line in lines for label in line.lacks), FEW)


def lacking(study: Study, method: Method, tasks: Iterable[str]) -> tuple[str, ...]:
    """A method's label, if it lacks something to be the paper's on one of some tasks.

    It has its UTD: the same method may be whole at another.
    """
    cells = [study.cell(method, task) for task in tasks]
    lacks = any(cell is not None and not cell.complete for cell in cells)
    return (study.label(method),) if lacks else ()


def left_out(study: Study, suite: str) -> tuple[str, ...]:
    """That methods have no statistic over a suite, each with the reason."""
    names = [
        f"{study.label(one.method)} ({_why(one)})"
        for one in study.suites
        if one.suite == suite and not one.estimates
    ]
    return noted(f"Not here, over {suite_title(study, suite)}", names)


def without_utd(study: Study) -> tuple[str, ...]:
    """That methods are not in a chart against UTD, which are those of some files."""
    unknown = [study.label(m) for m in study.methods if m.utd is None]
    return noted("Not here, as their UTD is not known", unknown)


def without_mean(study: Study, cells: Iterable[Cell]) -> tuple[str, ...]:
    """That the scores of cells have no mean, each with the reason."""
    gaps = [Gap(study.label(c.method), c.task, why_no_mean(c)) for c in cells]
    return gaps_noted(NO_MEAN, (gap for gap in gaps if gap.why))


def why_no_mean(cell: Cell) -> str:
    """Why the scores of a cell have no mean; nothing where they have.

    Example:
        >>> from r2r2.stats.scores import SeedScore
        >>> seeds = [SeedScore(n, score, 1, 9) for n, score in enumerate([1.0, np.nan])]
        >>> why_no_mean(Cell(Method("td7"), "dog-run", tuple(seeds), ()))
        '1 of 2 seeds; seed 1 is not finite'
    """
    scored = [seed for seed in cell.seeds if seed.points]
    if not scored:
        return "no evaluation yet"
    bad = [str(one.seed) for one in scored if not np.isfinite(one.score)]
    if not bad:
        return ""
    which = f"seed{'s' if len(bad) > 1 else ''} {seed_list(bad)}"
    verb = "are" if len(bad) > 1 else "is"
    return f"{len(scored) - len(bad)} of {len(scored)} seeds; {which} {verb} not finite"


def broken(
    study: Study, curves: Iterable[tuple[Method, str, Mapping[int, Series]]]
) -> tuple[str, ...]:
    """That seeds of curves are not finite from some step on.

    Args:
        study: the curves' own.
        curves: methods, tasks, and their seeds by number.
    """
    gaps = [
        Gap(study.label(method), task, f"seed {number} at step {ending(seed):,.0f}")
        for method, task, seeds in curves
        for number, seed in seeds.items()
        if np.isfinite(ending(seed))
    ]
    return gaps_noted(ENDS, gaps)


def _why(one: SuiteResult) -> str:
    missing = [task for task in one.tasks if f"{task} is missing" in one.shortfalls]
    if len(missing) > FEW:
        return f"{len(missing)} of {len(one.tasks)} tasks missing"
    return brief_suite(one)
