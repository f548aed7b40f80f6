"""Random kernels for networks that are built empty."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Array

Network = TypeVar("Network")

# A singular value of 1e-17 of the largest would take as many: none is as small.
MOST_STEPS = 100


def draw_kernels(
    network: Network,
    kind: type[Any],
    draw: Callable[[Array, tuple[int, ...]], Array],
    shape: Callable[[Array], Array],
    key: Array,
) -> Network:
    """The network with the kernel of every layer of one type drawn anew.

    All numbers are one draw: compiling a draw per layer takes ten seconds for TD7.

    Args:
        network: a tree of layers.
        kind: the type of the layers to fill; it has a field `kernel`, [in, out].
        draw: as `jax.random.normal`, called with a key and a shape.
        shape: makes a kernel of independent numbers of its size.
        key: the draw's.

    Example:
        >>> from r2r2.agents.networks.layers import Linear
        >>> layer = Linear(4, 3)
        >>> key = jax.random.key(0)
        >>> layer = draw_kernels(layer, Linear, jax.random.normal, orthogonal, key)
        >>> bool(jnp.allclose(layer.kernel.T @ layer.kernel, jnp.eye(3), atol=1e-6))
        True
    """
    leaves, structure = jax.tree.flatten(
        network, is_leaf=lambda node: isinstance(node, kind)
    )
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, kind)]
    sizes = [leaves[place].kernel.size for place in places]
    parts = jnp.split(draw(key, (sum(sizes),)), np.cumsum(sizes[:-1]))
    for place, part in zip(places, parts, strict=bool(places)):
        layer = leaves[place]
        leaves[place] = with_kernel(layer, shape(part.reshape(layer.kernel.shape)))
    return cast(Network, jax.tree.unflatten(structure, leaves))


def with_kernel(layer: Any, kernel: Array) -> Any:
    """The layer with another kernel."""
    return eqx.tree_at(lambda node: node.kernel, layer, kernel)


def orthogonal(numbers: Array) -> Array:
    """Orthonormal columns, or rows where those are fewer, from normal numbers.

    The polar factor, which is uniformly distributed as QR's is, by Newton's and
    Schulz's iteration. Not by QR: where a program maps several, jaxlib's hold every
    thread of a small machine while they wait for one (seen with 0.10.2 on two cores).
    """
    tall = numbers.shape[-2] >= numbers.shape[-1]
    x = numbers if tall else numbers.T
    rows, columns = x.shape
    one, near = jnp.eye(columns), float(np.finfo(x.dtype).eps) ** 0.5
    exact = partial(jnp.matmul, precision="highest")

    def go_on(carry: tuple[Array, Array, Array]) -> Array:
        _, square, steps = carry
        off = jnp.max(jnp.abs(square - one))
        return jnp.logical_and(off > near, steps < MOST_STEPS)

    def closer(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, square, steps = carry
        x = exact(x, 1.5 * one - 0.5 * square)
        return x, exact(x.T, x), steps + 1

    # About the largest singular value: it may be passed by the root of 3.
    x = x / (jnp.sqrt(rows) + jnp.sqrt(columns))
    start = x, exact(x.T, x), jnp.zeros((), dtype=int)
    x = closer(jax.lax.while_loop(go_on, closer, start))[0]
    return x if tall else x.T
