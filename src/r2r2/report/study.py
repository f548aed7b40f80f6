"""Everything that a report shows, as plain data.

`make_study` builds a `Study` from runs, which `load.py` reads from folders and files.
Tables, figures and the page are functions of a `Study` alone.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.stats.scores import (
    ACTION_REPEAT,
    METRIC,
    Cell,
    Method,
    Override,
    Results,
    make_cells,
    same_value,
)
from r2r2.stats.suites import (
    NormalizedCell,
    SuiteResult,
    default_base,
    normalize_cells,
    ordered_tasks,
    suite_results,
)

# Prefix of the fields that the paper's ablations change.
ABLATED = "representation."
NO_BASE = "-"

Status = Literal["finished", "unfinished", "file"]
Points = Mapping[tuple[str, int, int], float]  # returns by task, seed and step


class Series(NamedTuple):
    """A number against environment steps, sorted by step."""

    steps: Floats
    values: Floats


class Spectrum(NamedTuple):
    """The singular values of a representation at one evaluation."""

    env_step: int
    singular_values: Floats  # largest first


class MemberData(NamedTuple):
    """One task and seed of a run: its progress and its diagnostics."""

    name: str  # of its folder
    task: str
    seed: int
    env_steps: int
    updates: int
    diagnostics: Mapping[str, Series]  # by name: effective_rank, dead, norm, bias, ...
    spectra: tuple[Spectrum, ...]
    collapses: tuple[int, ...]  # environment steps with a collapsed representation
    stopped: str  # reason, or empty


class RunTiming(NamedTuple):
    """Duration and speed of a run, all of its members together.

    Rates exclude warm-up and the first compilation, and include environments and
    evaluations.
    """

    seconds: float  # of the whole run, without pauses between resumptions
    members: int
    decisions: int  # total over members
    updates: int
    updates_per_second: float  # of all members; NaN if the run was too short
    decisions_per_second: float

    @property
    def microseconds_per_update(self) -> float:
        """Run time per update of one member."""
        return 1e6 / self.updates_per_second

    @property
    def seconds_per_step(self) -> float:
        """Run time per decision step of one member."""
        return 1 / self.decisions_per_second


class RunData(NamedTuple):
    """One run, or one method of a file of results."""

    name: str  # unique in a study
    path: str
    status: Status
    results: Results
    members: tuple[MemberData, ...] = ()  # empty for a file
    timing: RunTiming | None = None  # None: unknown
    versions: Mapping[str, str] = {}
    repeats: Mapping[str, int] = {}  # action repeat by task, where known

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of its members, or of the results of a file, each once."""
        tasks = [task for task, _ in self.results.members]
        return tuple(dict.fromkeys(tasks or [r.env_name for r in self.results.rows]))


class TaskCurve(NamedTuple):
    """The evaluations of one method on one task, from all of its runs."""

    method: Method
    task: str
    seeds: Mapping[int, Series]
    repeat: int | None = None  # environment steps per decision; None: unknown


class Study(NamedTuple):
    """Runs and everything derived from them; use `make_study`."""

    runs: tuple[RunData, ...]
    cells: tuple[Cell, ...]
    normalized: tuple[NormalizedCell, ...]  # one per cell, in the same order
    curves: tuple[TaskCurve, ...]  # one per cell, in the same order
    suites: tuple[SuiteResult, ...]  # one per suite and method

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods: agents in the paper's order, then others, each by UTD."""
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def run_methods(self) -> frozenset[Method]:
        """The methods of runs, without those of files."""
        return frozenset(r.results.method for r in self.runs if r.status != "file")

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, those of the paper first and in its order."""
        return ordered_tasks(cell.task for cell in self.cells)

    @property
    def shared_overrides(self) -> tuple[Override, ...]:
        """The overrides that all runs have in common."""
        methods = [r.results.method for r in self.runs if r.status != "file"]
        if not methods:
            return ()
        first = methods[0].overrides
        return tuple(o for o in first if all(o in m.overrides for m in methods))

    def label(self, method: Method, utd: bool = True) -> str:
        """Return a short name of a method, without `shared_overrides`; it is unique.

        Args:
            method: one of `methods`.
            utd: whether to include its UTD.
        """
        settings = _labels(self.methods, self.shared_overrides)[_variant(method)]
        rate = [f"UTD {method.utd}"] if utd and method.utd is not None else []
        return ", ".join([method.agent, *rate, *settings])

    def cell(self, method: Method, task: str) -> Cell | None:
        """Return the cell of a method on a task, if there is one."""
        key = method, task
        return next((c for c in self.cells if (c.method, c.task) == key), None)

    def base(self, method: Method) -> Method | None:
        """Return the base that a method's scores are relative to, if it was run."""
        bases = (one.base for one in self.normalized if one.cell.method == method)
        return next((base.method for base in bases if base), None)

    def base_label(self, method: Method) -> str:
        """Return the label of a method's base, or a dash."""
        base = self.base(method)
        return NO_BASE if base is None else self.label(base)

    def bases_differ(self, methods: Iterable[Method]) -> bool:
        """Return whether the scores of some methods have different bases."""
        return len({self.base(method) for method in methods} - {None}) > 1

    def members_by_seed(self) -> Mapping[tuple[Method, str, int], MemberData]:
        """Return the member of each method, task and seed; of copies, the longest."""
        members: dict[tuple[Method, str, int], MemberData] = {}
        for run in self.runs:
            for member in run.members:
                key = run.results.method, member.task, member.seed
                if member.env_steps > members.setdefault(key, member).env_steps:
                    members[key] = member
        return members


