"""How the update loop carries its state: in few arrays, of suitable sizes.

A GPU waits for kernel launches: an optimizer step, a sum of a metric or a counter for
each of fifty small arrays is fifty kernels, and one kernel if the arrays are one. XLA
also copies a kernel whose number of rows is not a multiple of 32 before every product.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.hypersphere import is_unit
from r2r2.compute.devices import is_accelerated

SMALL = 4096  # entries up to which a member's array is packed with others
PADDED_ROWS = 32  # kernels are padded to a multiple of these
KERNELS = "kernel", "kernel16"  # names of kernels, in 32 and in 16 bits


class Packed(NamedTuple):
    """A tree of arrays [S, ...] as the loop carries it."""

    small: Array  # [S, entries of all small arrays]
    large: list[Array]


def packs() -> bool:
    """Return whether packing helps on this device: it saves kernel launches."""
    # On a CPU it would make results depend on the fleet size.
    return is_accelerated()


class LoopPacking:
    """Packs a tree of arrays [S, ...] for the loop, and unpacks it.

    Arrays named as in `KERNELS`, [..., in, out], get rows of zeros, which stay zero:
    `matmul` multiplies them by zeros, so they have no gradient. Those of `UnitLinear`
    layers are carried transposed.
    """

    def __init__(self, tree: Any, packs: bool):
        self._packs = packs
        named, self._structure = jax.tree.flatten_with_path(tree)
        self._shapes = [leaf.shape for _, leaf in named]
        self._small = [_is_small(leaf) for _, leaf in named]
        self._kernel = [_name(path) in KERNELS for path, _ in named]
        self._transposed = _in_unit_layer(tree)
        sizes = [math.prod(x[1:]) for x in self._select(self._shapes, small=True)]
        self._ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]

    def pack(self, tree: Any) -> Packed:
        """Pack a tree, as it was given or as `unpack` returned it."""
        leaves = jax.tree.leaves(tree)
        if not self._packs:
            return Packed(jnp.zeros((len(leaves[0]), 0)), leaves)
        flat = [x.reshape(len(x), -1) for x in self._select(leaves, small=True)]
        empty = jnp.zeros((self._shapes[0][0], 0))
        kernels = self._select(self._kernel, small=False)
        large = [
            _pad_rows(x) if kernel else x
            for x, kernel in zip(self._select(leaves, small=False), kernels, strict=True)
        ]
        small = jnp.concatenate(flat, axis=1) if flat else empty
        return Packed(small, self._transpose(large))

    def unpack(self, packed: Packed) -> Any:
        """Return the tree, in which kernels have rows of zeros."""
        if not self._packs:
            return jax.tree.unflatten(self._structure, packed.large)
        parts = iter(jnp.split(packed.small, self._ends[:-1], axis=1))
        shapes = iter(self._select(self._shapes, small=True))
        large = iter(self._transpose(packed.large))
        leaves = [
            next(parts).reshape(next(shapes)) if small else next(large) for small in self._small
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def restore(self, packed: Packed) -> Any:
        """Return the tree in its original shapes."""
        if not self._packs:
            return self.unpack(packed)
        leaves = jax.tree.leaves(self.unpack(packed))
        cut = [
            leaf[tuple(slice(length) for length in shape)]
            for leaf, shape in zip(leaves, self._shapes, strict=True)
        ]
        return jax.tree.unflatten(self._structure, cut)

    def _transpose(self, large: list[Array]) -> list[Array]:
        flags = self._select(self._transposed, small=False)
        pairs = zip(large, flags, strict=True)
        return [jnp.swapaxes(x, -1, -2) if flag else x for x, flag in pairs]

    def _select(self, leaves: list[Any], small: bool) -> list[Any]:
        pairs = zip(leaves, self._small, strict=True)
        return [leaf for leaf, is_small in pairs if is_small == small]


def _is_small(leaf: Array) -> bool:
    # Small arrays share one array, and so one type.
    real = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize > 2
    return real and math.prod(leaf.shape[1:]) <= SMALL


def _name(path: tuple[Any, ...]) -> object:
    """Return the attribute or key that holds a leaf."""
    return getattr(path[-1], "name", getattr(path[-1], "key", None)) if path else None


def _in_unit_layer(tree: Any) -> list[bool]:
    """Return for every leaf whether it is part of a `UnitLinear` layer."""
    nodes = jax.tree.leaves(tree, is_leaf=is_unit)
    return [is_unit(node) for node in nodes for _ in jax.tree.leaves(node)]


def _pad_rows(kernel: Array) -> Array:
    missing = -kernel.shape[-2] % PADDED_ROWS
    return jnp.pad(kernel, [(0, 0)] * (kernel.ndim - 2) + [(0, missing), (0, 0)])
