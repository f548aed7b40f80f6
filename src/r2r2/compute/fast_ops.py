"""Faster implementations of the networks' operations, with derivatives written out.

XLA makes one GPU kernel of a norm and of its consumers if only the result is needed.
So derivatives start from arguments and result, which exist anyway, compute all sums
over a row at once, and a barrier keeps XLA from sharing them with the forward pass.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.losses.representation import off_diagonal
from r2r2.agents.networks.hypersphere import MIN_LENGTH
from r2r2.compute.loop_packing import PADDED_ROWS

Tree = TypeVar("Tree")

BLOCK = 32  # rows of a partial sum, at least
MAX_PARTS = 16  # of a sum over many rows
ALIGNMENT = 8  # columns: rows of a multiple start at aligned addresses
NARROW = 64  # columns up to which padding costs as much as it gains
SHARING_ROWS = 8  # rows that share a copy of their gains
# XLA neither merges nor fuses operations across a barrier.
barrier: Callable[[Any], Any] = jax.lax.optimization_barrier


def matmul(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Map [..., in], in parts, by a kernel [in, out] that may have padded rows."""
    if len(parts) == 1:
        # Padded here, or the gradient of the input would copy the kernel's other rows.
        parts = (concat_and_pad(parts, kernel),)
    return _matmul(parts, kernel)


