"""The optimiser step: the only caller of optax."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from r2r2.config.parts import Adam
from r2r2.core import Array
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


def adam(config: Adam, rate: float | Rate) -> optax.GradientTransformation:
    """Adam as PyTorch's: the epsilon stands outside the root."""
    return optax.adam(rate, config.beta1, config.beta2, config.epsilon)


def descend(
    optimizer: optax.GradientTransformation, grads: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """One step of `params` along `grads`, and the optimiser's next state.

    Weights on the sphere are put back there: whoever sees the network next, sees it so.
    optax's alias for parameters does not name Equinox modules: hence the casts, here
    and nowhere else.
    """
    moves, state = optimizer.update(cast(Any, grads), state, cast(Any, params))
    moved = cast(Params, optax.apply_updates(cast(Any, params), moves))
    return project(moved), state


def clipped(grads: Params, limit: float) -> tuple[Params, Array]:
    """Gradients whose norm over the whole tree is at most `limit`, and the norm before.

    As PyTorch clips: a small number is added to the norm that divides.
    """
    norm = optax.tree.norm(cast(Any, grads))
    scale = jnp.minimum(1, limit / (norm + 1e-6))
    return cast(Params, jax.tree.map(lambda leaf: leaf * scale, grads)), norm
