"""Everything that a report shows, as plain data.

`make_study` builds a `Study` from runs, which `load.py` reads from folders and files. Tables,
figures and the page are functions of a `Study` alone.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.run import DiagnosticsConfig
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.stats.scores import (
    ABNORMAL,
    ACTION_REPEAT,
    METRIC,
    Cell,
    Method,
    Override,
    Results,
    Shortfall,
    ShortfallKind,
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

ABLATED = "representation."  # prefix of the fields that the paper's ablations change
NO_BASE = "-"
# Shortfalls that leave a task without scores to compute a statistic with.
PREVENTING = {
    ShortfallKind.MISSING,
    ShortfallKind.NO_BASE,
    ShortfallKind.UNUSABLE_BASE,
    ShortfallKind.NO_EVALUATION,
    ShortfallKind.NOT_FINITE,
}
Status = Literal["finished", "failed", "running", "interrupted", "pruned", "file"]


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
    """Duration and speed of a run's members together; rates exclude warm-up and compilation."""

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
    probe: DiagnosticsConfig | None = None  # None: unknown
    damage: tuple[str, ...] = ()  # a sentence for each damaged file or line

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


class PlannedCell(NamedTuple):
    """A cell of an experiment, whether or not there are runs of it."""

    agent: str
    utd: int
    task: str
    settings: str  # that differ from the agent's defaults
    seeds: tuple[int, ...]
    finished: tuple[int, ...]  # seeds


class Study(NamedTuple):
    """Runs and everything derived from them; use `make_study`."""

    runs: tuple[RunData, ...]
    cells: tuple[Cell, ...]
    normalized: tuple[NormalizedCell, ...]  # one per cell, in the same order
    curves: tuple[TaskCurve, ...]  # one per cell, in the same order
    suites: tuple[SuiteResult, ...]  # one per suite and method
    unreadable: tuple[str, ...] = ()  # a sentence for each run that is left out
    planned: tuple[PlannedCell, ...] = ()  # cells of the experiment that the report is of

    @property
    def damage(self) -> tuple[str, ...]:
        """A sentence for each damaged file or line."""
        return (*self.unreadable, *(text for run in self.runs for text in run.damage))

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods: agents in the paper's order, then others, each by UTD."""
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def in_paper(self) -> bool:
        """Whether the paper has any of the tasks, so that results can reproduce it or not."""
        return any(cell.in_paper for cell in self.cells)

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
        runs = [run for run in self.runs if run.status != "file"]
        overrides = [run.results.method.overrides for run in runs]
        first = overrides[0] if overrides else ()
        return tuple(o for o in first if all(o in others for others in overrides))

    @property
    def abnormal(self) -> Mapping[str, str]:
        """The labels of methods with runs that failed, did not end or trained nothing, and why."""
        marks: dict[str, list[Shortfall]] = {}
        for cell in self.cells:
            of_cell = [shortfall for shortfall in cell.shortfalls if shortfall.kind in ABNORMAL]
            marks.setdefault(self.label(cell.method), []).extend(of_cell)
        return {label: describe(of_method) for label, of_method in marks.items() if of_method}

    def label(self, method: Method, utd: bool = True) -> str:
        """Return a short, unique name of one of `methods`, without shared overrides."""
        settings = _labels(self.methods, self.shared_overrides)[method._replace(utd=None)]
        rate = [f"UTD {method.utd}"] if utd and method.utd is not None else []
        return ", ".join([method.agent, *rate, *settings])

    def cell(self, method: Method, task: str) -> Cell | None:
        """Return the cell of a method on a task, if there is one."""
        return next((c for c in self.cells if (c.method, c.task) == (method, task)), None)

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
    """Return the study of some runs."""
    runs = disambiguate(runs)
    cells = make_cells(run.results for run in runs)
    if not cells:
        raise UserError("runs: expected at least one evaluation or member, got none")
    base_of = _find_bases([cell.method for cell in cells])
    cells = _sort_cells(cells)
    normalized = tuple(normalize_cells(cells, base_of))
    curves = tuple(_make_curve(runs, cell) for cell in cells)
    return Study(tuple(runs), tuple(cells), normalized, curves, tuple(suite_results(normalized)))


