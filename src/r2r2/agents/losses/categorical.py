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
    """Return per row the distribution with the smallest mean; the first, if equal.

    Args:
        log_probs: of every critic, [critics, B, bins].
        values: the atoms, [bins].

    Returns:
        Log-probabilities, [B, bins].
    """
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
    """Return atoms after a Bellman backup: r + gamma (v - entropy), or r at the end.

    Args:
        reward: [B].
        terminated: [B]; a time limit is not a termination.
        entropy: temperature times the log-probability of the next action, [B].
        values: the atoms, [bins].
        discount: gamma.

    Returns:
        Values, [B, bins].
    """
    shape = *reward.shape, *values.shape
    soft = jnp.broadcast_to(values, shape) - jnp.broadcast_to(entropy[:, None], shape)
    bootstrap = jnp.where(jnp.broadcast_to(terminated[:, None], shape), 0, soft)
    return jnp.broadcast_to(reward[:, None], shape) + discount * bootstrap


def project_distribution(probs: Array, positions: Array, values: Array) -> Array:
    """Project mass at any values onto the atoms, split between the two neighbors.

    Mass is added by index: a matrix of weights would need `bins` times the memory.

    Args:
        probs: the mass, [B, bins].
        positions: of the mass, [B, bins]; they are clipped to the range of the atoms.
        values: the atoms, [bins].

    Example:
        >>> values, mass = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.5, 0.25, 0.25]])
        >>> project_distribution(mass, jnp.array([[0.5, 1.0, 9.0]]), values).tolist()
        [[0.25, 0.5, 0.25]]
    """
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
    """Return the cross-entropy, summed over critics, mean over the batch.

    Args:
        log_probs: of every critic, [critics, B, bins].
        target: probabilities, [B, bins]; no gradient reaches them.
    """
    fixed = jnp.broadcast_to(jax.lax.stop_gradient(target), log_probs.shape)
    return -jnp.sum(fixed * log_probs) / target.shape[0]
