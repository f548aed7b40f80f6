"""Repeated measurements, and the peak performance of the device."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Array

REPEATS = 10


class TimingStats(NamedTuple):
    """A quantity that was measured several times."""

    median: float
    lowest: float
    highest: float
    each: tuple[float, ...]  # in order of measurement


def timing_stats(values: Sequence[float]) -> TimingStats:
    """Return the statistics of repeated measurements."""
    each = tuple(map(round_significant, values))
    median = round_significant(float(np.median(values)))
    return TimingStats(median, min(each), max(each), each)


def round_significant(value: float) -> float:
    """Round to four significant digits; more are noise."""
    return float(f"{value:.4g}")


class ProblemSize(NamedTuple):
    """The size of the measured operations, large enough to fill the device."""

    matrix: int  # rows and columns of a matrix product
    copied: int  # numbers in a pass over memory


GPU_SIZE, CPU_SIZE = ProblemSize(8192, 2**28), ProblemSize(1024, 2**25)


class Roofline(NamedTuple):
    """The measured peak performance of the device."""

    matrix: int  # rows and columns of the matrix product
    tflops: TimingStats  # of that product, at the default precision
    copied: int  # numbers
    gb_per_s: TimingStats  # read and written in an update of all these numbers


def measure_roofline(
    size: ProblemSize | None = None, repeats: int = REPEATS
) -> Roofline:
    """Measure a matrix product and a pass over memory.

    Wide networks are limited by the former, narrow ones by the latter.
    """
    default = CPU_SIZE if jax.default_backend() == "cpu" else GPU_SIZE
    matrix, copied = size or default
    square = jnp.ones((matrix, matrix))
    products = _time_calls(lambda x: x @ x, square, repeats)
    del square
    vector = jnp.zeros(copied)
    passes = _time_calls(lambda x: x + 1, vector, repeats)
    traffic = 2 * vector.nbytes
    return Roofline(
        matrix,
        timing_stats([2 * matrix**3 / seconds / 1e12 for seconds in products]),
        copied,
        timing_stats([traffic / seconds / 1e9 for seconds in passes]),
    )


def _time_calls(
    function: Callable[[Array], Array], x: Array, repeats: int
) -> list[float]:
    """Return the seconds of each call, without the first, which compiles."""
    program = jax.jit(function)
    seconds: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        program(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]
