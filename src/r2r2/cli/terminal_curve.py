"""A learning curve in characters: the mean over seeds, and the range around it."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from r2r2.report.learning_curve import Curve

Floats = np.ndarray[Any, np.dtype[np.float64]]
Dots = np.ndarray[Any, np.dtype[np.bool_]]

# Of a braille character: two columns of four dots, and the bit of each.
BRAILLE = 0x2800
BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])

# Of the range, the dots among which a line can still be seen.
SPARSE = np.array([[1, 0], [0, 0], [0, 1], [0, 0]], dtype=bool)

# Beside a number, beside none, the corner, the floor.
FRAMES = {False: ("┤", "│", "└", "─"), True: ("|", "|", "|", "-")}
MEAN, RANGE = "bold cyan", "cyan"
LARGEST = 1e300  # beyond it a difference of two is not a number any more


class Size(NamedTuple):
    """How much room there is, in characters, and whether these are ASCII's only."""

    width: int
    height: int
    ascii_only: bool = False


def draw_in_text(curve: Curve, last_step: float, size: Size) -> list[Text]:
    """A curve in a frame, with the returns beside it and the steps below.

    The mean over seeds is a line; from the lowest seed to the highest there are dots.
    In ASCII they are '*' and '.'.

    Args:
        curve: with finite returns, and a step that all seeds have.
        last_step: where the axis ends: the run's last step, so that the part of it
            that is to come is empty.
        size: the room; a frame needs about 20 by 4.

    Returns:
        One text per row, none longer than the room is wide.

    Example:
        >>> steps, returns = np.array([0.0, 30.0]), np.array([[0.0, 90.0]])
        >>> curve = Curve("walk", ((steps, returns[0]),), steps, returns)
        >>> for row in draw_in_text(curve, 60, Size(17, 5, ascii_only=True)):
        ...     print(row.plain)
        90|     **
        45|  ***
         0|**
          |--------------
           0           60
    """
    returns = np.clip(curve.returns, -LARGEST, LARGEST)
    low, high = _span(returns)
    rows = max(size.height - 2, 1)
    labels = _labels(low, high, rows)
    margin = max(map(len, labels))
    columns = max(size.width - margin - 1, 4)
    end = max(last_step, float(curve.steps[-1]), 1.0)
    fine = (1, 1) if size.ascii_only else BITS.shape
    line, band = _dots(curve.steps / end, returns, (rows * fine[0], columns * fine[1]))
    beside, bare, corner, floor = FRAMES[size.ascii_only]
    drawn: list[Text] = []
    for row, label in enumerate(labels):
        here = slice(row * fine[0], (row + 1) * fine[0])
        edge = beside if label else bare
        drawn.append(Text(f"{label:>{margin}}{edge}"))
        _fill(drawn[-1], line[here], band[here], size.ascii_only)
    foot, room = short_number(end), columns - 1
    foot += " env steps" if room > 20 else ""
    drawn.append(Text(" " * margin + corner + floor * columns))
    drawn.append(Text(" " * (margin + 1) + "0" + f"{foot:>{room}}"))
    return drawn


def short_number(value: float) -> str:
    """A number in a few characters.

    Example:
        >>> [short_number(x) for x in (0.0, -12.345, 9876.0, 150_000.0, 2.5e6, 1e12)]
        ['0', '-12.3', '9876', '150k', '2.5M', '1e+12']
    """
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.2g}"
    for unit, letter in ((1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{value / (1e6 if letter == 'M' else 1e3):.4g}{letter}"
    return f"{value:.4g}" if size >= 1e3 else f"{value:.3g}"


def _span(returns: Floats) -> tuple[float, float]:
    low, high = float(returns.min()), float(returns.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) / 10 or 1.0
    return low - margin, high + margin


def _labels(low: float, high: float, rows: int) -> list[str]:
    """Numbers at the top, at the bottom and, where there is room, half way."""
    labels = [""] * rows
    if rows >= 3 and rows % 2:
        labels[rows // 2] = short_number(low / 2 + high / 2)
    labels[-1] = short_number(low)
    labels[0] = short_number(high)
    return labels


def _dots(places: Floats, returns: Floats, grid: tuple[int, int]) -> tuple[Dots, Dots]:
    """Where the mean's line and the range's dots are; the first row is the highest.

    Args:
        places: of the steps, 0 the beginning of the axis and 1 its end.
        returns: [seeds, steps].
        grid: rows and columns of dots.
    """
    rows, columns = grid
    low, high = _span(returns)
    first, last = (round(float(place) * (columns - 1)) for place in places[[0, -1]])
    here = range(first, last + 1)
    # The ends are where they are and not where their columns are: no value is missed.
    inside = [column / max(columns - 1, 1) for column in here[1:-1]]
    across = np.array([places[0], *inside, places[-1]][-len(here) :])
    levels = [
        np.interp(across, places, (numbers - low) / (high - low))
        for numbers in (returns.mean(0), returns.min(0), returns.max(0))
    ]
    mean, lowest, highest = (
        np.rint((1 - level) * (rows - 1)).astype(int) for level in levels
    )
    line, band = np.zeros(grid, dtype=bool), np.zeros(grid, dtype=bool)
    before = int(mean[0])
    for number, column in enumerate(here):
        now = int(mean[number])
        # From next to where the line was, so that a steep one has no gaps.
        near = before + (now > before) - (now < before)
        line[min(near, now) : max(near, now) + 1, column] = True
        before = now
        band[int(highest[number]) : int(lowest[number]) + 1, column] = True
    return line, band


def _fill(text: Text, line: Dots, band: Dots, ascii_only: bool) -> None:
    """Appends one row of characters, as few pieces as there are changes of style."""
    cells = _ascii(line[0], band[0]) if ascii_only else _braille(line, band)
    for style, piece in itertools.groupby(cells, lambda cell: cell[1]):
        text.append("".join(sign for sign, _ in piece), style)
    text.rstrip()


def _ascii(line: Dots, band: Dots) -> Iterator[tuple[str, str]]:
    for mean, around in zip(line, band, strict=True):
        sign = "*" if mean else "." if around else " "
        yield sign, MEAN if mean else RANGE


def _braille(line: Dots, band: Dots) -> Iterator[tuple[str, str]]:
    for left in range(0, line.shape[1], BITS.shape[1]):
        cell = slice(left, left + BITS.shape[1])
        dots = BITS * (line[:, cell] | (band[:, cell] & SPARSE))
        sign = chr(BRAILLE + int(dots.sum())) if dots.any() else " "
        yield sign, MEAN if line[:, cell].any() else RANGE
