"""Layers shared by the networks, which act on the last axis, and their initializers."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Array, replaceable

Network = TypeVar("Network")

# Enough for singular values down to 1e-17 times the largest; none is smaller.
MAX_ITERATIONS = 100


@replaceable
def matmul(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Map [..., in], given in parts, to [..., out] by a kernel [in, out]."""
    return jnp.concatenate(parts, axis=-1) @ kernel


@replaceable
def expand(features: Array, shape: tuple[int, ...]) -> Array:
    """Return features [n] on all rows of a shape [..., n]."""
    return jnp.broadcast_to(features, shape)


class Linear(eqx.Module):
    """y = x kernel + bias, zero until initialized."""

    kernel: Array  # [in, out]
    bias: Array  # [out]

    def __init__(self, n_in: int, n_out: int):
        self.kernel = jnp.zeros((n_in, n_out))
        self.bias = jnp.zeros(n_out)

    def __call__(self, *parts: Array) -> Array:
        """Map [..., in], which may be given in parts, to [..., out]."""
        y = matmul(parts, self.kernel)
        return y + expand(self.bias, y.shape)


class LayerNorm(eqx.Module):
    """Rows with mean 0 and variance 1 over their features, then scaled and shifted."""

    gain: Array  # [features]
    bias: Array  # [features]
    epsilon: float = eqx.field(static=True, default=1e-5)

    def __init__(self, size: int):
        self.gain = jnp.ones(size)
        self.bias = jnp.zeros(size)

    def __call__(self, x: Array) -> Array:
        """Map [..., features] to the same shape; the variance is the biased one."""
        mean = jnp.mean(x, axis=-1, keepdims=True)
        centered = x - jnp.broadcast_to(mean, x.shape)
        variance = jnp.mean(centered**2, axis=-1, keepdims=True)
        deviation = jnp.sqrt(variance + self.epsilon)
        unit = centered / jnp.broadcast_to(deviation, x.shape)
        return unit * expand(self.gain, x.shape) + expand(self.bias, x.shape)


class NormedLinear(Linear):
    """A linear layer followed by LayerNorm."""

    norm: LayerNorm

    def __init__(self, n_in: int, n_out: int):
        super().__init__(n_in, n_out)
        self.norm = LayerNorm(n_out)

    def __call__(self, *parts: Array) -> Array:
        """Map [..., in], which may be given in parts, to [..., out]."""
        return self.norm(super().__call__(*parts))


def linears(*sizes: int, normed: bool = False) -> tuple[Linear, ...]:
    """Return a layer between each pair of sizes; the last layer is never normed."""
    hidden = NormedLinear if normed else Linear
    *inner, last = itertools.pairwise(sizes)
    return *(hidden(*pair) for pair in inner), Linear(*last)


def mlp(
    layers: tuple[Linear, ...], *parts: Array, activation: Callable[[Array], Array] = jax.nn.elu
) -> Array:
    """Apply layers in turn, with the activation between them."""
    for layer in layers[:-1]:
        parts = (activation(layer(*parts)),)
    return layers[-1](*parts)


@replaceable
def twin_values(twins: Callable[..., Array], *inputs: Array) -> Array:
    """Return the output of each critic, stacked on axis 0, for the same rows; [2, B] for twins."""
    return cast(Array, jax.vmap(lambda critic: critic(*inputs))(twins))


def min_value(twins: Callable[..., Array], *inputs: Array) -> Array:
    """Return the smaller of the twins' values, [B]."""
    return jnp.min(twin_values(twins, *inputs), axis=0)


def avg_l1_norm(x: Array, floor: float = 1e-8) -> Array:
    """TD7's AvgL1Norm: x over its mean absolute feature, at least `floor`."""
    mean = jnp.mean(jnp.abs(x), axis=-1, keepdims=True)
    return x / jnp.broadcast_to(jnp.maximum(mean, floor), x.shape)


def uniform_weights(network: Network, key: Array) -> Network:
    """Draw kernel and bias of every `Linear` from U(+-1/sqrt(n_in))."""
    # All numbers come from one draw: compiling a draw per layer takes ten seconds.

    def linear_layers(network: object) -> list[Linear]:
        leaves = jax.tree.leaves(network, is_leaf=lambda x: isinstance(x, Linear))
        return [leaf for leaf in leaves if isinstance(leaf, Linear)]

    def weights(network: object) -> list[Array]:
        return [x for layer in linear_layers(network) for x in (layer.kernel, layer.bias)]

    layers = linear_layers(network)
    sizes = [layer.kernel.size + layer.bias.size for layer in layers]
    flat = jax.random.uniform(key, (sum(sizes),), minval=-1, maxval=1)
    new: list[Array] = []
    for layer, part in zip(layers, jnp.split(flat, np.cumsum(sizes[:-1])), strict=True):
        scaled = part * layer.kernel.shape[-2] ** -0.5
        bias, kernel = jnp.split(scaled, [layer.bias.size])
        new += [kernel.reshape(layer.kernel.shape), bias]
    return cast(Network, eqx.tree_at(weights, network, new))


def draw_kernels(
    network: Network,
    layer_type: type[Any],
    draw: Callable[[Array, tuple[int, ...]], Array],
    transform: Callable[[Array], Array],
    key: Array,
) -> Network:
    """Fill the kernels [in, out] of all layers of one type from one draw."""
    # `draw` is as `jax.random.normal`; `transform` maps independent numbers to a kernel.
    nodes, structure = jax.tree.flatten(network, is_leaf=lambda node: isinstance(node, layer_type))
    places = [n for n, node in enumerate(nodes) if isinstance(node, layer_type)]
    sizes = [nodes[place].kernel.size for place in places]
    parts = jnp.split(draw(key, (sum(sizes),)), np.cumsum(sizes[:-1]))
    for place, part in zip(places, parts, strict=bool(places)):
        layer = nodes[place]
        nodes[place] = with_kernel(layer, transform(part.reshape(layer.kernel.shape)))
    return cast(Network, jax.tree.unflatten(structure, nodes))


def with_kernel(layer: Any, kernel: Array) -> Any:
    """Return the layer with another kernel."""
    return eqx.tree_at(lambda node: node.kernel, layer, kernel)


def orthogonal(numbers: Array) -> Array:
    """Return orthonormal columns, or rows if those are fewer, from normal numbers."""
    # This is the polar factor, uniformly distributed as QR's, by Newton-Schulz iteration. QR itself
    # is avoided: several of them mapped in one program make jaxlib wait forever on machines with
    # few threads (seen with 0.10.2 on two cores).
    tall = numbers.shape[-2] >= numbers.shape[-1]
    x = numbers if tall else numbers.T
    rows, columns = x.shape
    one, tolerance = jnp.eye(columns), float(np.finfo(x.dtype).eps) ** 0.5
    exact = partial(jnp.matmul, precision="highest")

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, square, iterations = carry
        error = jnp.max(jnp.abs(square - one))
        return jnp.logical_and(error > tolerance, iterations < MAX_ITERATIONS)

    def iterate(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, square, iterations = carry
        x = exact(x, 1.5 * one - 0.5 * square)
        return x, exact(x.T, x), iterations + 1

    # Scaled to about the largest singular value, which may be exceeded by sqrt(3).
    x = x / (jnp.sqrt(rows) + jnp.sqrt(columns))
    start = x, exact(x.T, x), jnp.zeros((), dtype=int)
    x = iterate(jax.lax.while_loop(unfinished, iterate, start))[0]
    return x if tall else x.T
