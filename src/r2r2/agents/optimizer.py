"""The optimiser step: the only caller of optax."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from r2r2.agents.base import Array
from r2r2.agents.networks.hypersphere import is_unit, project
from r2r2.agents.networks.initializers import with_kernel
from r2r2.agents.tree_ops import polyak
from r2r2.compute import adam_kernel as step_kernel
from r2r2.compute import fp16_weights as halves
from r2r2.compute.loop_packing import SMALL
from r2r2.compute.matmul import barrier
from r2r2.config.common import Adam

Params = TypeVar("Params")
Rate = Callable[[Array], Array]  # steps made so far -> the next step's learning rate


def linear_schedule(first: float, last: float, horizon: Array) -> Rate:
    """A learning rate on a line from `first` to `last`, which stands at `horizon`.

    The horizon is an array, so that runs of any length are one program.

    Example:
        >>> rate = linear_schedule(3.0, 1.0, jnp.asarray(10))
        >>> [float(rate(jnp.asarray(step))) for step in (0, 5, 10, 99)]
        [3.0, 2.0, 1.0, 1.0]
    """

    def rate(steps: Array) -> Array:
        left = 1 - jnp.minimum(steps / horizon, 1)
        return last + (first - last) * left

    return rate


class Optimizer(NamedTuple):
    """Adam as PyTorch's: the epsilon stands outside the root.

    The state is optax's. The step is written here: with both bias corrections folded
    into two numbers it is short enough for XLA to make one kernel of many small ones.
    """

    config: Adam
    rate: float | Rate

    def init(self, params: Any) -> Any:
        """Moments of zero."""
        return optax.adam(self.rate).init(params)


def adam_step(
    optimiser: Optimizer, grads: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """One step of `params` along `grads`, and the optimiser's next state.

    Weights on the sphere are put back there: whoever sees the network next, sees it so.
    """
    old = _Parts(state[0].mu, state[0].nu, params)
    new, state = _descended(optimiser, grads, state, old, rate=0)
    return cast(Params, new.params), state


def adam_step_with_target(
    optimiser: Optimizer,
    grads: Params,
    state: Any,
    params: Params,
    target: Params,
    rate: float,
) -> tuple[Params, Any, Params]:
    """As `descend`, and then the target is moved to the result by a fraction `rate`.

    Where both have weights in 16 bits too, those follow.
    """
    old = _Parts(state[0].mu, state[0].nu, params, target)
    new, state = _descended(optimiser, grads, state, old, rate)
    return cast(Params, new.params), state, cast(Params, new.target)


class _Parts(NamedTuple):
    """What a step changes: trees of one structure."""

    mu: Any
    nu: Any
    params: Any
    target: Any = None


def _descended(
    optimiser: Optimizer, grads: Any, state: Any, old: _Parts, rate: float
) -> tuple[_Parts, Any]:
    config, made = optimiser.config, state[0].count
    count = made + 1
    speed = optimiser.rate(made) if callable(optimiser.rate) else optimiser.rate
    root = jnp.sqrt(1 - config.beta2**count)
    size, floor = speed * root / (1 - config.beta1**count), config.epsilon * root
    bare = _Parts(*map(halves.removed, old))
    whole = _by_xla(config, rate, (size, floor), grads, bare)
    new = _Parts(*map(halves.renewed, whole, old))
    if step_kernel.available():
        # What this replaces, XLA leaves out.
        new = _by_kernels(config, rate, jnp.stack([size, floor]), grads, old, new)
    moments = state[0]._replace(count=count, mu=new.mu, nu=new.nu)
    rest = (x._replace(count=count) if "count" in x._fields else x for x in state[1:])
    return new, (moments, *rest)


def _by_xla(
    config: Adam, rate: float, numbers: tuple[Array, Array], grads: Any, old: _Parts
) -> _Parts:
    def moved(new: Array, before: Array, share: float) -> Array:
        return before + share * (new - before)

    def step(leaf: Array, m: Array, v: Array) -> Array:
        size, floor = numbers
        if leaf.size > SMALL:
            # With numbers of its own, or XLA fuses the steps of two kernels of one
            # shape, and then has to copy the moments of one of them.
            size, floor, leaf = barrier((size, floor, leaf))
        return jnp.subtract(leaf, size * (m / (jnp.sqrt(v) + floor)))

    mu = jax.tree.map(lambda g, m: moved(g, m, 1 - config.beta1), grads, old.mu)
    nu = jax.tree.map(lambda g, v: moved(g * g, v, 1 - config.beta2), grads, old.nu)
    params = project(jax.tree.map(step, old.params, mu, nu))
    target = None if old.target is None else polyak(rate, params, old.target)
    return _Parts(mu, nu, params, target)


def _by_kernels(
    config: Adam, rate: float, numbers: Array, grads: Any, old: _Parts, new: _Parts
) -> _Parts:
    """The new, but large weights on the sphere are stepped by kernels of our own."""

    def stepped(grads: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
        if not is_unit(grads) or grads.kernel.size <= SMALL:
            return after
        kernels = _turned(node.kernel for node in (grads, *before))
        short = _turned(node.half for node in before if node.half is not None)
        if len(short) == 1 < len(before) - 2:
            raise ValueError("weights and their target are both in 16 bits, or neither")
        made = step_kernel.unit_step(config, rate, numbers, kernels, short)
        kernels, short = map(_turned, made)
        whole = [with_kernel(*pair) for pair in zip(after, kernels, strict=True)]
        behind = len(whole) - len(short)
        ends = zip(whole[behind:], short, strict=True)
        return whole[:behind] + [halves.with_half(*pair) for pair in ends]

    def nodes(tree: Any) -> list[Any]:
        return jax.tree.leaves(tree, is_leaf=is_unit)

    def by_node(parts: _Parts) -> list[tuple[Any, ...]]:
        there = (tree for tree in parts if tree is not None)
        return list(zip(*map(nodes, there), strict=True))

    pairs = zip(nodes(grads), by_node(old), by_node(new), strict=True)
    fields = zip(*(stepped(*given) for given in pairs), strict=True)
    structure = jax.tree.structure(grads, is_leaf=is_unit)
    return _Parts(*(jax.tree.unflatten(structure, field) for field in fields))


def _turned(kernels: Iterable[Array]) -> list[Array]:
    return [jnp.swapaxes(kernel, -1, -2) for kernel in kernels]


def clip_by_global_norm(grads: Params, limit: float) -> tuple[Params, Array]:
    """Gradients whose norm over the whole tree is at most `limit`, and the norm before.

    As PyTorch clips: a small number is added to the norm that divides.
    """
    norm = _norm(jax.tree.leaves(grads))
    scale = jnp.minimum(1, limit / (norm + 1e-6))
    return cast(Params, jax.tree.map(lambda leaf: leaf * scale, grads)), norm


def _norm(leaves: list[Array]) -> Array:
    """The length of all entries as one vector.

    Large arrays are summed over one axis first, and what is left of all of them at
    once: two kernels for each array would be more than the whole of the products.
    """
    squares = [leaf**2 for leaf in leaves]
    parts = [jnp.sum(x, axis=-1) if x.ndim > 1 else x for x in squares]
    return jnp.sqrt(jnp.sum(jnp.concatenate([x.reshape(-1) for x in parts])))
