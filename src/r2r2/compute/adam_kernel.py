"""One step of Adam on unit-column weights, and on their target, as one GPU kernel.

XLA needs two kernels: it cannot hold a column until its length is known, so weights are
written and read again in between. Written in Pallas for its Triton backend, which is
announced to be removed after JAX 0.11; without it, and on a CPU, XLA's are used.
"""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from r2r2.agents.base import Array
from r2r2.compute.devices import platform, training_device
from r2r2.compute.fast_ops import inverse_length
from r2r2.config.common import Adam

TRITON = "jax.experimental.pallas.triton"
TILE_ENTRIES = 2048  # of each array, that a thread block holds at a time
BLOCKS = 132  # thread blocks per network: as many as an H200 has processors
WARPS = 8  # of 32 threads, in a block
MIN_CAPABILITY = 8  # the first NVIDIA compute capability that XLA compiles Triton for


class _Tiles(NamedTuple):
    """How columns are distributed: `height` at a time, to every block in turn."""

    columns: int
    entries: int  # of a column
    height: int
    width: int  # of a tile, a power of 2
    blocks: int

    @property
    def rounds(self) -> int:
        return pl.cdiv(pl.cdiv(self.columns, self.height), self.blocks)

    def mask(self, number: Any) -> Array:
        """Return which entries of a tile lie within the array."""
        return tile_mask((self.height, self.width), number, (self.columns, self.entries))


def available() -> bool:
    """Return whether programs are for a GPU that JAX's Triton backend supports."""
    if platform() != "gpu" or _triton() is None:
        return False
    capability: str = getattr(training_device(), "compute_capability", "")
    major, _, _ = capability.partition(".")
    return major.isdigit() and int(major) >= MIN_CAPABILITY  # AMD's are names


def unit_step(
    adam: Adam,
    tau: float,
    numbers: Array,
    arrays: list[Array],
    copies: Sequence[Array] = (),
    interpret: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Take one step of Adam, after which columns have length 1; return arrays and copies."""
    # Columns are rows here, so that the reads of a thread block are contiguous. Numbers are the
    # step size and the number added to the root. Arrays, [..., columns, entries of a column], are
    # gradients, both moments, weights and, if there is one, their target; all but the gradients are
    # returned. Copies, in 16 bits, of weights and target are only written.
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (*arrays, *copies)]
    stacked, written = len(flat[0]), flat[1:]
    columns, entries = flat[0].shape[1:]
    width = pl.next_power_of_2(entries)
    height = min(pl.next_power_of_2(columns), max(1, TILE_ENTRIES // width))
    tiles = _Tiles(columns, entries, height, width, min(pl.cdiv(columns, height), BLOCKS))
    padded = tiles.rounds * tiles.blocks * tiles.height, tiles.width
    network = pl.BlockSpec((None, *padded), lambda i, j: (i, 0, 0))
    new = pl.pallas_call(
        partial(_unit_step, adam, tau, tiles, len(arrays)),
        grid=(stacked, tiles.blocks),
        in_specs=[pl.BlockSpec((2,), lambda i, j: (0,)), *(network for _ in flat)],
        out_specs=[network for _ in written],
        out_shape=jax.eval_shape(lambda same: same, written),
        input_output_aliases={2 + n: n for n in range(len(written))},
        compiler_params=_triton().CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
    )(numbers, *flat)
    shaped = [x.reshape(arrays[0].shape) for x in new]
    return shaped[: len(arrays) - 1], shaped[len(arrays) - 1 :]


def _unit_step(
    adam: Adam, tau: float, tiles: _Tiles, inputs: int, numbers: Any, *refs: Any
) -> None:
    """Run the kernel on whole columns; tiles hold zeros beyond the array."""
    # The first `inputs` refs are read; refs are all arrays, then all but the gradients.
    triton = _triton()
    arrays, results = refs[:inputs], refs[len(refs) // 2 + 1 :]
    size, floor, block = numbers[0], numbers[1], pl.program_id(1).astype(int)

    def step(turn: Any, _: None) -> None:
        tile = block + turn * tiles.blocks
        mask = tiles.mask(tile)
        part = pl.ds(tile * tiles.height, tiles.height), pl.ds(0, tiles.width)
        grads, mean, square, weights, *target = (
            triton.load(ref.at[part], mask=mask, other=0.0) for ref in arrays
        )
        mean = mean + (1 - adam.beta1) * (grads - mean)
        square = square + (1 - adam.beta2) * (grads * grads - square)
        weights = weights - size * (mean / (jnp.sqrt(square) + floor))
        lengths = jnp.sum(weights * weights, axis=1, keepdims=True)
        weights = weights * inverse_length(lengths)
        moved = [tau * weights + (1 - tau) * old for old in target]
        new = mean, square, weights, *moved
        copies = new[2 * len(new) - len(results) :]
        for ref, value in zip(results, (*new, *copies), strict=True):
            triton.store(ref.at[part], value.astype(ref.dtype), mask=mask)

    jax.lax.fori_loop(0, tiles.rounds, step, None)


def tile_mask(tile: tuple[int, int], number: Any, shape: tuple[int, int]) -> Array:
    """Return which entries of the `number`-th tile of rows lie within `shape`."""
    row, entry = (jax.lax.broadcasted_iota(jnp.int32, tile, axis) for axis in (0, 1))
    return cast(Array, (row + number * tile[0] < shape[0]) & (entry < shape[1]))


def _triton() -> Any:
    try:
        return importlib.import_module(TRITON)
    except ImportError:
        return None
