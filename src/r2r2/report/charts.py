"""What a figure shows, apart from how it is drawn.

A chart is numbers and words only. `figures.py` draws it for paper, `drawing.py` for the
page with values under the pointer, and `chart_csv` writes its numbers: all three
show the same.
"""

import csv
import io
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from r2r2.report.palette import Style
from r2r2.stats.samples import Floats

Mark = Literal["none", "full", "hollow"]


class Point(NamedTuple):
    """One value of a line that can be shown."""

    x: float
    y: float
    low: float | None  # None where it has no interval
    high: float | None
    of: str  # what it is of


class Line(NamedTuple):
    """One method in one panel: its values, their intervals, and its seeds' own lines.

    Example:
        >>> Line("td7", Style(0), np.array([1.0, 2.0]), np.array([3.0, 4.0])).ends
        (3.0, 4.0)
    """

    name: str
    style: Style
    x: Floats  # [points]
    y: Floats  # [points]
    low: Floats | None = None  # [points], NaN where there is none
    high: Floats | None = None
    each: tuple[tuple[Floats, Floats], ...] = ()  # x and y of every seed
    # What the values are of, such as "5 seeds": all of them, or one by one.
    note: str | tuple[str, ...] = ""
    mark: Mark = "none"
    joined: bool = True  # whether its points are one line
    # Along x, for the eye: intervals side by side, not on each other.
    shift: float = 0.0
    lacks: tuple[str, ...] = ()  # methods in it that lack something to be the paper's

    @property
    def ends(self) -> tuple[float, ...]:
        """The least and the greatest of all that is drawn of it, if anything is."""
        parts = [self.y, *(y for _, y in self.each)]
        parts += [part for part in (self.low, self.high) if part is not None]
        every = np.concatenate(parts)
        finite = every[np.isfinite(every)]
        return (float(finite.min()), float(finite.max())) if len(finite) else ()

    @property
    def remark(self) -> str:
        """What its values are of, as one text."""
        return self.note if isinstance(self.note, str) else "; ".join(self.note)


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    lines: tuple[Line, ...]


class Axis(NamedTuple):
    """What one of the directions means."""

    label: str
    log: bool = False
    shared: bool = False  # by all panels
    ticks: tuple[tuple[float, str], ...] = ()  # where and what; none: round numbers


class Chart(NamedTuple):
    """One figure, of one panel or many with the same axes."""

    name: str  # of its files, without ending
    title: str
    caption: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    rows: bool = False  # one line of text and a bar for every value, x is the value
    notes: tuple[str, ...] = ()  # what it does not show, and what is partial


def legend_of(chart: Chart) -> list[Line]:
    """The lines of a chart by name, each once, in the order of their appearance."""
    found: dict[str, Line] = {}
    for panel in chart.panels:
        for line in panel.lines:
            found.setdefault(line.name, line)
    return list(found.values())


def chart_csv(chart: Chart) -> str:
    """Every value of a chart, as a CSV file.

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
    across, up = (chart.y, chart.x) if chart.rows else (chart.x, chart.y)
    writer.writerow(["panel", "line", across.label, up.label, "low", "high", "of"])
    for panel in chart.panels:
        for line in panel.lines:
            for x, y, low, high, of in values_of(line):
                ends = ["" if end is None else repr(end) for end in (low, high)]
                row = [panel.title, line.name, repr(x), repr(y), *ends, of]
                writer.writerow(row)
    return text.getvalue()


def values_of(line: Line) -> Iterable[Point]:
    """The points of a line that can be shown, each with its interval if it has one.

    Example:
        >>> x = np.arange(2.0)
        >>> line = Line("td7", Style(0), x, np.array([0.0, np.nan]))
        >>> list(values_of(line))
        [Point(x=0.0, y=0.0, low=None, high=None, of='')]
    """
    none = np.full(len(line.x), np.nan)
    low = none if line.low is None else line.low
    high = none if line.high is None else line.high
    notes = (line.note,) * len(line.x) if isinstance(line.note, str) else line.note
    for x, y, a, b, of in zip(line.x, line.y, low, high, notes, strict=True):
        if np.isfinite(y):
            within = np.isfinite(a) and np.isfinite(b)
            low_end, high_end = (float(a), float(b)) if within else (None, None)
            yield Point(float(x), float(y), low_end, high_end, of)
