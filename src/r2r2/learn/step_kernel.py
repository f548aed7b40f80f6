"""A step of Adam on weights of unit columns, and of their target, as one GPU kernel.

XLA needs two: it cannot keep a column until its length is known, so the weights are
written, and read again, in between. Written in Pallas for its Triton backend, which is
announced to go some time after JAX 0.11: without it, and on a CPU, XLA's two are used.
"""

import importlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from r2r2.config.parts import Adam
from r2r2.core import Array
from r2r2.learn.networks.fused import inverse_length

TRITON = "jax.experimental.pallas.triton"
ENTRIES = 2048  # of each array, that one block of threads holds
WARPS = 8  # of 32 threads, in a block
OLDEST = 8  # the first compute capability of NVIDIA's that XLA compiles Triton for


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
    *given: Array,
    interpret: bool = False,
) -> list[Array]:
    """One step of Adam, after which the weights' columns have length 1.

    Columns are rows here: what a block of threads reads is then contiguous.

    Args:
        adam: the decays of the moments.
        rate: how far the target goes to the new weights.
        numbers: the step's size, and what is added to the root, [2].
        *given: [..., columns, entries of each]: gradients, Adam's first and second
            moments, weights and, where there is one, their target.
        interpret: on a CPU, for tests.

    Returns:
        All that was given but the gradients, as it is after the step.
    """
    flat = [x.reshape(-1, *x.shape[-2:]) for x in given]
    stacked, columns, entries = flat[0].shape
    width = pl.next_power_of_2(entries)
    height = min(pl.next_power_of_2(columns), max(1, ENTRIES // width))
    block = pl.BlockSpec((None, height, width), lambda i, j: (i, j, 0))
    changed = flat[1:]
    new = pl.pallas_call(
        partial(_unit_step, adam, rate, (columns, entries)),
        grid=(stacked, pl.cdiv(columns, height)),
        in_specs=[pl.BlockSpec((2,), lambda i, j: (0,)), *(block for _ in flat)],
        out_specs=[block for _ in changed],
        out_shape=jax.eval_shape(lambda same: same, changed),
        input_output_aliases={2 + n: n for n in range(len(changed))},
        compiler_params=_triton().CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
    )(numbers, *flat)
    return [x.reshape(given[0].shape) for x in new]


def _unit_step(
    adam: Adam, rate: float, shape: tuple[int, int], numbers: Any, *refs: Any
) -> None:
    """The kernel: whole columns, and zeros where the block is beyond the array."""
    triton = _triton()
    changed = len(refs) // 2
    given, results = refs[: changed + 1], refs[changed + 1 :]
    inside = covered(given[0].shape, pl.program_id(1), shape)
    grads, mean, square, weights, *target = (
        triton.load(ref, mask=inside, other=0.0) for ref in given
    )
    mean = mean + (1 - adam.beta1) * (grads - mean)
    square = square + (1 - adam.beta2) * (grads * grads - square)
    weights = weights - numbers[0] * (mean / (jnp.sqrt(square) + numbers[1]))
    lengths = jnp.sum(weights * weights, axis=1, keepdims=True)
    weights = weights * inverse_length(lengths)
    moved = [rate * weights + (1 - rate) * old for old in target]
    new = mean, square, weights, *moved
    for ref, value in zip(results, new, strict=True):
        triton.store(ref, value, mask=inside)


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
