"""The optimiser step: the only caller of optax."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from r2r2.config.parts import Adam
from r2r2.core import Array
from r2r2.learn.carry import SMALL
from r2r2.learn.networks.products import barrier
from r2r2.learn.networks.sphere import project

Params = TypeVar("Params")
Rate = Callable[[Array], Array]  # steps made so far -> the next step's learning rate


def falling(first: float, last: float, horizon: Array) -> Rate:
    """A learning rate on a line from `first` to `last`, which stands at `horizon`.

    The horizon is an array, so that runs of any length are one program.

    Example:
        >>> rate = falling(3.0, 1.0, jnp.asarray(10))
        >>> [float(rate(jnp.asarray(step))) for step in (0, 5, 10, 99)]
        [3.0, 2.0, 1.0, 1.0]
    """

    def rate(steps: Array) -> Array:
        left = 1 - jnp.minimum(steps / horizon, 1)
        return last + (first - last) * left

    return rate


class Optimiser(NamedTuple):
    """Adam as PyTorch's: the epsilon stands outside the root.

    The state is optax's. The step is written here: with both bias corrections folded
    into two numbers it is short enough for XLA to make one kernel of many small ones.
    """

    config: Adam
    rate: float | Rate

    def init(self, params: Any) -> Any:
        """Moments of zero."""
        return optax.adam(self.rate).init(params)


def descend(
    optimiser: Optimiser, grads: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """One step of `params` along `grads`, and the optimiser's next state.

    Weights on the sphere are put back there: whoever sees the network next, sees it so.
    """
    config, moments = optimiser.config, state[0]
    count = moments.count + 1
    rate = optimiser.rate(moments.count) if callable(optimiser.rate) else optimiser.rate
    root = jnp.sqrt(1 - config.beta2**count)
    size, floor = rate * root / (1 - config.beta1**count), config.epsilon * root

    def moved(new: Array, old: Array, share: float) -> Array:
        return old + share * (new - old)

    def step(leaf: Array, m: Array, v: Array) -> Array:
        own_size, own_floor = size, floor
        if leaf.size > SMALL:
            # With numbers of its own, or XLA fuses the steps of two kernels of one
            # shape, and then has to copy the moments of one of them.
            own_size, own_floor, leaf = barrier((size, floor, leaf))
        return jnp.subtract(leaf, own_size * (m / (jnp.sqrt(v) + own_floor)))

    mu = jax.tree.map(lambda g, m: moved(g, m, 1 - config.beta1), grads, moments.mu)
    nu = jax.tree.map(lambda g, v: moved(g * g, v, 1 - config.beta2), grads, moments.nu)
    params = jax.tree.map(step, params, mu, nu)
    rest = (x._replace(count=count) if "count" in x._fields else x for x in state[1:])
    return project(params), (moments._replace(count=count, mu=mu, nu=nu), *rest)


def clipped(grads: Params, limit: float) -> tuple[Params, Array]:
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
