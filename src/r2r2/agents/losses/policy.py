"""Losses of policies."""

import math

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array


def deterministic_policy_loss(q: Array) -> Array:
    """Minus the mean value of the policy's actions over twins and batch; q is [2, B].

    TD7 averages the twins here; only its targets take their minimum.
    """
    return -jnp.mean(q)


def lesser_value_loss(q: Array) -> Array:
    """Minus the mean of the twins' lesser value; q is [2, B]."""
    return -jnp.mean(jnp.min(q, axis=0))


def tanh_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Actions tanh(mean + std noise) and their log-probabilities.

    The density's own noise is the number drawn, not one found back from the action:
    exact where tanh saturates, and a constant for the gradient.

    Args:
        mean: of the normal distribution, [..., action].
        log_std: its log deviations, likewise.
        noise: N(0, 1), likewise.

    Returns:
        Actions [..., action], log-probabilities [...].

    Example:
        >>> action, log_prob = tanh_gaussian(*jnp.zeros((3, 1)))
        >>> float(action[0]), round(float(log_prob), 4)
        (0.0, -0.9189)
    """
    x = mean + jnp.exp(log_std) * noise
    normal = -(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2
    # log(1 - tanh(x)^2) without a difference of nearly equal numbers.
    slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))
    return jnp.tanh(x), jnp.sum(normal - slope, axis=-1)


def entropy_policy_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """SAC's: mean of temperature log pi - min_i Q_i; q is [critics, B]."""
    return jnp.mean(log_prob * temperature - jnp.min(q, axis=0))


def temperature_loss(temperature: Array, entropy: Array, target: float) -> Array:
    """Raises the temperature while the entropy is below its target."""
    return temperature * (jax.lax.stop_gradient(entropy) - target)
