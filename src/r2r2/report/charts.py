"""Charts and learning curves as plain data, independent of how they are drawn.

`figures.py` draws a chart for papers, `svg.py` draws it for the page with values on hover, and
`chart_csv` writes its numbers. All three show the same values.
"""

import csv
import enum
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from r2r2.stats.samples import Floats
from r2r2.stats.scores import METRIC, Method
from r2r2.storage.evaluations import Row

Dash = Literal["solid", "dashed", "dotted"]
Marker = Literal["none", "filled", "hollow"]

# For light and dark backgrounds, safe for color-blind readers; most are Okabe and Ito's.
COLORS, DARK_COLORS = zip(
    ("#0072b2", "#4fa9e2"),
    ("#d55e00", "#f28c45"),
    ("#009e73", "#2fc497"),
    ("#a3207a", "#d85fa8"),
    ("#c28300", "#edb944"),
    ("#56b4e9", "#8fd0f5"),
    ("#7a5195", "#b79ad0"),
    ("#8c564b", "#c99a8f"),
    ("#5f6b6d", "#a3aeb0"),
    ("#b2182b", "#ef7d7d"),
    ("#9a9a00", "#c9c93a"),
    strict=True,
)


class Style(NamedTuple):
    """The look of a method's lines."""

    color: int  # index into `COLORS` and `DARK_COLORS`
    dash: Dash = "solid"


# An agent with R2R2 has a solid line in a warm color, its base a broken one in a cool color; both
# differ for every kind of color vision, also where lines are too short to show dashes.
AGENT_STYLES = {
    "td7": Style(0, "dashed"),
    "td7+r2r2": Style(1),
    "minphi": Style(6, "dashed"),
    "minphi+r2r2": Style(4),
    "td7-ln": Style(5, "dashed"),
    "td7-ln+r2r2": Style(9),
    "simbav2": Style(10, "dotted"),
    "simbav2-spl": Style(2, "dashed"),
    "simbav2-spl+r2r2": Style(3),
}
_DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted")
# Of methods that are no agents, most distinct colors first.
OTHER_COLORS = (7, 8, 2, 6, 4, 9, 5, 3, 10, 0, 1)


def method_styles(methods: Sequence[Method]) -> dict[Method, Style]:
    """Return styles, equal for all UTDs; an agent's least overridden variant gets its style."""
    variants: dict[str, list[Method]] = {}
    for variant in dict.fromkeys(method._replace(utd=None) for method in methods):
        variants.setdefault(variant.agent, []).append(variant)
    taken = {AGENT_STYLES[agent].color for agent in variants if agent in AGENT_STYLES}
    free = [color for color in OTHER_COLORS if color not in taken]
    styles: dict[Method, Style] = {}
    others = itertools.cycle([Style(color, dash) for dash in _DASHES for color in free])
    for agent, of_agent in variants.items():
        agent_style = AGENT_STYLES.get(agent)
        for variant in sorted(of_agent, key=lambda variant: variant.deviation_count):
            styles[variant] = agent_style or next(others)
            agent_style = None
    return {method: styles[method._replace(utd=None)] for method in methods}


class Point(NamedTuple):
    """One finite value of a line."""

    x: float
    y: float
    interval: tuple[float, float] | None
    detail: str