@jax.custom_vjp
def _matmul(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Return the product; its derivative is written out for two reasons."""
    # JAX's gives the kernel's gradient transposed, which costs a copy of every weight and both its
    # moments in the update loop, and gives a gradient to every part, of which often only one needs
    # it. A single output is written as a sum, as XLA would anyway; without the barrier XLA fuses it
    # with layers of other networks into a kernel that keeps few of a GPU's processors busy.
    x = concat_and_pad(parts, kernel)
    if kernel.shape[1] > 1:
        return (x @ _aligned(kernel))[..., : kernel.shape[1]]
    column = jnp.broadcast_to(barrier(kernel[:, 0]), x.shape)
    return jnp.sum(x * column, axis=-1, keepdims=True)


def _matmul_forward(parts: tuple[Any, ...], kernel: Any) -> tuple[Array, Any]:
    values = tuple(part.value for part in parts)
    # Static flags, as a tree without leaves.
    flags = tuple(() if part.perturbed else None for part in parts)
    return _matmul(values, kernel.value), (values, flags, kernel.value)


def _matmul_backward(inputs: Any, dy: Array) -> tuple[tuple[Array | None, ...], Array]:
    parts, needed, kernel = inputs
    x = concat_and_pad(parts, kernel)
    if kernel.shape[1] > 1:
        dk = jnp.einsum("...i,...o->io", x, _aligned(dy))[:, : kernel.shape[1]]
    else:
        dk = sum_of_rows(x * jnp.broadcast_to(dy, x.shape))[:, None]
    return _input_gradients(parts, needed, kernel, dy), dk


_matmul.defvjp(_matmul_forward, _matmul_backward, symbolic_zeros=True)


def _input_gradients(
    parts: tuple[Array, ...], needed: tuple[Any, ...], kernel: Array, dy: Array
) -> tuple[Array | None, ...]:
    """Return gradients of the parts that need one, from one product."""
    ends = list(itertools.accumulate(part.shape[-1] for part in parts))
    places = [n for n, flag in enumerate(needed) if flag is not None]
    if not places:
        return (None,) * len(parts)
    start = ends[places[0]] - parts[places[0]].shape[-1]
    dx = _aligned(dy) @ _aligned(kernel[start : ends[places[-1]]]).T
    return tuple(
        None if flag is None else dx[..., end - part.shape[-1] - start : end - start]
        for flag, part, end in zip(needed, parts, ends, strict=True)
    )


def _aligned(x: Array) -> Array:
    """Pad columns with zeros, so that every row starts at an aligned address."""
    # Library products of unaligned rows take two to three times as long.
    columns = x.shape[-1]
    missing = -columns % ALIGNMENT if columns > NARROW else 0
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def concat_and_pad(parts: tuple[Array, ...], kernel: Array) -> Array:
    """Concatenate parts, with zeros for rows that `LoopPacking` added to a kernel."""
    features, rows = sum(part.shape[-1] for part in parts), kernel.shape[0]
    missing = rows - features
    if missing not in (0, -features % PADDED_ROWS):
        raise ValueError(f"x has {features} features, the kernel has {rows} rows")
    x = jnp.concatenate(parts, axis=-1)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def expand(features: Array, shape: tuple[int, ...]) -> Array:
    """Return features [n] on all rows of a shape [..., n]."""
    return jnp.broadcast_to(features, shape)


expand.defvjp(
    lambda features, shape: (jnp.broadcast_to(features, shape), None),
    lambda shape, _, dy: (sum_of_rows(dy),),
)


def sum_of_rows(x: Array) -> Array:
    """Return the sum of all rows of [..., n]."""
    return column_sums(x.reshape(-1, x.shape[-1]))


def column_sums(x: Array) -> Array:
    """Return the sums of the columns of [..., rows, n], in blocks of rows first."""
    # XLA fuses a sum with the computation of its rows; a sum over all rows then runs on a tenth of
    # a GPU's processors. The barrier keeps XLA from merging both sums.
    rows, columns = x.shape[-2:]
    size = max(BLOCK, rows // MAX_PARTS)
    if rows > size and rows % size == 0:
        blocks = x.reshape(*x.shape[:-2], -1, size, columns)
        x = barrier(jnp.sum(blocks, axis=-2))
    return jnp.sum(x, axis=-2)


def twin_values(twins: Callable[..., Array], *inputs: Array) -> Array:
    """Return every critic's output, each on its own copy of the inputs."""
    # A product of shared inputs with all kernels side by side would copy the kernels and return
    # their gradients in an order that has to be undone.
    count = len(jax.tree.leaves(twins)[0])
    copies = [jnp.broadcast_to(x, (count, *x.shape)) for x in inputs]
    return cast(Array, jax.vmap(lambda critic, *rows: critic(*rows))(twins, *copies))


def _with_derivative(
    derivative: Callable[..., tuple[Array, ...]],
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Decorate a function with `derivative(*arguments, result, gradient)`."""

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        decorated: Any = jax.custom_vjp(function)

        def forward(*args: Array) -> tuple[Array, tuple[tuple[Array, ...], Array]]:
            result = decorated(*args)
            return result, (args, result)

        def backward(saved: tuple[tuple[Array, ...], Array], dy: Array) -> Any:
            args, result = barrier(saved)
            return derivative(*args, result, dy)

        decorated.defvjp(forward, backward)
        return cast("Callable[..., Array]", decorated)

    return decorate


def normalize(x: Array, axis: int = -1) -> Array:
    """Divide vectors by their lengths; the derivative is written out for rows."""
    if axis == -1:
        return _normalize(x)
    squares = jnp.sum(x**2, axis=axis, keepdims=True)
    return x * jnp.broadcast_to(inverse_length(squares), x.shape)


@_with_derivative(lambda x, _, dy: (_unit_backward(x, dy),))
def _normalize(x: Array) -> Array:
    return _unit(x)


def _scaled_backward(x: Array, gain: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    gains = jnp.broadcast_to(gain, x.shape)
    slope = _unit_backward(x * gains, dy)
    return slope * gains, sum_of_rows(slope * x)


@_with_derivative(_scaled_backward)
def scale_and_normalize(x: Array, gain: Array) -> Array:
    """Return normalize(gain * x); x is [..., n] and gain [n]."""
    rows = _in_blocks(x)
    return _unit(rows * _on_blocks(gain, rows.shape)).reshape(x.shape)


def _lerp_backward(x: Array, goal: Array, alpha: Array, y: Array, dy: Array) -> tuple[Array, ...]:
    # With s = goal / |goal|, u = (1 - alpha) x + alpha s and y = u / |u|: the gradient
    # of u is (dy - y (y . dy)) / |u|; that of s is alpha times this; that of goal is
    # its component orthogonal to s, over |goal|. The length of u is y . u: this is
    # exact, unlike |u| from the sums of its parts, where goal and x nearly cancel.
    alphas = jnp.broadcast_to(alpha, x.shape)
    pull = alphas * goal
    squares, y_pull = _dot(goal, goal), _dot(y, pull)
    p = inverse_length(squares)
    length = _dot(y, (1 - alphas) * x) + p * y_pull
    q = 1 / jnp.maximum(length, MIN_LENGTH)
    along = jnp.where(length > MIN_LENGTH, _dot(y, dy), 0)
    long = squares > MIN_LENGTH**2
    turn = jnp.where(long, p * q * (_dot(dy, pull) - along * y_pull), 0)
    p, q, along, turn = (jnp.broadcast_to(row, x.shape) for row in (p, q, along, turn))
    slope = q * (dy - y * along)
    d_goal = p * (alphas * slope - p * goal * turn)
    return (1 - alphas) * slope, d_goal, sum_of_rows(slope * (p * goal - x))


@_with_derivative(_lerp_backward)
def lerp(x: Array, goal: Array, alpha: Array) -> Array:
    """Move points x on the sphere towards the directions of `goal`."""
    rows, goals = _in_blocks(x), _in_blocks(goal)
    alphas = _on_blocks(alpha, rows.shape)
    return _unit(rows + alphas * (_unit(goals) - rows)).reshape(x.shape)


def _relu_backward(x: Array, gain: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    gains = jnp.broadcast_to(gain, x.shape)
    slope = jnp.where(x * gains > 0, dy, 0)
    return slope * gains, sum_of_rows(slope * x)


@_with_derivative(_relu_backward)
def scaled_relu(x: Array, gain: Array) -> Array:
    """Return relu(gain * x); x is [..., n] and gain [n]."""
    return jax.nn.relu(x * expand(gain, x.shape))


def _log_softmax_backward(logits: Array, _: Array, dy: Array) -> tuple[Array, ...]:
    # The added zero shows XLA the row on both sides of its sum, from which it concludes
    # that both can be one kernel.
    total = 0 * dy + jnp.broadcast_to(jnp.sum(dy, axis=-1, keepdims=True), dy.shape)
    return (dy - jax.nn.softmax(logits) * total,)


@_with_derivative(_log_softmax_backward)
def log_softmax(logits: Array) -> Array:
    """Return log-probabilities of logits [..., n]."""
    return jax.nn.log_softmax(logits)


def inverse_length(squares: Array) -> Array:
    """Return one over the length of vectors with these sums of squares."""
    return jax.lax.rsqrt(jnp.maximum(squares, MIN_LENGTH**2))


def _unit(x: Array) -> Array:
    return x * jnp.broadcast_to(inverse_length(_dot(x, x)), x.shape)


def _unit_backward(x: Array, dy: Array) -> Array:
    squares = _dot(x, x)
    inverse = inverse_length(squares)
    # A length below the minimum counts as a constant.
    share = jnp.where(squares > MIN_LENGTH**2, inverse**2 * _dot(dy, x), 0)
    inverse, share = (jnp.broadcast_to(row, x.shape) for row in (inverse, share))
    return (dy - x * share) * inverse


def _dot(x: Array, y: Array) -> Array:
    return jnp.sum(x * y, axis=-1, keepdims=True)


def _in_blocks(x: Array) -> Array:
    """Reshape [..., rows, n] to [..., blocks, SHARING_ROWS, n], if rows divide."""
    if x.ndim < 2 or x.shape[-2] % SHARING_ROWS:
        return x
    return x.reshape(*x.shape[:-2], -1, SHARING_ROWS, x.shape[-1])


def _on_blocks(features: Array, shape: tuple[int, ...]) -> Array:
    """Return features [n] on all rows of blocks, with one copy for every block."""
    # Shared operands make XLA choose tiles that spill registers.
    if len(shape) < 3:  # not in blocks
        return jnp.broadcast_to(features, shape)
    each = barrier(jnp.broadcast_to(features, (*shape[:-2], shape[-1])))
    return jnp.broadcast_to(each[..., None, :], shape)


@jax.custom_jvp
def correlation(z: Array) -> Array:
    """Return the sum of squared off-diagonal entries of C = Z^T Z / (N - 1)."""
    # The derivative 4 Z C / (N - 1) needs one product; JAX, which does not know that C is
    # symmetric, would use two.
    return jnp.sum(off_diagonal(z) ** 2)


@correlation.defjvp
def _correlation_jvp(at: tuple[Array], along: tuple[Array]) -> tuple[Array, Array]:
    (z,), (dz,) = at, along
    moment = off_diagonal(z)
    slope = 4 / (len(z) - 1) * (z @ moment)
    return jnp.sum(moment**2), jnp.sum(slope * dz)


def global_norm(grads: Any) -> Array:
    """Return the norm of all entries of a tree, in few kernels: large arrays by axis first."""
    squares = [leaf**2 for leaf in jax.tree.leaves(grads)]
    parts = [jnp.sum(x, axis=-1) if x.ndim > 1 else x for x in squares]
    return jnp.sqrt(jnp.sum(jnp.concatenate([x.reshape(-1) for x in parts])))


def cond(condition: Array | bool, yes: Callable[[], Tree], no: Callable[[], Tree]) -> Tree:
    """Return `yes()` or `no()`; a condition known at trace time leaves no branch."""
    if isinstance(condition, bool):
        return yes() if condition else no()
    return cast(Tree, jax.lax.cond(condition, yes, no))


def frozen(network: Tree) -> Tree:
    """Return the network behind a barrier."""
    # Without it XLA merges passes of one network in two losses into one product, and the loss that
    # could be computed first waits for the other.
    return cast(Tree, barrier(network))
