"""TD targets, losses of critics, and LAP's priorities."""

import jax.numpy as jnp

from r2r2.agents.base import Array


def td_target(reward: Array, terminated: Array, next_q: Array, discount: float) -> Array:
    """Return one-step targets, [B]; rows that a time limit ended bootstrap."""
    return reward + jnp.where(terminated, 0, discount * next_q)


def lap_huber(error: Array, threshold: float) -> Array:
    """Return TD7's LAP-Huber loss of absolute errors [2, B]: summed over twins, batch mean."""
    # There is no offset: at |error| = threshold = 1 the loss jumps from 1/2 to 1, but the gradient
    # is continuous.
    loss = jnp.where(error < threshold, 0.5 * error**2, threshold * error)
    return jnp.mean(jnp.sum(loss, axis=0))


def lap_priority(error: Array, threshold: float, exponent: float) -> Array:
    """Return priorities [B] of rows with absolute TD errors [2, B]."""
    return jnp.maximum(jnp.max(error, axis=0), threshold) ** exponent


def half_squared_error(q: Array, target: Array) -> Array:
    """Return half the squared error to targets [B], summed over twins; q is [2, B]."""
    error = q - jnp.broadcast_to(target, q.shape)
    return 0.5 * jnp.mean(jnp.sum(error**2, axis=0))
