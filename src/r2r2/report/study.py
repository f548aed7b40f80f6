"""Everything that a report shows, as plain data.

`study_of` makes it of runs, which `reading.py` reads from folders and files. Tables,
figures and the page are functions of a `Study` and draw nothing from anywhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.report.labels import labels_of, nameless, told_apart
from r2r2.stats import paper
from r2r2.stats.normalization import Normalised, normalised, usual_base
from r2r2.stats.samples import Floats
from r2r2.stats.scores import ACTION_REPEAT, METRIC, Cell, Method, Results, cells_of
from r2r2.stats.suites import SuiteResult, ordered_tasks, suite_results

# How departures begin that the paper's ablations consist of.
ABLATED = "representation."

Status = Literal["finished", "unfinished", "file"]


class Series(NamedTuple):
    """A number against environment steps, in their order."""

    steps: Floats
    values: Floats


class Spectrum(NamedTuple):
    """The singular values of a representation at one evaluation."""

    env_step: int
    singular_values: Floats  # largest first


class MemberData(NamedTuple):
    """One task and seed of a run: how far it came, and what was seen inside it."""

    name: str  # of its folder
    task: str
    seed: int
    env_steps: int
    updates: int
    diagnostics: Mapping[str, Series]  # by name: effective_rank, dead, norm, bias, ...
    spectra: tuple[Spectrum, ...]
    collapses: tuple[int, ...]  # environment steps at which it was found collapsed
    stopped: str  # why, or empty


class Timing(NamedTuple):
    """How long a run took, all of its members together.

    Rates are of the time after its first updates, so that warm-up and the first
    compilation do not count; environments and evaluations do.
    """

    seconds: float  # of the whole run, without the time that it stood still
    members: int
    decisions: int  # of all members, in all
    updates: int
    updates_per_second: float  # of all members; NaN where it was too short to say
    decisions_per_second: float

    @property
    def microseconds_per_update(self) -> float:
        """What one update of one member takes of the run's time."""
        return 1e6 / self.updates_per_second

    @property
    def seconds_per_step(self) -> float:
        """What one decision step of one member takes of the run's time."""
        return 1 / self.decisions_per_second


class RunData(NamedTuple):
    """One run, or one method of a file of results."""

    name: str  # unique in a study
    path: str
    status: Status
    results: Results
    members: tuple[MemberData, ...] = ()  # none of a file
    timing: Timing | None = None  # None where nothing is known
    versions: Mapping[str, str] = {}  # what it was made with
    repeats: Mapping[str, int] = {}  # of actions, by task, where that is known

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those of its members, or of the results of a file; each once."""
        named = [task for task, _ in self.results.members]
        return tuple(dict.fromkeys(named or [r.env_name for r in self.results.rows]))


class TaskCurve(NamedTuple):
    """The evaluations of one method on one task, those of several runs together."""

    method: Method
    task: str
    seeds: Mapping[int, Series]
    repeat: int | None = None  # environment steps per decision; None: not known


class Study(NamedTuple):
    """Runs, and all that follows from them; `study_of` makes it."""

    runs: tuple[RunData, ...]
    cells: tuple[Cell, ...]  # raw scores, and what each lacks
    normalised: tuple[Normalised, ...]  # one of each cell, in the same order
    curves: tuple[TaskCurve, ...]  # one of each cell, in the same order
    suites: tuple[SuiteResult, ...]  # one of each suite and method

    @property
    def methods(self) -> tuple[Method, ...]:
        """What is compared: agents in the paper's order, then others, by UTD."""
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task, those of the paper in its order, then others as they come."""
        return ordered_tasks(cell.task for cell in self.cells)

    @property
    def shared(self) -> tuple[str, ...]:
        """How all runs alike differ from their agents' own settings."""
        own = [run.results.method for run in self.runs if run.status != "file"]
        if not own:
            return ()
        return tuple(
            d for d in own[0].departures if all(d in m.departures for m in own)
        )

    def label(self, method: Method, utd: bool = True) -> str:
        """A method in a few words, without what is `shared` by all; unlike any other.

        Args:
            method: one of `methods`.
            utd: whether to name its UTD.
        """
        names = labels_of(self.methods, self.shared)
        own = names[method.agent, method.departures]
        rate = [f"UTD {method.utd}"] if utd and method.utd is not None else []
        return ", ".join([method.agent, *rate, *own])

    def cell(self, method: Method, task: str) -> Cell | None:
        """The cell of a method on a task, where there is one."""
        wanted = (method, task)
        return next((c for c in self.cells if (c.method, c.task) == wanted), None)


