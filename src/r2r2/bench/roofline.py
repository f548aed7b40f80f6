"""What the device can do at best, measured beside what updates make of it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.bench.timing_stats import Spread, seconds_of, spread_of

REPEATS = 10


class Yardstick(NamedTuple):
    """How large the measured operations are: too small ones would not fill a device."""

    matrix: int  # rows and columns of a product
    copied: int  # numbers


GPU, CPU = Yardstick(8192, 2**28), Yardstick(1024, 2**25)


class Ceiling(NamedTuple):
    """The device's best in what updates are made of."""

    matrix: int  # rows and columns of the product
    tflops: Spread  # of that product, at the default precision
    copied: int  # numbers
    gb_per_s: Spread  # read and written, when so many numbers are changed


def yardstick() -> Yardstick:
    """What suits the device that trains."""
    return CPU if jax.default_backend() == "cpu" else GPU


def ceiling(size: Yardstick | None = None, repeats: int = REPEATS) -> Ceiling:
    """Measures the device.

    A product in the precision that networks have, and a pass over memory: an update is
    made of products where networks are wide and of passes where they are narrow.
    """
    matrix, copied = size or yardstick()
    factor = jnp.ones((matrix, matrix))
    products = _seconds(lambda x: x @ x, factor, repeats)
    del factor
    column = jnp.zeros(copied)
    passes = _seconds(lambda x: x + 1, column, repeats)
    moved = 2 * column.nbytes
    return Ceiling(
        matrix,
        spread_of([2 * matrix**3 / seconds / 1e12 for seconds in products]),
        copied,
        spread_of([moved / seconds / 1e9 for seconds in passes]),
    )


def _seconds(function: Callable[[Array], Array], x: Array, repeats: int) -> list[float]:
    program = jax.jit(function)

    def call() -> None:
        program(x).block_until_ready()

    return seconds_of(call, repeats)
