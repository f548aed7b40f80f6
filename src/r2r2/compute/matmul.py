"""Products of rows with kernels, and sums over rows, as XLA compiles them well."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.compute.loop_packing import ROWS

BLOCK = 32  # rows of which a sum is one part, at least
PARTS = 16  # of a sum, at most, where there are many rows
ALIGNED = 8  # columns: rows that hold a multiple begin at round addresses
NARROW = 64  # columns up to which filling up costs what it gains
# What XLA does not look across, neither to merge what is on both sides nor to fuse it.
barrier: Callable[[Any], Any] = jax.lax.optimization_barrier


@jax.custom_vjp
def matmul(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Maps [..., in], in parts side by side, by a kernel [in, out] to [..., out].

    A kernel may have the rows that `carry` adds: features of zero stand for them.

    The derivative is written out because JAX's gives the kernel's transposed, which in
    the loop of updates costs a copy of every weight and of both its moments, and gives
    a gradient to all parts, of which often one needs it. A single output is written as
    a sum: XLA makes one of it anyway, and without the barrier fuses it with layers of
    other networks into a kernel that keeps few of a GPU's processors busy.
    """
    x = concat_and_pad(parts, kernel)
    if kernel.shape[1] > 1:
        return (x @ _aligned(kernel))[..., : kernel.shape[1]]
    column = jnp.broadcast_to(barrier(kernel[:, 0]), x.shape)
    return jnp.sum(x * column, axis=-1, keepdims=True)


def _product(parts: tuple[Any, ...], kernel: Any) -> tuple[Array, Any]:
    values = tuple(part.value for part in parts)
    needed = tuple(part.value if part.perturbed else None for part in parts)
    return matmul(values, kernel.value), (values, needed, kernel.value)


def _derivatives(inputs: Any, dy: Array) -> tuple[tuple[Array | None, ...], Array]:
    parts, needed, kernel = inputs
    x = concat_and_pad(parts, kernel)
    if kernel.shape[1] > 1:
        dk = jnp.einsum("...i,...o->io", x, _aligned(dy))[:, : kernel.shape[1]]
    else:
        dk = sum_of_rows(x * jnp.broadcast_to(dy, x.shape))[:, None]
    return _for_parts(parts, needed, kernel, dy), dk


def _for_parts(
    parts: tuple[Array, ...], needed: tuple[Any, ...], kernel: Array, dy: Array
) -> tuple[Array | None, ...]:
    """The gradients of those parts that need one, from the first to the last."""
    ends = list(itertools.accumulate(part.shape[-1] for part in parts))
    places = [n for n, part in enumerate(needed) if part is not None]
    if not places:
        return (None,) * len(parts)
    start = ends[places[0]] - parts[places[0]].shape[-1]
    dx = _aligned(dy) @ _aligned(kernel[start : ends[places[-1]]]).T
    return tuple(
        None if own is None else dx[..., end - part.shape[-1] - start : end - start]
        for own, part, end in zip(needed, parts, ends, strict=True)
    )


def _aligned(x: Array) -> Array:
    """With columns of zeros, so that every row begins at a round address.

    The libraries' products take two to three times as long over others.
    """
    columns = x.shape[-1]
    missing = -columns % ALIGNED if columns > NARROW else 0
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def concat_and_pad(parts: tuple[Array, ...], kernel: Array) -> Array:
    """The parts side by side, with zeros for the rows that `carry` gave a kernel."""
    features, rows = sum(part.shape[-1] for part in parts), kernel.shape[0]
    missing = rows - features
    if missing not in (0, -features % ROWS):
        raise ValueError(f"x has {features} features, the kernel has {rows} rows")
    x = jnp.concatenate(parts, axis=-1)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


matmul.defvjp(_product, _derivatives, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def on_rows(features: Array, shape: tuple[int, ...]) -> Array:
    """The same features [n] on all rows of a shape [..., n]."""
    return jnp.broadcast_to(features, shape)


def _on_rows(features: Array, shape: tuple[int, ...]) -> tuple[Array, None]:
    return on_rows(features, shape), None


def _sum_of_rows(shape: tuple[int, ...], _: None, dy: Array) -> tuple[Array]:
    return (sum_of_rows(dy),)


on_rows.defvjp(_on_rows, _sum_of_rows)


def sum_of_rows(x: Array) -> Array:
    """The sum of all rows [..., n], whatever stands before."""
    return column_sums(x.reshape(-1, x.shape[-1]))


def column_sums(x: Array) -> Array:
    """The sums of the columns of [..., rows, n], in blocks of rows first.

    XLA makes a sum part of whatever computes the rows. A sum over all of them then has
    that done by a tenth of a GPU's processors; blocks keep the others busy. The barrier
    is there because XLA would make one sum of both.
    """
    rows, columns = x.shape[-2:]
    size = max(BLOCK, rows // PARTS)
    if rows > size and rows % size == 0:
        blocks = x.reshape(*x.shape[:-2], -1, size, columns)
        x = barrier(jnp.sum(blocks, axis=-2))
    return jnp.sum(x, axis=-2)