class Line(NamedTuple):
    """One method in one panel: values, intervals and the lines of single seeds."""

    name: str
    style: Style
    x: Floats = np.empty(0)  # [points]
    y: Floats = np.empty(0)  # [points]
    low: Floats | None = None  # [points], NaN without an interval
    high: Floats | None = None
    seeds: tuple[tuple[Floats, Floats], ...] = ()  # x and y of every seed
    # What the values were computed from ("5 seeds"): for all points, or per point.
    detail: str | tuple[str, ...] = ""
    marker: Marker = "none"
    connected: bool = True  # whether its points are joined
    offset: float = 0.0  # added to x when drawn, so that intervals do not overlap
    partial: tuple[str, ...] = ()  # labels of methods that are no full reproduction

    @property
    def y_range(self) -> tuple[float, ...]:
        """The smallest and largest value drawn, or nothing without finite values."""
        bounds = [part for part in (self.low, self.high) if part is not None]
        values = np.concatenate([self.y, *(y for _, y in self.seeds), *bounds])
        finite = values[np.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if len(finite) else ()

    @property
    def points(self) -> list[Point]:
        """The points with finite values, each with its interval if it has one."""
        points = []
        for n in np.flatnonzero(np.isfinite(self.y)):
            interval = None
            if self.low is not None and self.high is not None:
                ends = float(self.low[n]), float(self.high[n])
                interval = ends if np.isfinite(ends).all() else None
            detail = self.detail if isinstance(self.detail, str) else self.detail[n]
            points.append(Point(float(self.x[n]), float(self.y[n]), interval, detail))
        return points

    @property
    def detail_text(self) -> str:
        """The details of all points as one text."""
        return self.detail if isinstance(self.detail, str) else "; ".join(self.detail)


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    lines: Sequence[Line]


class Axis(NamedTuple):
    """The meaning of a direction."""

    label: str
    log: bool = False
    shared: bool = False  # by all panels
    ticks: tuple[tuple[float, str], ...] = ()  # value and text; empty: round numbers
    padded: bool = False  # with room beyond the outer ticks, where lines would lie on the frame


class NoteKind(enum.Enum):
    """What a note says about the things that it lists."""

    NO_MEAN = "No mean"
    MEAN_STOPS = "Means stop where a seed is not finite"
    PARTIAL = "Partial or scaled down, not a reproduction"
    ABNORMAL = "Failed, unfinished, untrained or damaged"
    NO_STATISTIC = "Not shown"
    UNKNOWN_UTD = "Not shown, UTD unknown"
    NO_COMMON_STEPS = "Not shown, seeds have no steps in common"
    UNKNOWN_REPEAT = "Action repeat unknown, environment steps drawn as decisions"


class Note(NamedTuple):
    """Something that a chart does not show, or that a reader must know about it."""

    kind: NoteKind
    items: tuple[str, ...]  # without duplicates
    suite: str = ""  # that it is about, if it is about one

    @property
    def text(self) -> str:
        """The note as shown to readers, with the first items only."""
        most = 4 if self.kind is NoteKind.PARTIAL else 12
        more = len(self.items) - most
        items = "; ".join(self.items[:most]) + (f" and {more} more" if more > 0 else "")
        suite = f" for {self.suite}" if self.suite else ""
        return f"{self.kind.value}{suite}: {items}"


def make_notes(kind: NoteKind, items: Iterable[str], suite: str = "") -> tuple[Note, ...]:
    """Return one note that lists the items, or none if there are no items."""
    unique = tuple(dict.fromkeys(items))
    return (Note(kind, unique, suite),) if unique else ()


def gap_notes(kind: NoteKind, gaps: Iterable[tuple[str, str, str]]) -> tuple[Note, ...]:
    """Return a note on gaps: the label of a method, a task, and why it is not shown."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for label, task, reason in gaps:
        tasks.setdefault((label, reason), []).append(task)
    return make_notes(kind, (f"{k[0]} on {', '.join(v)} ({k[1]})" for k, v in tasks.items()))


class Chart(NamedTuple):
    """One figure, with one panel or several that share the meaning of their axes."""

    name: str  # of its files, without extension
    title: str
    caption: str
    x: Axis
    y: Axis
    panels: Sequence[Panel] = ()
    rows: bool = False  # a horizontal bar for every line, with values along x
    notes: tuple[Note, ...] = ()

    @property
    def lines(self) -> list[Line]:
        """The lines of all panels."""
        return [line for panel in self.panels for line in panel.lines]

    @property
    def legend(self) -> list[Line]:
        """The first line of every name, in order of appearance."""
        first = {line.name: line for line in reversed(self.lines)}
        return [first[name] for name in dict.fromkeys(line.name for line in self.lines)]


def chart_csv(chart: Chart) -> str:
    """Return every value of a chart as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    x, y = (chart.y, chart.x) if chart.rows else (chart.x, chart.y)
    writer.writerow(["panel", "line", x.label, y.label, "low", "high", "of"])
    for panel in chart.panels:
        for line in panel.lines:
            for point in line.points:
                numbers = point.x, point.y, *(point.interval or ("", ""))
                writer.writerow([panel.title, line.name, *numbers, point.detail])
    return text.getvalue()


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun, such as '1 seed' or '5 seeds'."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


class Curve(NamedTuple):
    """The evaluations of one task: a line per seed, and values at common steps."""

    name: str
    seeds: tuple[tuple[Floats, Floats], ...]  # steps and returns, by step
    steps: Floats  # of any seed, in the range that all seeds cover
    returns: Floats  # [seeds, steps], interpolated linearly


def learning_curves(rows: Sequence[Row]) -> list[Curve]:
    """Return the returns among evaluations, in the order in which tasks first appear.

    Seeds are interpolated linearly to common steps, only in the range that all of them cover, so
    that the mean does not jump where a seed begins or ends.
    """
    points: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for row in rows:
        if row.metric == METRIC:
            task = points.setdefault((row.exp_name, row.env_name), {})
            task.setdefault(row.seed, {})[row.env_step] = row.value
    several = len({exp_name for exp_name, _ in points}) > 1
    curves = []
    for (exp_name, env_name), by_seed in points.items():
        name = f"{env_name}, {exp_name}" if several else env_name
        seeds: list[tuple[Floats, Floats]] = []
        for _, by_step in sorted(by_seed.items()):
            steps, values = np.array(sorted(by_step.items()), dtype=np.float64).T
            seeds.append((steps, values))
        curves.append(Curve(name, tuple(seeds), *align_seeds(seeds)))
    return curves


def align_seeds(seeds: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Interpolate seeds to common steps: return steps [n] and values [seeds, n]."""
    begin = max(steps[0] for steps, _ in seeds)
    end = min(steps[-1] for steps, _ in seeds)
    all_steps = np.unique(np.concatenate([steps for steps, _ in seeds]))
    common = all_steps[(all_steps >= begin) & (all_steps <= end)]
    return common, np.stack([np.interp(common, *seed) for seed in seeds])
