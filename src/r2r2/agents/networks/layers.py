"""Layers shared by the networks; all act on the last axis."""

import itertools
from collections.abc import Callable
from typing import TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Array
from r2r2.compute.matmul import matmul, on_rows

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

    def __call__(self, *parts: Array) -> Array:
        """Maps [..., in], which may come in parts, to [..., out]."""
        y = matmul(parts, self.kernel)
        return y + on_rows(self.bias, y.shape)


class LayerNorm(eqx.Module):
    """Each row with mean 0 and variance 1 over its features, then scaled and moved."""

    gain: Array  # [features]
    bias: Array  # [features]
    epsilon: float = eqx.field(static=True, default=1e-5)

    def __init__(self, size: int):
        self.gain = jnp.ones(size)
        self.bias = jnp.zeros(size)

    def __call__(self, x: Array) -> Array:
        """Maps [..., features] to the same; the variance is the biased one."""
        mean = jnp.mean(x, axis=-1, keepdims=True)
        centred = x - jnp.broadcast_to(mean, x.shape)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        deviation = jnp.sqrt(variance + self.epsilon)
        unit = centred / jnp.broadcast_to(deviation, x.shape)
        return unit * on_rows(self.gain, x.shape) + on_rows(self.bias, x.shape)


class NormedLinear(Linear):
    """A linear layer whose output passes LayerNorm."""

    norm: LayerNorm

    def __init__(self, n_in: int, n_out: int):
        super().__init__(n_in, n_out)
        self.norm = LayerNorm(n_out)

    def __call__(self, *parts: Array) -> Array:
        """Maps [..., in], which may come in parts, to [..., out]."""
        return self.norm(super().__call__(*parts))


def linears(*sizes: int, normed: bool = False) -> tuple[Linear, ...]:
    """A layer between each pair of neighbouring sizes; the last is never normed."""
    hidden = NormedLinear if normed else Linear
    *inner, last = itertools.pairwise(sizes)
    return *(hidden(*pair) for pair in inner), Linear(*last)


def mlp(
    layers: tuple[Linear, ...],
    *parts: Array,
    activation: Callable[[Array], Array] = jax.nn.elu,
) -> Array:
    """The layers one after the other, with the activation between them."""
    for layer in layers[:-1]:
        parts = (activation(layer(*parts)),)
    return layers[-1](*parts)


def twin_values(twins: Callable[..., Array], *inputs: Array) -> Array:
    """Both critics' values of the same rows, [2, B]; twins are stacked on axis 0.

    Also of one, or of critics with several outputs. Each gets inputs of its own: a
    product of the shared ones with all kernels side by side would copy the kernels, and
    give their gradients in an order that has to be undone.
    """
    count = len(jax.tree.leaves(twins)[0])
    own = [jnp.broadcast_to(x, (count, *x.shape)) for x in inputs]
    q: Array = jax.vmap(lambda critic, *rows: critic(*rows))(twins, *own)
    return q


def lesser_value(twins: Callable[..., Array], *inputs: Array) -> Array:
    """The smaller of both, [B], as the targets of twins take it."""
    return jnp.min(twin_values(twins, *inputs), axis=0)


def random_weights(network: Network, key: Array) -> Network:
    """The network with every `Linear` at U(+-1/sqrt(n_in)), kernel and bias.

    All numbers are one draw: compiling a draw per layer takes ten seconds for TD7.

    Example:
        >>> layer = random_weights(Linear(4, 3), jax.random.key(0))
        >>> bool(jnp.abs(layer.kernel).max() <= 0.5)
        True
    """
    layers = _linear_layers(network)
    sizes = [layer.kernel.size + layer.bias.size for layer in layers]
    flat = jax.random.uniform(key, (sum(sizes),), minval=-1, maxval=1)
    new: list[Array] = []
    for layer, part in zip(layers, jnp.split(flat, np.cumsum(sizes[:-1])), strict=True):
        scaled = part * layer.kernel.shape[-2] ** -0.5
        bias, kernel = jnp.split(scaled, [layer.bias.size])
        new += [kernel.reshape(layer.kernel.shape), bias]
    return cast(Network, eqx.tree_at(_linear_weights, network, new))


def _linear_layers(network: object) -> list[Linear]:
    def is_linear(node: object) -> bool:
        return isinstance(node, Linear)

    leaves = jax.tree.leaves(network, is_leaf=is_linear)
    return [leaf for leaf in leaves if isinstance(leaf, Linear)]


def _linear_weights(network: object) -> list[Array]:
    pairs = ((layer.kernel, layer.bias) for layer in _linear_layers(network))
    return [weights for pair in pairs for weights in pair]


def avg_l1_norm(x: Array, floor: float = 1e-8) -> Array:
    """TD7's AvgL1Norm: x over its mean absolute feature, at least `floor`."""
    mean = jnp.mean(jnp.abs(x), axis=-1, keepdims=True)
    return x / jnp.broadcast_to(jnp.maximum(mean, floor), x.shape)
