"""Actions, actor loss and temperature loss of SAC."""

import math

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array


def tanh_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Return actions tanh(mean + std noise) [..., action] and log-probabilities [...]."""
    # The density is evaluated at the noise N(0, 1) itself, not at an inverted action: this is exact
    # where tanh saturates, and constant for the gradient.
    x = mean + jnp.exp(log_std) * noise
    normal = -(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2
    # log(1 - tanh(x)^2) without a difference of nearly equal numbers.
    slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))
    return jnp.tanh(x), jnp.sum(normal - slope, axis=-1)


def entropy_policy_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """Return mean(temperature log pi - min_i Q_i), SAC's loss; q is [critics, B]."""
    return jnp.mean(log_prob * temperature - jnp.min(q, axis=0))


def temperature_loss(temperature: Array, entropy: Array, target: float) -> Array:
    """Return SAC's loss, which raises the temperature while entropy is below target."""
    return temperature * (jax.lax.stop_gradient(entropy) - target)
