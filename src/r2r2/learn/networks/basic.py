"""Layers shared by the networks; all act on the last axis."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.core import Array
from r2r2.learn.carry import ROWS

Network = TypeVar("Network")
BLOCK = 32  # rows
# What XLA does not look across, neither to merge what is on both sides nor to fuse it.
barrier: Callable[[Any], Any] = jax.lax.optimization_barrier


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
        y = product(parts, self.kernel)
        return y + on_rows(self.bias, y.shape)


@jax.custom_vjp
def product(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Maps [..., in], in parts side by side, by a kernel [in, out] to [..., out].

    A kernel may have the rows that `carry` adds: features of zero stand for them. The
    derivative is written out for three reasons. JAX's gives the kernel's transposed: in
    the loop of updates that costs a copy of every weight and of both its moments. It
    has a gradient for all parts, where often one needs it. And a single output is no
    matter for products, which XLA knows, nor for what it then makes of it: one kernel
    with whatever else is at hand, on a few of a GPU's processors.
    """
    x = filled(parts, kernel)
    if kernel.shape[1] > 1:
        return x @ kernel
    column = jnp.broadcast_to(barrier(kernel[:, 0]), x.shape)
    return jnp.sum(x * column, axis=-1, keepdims=True)


def _product(parts: tuple[Any, ...], kernel: Any) -> tuple[Array, Any]:
    values = tuple(part.value for part in parts)
    needed = tuple(part.value if part.perturbed else None for part in parts)
    return product(values, kernel.value), (values, needed, kernel.value)


def _derivatives(inputs: Any, dy: Array) -> tuple[tuple[Array | None, ...], Array]:
    parts, needed, kernel = inputs
    x = filled(parts, kernel)
    if kernel.shape[1] > 1:
        dk = jnp.einsum("...i,...o->io", x, dy)
    else:
        dk = sum_of_rows(x * jnp.broadcast_to(dy, x.shape))[:, None]
    return _for_parts(parts, needed, kernel, dy), dk


def _for_parts(
    parts: tuple[Array, ...], needed: tuple[Any, ...], kernel: Array, dy: Array
) -> tuple[Array | None, ...]:
    """The gradients of those parts that need one, from the first to the last."""
    ends = list(itertools.accumulate(part.shape[-1] for part in parts))
    places = [n for n, part in enumerate(needed) if part is not None]
    if not places:
        return (None,) * len(parts)
    start = ends[places[0]] - parts[places[0]].shape[-1]
    dx = dy @ kernel[start : ends[places[-1]]].T
    return tuple(
        None if own is None else dx[..., end - part.shape[-1] - start : end - start]
        for own, part, end in zip(needed, parts, ends, strict=True)
    )


def filled(parts: tuple[Array, ...], kernel: Array) -> Array:
    """The parts side by side, with zeros for the rows that `carry` gave a kernel."""
    features, rows = sum(part.shape[-1] for part in parts), kernel.shape[0]
    missing = rows - features
    if missing not in (0, -features % ROWS):
        raise ValueError(f"x has {features} features, the kernel has {rows} rows")
    x = jnp.concatenate(parts, axis=-1)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


product.defvjp(_product, _derivatives, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def on_rows(features: Array, shape: tuple[int, ...]) -> Array:
    """The same features [n] on all rows of a shape [..., n]."""
    return jnp.broadcast_to(features, shape)


def _on_rows(features: Array, shape: tuple[int, ...]) -> tuple[Array, None]:
    return on_rows(features, shape), None


def _sum_of_rows(shape: tuple[int, ...], _: None, dy: Array) -> tuple[Array]:
    return (sum_of_rows(dy),)


on_rows.defvjp(_on_rows, _sum_of_rows)


def sum_of_rows(x: Array) -> Array:
    """The sum of all rows [..., n], whatever stands before."""
    return column_sums(x.reshape(-1, x.shape[-1]))


def column_sums(x: Array) -> Array:
    """The sums of the columns of [..., rows, n], in blocks of rows first.

    XLA makes a sum part of whatever computes the rows. A sum over all of them then has
    that done by a tenth of a GPU's processors; blocks keep the others busy. The barrier
    is there because XLA would make one sum of both.
    """
    rows, columns = x.shape[-2:]
    if rows > BLOCK and rows % BLOCK == 0:
        blocks = x.reshape(*x.shape[:-2], -1, BLOCK, columns)
        x = barrier(jnp.sum(blocks, axis=-2))
    return jnp.sum(x, axis=-2)


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

    Each gets inputs of its own: a product of the shared ones with both kernels side by
    side would give the kernels' gradients in an order that has to be undone.
    """
    own = [jnp.broadcast_to(x, (2, *x.shape)) for x in inputs]
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
