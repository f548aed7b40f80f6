"""Layers shared by the networks; all act on the last axis."""

from typing import TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.core import Array

Network = TypeVar("Network")


class Linear(eqx.Module):
    """y = x kernel + bias, zero until `random_weights` fills it.

    Written here because Equinox's takes one vector at a time: the vmap it needs costs
    transposes in the compiled gradient.
    """

    kernel: Array  # [in, out]
    bias: Array  # [out]

    def __init__(self, n_in: int, n_out: int):
        self.kernel = jnp.zeros((n_in, n_out))
        self.bias = jnp.zeros(n_out)

    def __call__(self, x: Array) -> Array:
        """Maps [..., in] to [..., out]."""
        y = x @ self.kernel
        return y + jnp.broadcast_to(self.bias, y.shape)


def linears(*sizes: int) -> tuple[Linear, ...]:
    """One linear layer between each pair of neighbouring sizes."""
    return tuple(map(Linear, sizes[:-1], sizes[1:]))


def random_weights(network: Network, key: Array) -> Network:
    """The network with every `Linear` at U(+-1/sqrt(n_in)), kernel and bias.

    All numbers are one draw: compiling a draw per layer takes ten seconds for TD7.

    Example:
        >>> layer = random_weights(Linear(4, 3), jax.random.key(0))
        >>> bool(jnp.abs(layer.kernel).max() <= 0.5)
        True
    """
    leaves, structure = jax.tree.flatten(network, is_leaf=_is_linear)
    sizes = [layer.kernel.size + layer.bias.size for layer in leaves]
    flat = jax.random.uniform(key, (sum(sizes),), minval=-1, maxval=1)
    filled: list[Linear] = []
    for layer, part in zip(leaves, jnp.split(flat, np.cumsum(sizes[:-1])), strict=True):
        scaled = part * layer.kernel.shape[-2] ** -0.5
        bias, kernel = jnp.split(scaled, [layer.bias.size])
        new = kernel.reshape(layer.kernel.shape), bias
        filled.append(eqx.tree_at(lambda node: (node.kernel, node.bias), layer, new))
    return cast(Network, jax.tree.unflatten(structure, filled))


def _is_linear(node: object) -> bool:
    return isinstance(node, Linear)


def avg_l1_norm(x: Array, floor: float = 1e-8) -> Array:
    """TD7's AvgL1Norm: x over its mean absolute feature, at least `floor`."""
    mean = jnp.mean(jnp.abs(x), axis=-1, keepdims=True)
    return x / jnp.broadcast_to(jnp.maximum(mean, floor), x.shape)
