"""Scores of seeds from the points of learning curves, and what each cell lacks.

The score of a seed is the mean of its last 10 points. A cell is one method on one task. It
reproduces the paper's cell only with the paper's settings and at least five seeds that all reach
the paper's last step with 50 points. Everything else is a `Shortfall` of the cell, which keeps its
scores but is not `complete`. No seed is ever dropped. On a task that the paper does not have there
is nothing to reproduce: its cells lack only what went wrong in their runs.
"""

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import LOG_FIELDS, NON_RESULT_FIELDS, brief_value, changed_fields
from r2r2.stats import paper
from r2r2.stats.samples import Floats
from r2r2.storage.evaluations import Row

METRIC = "return"
SCORE_POINTS = 10  # points that a score is the mean of
SCORE_NAME = f"mean of the last {SCORE_POINTS} evaluations"
LAST_NAME = "last evaluation"
POINTS = 50
DECISION_STEPS = 500_000
ACTION_REPEAT = {"gym-mujoco": 1, "dmc-hard": 2}
# Fields that do not make a run differ from the paper: its identity, two readings of its
# evaluation protocol, how updates are computed (`Method` holds the precision), and
# fields without influence on results.
NEUTRAL_FIELDS = {
    "agent.name",
    "env",
    "seeds",
    "utd",
    "eval_average",
    "precision",
    "compute.fast",
    *LOG_FIELDS,
    *NON_RESULT_FIELDS,
}
MemberKey = tuple[str, int]  # task and seed


class Override(NamedTuple):
    """A setting that differs from its agent's default."""

    field: str
    value: str
    default: str
    text: str = ""  # in place of the field and its value

    def __str__(self) -> str:
        return self.text or f"{self.brief} (default {self.default or 'none'})"

    @property
    def brief(self) -> str:
        """The field and its value."""
        return self.text or f"{self.field}={self.value}"


class Method(NamedTuple):
    """The unit of comparison: an agent with its UTD and settings."""

    agent: str  # any name for results of a file
    utd: int | None = None  # None: unknown
    overrides: tuple[Override, ...] = ()
    precision: str = ""  # effective precision of matrix products; empty: unknown
    file: str = ""  # file of results, whose settings are unknown
    run: str = ""  # run that disagrees with another one of the same settings

    def __str__(self) -> str:
        utd = [] if self.utd is None else [f"UTD {self.utd}"]
        return ", ".join([self.agent, *utd, *self.setting_texts()])

    @property
    def settings(self) -> tuple[object, ...]:
        """Everything but the agent and the UTD."""
        return self[2:]

    @property
    def deviation_count(self) -> int:
        """Number of known ways in which it differs from its agent's defaults."""
        return len(self.overrides) + bool(self.file) + bool(self.run)

    def setting_texts(
        self, omitted: Collection[Override] = (), brief: bool = False, precision: bool = True
    ) -> list[str]:
        """Return each setting as text, except for omitted overrides."""
        overrides = [o for o in self.overrides if o not in omitted]
        texts = [o.brief if brief else str(o) for o in overrides]
        texts += [f"precision={self.precision}"] if precision and self.precision else []
        texts += [f"from {self.file}"] if self.file else []
        return texts + ([f"run {self.run}"] if self.run else [])


class ShortfallKind(enum.Enum):
    """Ways in which scores fail to reproduce the paper's: text for a `Shortfall`."""

    UNKNOWN_SETTINGS = "settings unknown (from {0.got})"
    NOT_IN_PAPER = "not in the paper: {0.got.agent} at UTD {0.got.utd}"
    OVERRIDE = "{0.got}"
    SEPARATE_RUN = "run {0.got} (another run with the same settings has different returns)"
    FEW_SEEDS = "{0.got} of {0.expected} seeds"
    MISSING = "missing"
    NO_BASE = "its base, {0.got.agent} at UTD {0.got.utd} with the same settings, is missing"
    UNUSABLE_BASE = "its base has no usable mean score ({0.got})"
    # Of one seed:
    NO_EVALUATION = "no evaluation"
    ENV_STEPS = "{0.got:,} environment steps instead of {0.expected:,}"
    POINTS = "{0.got} points instead of {0.expected}"
    NOT_FINITE = "a score of {0.got}"
    DAMAGED = "damaged files"
    TRUNCATED_LOG = "a log that ends at environment step {0.got:,} of {0.expected:,}"
    ENDED_EARLY = "an early end at environment step {0.got:,} of {0.expected:,} (stop_at_return)"
    STATUS = "a run that {0.got}"
    STOPPED = "a stop at environment step {0.expected:,} ({0.got})"
    NO_UPDATES = "no updates (untrained)"