def make_study(runs: Sequence[RunData]) -> Study:
    """Return the study of some runs.

    Raises:
        UserError: There are no results, or a run contradicts itself.
    """
    runs = disambiguate(runs)
    cells = make_cells(run.results for run in runs)
    if not cells:
        raise UserError("runs: expected at least one evaluation or member, got none")
    base_of = _find_bases([cell.method for cell in cells])
    cells = _sort_cells(cells)
    normalized = normalize_cells(cells, base_of)
    return Study(
        tuple(runs),
        tuple(cells),
        tuple(normalized),
        tuple(_make_curve(runs, cell) for cell in cells),
        tuple(suite_results(normalized)),
    )


def make_series(points: Mapping[int, float]) -> Series:
    """Return values by environment step as a series."""
    steps = sorted(points)
    values = [points[step] for step in steps]
    return Series(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


def disambiguate(runs: Sequence[RunData]) -> list[RunData]:
    """Make each run a method of its own where runs of one method disagree on a seed.

    Runs before and after a change of the program have the same settings and seeds but
    different returns: their seeds must not be combined, and both should be shown.
    """
    points: dict[Method, list[Points]] = {}
    for run in runs:
        points.setdefault(run.results.method, []).append(_points(run.results))
    ambiguous = {
        method
        for method, by_run in points.items()
        if any(_disagree(*pair) for pair in itertools.combinations(by_run, 2))
    }
    return [
        run._replace(results=run.results._replace(method=method._replace(run=run.name)))
        if (method := run.results.method) in ambiguous
        else run
        for run in runs
    ]


def _points(results: Results) -> Points:
    rows = [row for row in results.rows if row.metric == METRIC]
    return {(row.env_name, row.seed, row.env_step): row.value for row in rows}


def _disagree(one: Points, other: Points) -> bool:
    shared = one.keys() & other.keys()
    return any(not same_value(one[key], other[key]) for key in shared)


def _variant(method: Method) -> Method:
    return method._replace(utd=None)


@functools.cache
def _labels(
    methods: tuple[Method, ...], shared: tuple[Override, ...]
) -> Mapping[Method, Sequence[str]]:
    """Return for each variant the words that follow its agent's name.

    Defaults of overrides are named only where labels would be equal without them.
    """
    variants = dict.fromkeys(map(_variant, methods))
    several = len({v.precision for v in variants} - {""}) > 1

    def words(variant: Method, brief: bool) -> list[str]:
        overrides = [o for o in variant.overrides if o not in shared]
        texts = [o.brief if brief else str(o) for o in overrides]
        texts += [f"precision={variant.precision}"] * bool(several * variant.precision)
        texts += [f"from {variant.file}"] if variant.file else []
        return texts + ([f"run {variant.run}"] if variant.run else [])

    brief = {v: ", ".join([v.agent, *words(v, brief=True)]) for v in variants}
    texts = list(brief.values())
    return {v: words(v, brief=texts.count(brief[v]) == 1) for v in variants}


def _sort_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Sort cells by agent as in the paper, UTD, settings, run and task."""
    agents = [*paper.BASES, *(cell.method.agent for cell in cells)]
    tasks = ordered_tasks(cell.task for cell in cells)
    methods = [cell.method for cell in cells]

    def rank(cell: Cell) -> tuple[object, ...]:
        method = cell.method
        return (
            agents.index(method.agent),
            method.utd or 0,
            method.deviation_count,
            method._replace(run="").settings,
            methods.index(method) if method.run else 0,
            tasks.index(cell.task),
        )

    return sorted(cells, key=rank)


def _find_bases(methods: Sequence[Method]) -> Callable[[Method], Method]:
    """Return a function from a method to its base.

    An ablation has the base of the method that it ablates, unless the base was ablated
    too. Of a base with several disagreeing runs the first is used for all methods.
    """
    first: dict[Method, Method] = {}
    for method in methods:
        first.setdefault(method._replace(run=""), method)

    def base_of(method: Method) -> Method:
        base = default_base(method._replace(run=""))
        unchanged = [o for o in base.overrides if not o.field.startswith(ABLATED)]
        unablated = base._replace(overrides=tuple(unchanged))
        return first.get(base) or first.get(unablated, unablated)

    return base_of


def _make_curve(runs: Sequence[RunData], cell: Cell) -> TaskCurve:
    points: dict[int, dict[int, float]] = {seed.seed: {} for seed in cell.seeds}
    repeat = ACTION_REPEAT.get(paper.find_suite(cell.task) or "")
    for run in runs:
        if run.results.method == cell.method:
            repeat = run.repeats.get(cell.task, repeat)
            for row in run.results.rows:
                if row.env_name == cell.task and row.metric == METRIC:
                    points[row.seed][row.env_step] = row.value
    seeds = {seed: make_series(by_step) for seed, by_step in points.items() if by_step}
    return TaskCurve(cell.method, cell.task, seeds, repeat)
