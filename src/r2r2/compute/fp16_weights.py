"""Networks whose large weights on the sphere stand beside themselves in 16 bits.

The loop of updates carries both: products read the 16 bits, the optimiser changes the
32 and writes the 16 anew. Whoever else changes a kernel has to remove or renew them.
"""

from typing import Any, TypeVar

import equinox as eqx
import jax

from r2r2.agents.base import Array
from r2r2.agents.networks.hypersphere import UnitLinear, map_units
from r2r2.compute import adam_kernel as step_kernel
from r2r2.compute.fp16_matmul import HALF

Network = TypeVar("Network")
LARGE = 2**17  # entries of a kernel from which on its products gain by it


def suits(layer: UnitLinear) -> bool:
    """Whether a layer is to have 16 bits: large, within their range, on a GPU.

    Who asks JAX for another precision than its default, gets that.
    """
    settings: Any = jax.config
    plain = settings.jax_default_matmul_precision in (None, "default")
    *_, rows, columns = layer.kernel.shape
    fits = layer.bounded and layer.kernel.dtype.itemsize == 4
    return rows * columns >= LARGE and fits and plain and step_kernel.available()


def added(tree: Network) -> Network:
    """The tree with 16 bits wherever they suit."""

    def one(layer: UnitLinear) -> UnitLinear:
        return with_half(layer, layer.kernel if suits(layer) else None)

    return map_units(one, tree)


def removed(tree: Network) -> Network:
    """The tree without any."""
    return map_units(lambda layer: with_half(layer, None), tree)


def borrowed(tree: Network, other: Network) -> Network:
    """The tree with those of another one of the same layers."""
    return map_units(lambda layer, theirs: with_half(layer, theirs.half), tree, other)


def renewed(tree: Network, other: Network) -> Network:
    """The tree with 16 bits of its own where another one of the same layers has some.

    Example:
        >>> new = UnitLinear(2, 3)  # of zeros
        >>> old = with_half(new, new.kernel + 1)
        >>> renewed(new, old).half.sum().item()
        0.0
    """

    def one(layer: UnitLinear, theirs: UnitLinear) -> UnitLinear:
        return with_half(layer, None if theirs.half is None else layer.kernel)

    return map_units(one, tree, other)


def with_half(layer: UnitLinear, kernel: Array | None) -> UnitLinear:
    """The layer with another kernel in 16 bits, or with none.

    The entries of a kernel on the sphere are at most 1, so they need no factor.
    """
    half = None if kernel is None else kernel.astype(HALF)
    new: UnitLinear = eqx.tree_at(
        lambda node: node.half, layer, half, is_leaf=lambda x: x is None
    )
    return new
