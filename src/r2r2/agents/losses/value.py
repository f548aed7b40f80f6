"""Losses of values: targets, LAP's Huber loss and its priorities."""

import jax.numpy as jnp

from r2r2.agents.base import Array


def td_target(
    reward: Array, terminated: Array, next_q: Array, discount: float
) -> Array:
    """One-step target; reward, terminated and next_q are [B], and so is the result.

    A time limit is not a termination: such a row keeps its bootstrap.
    """
    return reward + jnp.where(terminated, 0, discount * next_q)


def lap_huber(error: Array, threshold: float) -> Array:
    """LAP's Huber loss as TD7 has it: summed over the twins, mean over the batch.

    It has no offset: at |error| = threshold = 1 the value jumps from 1/2 to 1, while
    the gradient is continuous.

    Args:
        error: absolute TD errors, [2, B].
        threshold: the smallest priority, above which the loss is linear.
    """
    loss = jnp.where(error < threshold, 0.5 * error**2, threshold * error)
    return jnp.mean(jnp.sum(loss, axis=0))


def lap_priority(error: Array, threshold: float, exponent: float) -> Array:
    """New priorities [B] of rows with absolute TD errors [2, B]."""
    return jnp.maximum(jnp.max(error, axis=0), threshold) ** exponent


def halved_squared_error(q: Array, target: Array) -> Array:
    """Half the mean squared error to targets [B], summed over twins; q is [2, B]."""
    error = q - jnp.broadcast_to(target, q.shape)
    return 0.5 * jnp.mean(jnp.sum(error**2, axis=0))