# Shortfalls of runs that did not end as planned, trained nothing, or are damaged.
ABNORMAL = {
    *(ShortfallKind.STATUS, ShortfallKind.STOPPED),
    *(ShortfallKind.NO_UPDATES, ShortfallKind.DAMAGED),
}


class Shortfall(NamedTuple):
    """One way in which scores fail to reproduce the paper's."""

    kind: ShortfallKind
    got: object = None
    expected: int | None = None
    seed: int | None = None  # None: of all seeds
    of_base: bool = False  # whether the base agent has it

    def __str__(self) -> str:
        return self.kind.value.format(self)


class Results(NamedTuple):
    """The evaluations of one run, or of one method of a file."""

    method: Method
    rows: Sequence[Row]
    members: tuple[MemberKey, ...] = ()  # all that should have evaluations
    marks: Mapping[MemberKey, Sequence[Shortfall]] = {}  # of how members were run


class SeedScore(NamedTuple):
    """The score of one seed, and the extent of its curve."""

    seed: int
    score: float  # NaN without points
    points: int
    env_steps: int  # at the last point
    last: float = math.nan  # return at the last point


class Cell(NamedTuple):
    """One method on one task."""

    method: Method
    task: str
    seeds: tuple[SeedScore, ...]
    shortfalls: tuple[Shortfall, ...]

    @property
    def complete(self) -> bool:
        """Whether it lacks nothing, and may count as a reproduction if the paper has its task."""
        return not self.shortfalls

    @property
    def in_paper(self) -> bool:
        """Whether the paper has its task."""
        return paper.find_suite(self.task) is not None

    @property
    def scores(self) -> Floats:
        """The scores of all seeds that have one, [seeds]."""
        return np.array([seed.score for seed in self.seeds if seed.points], dtype=np.float64)

    @property
    def last_returns(self) -> Floats:
        """The last evaluations of all seeds that have one, [seeds]."""
        return np.array([seed.last for seed in self.seeds if seed.points], dtype=np.float64)

    @property
    def score_name(self) -> str:
        """The evaluations that its scores are means of, as shown to readers."""
        counts = sorted({min(seed.points, SCORE_POINTS) for seed in self.seeds if seed.points})
        if not counts or counts[0] == SCORE_POINTS:
            return SCORE_NAME
        number = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
        which = "all" if counts[-1] < SCORE_POINTS else "the last"
        return f"mean of {which} {number} evaluation{'s' * (counts[-1] > 1)}"


def run_results(
    config: RunConfig,
    default: RunConfig,
    rows: Sequence[Row],
    precision: str = "",
    scale: float = 1.0,
) -> Results:
    """Return the results of a run; `default` is its agent's config on the task.

    If the run was scaled, `default` is scaled alike, and the scale counts as one override.
    """
    defaults = changed_fields(default, config)
    overrides = tuple(
        Override(path.removeprefix("agent."), brief_value(path, value), str(defaults[path]))
        for path, value in changed_fields(config, default).items()
        if path not in NEUTRAL_FIELDS
    )
    if scale != 1:
        overrides = (Override("scale", f"{scale:g}", "1", f"scaled by {scale:g}"), *overrides)
    method = Method(config.agent.name, config.utd, overrides, precision)
    members = tuple((task, seed) for task in config.env for seed in config.seeds)
    return Results(method, rows, members)


