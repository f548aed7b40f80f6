"""Round numbers along an axis, and how numbers are written."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from r2r2.report.charts import Axis, Panel

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(NamedTuple):
    """From values to positions between 0 and 1, and where its ticks are."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Where a value lies; 0 is the axis's beginning and 1 its end.

        Example:
            >>> Scale(1.0, 100.0, True, ()).place(10.0)
            0.5
        """
        turn: Callable[[float], float] = math.log10 if self.log else float
        value = max(value, self.low) if self.log else value
        low, high = turn(self.low), turn(self.high)
        return (turn(value) - low) / (high - low)


def scale_of(axis: Axis, low: float, high: float, most: int = 6) -> Scale:
    """A scale that holds all from `low` to `high`, with `most` ticks or fewer.

    Example:
        >>> scale = scale_of(Axis("return"), 3.0, 97.0)
        >>> [said for _, said in scale.ticks]
        ['0', '20', '40', '60', '80', '100']
    """
    if axis.ticks:
        return Scale(low, high, axis.log, axis.ticks)
    if axis.log:
        return _log_scale(low, high, most)
    if low == high:
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    step = _step(high - low, most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    return Scale(ticks[0], ticks[-1], False, tuple((t, short(t)) for t in ticks))


def inner_scale(axis: Axis, low: float, high: float, most: int = 6) -> Scale:
    """A scale that ends where the values do, with round numbers within.

    Example:
        >>> inner_scale(Axis("steps"), 10_000.0, 900_000.0).ticks[::4]
        ((0.0, '0'), (800000.0, '800k'))
    """
    if not axis.log and not axis.ticks and 0 < low < high / 5:
        low = 0.0  # so near that the axis may as well begin there
    outer = scale_of(axis, low, high, most)
    if axis.ticks or low == high:
        return outer
    kept = tuple(tick for tick in outer.ticks if low <= tick[0] <= high)
    return Scale(low, high, outer.log, kept)


def short(value: float) -> str:
    """A number as it stands on an axis.

    Example:
        >>> short(250_000.0), short(1.5e6), short(2000.0), short(0.25)
        ('250k', '1.5M', '2k', '0.25')
    """
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return _minus(f"{value / unit:.6g}{letter}")
    return _minus(f"{value:.6g}")


def exact(value: float, among: Sequence[float] = ()) -> str:
    """A number as it is told under the pointer: five figures, or all of a whole one.

    Args:
        value: the number.
        among: numbers that it stands with, so that all have the same decimals.

    Example:
        >>> exact(12345.678), exact(1125.02), exact(0.0123456), exact(500_000.0)
        ('12,346', '1,125.0', '0.012346', '500,000')
        >>> exact(976.28, [976.28, 1125.02])
        '976.3'
    """
    every = [value, *among]
    most = max(map(abs, every))
    if all(one == round(one) for one in every) and most < 1e15:
        return _minus(f"{value:,.0f}")
    if not 1e-4 <= most < 1e15:
        return _minus(f"{value:.5g}")
    decimals = max(0, 4 - math.floor(math.log10(most)))
    return _minus(f"{value:,.{decimals}f}")


def span_of(panels: Sequence[Panel]) -> tuple[float, float]:
    """The least and the greatest x of all that is drawn in panels."""
    places = [
        float(x)
        for panel in panels
        for line in panel.lines
        for part in (line.x, *(seed for seed, _ in line.each))
        for x in part
    ]
    return (min(places), max(places)) if places else (0.0, 1.0)


def _step(width: float, most: int) -> float:
    raw = width / max(most - 1, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    return next(s * unit for s in STEPS if s * unit >= raw * (1 - 1e-9))


def _log_scale(low: float, high: float, most: int) -> Scale:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    every = max(1, math.ceil((last - first) / most))
    powers = range(first, last + 1, every)
    ticks = tuple((10.0**power, short_power(power)) for power in powers)
    return Scale(10.0**first, 10.0**last, True, ticks)


def short_power(power: int) -> str:
    """A power of ten as it stands on an axis.

    Example:
        >>> short_power(0), short_power(-3)
        ('1', '10⁻³')
    """
    if power in (0, 1):
        return str(10**power)
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(power).translate(raised)


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if text.startswith("-") else text
