"""Values as distributions over a fixed row of atoms (Bellemare et al., 2017)."""

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array


def atoms(low: float, high: float, bins: int) -> Array:
    """Evenly spaced values from `low` to `high`, [bins]."""
    return jnp.linspace(low, high, bins)


def expectation(log_probs: Array, values: Array) -> Array:
    """The mean value under each distribution; log_probs is [..., bins]."""
    return jnp.sum(jnp.exp(log_probs) * jnp.broadcast_to(values, log_probs.shape), -1)


def min_by_mean(log_probs: Array, values: Array) -> Array:
    """Per row the distribution of the critic that expects least; the first, if equal.

    Args:
        log_probs: of every critic, [critics, B, bins].
        values: the atoms, [bins].

    Returns:
        Log-probabilities, [B, bins].
    """
    least, lowest = log_probs[0], expectation(log_probs[0], values)
    for other in log_probs[1:]:
        mean = expectation(other, values)
        less = jnp.broadcast_to((mean < lowest)[:, None], other.shape)
        least, lowest = jnp.where(less, other, least), jnp.minimum(mean, lowest)
    return least


def bellman_atoms(
    reward: Array, terminated: Array, entropy: Array, values: Array, discount: float
) -> Array:
    """Where a step takes the atoms: r + gamma (v - entropy), or r at the end.

    Args:
        reward: [B].
        terminated: [B]; a time limit is not a termination.
        entropy: temperature times the log-probability of the next action, [B].
        values: the atoms, [bins].
        discount: gamma.

    Returns:
        Places, [B, bins].
    """
    shape = *reward.shape, *values.shape
    soft = jnp.broadcast_to(values, shape) - jnp.broadcast_to(entropy[:, None], shape)
    bootstrap = jnp.where(jnp.broadcast_to(terminated[:, None], shape), 0, soft)
    return jnp.broadcast_to(reward[:, None], shape) + discount * bootstrap


def project_distribution(probs: Array, places: Array, values: Array) -> Array:
    """Mass at any places as mass on the atoms, split between the two neighbours.

    It is added in place, atom by atom: a weight for every pair of atoms would take
    bins times the memory.

    Args:
        probs: the mass, [B, bins].
        places: where it lies, [B, bins]; beyond the ends it counts as at the end.
        values: the atoms, [bins].

    Example:
        >>> values, mass = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.5, 0.25, 0.25]])
        >>> project_distribution(mass, jnp.array([[0.5, 1.0, 9.0]]), values).tolist()
        [[0.25, 0.5, 0.25]]
    """
    last = len(values) - 1
    gap = (values[-1] - values[0]) / last
    steps = (jnp.clip(places, values[0], values[-1]) - values[0]) / gap
    below = jnp.clip(jnp.floor(steps), 0, last - 1)
    above = probs * (steps - below)
    index = below.astype(int)

    def row(index: Array, low: Array, high: Array) -> Array:
        return jnp.zeros_like(low).at[index].add(low).at[index + 1].add(high)

    return jax.vmap(row)(index, probs - above, above)


def cross_entropy(log_probs: Array, target: Array) -> Array:
    """Summed over the critics, mean over the batch.

    Args:
        log_probs: of every critic, [critics, B, bins].
        target: probabilities, [B, bins]; no gradient reaches them.
    """
    fixed = jnp.broadcast_to(jax.lax.stop_gradient(target), log_probs.shape)
    return -jnp.sum(fixed * log_probs) / target.shape[0]
