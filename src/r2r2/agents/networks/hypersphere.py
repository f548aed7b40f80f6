"""The layers of SimbaV2 (Lee et al., 2025): weights and features on the unit sphere.

A layer whose weights are constrained is told by its type, `UnitLinear`; `project` puts
them back, and is part of every optimiser step.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.initializers import draw_kernels, orthogonal, with_kernel
from r2r2.agents.networks.layers import Linear
from r2r2.compute.fp16_matmul import fp16_matmul
from r2r2.compute.fused import along_sphere, gated, inverse_length, scaled_to_sphere
from r2r2.compute.matmul import column_sums, concat_and_pad, matmul, on_rows

Network = TypeVar("Network")


class UnitLinear(eqx.Module):
    """A linear map without bias whose columns have length 1, zero until drawn."""

    kernel: Array  # [in, out]
    half: Array | None  # the kernel in 16 bits, or nothing: see `halves`
    bounded: bool = eqx.field(static=True)  # inputs are far below 1,000
    turned: ClassVar[bool] = True  # the loop of updates carries columns as rows

    def __init__(self, n_in: int, n_out: int, bounded: bool = True):
        self.kernel = jnp.zeros((n_in, n_out))
        self.half, self.bounded = None, bounded

    def __call__(self, x: Array) -> Array:
        """Maps [..., in] to [..., out]."""
        if self.half is None:
            return matmul((x,), self.kernel)
        return fp16_matmul(concat_and_pad((x,), self.kernel), self.kernel, self.half)


def project(tree: Network) -> Network:
    """The tree with the columns of every `UnitLinear` at length 1, the rest as it is.

    Kernels end in [in, out], whatever stands before: twins, members.

    Example:
        >>> layer = jax.tree.map(lambda x: x + 2.0, UnitLinear(4, 1))
        >>> project(layer).kernel[:, 0].tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    def onto_sphere(layer: UnitLinear) -> UnitLinear:
        squares = column_sums(layer.kernel**2)[..., None, :]
        scale = jnp.broadcast_to(inverse_length(squares), layer.kernel.shape)
        return cast(UnitLinear, with_kernel(layer, layer.kernel * scale))

    return map_units(onto_sphere, tree)


class Scaler(eqx.Module):
    """A learnt gain per feature; it starts at `scale` and acts as `init`.

    The smaller `scale` is, the faster Adam's steps of fixed size change the gain.
    """

    gain: Array  # [features]
    factor: float = eqx.field(static=True)

    def __init__(self, size: int, init: float, scale: float):
        self.gain = jnp.full(size, scale, dtype=float)
        self.factor = init / scale

    def __call__(self, x: Array) -> Array:
        """Scales [..., features]."""
        return x * on_rows(self.gains(), x.shape)

    def gains(self) -> Array:
        """What the features are multiplied by, [features]."""
        return self.gain * self.factor


class Embed(eqx.Module):
    """Any vector as a point on the sphere: unit(scale * W [x, shift]).

    The appended constant keeps the length of x. SimbaV2 takes [x, shift] to the sphere
    before W as well, which changes nothing: unit() loses any factor that comes before.

    Args:
        n_in: features of x.
        width: of the sphere.
        shift: the constant.
        bounded: whether x is made of points on spheres.
    """

    linear: UnitLinear
    scale: Scaler
    shift: float = eqx.field(static=True)

    def __init__(self, n_in: int, width: int, shift: float, bounded: bool = False):
        self.linear = UnitLinear(n_in + 1, width, bounded)
        self.scale = Scaler(width, init=(2 / width) ** 0.5, scale=(2 / width) ** 0.5)
        self.shift = shift

    def __call__(self, *parts: Array) -> Array:
        """Maps [..., in], which may come in parts, to [..., width]."""
        constant = jnp.full_like(parts[0][..., :1], self.shift)
        # Joined here: the gradient of some parts alone would copy their kernel's rows.
        x = concat_and_pad((*parts, constant), self.linear.kernel)
        return scaled_to_sphere(self.linear(x), self.scale.gains())


class LerpBlock(eqx.Module):
    """A residual step along the sphere: unit(x + alpha * (mlp(x) - x))."""

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
        """Maps [..., width] to the same."""
        # The floor keeps a row of dead units from becoming the zero vector.
        hidden = gated(self.up(x), self.scale.gains()) + 1e-8
        return along_sphere(x, self.down(hidden), self.alpha.gains())


class Head(eqx.Module):
    """Reads numbers off the sphere; without an activation."""

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
        """Maps [..., width] to [..., out]."""
        y = self.outer(self.scale(self.inner(x)))
        return y + on_rows(self.bias, y.shape)


def draw_weights(network: Network, key: Array) -> Network:
    """The network with random kernels; gains and biases stay as they were built.

    Those of `UnitLinear` are orthogonal, then of unit columns; those of `Linear` are
    LeCun-normal.
    """
    k_unit, k_plain = jax.random.split(key)
    units = draw_kernels(network, UnitLinear, jax.random.normal, orthogonal, k_unit)
    plain = draw_kernels(units, Linear, _normal_cut_at_2, _lecun, k_plain)
    return project(plain)


def _normal_cut_at_2(key: Array, shape: tuple[int, ...]) -> Array:
    # Cutting takes the deviation down to 0.8796.
    return jax.random.truncated_normal(key, -2, 2, shape) / 0.87962566103423978


def _lecun(numbers: Array) -> Array:
    return numbers / jnp.sqrt(numbers.shape[-2])


def map_units(function: Callable[..., UnitLinear], *trees: Network) -> Network:
    """The first tree, every `UnitLinear` as the function makes it of those of all."""

    def one(node: Any, *others: Any) -> Any:
        return function(node, *others) if is_unit(node) else node

    return cast(Network, jax.tree.map(one, *trees, is_leaf=is_unit))


def is_unit(node: object) -> bool:
    """Whether a part of a network is a layer whose weights are constrained."""
    return isinstance(node, UnitLinear)
