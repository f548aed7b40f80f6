"""Between an old and a new version of a tree: by a condition, or part of the way."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array

Tree = TypeVar("Tree")


def cond_apply(condition: Array, change: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """`change(tree)` where a scalar condition holds; the other arm costs nothing."""
    return cast(Tree, jax.lax.cond(condition, change, lambda same: same, tree))


def cond(
    condition: Array | bool, yes: Callable[[], Tree], no: Callable[[], Tree]
) -> Tree:
    """`yes()` or `no()`; a condition that is known while tracing leaves no branch."""
    if isinstance(condition, bool):
        return yes() if condition else no()
    return cast(Tree, jax.lax.cond(condition, yes, no))


def select(chosen: Array, new: Tree, old: Tree) -> Tree:
    """Per member: the leaves of `new` where `chosen` [S] holds, else those of `old`."""

    def leaf(a: Array, b: Array) -> Array:
        mask = chosen.reshape(chosen.shape + (1,) * (a.ndim - chosen.ndim))
        return jnp.where(jnp.broadcast_to(mask, a.shape), a, b)

    return cast(Tree, jax.tree.map(leaf, new, old))


def polyak(rate: float, online: Tree, target: Tree) -> Tree:
    """The target moved towards the online network by a fraction of the way.

    Example:
        >>> polyak(0.25, {"w": jnp.array(4.0)}, {"w": jnp.array(0.0)})["w"].item()
        1.0
    """

    def leaf(new: Array, old: Array) -> Array:
        return rate * new + (1 - rate) * old

    return cast(Tree, jax.tree.map(leaf, online, target))
