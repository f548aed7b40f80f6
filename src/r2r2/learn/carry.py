"""How the loop of updates carries what it changes: in few arrays, of apt sizes.

A GPU waits for its launches: an optimiser step, a sum of a metric or a counter for each
of fifty small arrays are fifty kernels, and one kernel if the arrays are one. And XLA
copies a kernel whose rows are no round number before every product with it.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.core import Array

SMALL = 4096  # entries up to which an array of a member travels with others
ROWS = 32  # kernels have a multiple of so many


class Packed(NamedTuple):
    """A tree of arrays [S, ...] on its way."""

    small: Array  # [S, all entries of the small ones]
    large: list[Array]


class Layout:
    """Between a tree of arrays [S, ...] and how the loop carries it.

    Only floating-point arrays are changed. A kernel [.., in, out] gets rows of zeros,
    which stay zero: `product` gives them inputs of zero, so they have no gradient.

    Example:
        >>> tree = {"kernel": jnp.ones((1, 100, 50)), "bias": jnp.ones((1, 50))}
        >>> packed = Layout(tree).pack(tree)
        >>> packed.small.shape, [x.shape for x in packed.large]
        ((1, 50), [(1, 128, 50)])
        >>> Layout(tree).restore(packed)["kernel"].shape
        (1, 100, 50)
    """

    def __init__(self, tree: Any):
        leaves, self._structure = jax.tree.flatten(tree)
        self._shapes = [leaf.shape for leaf in leaves]
        self._small = [_is_small(leaf) for leaf in leaves]
        sizes = [math.prod(x[1:]) for x in self._of(self._shapes, small=True)]
        self._ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]

    def pack(self, tree: Any) -> Packed:
        """What the loop carries of a tree, as it came or as `unpack` gave it."""
        leaves = jax.tree.leaves(tree)
        flat = [x.reshape(len(x), -1) for x in self._of(leaves, small=True)]
        large = [_with_rows(x) for x in self._of(leaves, small=False)]
        return Packed(jnp.concatenate(flat, axis=1), large)

    def unpack(self, packed: Packed) -> Any:
        """The tree, with the kernels' rows of zeros."""
        parts = iter(jnp.split(packed.small, self._ends[:-1], axis=1))
        shapes = iter(self._of(self._shapes, small=True))
        large = iter(packed.large)
        leaves = [
            next(parts).reshape(next(shapes)) if small else next(large)
            for small in self._small
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def restore(self, packed: Packed) -> Any:
        """The tree in the shapes in which it came."""
        leaves = jax.tree.leaves(self.unpack(packed))
        cut = [
            leaf[tuple(slice(length) for length in shape)]
            for leaf, shape in zip(leaves, self._shapes, strict=True)
        ]
        return jax.tree.unflatten(self._structure, cut)

    def _of(self, leaves: list[Any], small: bool) -> list[Any]:
        return [
            leaf for leaf, is_ in zip(leaves, self._small, strict=True) if is_ == small
        ]


def _is_small(leaf: Array) -> bool:
    return _is_real(leaf) and math.prod(leaf.shape[1:]) <= SMALL


def _is_real(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _with_rows(leaf: Array) -> Array:
    if not _is_real(leaf) or leaf.ndim < 3:
        return leaf
    missing = -leaf.shape[-2] % ROWS
    return jnp.pad(leaf, [(0, 0)] * (leaf.ndim - 2) + [(0, missing), (0, 0)])
