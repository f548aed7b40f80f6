"""Functions of rows that a GPU computes in few kernels, forwards and backwards.

XLA makes one kernel of a norm and of what is done with it if nothing but the result is
asked for. So derivatives start from arguments and result, which are there anyway, take
all sums over a row at once, and a barrier keeps XLA from sharing them with the pass
before.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.compute.matmul import barrier, on_rows, sum_of_rows

FLOOR = 1e-8  # the least that a length counts as
FEW = 8  # rows that share a copy of their gains


def _with_derivative(
    back: Callable[..., tuple[Array, ...]],
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """A decorator: arguments, result and its gradient to the arguments' gradients."""

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        own: Any = jax.custom_vjp(function)

        def forward(*given: Array) -> tuple[Array, tuple[tuple[Array, ...], Array]]:
            result = own(*given)
            return result, (given, result)

        def backward(kept: tuple[tuple[Array, ...], Array], dy: Array) -> Any:
            given, result = barrier(kept)
            return back(*given, result, dy)

        own.defvjp(forward, backward)
        decorated: Callable[..., Array] = own
        return decorated

    return decorate


def _to_sphere_back(x: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    return (_unit_back(x, dy),)


@_with_derivative(_to_sphere_back)
def to_sphere(x: Array) -> Array:
    """A vector over its length, of which `FLOOR` is the least.

    The floor stands under the root, where the derivative at a zero vector is finite.

    Example:
        >>> to_sphere(jnp.array([3.0, 4.0])).tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    return _unit(x)


def _scaled_back(x: Array, gain: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    gains = jnp.broadcast_to(gain, x.shape)
    slope = _unit_back(x * gains, dy)
    return slope * gains, sum_of_rows(slope * x)


@_with_derivative(_scaled_back)
def scaled_to_sphere(x: Array, gain: Array) -> Array:
    """Vectors [..., n], their features times a gain [n], over their lengths.

    Example:
        >>> scaled_to_sphere(jnp.array([3.0, 2.0]), jnp.array([1.0, 2.0])).tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    rows = _in_blocks(x)
    return _unit(rows * _on_blocks(gain, rows.shape)).reshape(x.shape)


def _along_back(
    x: Array, goal: Array, share: Array, y: Array, dy: Array
) -> tuple[Array, ...]:
    # With s = goal / |goal|, u = (1 - share) x + share s and y = u / |u|: the slope at
    # u is (dy - y (y . dy)) / |u|; at s it is that times share, at goal without what
    # is along s, over |goal|. The length of u is y . u, which, unlike |u| from the sums
    # of its parts, is exact also where goal and x are nearly opposite.
    shares = jnp.broadcast_to(share, x.shape)
    go = shares * goal
    squares, y_go = _dot(goal, goal), _dot(y, go)
    p = inverse_length(squares)
    length = _dot(y, (1 - shares) * x) + p * y_go
    q = 1 / jnp.maximum(length, FLOOR)
    along = jnp.where(length > FLOOR, _dot(y, dy), 0)
    turn = jnp.where(squares > FLOOR**2, p * q * (_dot(dy, go) - along * y_go), 0)
    p, q, along, turn = (jnp.broadcast_to(row, x.shape) for row in (p, q, along, turn))
    slope = q * (dy - y * along)
    d_goal = p * (shares * slope - p * goal * turn)
    return (1 - shares) * slope, d_goal, sum_of_rows(slope * (p * goal - x))


@_with_derivative(_along_back)
def along_sphere(x: Array, goal: Array, share: Array) -> Array:
    """From points on the sphere a share of the way to where their goals point.

    Args:
        x: points on the sphere, [..., n].
        goal: vectors of any length, [..., n].
        share: of the way, for each feature, [n].

    Example:
        >>> x, goal = jnp.array([1.0, 0.0]), jnp.array([0.0, 5.0])
        >>> along_sphere(x, goal, jnp.array([0.25, 0.75])).tolist()
        [0.7071067690849304, 0.7071067690849304]
    """
    rows, goals = _in_blocks(x), _in_blocks(goal)
    shares = _on_blocks(share, rows.shape)
    return _unit(rows + shares * (_unit(goals) - rows)).reshape(x.shape)


def _gated_back(x: Array, gain: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    gains = jnp.broadcast_to(gain, x.shape)
    slope = jnp.where(x * gains > 0, dy, 0)
    return slope * gains, sum_of_rows(slope * x)


@_with_derivative(_gated_back)
def gated(x: Array, gain: Array) -> Array:
    """The positive part of vectors [..., n], their features times a gain [n].

    Example:
        >>> gated(jnp.array([3.0, 2.0]), jnp.array([2.0, -1.0])).tolist()
        [6.0, 0.0]
    """
    return jax.nn.relu(x * on_rows(gain, x.shape))


def _log_softmax_back(logits: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    # The zero lets XLA see the row on both sides of its sum, which is how it knows what
    # can be one kernel.
    total = 0 * dy + jnp.broadcast_to(jnp.sum(dy, axis=-1, keepdims=True), dy.shape)
    return (dy - jax.nn.softmax(logits) * total,)


@_with_derivative(_log_softmax_back)
def log_softmax(logits: Array) -> Array:
    """Log-probabilities of logits [..., n].

    Example:
        >>> log_softmax(jnp.zeros(2)).tolist()
        [-0.6931471824645996, -0.6931471824645996]
    """
    return jax.nn.log_softmax(logits)


def inverse_length(squares: Array) -> Array:
    """One over the length of vectors whose squares have these sums.

    Example:
        >>> inverse_length(jnp.array([4.0, 0.0])).tolist()
        [0.5, 100000000.0]
    """
    return jax.lax.rsqrt(jnp.maximum(squares, FLOOR**2))


def _unit(x: Array) -> Array:
    return x * jnp.broadcast_to(inverse_length(_dot(x, x)), x.shape)


def _unit_back(x: Array, dy: Array) -> Array:
    squares = _dot(x, x)
    inverse = inverse_length(squares)
    # A length that counts as the floor does not change.
    share = jnp.where(squares > FLOOR**2, inverse**2 * _dot(dy, x), 0)
    inverse, share = (jnp.broadcast_to(row, x.shape) for row in (inverse, share))
    return (dy - x * share) * inverse


def _dot(x: Array, y: Array) -> Array:
    return jnp.sum(x * y, axis=-1, keepdims=True)


def _in_blocks(x: Array) -> Array:
    """[..., rows, n] as [..., rows / FEW, FEW, n], where that can be."""
    if x.ndim < 2 or x.shape[-2] % FEW:
        return x
    return x.reshape(*x.shape[:-2], -1, FEW, x.shape[-1])


def _on_blocks(features: Array, shape: tuple[int, ...]) -> Array:
    """The same features [n] on all rows of blocks.

    They are written down once for every block: of features that all blocks share, XLA
    concludes that large blocks are cheap, and those outgrow a processor's registers.
    """
    if len(shape) < 3:  # not in blocks
        return jnp.broadcast_to(features, shape)
    each = barrier(jnp.broadcast_to(features, (*shape[:-2], shape[-1])))
    return jnp.broadcast_to(each[..., None, :], shape)
