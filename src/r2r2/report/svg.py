"""Parts of SVG drawings."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from r2r2.report.axis_scale import Scale, exact
from r2r2.report.charts import Line, Point


class Frame(NamedTuple):
    """The size of a drawing and of the margins around its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


class Plane(NamedTuple):
    """A frame with its scales."""

    frame: Frame
    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the drawing.

        Example:
            >>> whole = Scale(0.0, 1.0, False, ())
            >>> Plane(Frame(100, 50, 10, 0, 0, 10), whole, whole).at(0.5, 1.0)
            (55.0, 0.0)
        """
        f = self.frame
        across = f.left + self.x.place(x) * (f.width - f.left - f.right)
        down = f.top + (1 - self.y.place(y)) * (f.height - f.top - f.bottom)
        return round(across, 1), round(down, 1)


def text(x: float, y: float, said: str, kind: str) -> str:
    """Words at a place; `kind` are classes of the style sheet.

    Example:
        >>> text(1, 2, "a < b", "tick")
        '<text x="1" y="2" class="tick">a &lt; b</text>'
    """
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{html.escape(said)}</text>'


def path(points: Sequence[tuple[float, float]]) -> str:
    """The outline through points.

    Example:
        >>> path([(0.0, 1.0), (2.5, 3.0)])
        'M0 1L2.5 3'
    """
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def cut(said: str, most: int) -> str:
    """A text of at most so many letters; what is cut off the pointer tells.

    Example:
        >>> cut("dog-run", 7), cut("humanoid-run", 7)
        ('dog-run', 'humano…')
    """
    return said if len(said) <= most else f"{said[: most - 1]}…"


def style_of(line: Line) -> str:
    """The classes of a line's colour and dash."""
    return f"s{line.style.colour} {line.style.dash}"


def named(line: Line, place: int) -> dict[str, object]:
    """What the pointer tells of a line besides its values."""
    return {
        "line": place,
        "name": line.name,
        "style": style_of(line),
        "hollow": line.mark == "hollow",
    }


def told(one: Point) -> tuple[str, str, str]:
    """A value and its interval in words, and what they are of.

    Example:
        >>> told(Point(0.0, 2.5, 1.0, 4.0, "5 seeds"))
        ('2.5000', '1.0000 to 4.0000', '5 seeds')
        >>> told(Point(0.0, 25.0, None, None, ""))
        ('25', '', '')
    """
    if one.low is None or one.high is None:
        return exact(one.y), "", one.of
    all_three = one.y, one.low, one.high
    said = [exact(number, all_three) for number in all_three]
    return said[0], f"{said[1]} to {said[2]}", one.of
