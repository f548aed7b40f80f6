"""Observations and rewards brought to a common size, by each member's own statistics.

Replay holds raw values: a batch is normalised when it is drawn, with the statistics of
that moment.
"""

from typing import NamedTuple

import jax.numpy as jnp

from r2r2.core import Array, Batch


class Scales(NamedTuple):
    """What a member's statistics come to at one moment."""

    mean: Array  # [obs]
    deviation: Array  # [obs]
    reward: Array  # [], what rewards are divided by


def normalised(batch: Batch, scales: Scales) -> Batch:
    """A batch of raw values as the networks are to see it."""

    def obs(raw: Array) -> Array:
        mean, deviation = (jnp.broadcast_to(x, raw.shape) for x in scales[:2])
        return (raw - mean) / deviation

    return batch._replace(
        obs=obs(batch.obs),
        next_obs=obs(batch.next_obs),
        reward=batch.reward / scales.reward,
    )