def make_cells(results: Iterable[Results]) -> list[Cell]:
    """Return one cell per method and task, by first appearance, with the seeds of all its runs."""
    points: dict[tuple[Method, str], dict[int, dict[int, float]]] = {}
    marks: dict[tuple[Method, str], dict[int, Sequence[Shortfall]]] = {}
    for result in results:
        for task, seed in result.members:
            points.setdefault((result.method, task), {}).setdefault(seed, {})
            # Of a seed in two folders, the better one counts.
            of_cell, own = marks.setdefault((result.method, task), {}), result.marks
            here = own.get((task, seed), ())
            of_cell[seed] = min(of_cell.get(seed, here), here, key=len)
        for row in result.rows:
            if row.metric == METRIC:
                by_seed = points.setdefault((result.method, row.env_name), {})
                _add_point(by_seed.setdefault(row.seed, {}), row, result.method)
    return [_make_cell(*key, by_seed, marks.get(key, {})) for key, by_seed in points.items()]


def same_value(one: float, other: float) -> bool:
    """Return whether two numbers are equal, where NaN equals NaN."""
    return bool(np.array_equal(one, other, equal_nan=True))


def _add_point(points: dict[int, float], row: Row, method: Method) -> None:
    value = points.setdefault(row.env_step, row.value)
    if not same_value(value, row.value):
        raise UserError(
            f"seed {row.seed} of {method} on {row.env_name}: expected one return at "
            f"env_step {row.env_step}, got {value} and {row.value}"
        )


def _make_cell(
    method: Method,
    task: str,
    by_seed: Mapping[int, Mapping[int, float]],
    marks: Mapping[int, Sequence[Shortfall]],
) -> Cell:
    in_paper = paper.find_suite(task) is not None
    shortfalls = [*_method_shortfalls(method, task)] if in_paper else []
    if method.run:
        shortfalls.append(Shortfall(ShortfallKind.SEPARATE_RUN, method.run))
    if in_paper and len(by_seed) < paper.SEEDS:
        shortfalls.append(Shortfall(ShortfallKind.FEW_SEEDS, len(by_seed), paper.SEEDS))
    seeds: list[SeedScore] = []
    for seed, points in sorted(by_seed.items()):
        last = [points[step] for step in sorted(points)][-SCORE_POINTS:]
        score, final = (float(np.mean(last)), last[-1]) if last else (math.nan, math.nan)
        seeds.append(SeedScore(seed, score, len(points), max(points, default=0), final))
        shortfalls += [*_seed_shortfalls(seeds[-1], task), *marks.get(seed, ())]
    return Cell(method, task, tuple(seeds), tuple(shortfalls))


def _method_shortfalls(method: Method, task: str) -> Iterable[Shortfall]:
    if method.utd is None or method.file:
        yield Shortfall(ShortfallKind.UNKNOWN_SETTINGS, method.file or "an unknown source")
    if method.utd is not None:
        key = paper.CellKey(task, method.agent, method.utd)
        if key not in paper.raw_scores():
            yield Shortfall(ShortfallKind.NOT_IN_PAPER, key)
    for override in method.overrides:
        yield Shortfall(ShortfallKind.OVERRIDE, override)


def _seed_shortfalls(seed: SeedScore, task: str) -> Iterable[Shortfall]:
    if not seed.points:
        yield Shortfall(ShortfallKind.NO_EVALUATION, seed=seed.seed)
        return
    if suite := paper.find_suite(task):
        steps = DECISION_STEPS * ACTION_REPEAT[suite]
        if steps != seed.env_steps:
            yield Shortfall(ShortfallKind.ENV_STEPS, seed.env_steps, steps, seed.seed)
        if seed.points != POINTS:
            yield Shortfall(ShortfallKind.POINTS, seed.points, POINTS, seed.seed)
    if not np.isfinite(seed.score):
        yield Shortfall(ShortfallKind.NOT_FINITE, str(seed.score), seed=seed.seed)
