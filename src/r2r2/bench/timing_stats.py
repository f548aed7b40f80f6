"""Repeated measurements, as a table and a file have them."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """A quantity that was measured several times."""

    median: float
    lowest: float
    highest: float
    each: tuple[float, ...]  # in the order in which they were measured


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of one quantity, in numbers that a person can read.

    Example:
        >>> spread_of([3.0, 1.0, 2.0])[:3]
        (2.0, 1.0, 3.0)
    """
    each = tuple(rounded(value) for value in values)
    return Spread(rounded(float(np.median(values))), min(each), max(each), each)


def rounded(value: float) -> float:
    """Four digits that count: more are noise.

    Example:
        >>> rounded(123456.0), rounded(0.0123456)
        (123500.0, 0.01235)
    """
    return float(f"{value:.4g}")


def seconds_of(call: Callable[[], None], repeats: int) -> list[float]:
    """The seconds of each of several calls, which wait for the device themselves.

    One more goes before, in which programs are compiled and memory is found.
    """
    taken: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken[1:]
