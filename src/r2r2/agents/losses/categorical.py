"""Value distributions over fixed atoms (Bellemare et al., 2017)."""

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array


def atoms(low: float, high: float, bins: int) -> Array:
    """Return evenly spaced values from `low` to `high`, [bins]."""
    return jnp.linspace(low, high, bins)


def expectation(log_probs: Array, values: Array) -> Array:
    """Return the mean of each distribution; log_probs is [..., bins]."""
    return jnp.sum(jnp.exp(log_probs) * jnp.broadcast_to(values, log_probs.shape), -1)


def min_by_mean(log_probs: Array, values: Array) -> Array:
    """Return per row of [critics, B, bins] the distribution with the smallest mean, [B, bins]."""
    chosen, smallest = log_probs[0], expectation(log_probs[0], values)
    for other in log_probs[1:]:
        mean = expectation(other, values)
        smaller = jnp.broadcast_to((mean < smallest)[:, None], other.shape)
        chosen = jnp.where(smaller, other, chosen)
        smallest = jnp.minimum(mean, smallest)
    return chosen


def bellman_atoms(
    reward: Array, terminated: Array, entropy: Array, values: Array, discount: float
) -> Array:
    """Return r + gamma (v - entropy), or r at the end, [B, bins]; values are [bins]."""
    # Entropy is temperature times the next action's log-probability, [B].
    shape = *reward.shape, *values.shape
    soft = jnp.broadcast_to(values, shape) - jnp.broadcast_to(entropy[:, None], shape)
    bootstrap = jnp.where(jnp.broadcast_to(terminated[:, None], shape), 0, soft)
    return jnp.broadcast_to(reward[:, None], shape) + discount * bootstrap


def project_distribution(probs: Array, positions: Array, values: Array) -> Array:
    """Project mass at positions, both [B, bins], onto the two nearest atoms of each."""
    # Mass is added by index: a matrix of weights would need `bins` times the memory.
    last = len(values) - 1
    gap = (values[-1] - values[0]) / last
    steps = (jnp.clip(positions, values[0], values[-1]) - values[0]) / gap
    below = jnp.clip(jnp.floor(steps), 0, last - 1)
    above = probs * (steps - below)
    index = below.astype(int)

    def row(index: Array, low: Array, high: Array) -> Array:
        return jnp.zeros_like(low).at[index].add(low).at[index + 1].add(high)

    return jax.vmap(row)(index, probs - above, above)


def cross_entropy(log_probs: Array, target: Array) -> Array:
    """Return the cross-entropy to targets [B, bins], summed over critics, mean over the batch."""
    fixed = jnp.broadcast_to(jax.lax.stop_gradient(target), log_probs.shape)
    return -jnp.sum(fixed * log_probs) / target.shape[0]
