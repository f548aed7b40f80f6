"""From points of learning curves to scores, and what each of them lacks.

The score of a seed is the mean of its last 10 points. A cell is one method on one task.
It is the paper's only with the paper's settings, five seeds or more, all of them at the
paper's last step with its 50 points; a cell with less says so in `shortfalls`, keeps
its scores, and is not `complete`. Nothing is left out because it is uneven.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import NON_RESULT_FIELDS, changed_fields
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.storage.evaluations import Row

METRIC = "return"
LAST = 10  # points that a score is the mean of
POINTS = 50
DECISIONS = 500_000
ACTION_REPEAT = {"gym-mujoco": 1, "dmc-hard": 2}

# Fields in which a run may differ and still be the paper's: who, where and how often,
# two readings of its evaluation, and what no result depends on.
FREE = {
    "agent.name",
    "env",
    "seeds",
    "utd",
    "eval_average",
    "log_every",
    *NON_RESULT_FIELDS,
}


class Method(NamedTuple):
    """What is compared: an agent at a UTD, and how its settings differ from its own.

    Example:
        >>> str(Method("td7", 20, ("warmup is 5",)))
        'td7, UTD 20, warmup is 5'
    """

    agent: str  # or any name, for results whose settings are not known
    utd: int | None = None  # None: settings not known
    departures: tuple[str, ...] = ()

    def __str__(self) -> str:
        utd = [] if self.utd is None else [f"UTD {self.utd}"]
        return ", ".join([self.agent, *utd, *self.departures])


class Results(NamedTuple):
    """What one run, or one file, has found."""

    method: Method
    rows: Sequence[Row]
    members: tuple[tuple[str, int], ...] = ()  # tasks and seeds that are to be there
    lacks: Mapping[tuple[str, int], str] = {}  # what else some of these lack


class SeedScore(NamedTuple):
    """The score of one seed, and of how much of a curve it is."""

    seed: int
    score: float  # NaN without any point
    points: int
    env_steps: int  # at the last point


class Cell(NamedTuple):
    """One method on one task."""

    method: Method
    task: str
    seeds: tuple[SeedScore, ...]
    shortfalls: tuple[str, ...]  # what it lacks to be the paper's; none if complete

    @property
    def complete(self) -> bool:
        """Whether it may be set beside the paper's as a reproduction."""
        return not self.shortfalls

    @property
    def scores(self) -> Floats:
        """The seeds' scores, [seeds]; of those that have one."""
        found = [seed.score for seed in self.seeds if seed.points]
        return np.array(found, dtype=np.float64)


def results_of(config: RunConfig, default: RunConfig, rows: Sequence[Row]) -> Results:
    """The results of a run whose settings are known.

    Args:
        config: the run's, settled.
        default: that of its agent with nothing changed, settled on the same task.
        rows: its evaluations.

    Example:
        >>> config = RunConfig(env=("Hopper-v5",), utd=20, warmup=5)
        >>> results_of(config, RunConfig(), []).method
        Method(agent='td7', utd=20, departures=('warmup is 5, not 25000',))
    """
    usual: dict[str, Any] = changed_fields(default, config)
    changed = changed_fields(config, default)
    departures = [
        f"{path.removeprefix('agent.')} is {value}, not {usual[path]}"
        for path, value in changed.items()
        if path not in FREE
    ]
    method = Method(config.agent.name, config.utd, tuple(departures))
    members = tuple((task, seed) for task in config.env for seed in config.seeds)
    return Results(method, rows, members)


def cells_of(results: Iterable[Results]) -> list[Cell]:
    """One cell for each method and task, in the order in which they first appear.

    Seeds of several runs of the same method come together in one cell.

    Raises:
        UserError: Results of one method disagree on what the same seed has reached.

    Example:
        >>> rows = [Row("x", "Hopper-v5", 0, "return", n, float(n)) for n in range(20)]
        >>> (cell,) = cells_of([Results(Method("td7"), rows)])
        >>> cell.scores, cell.complete
        (array([14.5]), False)
    """
    found: dict[tuple[Method, str], dict[int, dict[int, float]]] = {}
    others: dict[tuple[Method, str], dict[int, str]] = {}
    for one in results:
        for (task, seed), lack in one.lacks.items():
            others.setdefault((one.method, task), {})[seed] = lack
        for task, seed in one.members:
            found.setdefault((one.method, task), {}).setdefault(seed, {})
        for row in one.rows:
            if row.metric == METRIC:
                by_seed = found.setdefault((one.method, row.env_name), {})
                _add(by_seed.setdefault(row.seed, {}), row, one.method)
    return [
        _cell(*which, by_seed, others.get(which, {}))
        for which, by_seed in found.items()
    ]


def agree(one: float, other: float) -> bool:
    """Whether two numbers are the same, NaN and NaN included.

    Example:
        >>> agree(1.5, 1.5), agree(float("nan"), float("nan")), agree(1.5, float("nan"))
        (True, True, False)
    """
    return bool(np.array_equal(one, other, equal_nan=True))


def _add(points: dict[int, float], row: Row, method: Method) -> None:
    there = points.setdefault(row.env_step, row.value)
    if not agree(there, row.value):  # the same run given twice is no contradiction
        raise UserError(
            f"seed {row.seed} of {method} on {row.env_name} has two returns at "
            f"env_step {row.env_step}, {there} and {row.value}; allowed is one"
        )


def _cell(
    method: Method,
    task: str,
    by_seed: Mapping[int, Mapping[int, float]],
    others: Mapping[int, str],
) -> Cell:
    seeds = tuple(_seed_score(*item) for item in sorted(by_seed.items()))
    shortfalls = [*_unlike_the_papers(method, task)]
    if len(seeds) < paper.SEEDS:
        shortfalls.append(f"{len(seeds)} of {paper.SEEDS} seeds")
    for seed in seeds:
        lacks = [*_seed_lacks(seed, task)]
        lacks += [others[seed.seed]] if seed.seed in others else []
        shortfalls += [f"seed {seed.seed} has {lack}" for lack in lacks]
    return Cell(method, task, seeds, tuple(shortfalls))


def _seed_score(seed: int, points: Mapping[int, float]) -> SeedScore:
    if not points:
        return SeedScore(seed, float("nan"), 0, 0)
    values = [points[step] for step in sorted(points)]
    score = float(np.mean(values[-LAST:]))
    return SeedScore(seed, score, len(points), max(points))


def _unlike_the_papers(method: Method, task: str) -> Iterable[str]:
    if method.utd is None:
        yield "settings are not known"
    elif paper.Which(task, method.agent, method.utd) not in paper.raw_scores():
        yield f"the paper has no {method.agent} at UTD {method.utd} on {task}"
    yield from method.departures


def _seed_lacks(seed: SeedScore, task: str) -> Iterable[str]:
    if not seed.points:
        yield "no evaluation"
        return
    suite = paper.suite_of(task)
    steps = DECISIONS * ACTION_REPEAT[suite] if suite else None
    if steps not in (seed.env_steps, None):
        yield f"{seed.env_steps:,} environment steps, not {steps:,}"
    if seed.points != POINTS:
        yield f"{seed.points} points, not {POINTS}"
    if not np.isfinite(seed.score):
        yield f"a score of {seed.score}"
