"""The optimiser step: the only caller of optax."""

from typing import Any, TypeVar, cast

import optax

from r2r2.config.agents import Adam

Params = TypeVar("Params")


def adam(config: Adam, rate: float) -> optax.GradientTransformation:
    """Adam as PyTorch's: the epsilon stands outside the root."""
    return optax.adam(rate, config.beta1, config.beta2, config.epsilon)


def descend(
    optimizer: optax.GradientTransformation, grads: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """One step of `params` along `grads`, and the optimiser's next state.

    optax's alias for parameters does not name Equinox modules: hence the casts, here
    and nowhere else.
    """
    moves, state = optimizer.update(cast(Any, grads), state, cast(Any, params))
    return cast(Params, optax.apply_updates(cast(Any, params), moves)), state
