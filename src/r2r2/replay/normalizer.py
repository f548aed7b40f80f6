"""Observations and rewards brought to a common size, by each member's own statistics.

Replay holds raw values: a batch is normalised when it is drawn, with the statistics of
that moment. These are float64 on the host: in single precision they are known to cost
score.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Array, Batch
from r2r2.config.common import AgentConfig

FIRST_SAMPLES = 1e-4  # as if so many samples of mean 0 and variance 1 had been seen
FLOOR = 1e-8  # added to a variance


class Scales(NamedTuple):
    """What a member's statistics come to at one moment."""

    mean: Array | NDArray[np.float64]  # [obs]
    deviation: Array | NDArray[np.float64]  # [obs]
    reward: Array | NDArray[np.float64]  # [], what rewards are divided by


def normalize_batch(batch: Batch, scales: Scales) -> Batch:
    """A batch of raw values as the networks are to see it."""

    def obs(raw: Array) -> Array:
        mean, deviation = (jnp.broadcast_to(x, raw.shape) for x in scales[:2])
        return (raw - mean) / deviation

    return batch._replace(
        obs=obs(batch.obs),
        next_obs=obs(batch.next_obs),
        reward=batch.reward / scales.reward,
    )


class Moments(NamedTuple):
    """Running mean and variance of each member's samples."""

    samples: NDArray[np.float64]  # how many, [S]
    mean: NDArray[np.float64]  # [S, ...]
    variance: NDArray[np.float64]  # [S, ...]

    def add(self, members: Sequence[int], sample: NDArray[np.float64]) -> None:
        """Takes in one more sample of each of `members`; sample is [K, ...]."""
        who = list(members)
        old = self.samples[who].reshape(-1, *[1] * (sample.ndim - 1))
        new = old + 1
        step = sample - self.mean[who]
        self.mean[who] += step / new
        self.variance[who] = (self.variance[who] * old + step**2 * old / new) / new
        self.samples[who] += 1


class Statistics(NamedTuple):
    """All that a fleet's normalisation has learnt: arrays, to be saved as they are."""

    obs: Moments  # of the observations acted on, [S, obs]
    returns: Moments  # of the running discounted return, [S]
    running: NDArray[np.float64]  # that return itself, [S]
    largest: NDArray[np.float64]  # its largest size so far, [S]


def initial_statistics(members: int, obs_dim: int) -> Statistics:
    """The statistics of a fleet that has seen nothing."""

    def moments(*shape: int) -> Moments:
        samples = np.full(members, FIRST_SAMPLES)
        return Moments(samples, np.zeros((members, *shape)), np.ones((members, *shape)))

    return Statistics(moments(obs_dim), moments(), np.zeros(members), np.zeros(members))


class IdentityNormalizer:
    """For agents that see values as they are: in the place of a `Normaliser`."""

    def observe(self, *_: Any) -> None:
        """Learns nothing."""

    def normalize(self, obs: NDArray[np.float64]) -> NDArray[np.float64]:
        """The observations as they are."""
        return obs

    def scales(self) -> None:
        """None."""


class Normalizer:
    """A fleet's statistics, and what they do to observations and rewards.

    Args:
        statistics: where it starts; changed in place.
        discount: of the running return.
        limit: what the largest return so far is scaled to, at most.

    Example:
        >>> normaliser = Normalizer(initial_statistics(1, 2), discount=0.99, limit=5)
        >>> first, none = np.array([[1.0, 3.0]]), np.zeros(1)
        >>> normaliser.observe([0], first, reward=none, ended=none.astype(bool))
        >>> normaliser.observe([0], first + 2, reward=none + 6, ended=none.astype(bool))
        >>> normaliser.normalize(np.array([[2.0, 4.0]])).round(3).tolist()
        [[0.0, 0.0]]
        >>> normaliser.scales().reward.round(3).tolist()
        [1.2]
    """

    def __init__(self, statistics: Statistics, discount: float, limit: float):
        self.statistics = statistics
        self._discount, self._limit = discount, limit

    def observe(
        self,
        members: Sequence[int],
        obs: NDArray[np.float64],
        reward: NDArray[np.float64],
        ended: NDArray[np.bool_],
    ) -> None:
        """Learns from what `members` are about to act on; for training only.

        A member's first observation has no step before it: what stands in its `reward`
        and `ended` is ignored.

        Args:
            members: who acts.
            obs: the observations acted on, [K, obs].
            reward: of the step before, [K].
            ended: whether that step ended an episode, [K].
        """
        who = np.asarray(members)
        after = self.statistics.obs.samples[who] >= 1
        self.collect(who[after].tolist(), reward[after], ended[after])
        self.statistics.obs.add(members, obs)

    def collect(
        self,
        members: Sequence[int],
        reward: NDArray[np.float64],
        ended: NDArray[np.bool_],
    ) -> None:
        """Takes a step's reward into the running return; arguments as in `observe`.

        As released, an end cuts off what came before its own step's reward, which so
        leaks into the next episode's return.
        """
        who, (_, returns, running, largest) = list(members), self.statistics
        running[who] = self._discount * ~ended * running[who] + reward
        largest[who] = np.maximum(largest[who], np.abs(running[who]))
        returns.add(who, running[who])

    def normalize(self, obs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Observations of all members as the networks see them, [S, ..., obs]."""
        mean, deviation, _ = self.scales()
        shape = len(obs), *[1] * (obs.ndim - 2), obs.shape[-1]
        return (obs - np.reshape(mean, shape)) / np.reshape(deviation, shape)

    def scales(self) -> Scales:
        """What the statistics come to now, [S, ...]."""
        obs, returns, _, largest = self.statistics
        spread = np.sqrt(returns.variance + FLOOR)
        return Scales(
            mean=obs.mean.copy(),
            deviation=np.sqrt(obs.variance + FLOOR),
            reward=np.maximum(spread, largest / self._limit),
        )


def make_normalizer(
    config: AgentConfig, statistics: Statistics
) -> Normalizer | IdentityNormalizer:
    """What normalises for an agent, from statistics on.

    Example:
        >>> from r2r2.config.agents import agent_config
        >>> make_normalizer(agent_config("td7"), initial_statistics(1, 2)).scales()
    """
    if config.normalization is None:
        return IdentityNormalizer()
    return Normalizer(statistics, *config.normalization)
