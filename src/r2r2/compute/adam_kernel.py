"""A step of Adam on weights of unit columns, and of their target, as one GPU kernel.

XLA needs two: it cannot keep a column until its length is known, so the weights are
written, and read again, in between. Written in Pallas for its Triton backend, which is
announced to go some time after JAX 0.11: without it, and on a CPU, XLA's two are used.
"""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from r2r2.agents.base import Array
from r2r2.compute.fused import inverse_length
from r2r2.config.common import Adam

TRITON = "jax.experimental.pallas.triton"
ENTRIES = 2048  # of each array, that a block of threads holds at a time
BLOCKS = 132  # of threads, for every network: as many as an H200 has processors
WARPS = 8  # of 32 threads, in a block
OLDEST = 8  # the first compute capability of NVIDIA's that XLA compiles Triton for


class _Tiles(NamedTuple):
    """How columns are dealt out: `height` of them at a time, to every block in turn."""

    columns: int
    entries: int  # of a column
    height: int
    width: int  # of a tile, a power of 2
    blocks: int

    @property
    def rounds(self) -> int:
        return pl.cdiv(pl.cdiv(self.columns, self.height), self.blocks)

    def inside(self, number: Any) -> Array:
        """Which entries of a tile the array has."""
        shape = self.columns, self.entries
        return covered((self.height, self.width), number, shape)


def available() -> bool:
    """Whether programs are for a GPU that Triton serves, and JAX has that backend."""
    if jax.default_backend() != "gpu" or _triton() is None:
        return False
    capability: str = getattr(jax.devices()[0], "compute_capability", "")
    major, _, _ = capability.partition(".")
    return major.isdigit() and int(major) >= OLDEST  # AMD's are names


def unit_step(
    adam: Adam,
    rate: float,
    numbers: Array,
    given: list[Array],
    halves: Sequence[Array] = (),
    interpret: bool = False,
) -> tuple[list[Array], list[Array]]:
    """One step of Adam, after which the weights' columns have length 1.

    Columns are rows here: what a block of threads reads is then contiguous.

    Args:
        adam: the decays of the moments.
        rate: how far the target goes to the new weights.
        numbers: the step's size, and what is added to the root, [2].
        given: [..., columns, entries of each]: gradients, Adam's first and second
            moments, weights and, where there is one, their target.
        halves: copies in 16 bits of the weights and, where there is one, of their
            target: written, not read.
        interpret: on a CPU, for tests.

    Returns:
        All that was given but the gradients, as it is after the step, and the halves.
    """
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (*given, *halves)]
    stacked, changed = len(flat[0]), flat[1:]
    tiles = _tiles(*flat[0].shape[1:])
    whole = tiles.rounds * tiles.blocks * tiles.height, tiles.width
    network = pl.BlockSpec((None, *whole), lambda i, j: (i, 0, 0))
    new = pl.pallas_call(
        partial(_unit_step, adam, rate, tiles, len(given)),
        grid=(stacked, tiles.blocks),
        in_specs=[pl.BlockSpec((2,), lambda i, j: (0,)), *(network for _ in flat)],
        out_specs=[network for _ in changed],
        out_shape=jax.eval_shape(lambda same: same, changed),
        input_output_aliases={2 + n: n for n in range(len(changed))},
        compiler_params=_triton().CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
    )(numbers, *flat)
    shaped = [x.reshape(given[0].shape) for x in new]
    return shaped[: len(given) - 1], shaped[len(given) - 1 :]


def _tiles(columns: int, entries: int) -> _Tiles:
    width = pl.next_power_of_2(entries)
    height = min(pl.next_power_of_2(columns), max(1, ENTRIES // width))
    blocks = min(pl.cdiv(columns, height), BLOCKS)
    return _Tiles(columns, entries, height, width, blocks)


def _unit_step(
    adam: Adam, rate: float, tiles: _Tiles, read: int, numbers: Any, *refs: Any
) -> None:
    """The kernel: whole columns, and zeros where a tile is beyond the array.

    Args:
        adam: see `unit_step`.
        rate: see `unit_step`.
        tiles: the array's.
        read: how many arrays are; the others are only written.
        numbers: see `unit_step`.
        *refs: all arrays, then all but the gradients once more.
    """
    triton = _triton()
    given, results = refs[:read], refs[len(refs) // 2 + 1 :]
    size, floor, block = numbers[0], numbers[1], pl.program_id(1).astype(int)

    def step(turn: Any, _: None) -> None:
        tile = block + turn * tiles.blocks
        inside = tiles.inside(tile)
        part = pl.ds(tile * tiles.height, tiles.height), pl.ds(0, tiles.width)
        grads, mean, square, weights, *target = (
            triton.load(ref.at[part], mask=inside, other=0.0) for ref in given
        )
        mean = mean + (1 - adam.beta1) * (grads - mean)
        square = square + (1 - adam.beta2) * (grads * grads - square)
        weights = weights - size * (mean / (jnp.sqrt(square) + floor))
        lengths = jnp.sum(weights * weights, axis=1, keepdims=True)
        weights = weights * inverse_length(lengths)
        moved = [rate * weights + (1 - rate) * old for old in target]
        new = mean, square, weights, *moved
        halves = new[2 * len(new) - len(results) :]
        for ref, value in zip(results, (*new, *halves), strict=True):
            triton.store(ref.at[part], value.astype(ref.dtype), mask=inside)

    jax.lax.fori_loop(0, tiles.rounds, step, None)


def covered(block: tuple[int, int], number: Any, shape: tuple[int, int]) -> Array:
    """Which entries of a block of rows, the `number`-th, an array of `shape` has.

    Example:
        >>> covered((2, 4), 1, (3, 3)).tolist()
        [[True, True, True, False], [False, False, False, False]]
    """
    row, entry = (jax.lax.broadcasted_iota(jnp.int32, block, axis) for axis in (0, 1))
    inside: Array = (row + number * block[0] < shape[0]) & (entry < shape[1])
    return inside


def _triton() -> Any:
    try:
        return importlib.import_module(TRITON)
    except ImportError:
        return None
