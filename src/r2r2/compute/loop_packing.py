"""How the loop of updates carries what it changes: in few arrays, of apt sizes.

A GPU waits for its launches: an optimiser step, a sum of a metric or a counter for each
of fifty small arrays are fifty kernels, and one kernel if the arrays are one. And XLA
copies a kernel whose rows are no round number before every product with it.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array

SMALL = 4096  # entries up to which an array of a member travels with others
ROWS = 32  # kernels have a multiple of so many
KERNELS = "kernel", "half"  # what they are called, in 32 and in 16 bits


class Packed(NamedTuple):
    """A tree of arrays [S, ...] on its way."""

    small: Array  # [S, all entries of the small ones]
    large: list[Array]


def packs() -> bool:
    """Whether it is worth it here.

    A CPU launches nothing, and there a member's bits must not hang on its company, as
    they would where one loop over all arrays is made for every number of members.
    """
    return jax.default_backend() != "cpu"


class LoopPacking:
    """Between a tree of arrays [S, ...] and how the loop carries it.

    What is one of `KERNELS`, [.., in, out], gets rows of zeros, which stay zero:
    `product` gives them inputs of zero, so they have no gradient. Those of a layer that
    says that they are `turned` travel with their columns as rows.

    Example:
        >>> tree = {"kernel": jnp.ones((1, 100, 50)), "bias": jnp.ones((1, 50))}
        >>> layout = LoopPacking(tree, packs=True)
        >>> packed = layout.pack(tree)
        >>> packed.small.shape, [x.shape for x in packed.large]
        ((1, 50), [(1, 128, 50)])
        >>> layout.restore(packed)["kernel"].shape
        (1, 100, 50)
    """

    def __init__(self, tree: Any, packs: bool):
        named, self._structure = jax.tree.flatten_with_path(tree)
        self._shapes = [leaf.shape for _, leaf in named]
        self._small = [packs and _is_small(leaf) for _, leaf in named]
        self._kernel = [packs and _name(path) in KERNELS for path, _ in named]
        self._turned = [packs and turned for turned in _turned(tree)]
        sizes = [math.prod(x[1:]) for x in self._of(self._shapes, small=True)]
        self._ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]

    def pack(self, tree: Any) -> Packed:
        """What the loop carries of a tree, as it came or as `unpack` gave it."""
        leaves = jax.tree.leaves(tree)
        none = jnp.zeros((self._shapes[0][0], 0))
        flat = [x.reshape(len(x), -1) for x in self._of(leaves, small=True)]
        kernels = self._of(self._kernel, small=False)
        large = [
            _with_rows(x) if kernel else x
            for x, kernel in zip(self._of(leaves, small=False), kernels, strict=True)
        ]
        large = self._with_turned(large)
        return Packed(jnp.concatenate(flat, axis=1) if flat else none, large)

    def unpack(self, packed: Packed) -> Any:
        """The tree, with the kernels' rows of zeros."""
        parts = iter(jnp.split(packed.small, self._ends[:-1], axis=1))
        shapes = iter(self._of(self._shapes, small=True))
        large = iter(self._with_turned(packed.large))
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

    def _with_turned(self, large: list[Array]) -> list[Array]:
        turned = zip(large, self._of(self._turned, small=False), strict=True)
        return [jnp.swapaxes(x, -1, -2) if turns else x for x, turns in turned]

    def _of(self, leaves: list[Any], small: bool) -> list[Any]:
        return [
            leaf for leaf, is_ in zip(leaves, self._small, strict=True) if is_ == small
        ]


def _is_small(leaf: Array) -> bool:
    # Small ones share an array, and so a type; 16 bits have one of their own.
    real = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize > 2
    return real and math.prod(leaf.shape[1:]) <= SMALL


def _name(path: tuple[Any, ...]) -> object:
    """What a leaf is called by whatever holds it: an attribute or a key."""
    return getattr(path[-1], "name", getattr(path[-1], "key", None)) if path else None


def _turned(tree: Any) -> list[bool]:
    """Of every leaf, whether it is part of a layer whose kernel is to be turned."""

    def turns(node: object) -> bool:
        return getattr(node, "turned", False)

    def leaves(node: Any) -> Any:
        return jax.tree.map(lambda _: turns(node), node)

    flags: list[bool] = jax.tree.leaves(jax.tree.map(leaves, tree, is_leaf=turns))
    return flags


def _with_rows(kernel: Array) -> Array:
    missing = -kernel.shape[-2] % ROWS
    return jnp.pad(kernel, [(0, 0)] * (kernel.ndim - 2) + [(0, missing), (0, 0)])
