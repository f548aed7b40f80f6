"""Charts as plain data, independent of how they are drawn.

`figures.py` draws a chart for papers, `svg.py` draws it for the page with values on
hover, and `chart_csv` writes its numbers. All three show the same values.
"""

import csv
import enum
import io
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from r2r2.stats.paper import BASES
from r2r2.stats.samples import Floats
from r2r2.stats.scores import Method

Dash = Literal["solid", "dashed", "dotted"]
Marker = Literal["none", "filled", "hollow"]
MAX_ITEMS = 12  # items listed in a note

# For light and for dark backgrounds. Safe for color-blind readers; the first six are
# Okabe and Ito's.
COLORS, DARK_COLORS = zip(
    ("#0072b2", "#4fa9e2"),
    ("#d55e00", "#f28c45"),
    ("#009e73", "#2fc497"),
    ("#cc79a7", "#e3a0c6"),
    ("#e69f00", "#edb944"),
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


# An agent with R2R2 has the color of its base agent, whose line is dashed.
AGENT_STYLES = {
    "td7": Style(0, "dashed"),
    "td7+r2r2": Style(0),
    "minphi": Style(1, "dashed"),
    "minphi+r2r2": Style(1),
    "td7-ln": Style(2, "dashed"),
    "td7-ln+r2r2": Style(2),
    "simbav2": Style(3, "dotted"),
    "simbav2-spl": Style(3, "dashed"),
    "simbav2-spl+r2r2": Style(3),
}
OTHER_COLORS = (4, 6, 9, 7, 5, 8, 10)  # used by no agent, most distinct first


def agent_family(agent: str) -> str:
    """Return the base agent, which is shared by the agents of one panel."""
    return BASES.get(agent, agent)


def method_styles(methods: Iterable[Method]) -> dict[Method, Style]:
    """Return a style for every method; the same for all UTDs.

    Among the variants of an agent, the one with the fewest overridden settings gets the
    agent's style; the others get colors that no agent uses.

    Example:
        >>> one, other = Method("td7", 1, file="a.csv"), Method("td7", 20)
        >>> method_styles([one])[one]
        Style(color=0, dash='dashed')
        >>> method_styles([one, other])[one]
        Style(color=4, dash='solid')
    """
    methods = list(methods)
    variants: dict[str, list[Method]] = {}
    for variant in dict.fromkeys(method._replace(utd=None) for method in methods):
        variants.setdefault(variant.agent, []).append(variant)
    styles: dict[Method, Style] = {}
    others = 0
    for agent, of_agent in variants.items():
        ranked = sorted(of_agent, key=lambda variant: variant.deviation_count)
        for rank, variant in enumerate(ranked):
            agent_style = AGENT_STYLES.get(agent) if rank == 0 else None
            styles[variant] = agent_style or _other_style(others)
            others += agent_style is None
    return {method: styles[method._replace(utd=None)] for method in methods}


def _other_style(number: int) -> Style:
    dashes: tuple[Dash, ...] = ("solid", "dashed", "dotted")
    repeat, index = divmod(number, len(OTHER_COLORS))
    return Style(OTHER_COLORS[index], dashes[repeat % len(dashes)])


class Point(NamedTuple):
    """One finite value of a line."""

    x: float
    y: float
    low: float | None  # None without an interval
    high: float | None
    detail: str


class Line(NamedTuple):
    """One method in one panel: values, intervals and the lines of single seeds."""

    name: str
    style: Style
    x: Floats  # [points]
    y: Floats  # [points]
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
        parts = [self.y, *(y for _, y in self.seeds)]
        parts += [part for part in (self.low, self.high) if part is not None]
        values = np.concatenate(parts)
        finite = values[np.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if len(finite) else ()

    @property
    def points(self) -> list[Point]:
        """The points with finite values, each with its interval if it has one.

        Example:
            >>> Line("td7", Style(0), np.arange(2.0), np.array([0.0, np.nan])).points
            [Point(x=0.0, y=0.0, low=None, high=None, detail='')]
        """
        nan = np.full(len(self.x), np.nan)
        lows, highs = (nan if b is None else b for b in (self.low, self.high))
        one = isinstance(self.detail, str)
        details = [str(self.detail)] * len(self.x) if one else self.detail
        return [
            Point(float(x), float(y), *_finite_bounds(low, high), detail)
            for x, y, low, high, detail in zip(
                self.x, self.y, lows, highs, details, strict=True
            )
            if np.isfinite(y)
        ]

    @property
    def detail_text(self) -> str:
        """The details of all points as one text."""
        return self.detail if isinstance(self.detail, str) else "; ".join(self.detail)


def _finite_bounds(low: float, high: float) -> tuple[float | None, float | None]:
    finite = np.isfinite(low) and np.isfinite(high)
    return (float(low), float(high)) if finite else (None, None)


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    lines: tuple[Line, ...]


class Axis(NamedTuple):
    """The meaning of a direction."""

    label: str
    log: bool = False
    shared: bool = False  # by all panels
    ticks: tuple[tuple[float, str], ...] = ()  # value and text; empty: round numbers


class NoteKind(enum.Enum):
    """What a note says about the things that it lists."""

    NO_MEAN = "No mean"
    MEAN_STOPS = "Means stop where a seed is not finite"
    PARTIAL = "Partial or scaled down, not a reproduction"
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
        most = 4 if self.kind is NoteKind.PARTIAL else MAX_ITEMS
        more = len(self.items) - most
        items = "; ".join(self.items[:most]) + (f" and {more} more" if more > 0 else "")
        suite = f" for {self.suite}" if self.suite else ""
        return f"{self.kind.value}{suite}: {items}"


class Gap(NamedTuple):
    """Why a chart does not show all of a method's results on a task."""

    label: str
    task: str
    reason: str


def make_notes(
    kind: NoteKind, items: Iterable[str], suite: str = ""
) -> tuple[Note, ...]:
    """Return one note that lists the items, or none if there are no items."""
    unique = tuple(dict.fromkeys(items))
    return (Note(kind, unique, suite),) if unique else ()


def gap_notes(kind: NoteKind, gaps: Iterable[Gap]) -> tuple[Note, ...]:
    """Return a note on gaps, grouping tasks with the same method and reason.

    Example:
        >>> gaps = [Gap("td7", task, "no seed") for task in "ab"]
        >>> [note.text for note in gap_notes(NoteKind.NO_MEAN, gaps)]
        ['No mean: td7 on a, b (no seed)']
    """
    tasks: dict[tuple[str, str], list[str]] = {}
    for label, task, reason in gaps:
        tasks.setdefault((label, reason), []).append(task)
    groups = (f"{k[0]} on {', '.join(names)} ({k[1]})" for k, names in tasks.items())
    return make_notes(kind, groups)


class Chart(NamedTuple):
    """One figure, with one panel or several that share the meaning of their axes."""

    name: str  # of its files, without extension
    title: str
    caption: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    rows: bool = False  # a horizontal bar for every line, with values along x
    notes: tuple[Note, ...] = ()

    @property
    def legend(self) -> list[Line]:
        """The first line of every name, in order of appearance."""
        lines: dict[str, Line] = {}
        for panel in self.panels:
            for line in panel.lines:
                lines.setdefault(line.name, line)
        return list(lines.values())


def chart_csv(chart: Chart) -> str:
    """Return every value of a chart as a CSV file.

    Example:
        >>> line = Line("td7", Style(0), np.array([1.0]), np.array([3.5]))
        >>> axes = Axis("UTD"), Axis("score")
        >>> chart = Chart("a", "A", "", *axes, (Panel("p", (line,)),))
        >>> print(chart_csv(chart))
        panel,line,UTD,score,low,high,of
        p,td7,1.0,3.5,,,
        <BLANKLINE>
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    x, y = (chart.y, chart.x) if chart.rows else (chart.x, chart.y)
    writer.writerow(["panel", "line", x.label, y.label, "low", "high", "of"])
    for panel in chart.panels:
        for line in panel.lines:
            for *numbers, detail in line.points:
                texts = ["" if number is None else repr(number) for number in numbers]
                writer.writerow([panel.title, line.name, *texts, detail])
    return text.getvalue()


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun, such as '1 seed' or '5 seeds'."""
    return f"{number} {noun}{'s' if number != 1 else ''}"
