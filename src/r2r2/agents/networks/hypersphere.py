"""The layers of SimbaV2 (Lee et al., 2025): weights and features on the unit sphere.

Layers with constrained weights are those of type `UnitLinear`; `project` scales their
columns to length 1 and is part of every optimizer step.
"""

from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.agents.base import Array, replaceable
from r2r2.agents.networks.layers import (
    Linear,
    draw_kernels,
    expand,
    matmul,
    orthogonal,
    with_kernel,
)

Network = TypeVar("Network")
MIN_LENGTH = 1e-8  # shorter vectors are divided by this


@replaceable
def normalize(x: Array, axis: int = -1) -> Array:
    """Divide vectors by their lengths, or by `MIN_LENGTH` if they are shorter."""
    # The minimum is taken under the root, so the gradient at a zero vector is finite.
    squares = jnp.sum(x**2, axis=axis, keepdims=True)
    length = jnp.sqrt(jnp.maximum(squares, MIN_LENGTH**2))
    return x / jnp.broadcast_to(length, x.shape)


@replaceable
def scale_and_normalize(x: Array, gain: Array) -> Array:
    """Return normalize(gain * x); x is [..., n] and gain [n]."""
    return normalize(x * expand(gain, x.shape))


@replaceable
def scaled_relu(x: Array, gain: Array) -> Array:
    """Return relu(gain * x); x is [..., n] and gain [n]."""
    return jax.nn.relu(x * expand(gain, x.shape))


@replaceable
def lerp(x: Array, goal: Array, alpha: Array) -> Array:
    """Move points x [..., n] towards the directions of `goal`, by a fraction alpha [n]."""
    return normalize(x + expand(alpha, x.shape) * (normalize(goal) - x))


@replaceable
def log_softmax(logits: Array) -> Array:
    """Return log-probabilities of logits [..., n]."""
    return jax.nn.log_softmax(logits)


class UnitLinear(eqx.Module):
    """A linear map without bias whose columns have length 1, zero until initialized."""

    kernel: Array  # [in, out]
    bounded: bool = eqx.field(static=True)  # inputs are made of points on spheres

    def __init__(self, n_in: int, n_out: int, bounded: bool = True):
        self.kernel = jnp.zeros((n_in, n_out))
        self.bounded = bounded

    def __call__(self, *parts: Array) -> Array:
        """Map [..., in], which may be given in parts, to [..., out]."""
        return matmul((jnp.concatenate(parts, axis=-1),), self.kernel)


def is_unit(node: object) -> bool:
    """Return whether a part of a network is a `UnitLinear`."""
    return isinstance(node, UnitLinear)


def project(network: Network) -> Network:
    """Scale the columns of every `UnitLinear`, [..., in, out], to length 1."""

    def project_layer(node: Any) -> Any:
        return with_kernel(node, normalize(node.kernel, axis=-2)) if is_unit(node) else node

    return cast(Network, jax.tree.map(project_layer, network, is_leaf=is_unit))


class Scaler(eqx.Module):
    """A learned gain per feature; it starts at `scale` and acts as `init`.

    The smaller `scale` is, the faster Adam's steps of fixed size change the gain.
    """

    gain: Array  # [features]
    factor: float = eqx.field(static=True)

    def __init__(self, size: int, init: float, scale: float):
        self.gain = jnp.full(size, scale, dtype=float)
        self.factor = init / scale

    def __call__(self, x: Array) -> Array:
        """Scale [..., features]."""
        return x * expand(self.gains(), x.shape)

    def gains(self) -> Array:
        """Return the factors of the features, [features]."""
        return self.gain * self.factor


class Embed(eqx.Module):
    """Maps any vector to a point on the sphere: normalize(scale * W [x, shift]).

    The appended constant preserves the length of x. SimbaV2 normalizes [x, shift]
    before W as well, which changes nothing: the outer normalization removes any factor.
    """

    linear: UnitLinear
    scale: Scaler
    shift: float = eqx.field(static=True)

    def __init__(self, n_in: int, width: int, shift: float, bounded: bool = False):
        self.linear = UnitLinear(n_in + 1, width, bounded)
        self.scale = Scaler(width, init=(2 / width) ** 0.5, scale=(2 / width) ** 0.5)
        self.shift = shift

    def __call__(self, *parts: Array) -> Array:
        """Map [..., in], which may be given in parts, to [..., width]."""
        constant = jnp.full_like(parts[0][..., :1], self.shift)
        return scale_and_normalize(self.linear(*parts, constant), self.scale.gains())


class LerpBlock(eqx.Module):
    """A residual block: normalize(x + alpha * (normalize(mlp(x)) - x))."""

    up: UnitLinear
    scale: Scaler
    down: UnitLinear
    alpha: Scaler

    def __init__(self, width: int, expansion: int, blocks: int):
        inner, gain = expansion * width, (2 / width / expansion) ** 0.5
        self.up = UnitLinear(width, inner)
        self.scale = Scaler(inner, init=gain, scale=gain)
        self.down = UnitLinear(inner, width)
        self.alpha = Scaler(width, init=1 / (blocks + 1), scale=width**-0.5)

    def __call__(self, x: Array) -> Array:
        """Map [..., width] to the same shape."""
        # The constant keeps a row of dead units from becoming the zero vector.
        hidden = scaled_relu(self.up(x), self.scale.gains()) + 1e-8
        return lerp(x, self.down(hidden), self.alpha.gains())


class Head(eqx.Module):
    """Maps points on the sphere to outputs, without an activation."""

    inner: UnitLinear
    scale: Scaler
    outer: UnitLinear
    bias: Array  # [out]

    def __init__(self, width: int, n_out: int):
        self.inner = UnitLinear(width, width)
        self.scale = Scaler(width, init=1.0, scale=1.0)
        self.outer = UnitLinear(width, n_out)
        self.bias = jnp.zeros(n_out)

    def __call__(self, x: Array) -> Array:
        """Map [..., width] to [..., out]."""
        y = self.outer(self.scale(self.inner(x)))
        return y + expand(self.bias, y.shape)


def sphere_weights(network: Network, key: Array) -> Network:
    """Draw kernels: orthogonal with unit columns, or LeCun-normal for `Linear`."""
    k_unit, k_linear = jax.random.split(key)
    network = draw_kernels(network, UnitLinear, jax.random.normal, orthogonal, k_unit)
    network = draw_kernels(
        network, Linear, _truncated_normal, lambda x: x / jnp.sqrt(x.shape[-2]), k_linear
    )
    return project(network)


def _truncated_normal(key: Array, shape: tuple[int, ...]) -> Array:
    # Truncation at 2 reduces the deviation to 0.8796.
    return jax.random.truncated_normal(key, -2, 2, shape) / 0.87962566103423978