def study_of(runs: Sequence[RunData]) -> Study:
    """Everything that follows from runs.

    Where two of one method disagree on a seed, its runs are kept apart by their names.

    Raises:
        UserError: There are none, or one contradicts itself.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> rows = [Row("x", "Hopper-v5", 0, "return", 1000, 12.5)]
        >>> run = RunData("a", "runs/a", "finished", Results(Method("td7", 1), rows))
        >>> study = study_of([run])
        >>> study.cells[0].scores, study.normalised[0].scores, study.tasks
        (array([12.5]), array([1.]), ('Hopper-v5',))
    """
    found = told_apart([(run.name, run.results) for run in runs])
    whole = [run._replace(results=x) for run, x in zip(runs, found, strict=True)]
    cells = cells_of(found)
    if not cells:
        raise UserError("runs hold no evaluation and no member; allowed is one or more")
    base_of = _bases(list(dict.fromkeys(cell.method for cell in cells)))
    cells = _ordered(cells)
    relative = normalised(cells, base_of)
    return Study(
        tuple(whole),
        tuple(cells),
        tuple(relative),
        tuple(_curve(whole, cell) for cell in cells),
        tuple(suite_results(relative)),
    )


def _ordered(cells: Sequence[Cell]) -> list[Cell]:
    """Cells by agent as in the paper, UTD, departures and task, and runs as named."""
    agents = [*paper.BASES, *(cell.method.agent for cell in cells)]
    tasks = ordered_tasks(cell.task for cell in cells)
    methods = [cell.method for cell in cells]

    def place(cell: Cell) -> tuple[object, ...]:
        agent, utd, departures = cell.method
        settings = len(departures), nameless(cell.method).departures
        first = methods.index(cell.method) if settings[1] != departures else 0
        return agents.index(agent), utd or 0, settings, first, tasks.index(cell.task)

    return sorted(cells, key=place)


def _bases(methods: Sequence[Method]) -> Callable[[Method], Method]:
    """Which is the base of which: an ablation has that of what it ablates.

    Of a base whose runs are kept apart the first is taken, so that all are relative to
    the same.
    """
    first: dict[Method, Method] = {}
    for method in methods:
        first.setdefault(nameless(method), method)

    def base_of(method: Method) -> Method:
        wanted = usual_base(nameless(method))
        kept = [d for d in wanted.departures if not d.startswith(ABLATED)]
        whole = wanted._replace(departures=tuple(kept))
        return first.get(wanted) or first.get(whole, whole)

    return base_of


def series_of(points: Mapping[int, float]) -> Series:
    """Values by environment step as a series.

    Example:
        >>> series_of({2000: 5.0, 1000: 3.0}).values
        array([3., 5.])
    """
    steps = sorted(points)
    values = [points[step] for step in steps]
    return Series(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


def _curve(runs: Sequence[RunData], cell: Cell) -> TaskCurve:
    points: dict[int, dict[int, float]] = {seed.seed: {} for seed in cell.seeds}
    repeat = ACTION_REPEAT.get(paper.suite_of(cell.task) or "")
    for run in runs:
        if run.results.method == cell.method:
            repeat = run.repeats.get(cell.task, repeat)
            for row in run.results.rows:
                if row.env_name == cell.task and row.metric == METRIC:
                    points[row.seed][row.env_step] = row.value
    seeds = {seed: series_of(found) for seed, found in points.items() if found}
    return TaskCurve(cell.method, cell.task, seeds, repeat)