def make_series(points: Mapping[int, float]) -> Series:
    """Return values by environment step as a series."""
    steps = sorted(points)
    values = [points[step] for step in steps]
    return Series(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


def disambiguate(runs: Sequence[RunData]) -> list[RunData]:
    """Make each run a separate method where runs of one method disagree on a seed.

    Runs before and after a change of the program have the same settings and seeds but different
    returns: their seeds must not be combined, and both should be shown.
    """
    points: dict[tuple[Method, str, int, int], float] = {}
    ambiguous: set[Method] = set()
    for run in runs:
        method = run.results.method
        latest = {
            (method, row.env_name, row.seed, row.env_step): row.value
            for row in run.results.rows
            if row.metric == METRIC
        }
        if any(not same_value(x, points.get(key, x)) for key, x in latest.items()):
            ambiguous.add(method)
        points |= latest
    return [
        run._replace(results=run.results._replace(method=method._replace(run=run.name)))
        if (method := run.results.method) in ambiguous
        else run
        for run in runs
    ]


@functools.cache
def _labels(
    methods: tuple[Method, ...], shared: tuple[Override, ...]
) -> Mapping[Method, Sequence[str]]:
    """Return the words after an agent's name, with defaults only where labels would be equal."""
    variants = dict.fromkeys(method._replace(utd=None) for method in methods)
    several = len({v.precision for v in variants} - {""}) > 1
    full, brief = (
        {v: v.setting_texts(shared, short, several) for v in variants} for short in (False, True)
    )
    labels = [(v.agent, *texts) for v, texts in brief.items()]
    unique = {v for v in variants if labels.count((v.agent, *brief[v])) == 1}
    return {v: brief[v] if v in unique else full[v] for v in variants}


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

    An ablation has the base of the method that it ablates, unless the base was ablated too. Of a
    base with several disagreeing runs the first is used for all methods.
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


def describe(shortfalls: Iterable[Shortfall]) -> str:
    """Return shortfalls as one text, with equal ones of several seeds combined."""
    unique = list(dict.fromkeys(shortfalls))
    direct = [s for s in unique if not s.of_base]
    inherited = [s._replace(of_base=False) for s in unique if s.of_base]
    clauses = _clauses(direct)
    if inherited and set(inherited) == set(direct):
        clauses.append("the same for its base")
    elif inherited:
        clauses.append(f"its base: {', '.join(_clauses(inherited))}")
    return "; ".join(clauses)


def describe_suite(result: SuiteResult, shared: Collection[Override] = ()) -> str:
    """Return the shortfalls of a method on a suite as one text, grouped by task.

    Without a statistic only the reasons for that are given, else all but `shared` overrides.
    """
    tasks_by_text: dict[str, list[str]] = {}
    for task in result.tasks:
        shortfalls = without_shared(result.shortfalls.get(task, ()), shared)
        if not result.estimates:
            shortfalls = [s for s in shortfalls if s.kind in PREVENTING]
        if text := describe(shortfalls):
            tasks_by_text.setdefault(text, []).append(task)
    return "; ".join(
        f"{'all tasks' if len(tasks) == len(result.tasks) > 1 else ', '.join(tasks)}: {text}"
        for text, tasks in tasks_by_text.items()
    )


def without_shared(
    shortfalls: Iterable[Shortfall], shared: Collection[Override]
) -> list[Shortfall]:
    """Return shortfalls without the overrides that all runs share."""
    return [s for s in shortfalls if s.got not in shared]


def format_seeds(seeds: Sequence[int]) -> str:
    """Return sorted seeds as a range or a list."""
    if len(seeds) > 2 and list(seeds) == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _clauses(shortfalls: Sequence[Shortfall]) -> list[str]:
    """Return the text of each shortfall, those of seeds last and grouped by text."""
    clauses = [str(shortfall) for shortfall in shortfalls if shortfall.seed is None]
    by_seed: dict[int, list[str]] = {}
    for shortfall in shortfalls:
        if shortfall.seed is not None:
            by_seed.setdefault(shortfall.seed, []).append(str(shortfall))
    seeds_by_text: dict[str, list[int]] = {}
    for seed, texts in by_seed.items():
        seeds_by_text.setdefault(" and ".join(texts), []).append(seed)
    for text, seeds in seeds_by_text.items():
        verb = "seeds {} have {}" if len(seeds) > 1 else "seed {} has {}"
        clauses.append(verb.format(format_seeds(seeds), text))
    return clauses
