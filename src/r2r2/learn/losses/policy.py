"""Losses of policies."""

import jax.numpy as jnp

from r2r2.core import Array


def deterministic_policy_loss(q: Array) -> Array:
    """Minus the mean value of the policy's actions over twins and batch; q is [2, B].

    TD7 averages the twins here; only its targets take their minimum.
    """
    return -jnp.mean(q)
