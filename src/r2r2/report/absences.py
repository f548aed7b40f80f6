"""What a chart does not show, and why: its notes."""

from collections.abc import Iterable, Mapping

import numpy as np

from r2r2.report.bands import ending
from r2r2.report.charts import Chart
from r2r2.report.score_tables import suite_title
from r2r2.report.scores import Cell, Method
from r2r2.report.shortfalls import brief_suite, seed_list
from r2r2.report.study import Series, Study
from r2r2.report.suites import SuiteResult

FEW = 4  # things that a note names
NOT_HERE = "Not here"
NO_MEAN = "No mean"
ENDS = "Means end where a seed is not finite"
PARTIAL = "Partial or scaled down, no reproduction"


def noted(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """A note that names the first of some things; none where there are none.

    Example:
        >>> noted("Not here", ["a", "b", "a"])
        ('Not here: a; b',)
        >>> noted("Not here", "abcdef"), noted("Not here", [])
        (('Not here: a; b; c; d and 2 more',), ())
    """
    found = list(dict.fromkeys(names))
    if not found:
        return ()
    others = f" and {len(found) - FEW} more" if len(found) > FEW else ""
    return (f"{what}: {'; '.join(found[:FEW])}{others}",)


def partial(chart: Chart) -> tuple[str, ...]:
    """That methods of a chart lack something to be the paper's, and which do."""
    lines = [line for panel in chart.panels for line in panel.lines]
    return noted(PARTIAL, (label for line in lines for label in line.lacks))


def lacking(study: Study, method: Method, tasks: Iterable[str]) -> tuple[str, ...]:
    """A method's label, if it lacks something to be the paper's on one of some tasks.

    It has its UTD: the same method may be whole at another.
    """
    cells = [study.cell(method, task) for task in tasks]
    lacks = any(cell is not None and not cell.complete for cell in cells)
    return (study.label(method),) if lacks else ()


def left_out(study: Study, suite: str) -> Iterable[str]:
    """The methods that have no statistic over a suite, each with the reason."""
    for one in study.suites:
        if one.suite == suite and not one.estimates:
            over = suite_title(study, suite)
            yield f"{study.label(one.method)} over {over} ({_why(one)})"


def without_utd(study: Study) -> tuple[str, ...]:
    """That methods are not in a chart against UTD, which are those of some files."""
    unknown = [study.label(m) for m in study.methods if m.utd is None]
    return noted("Not here, as their UTD is not known", unknown)


def without_mean(study: Study, cells: Iterable[Cell]) -> Iterable[str]:
    """The cells whose scores have no mean, each with the reason."""
    for cell in cells:
        why = why_no_mean(cell)
        if why:
            yield f"{study.label(cell.method)} on {cell.task} ({why})"


def why_no_mean(cell: Cell) -> str:
    """Why the scores of a cell have no mean; nothing where they have.

    Example:
        >>> from r2r2.report.scores import SeedScore
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
    study: Study, method: Method, task: str, seeds: Mapping[int, Series]
) -> Iterable[str]:
    """The seeds of a curve that are not finite from some step on."""
    for number, seed in seeds.items():
        step = ending(seed)
        if np.isfinite(step):
            where = f"seed {number} at step {step:,.0f}"
            yield f"{study.label(method)} on {task} ({where})"


def _why(one: SuiteResult) -> str:
    missing = [task for task in one.tasks if f"{task} is missing" in one.shortfalls]
    if len(missing) > FEW:
        return f"{len(missing)} of {len(one.tasks)} tasks missing"
    return brief_suite(one)
