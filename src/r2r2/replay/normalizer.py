"""Normalization of observations and rewards by each member's running statistics.

Replay holds raw values: a batch is normalized when it is sampled, with the statistics
of that moment. They are float64 on the host: single precision is known to cost score.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Array, Batch
from r2r2.config.common import AgentConfig

FIRST_SAMPLES = 1e-4  # initial count, of samples with mean 0 and variance 1
FLOOR = 1e-8  # added to a variance
CHUNK = 2**16  # samples that are added at a time


class Scales(NamedTuple):
    """Mean and scale of a member's data at one moment."""

    mean: Array | NDArray[np.float64]  # [obs]
    deviation: Array | NDArray[np.float64]  # [obs]
    reward: Array | NDArray[np.float64]  # [], divides rewards


def normalize_batch(batch: Batch, scales: Scales) -> Batch:
    """Return a batch as the networks see it."""

    def normalize(obs: Array) -> Array:
        mean, deviation = (jnp.broadcast_to(x, obs.shape) for x in scales[:2])
        return (obs - mean) / deviation

    obs, next_obs = normalize(batch.obs), normalize(batch.next_obs)
    reward = batch.reward / scales.reward
    return batch._replace(obs=obs, next_obs=next_obs, reward=reward)


Index = slice | NDArray[np.int_]  # of members in arrays [S, ...]


class Moments(NamedTuple):
    """Running mean and variance of each member's samples."""

    samples: NDArray[np.float64]  # their number, [S]
    mean: NDArray[np.float64]  # [S, ...]
    variance: NDArray[np.float64]  # [S, ...]

    def add(self, members: Index, sample: NDArray[np.float64]) -> None:
        """Add one sample of each of `members`; sample is [K, ...]."""
        old = self.samples[members].reshape(-1, *[1] * (sample.ndim - 1))
        new, step = old + 1, sample - self.mean[members]
        self.mean[members] += step / new
        self.variance[members] = (self.variance[members] * old + step**2 * old / new) / new
        self.samples[members] += 1

    def add_many(self, samples: NDArray[Any]) -> None:
        """Add the same samples [N, ...] to those of every member."""
        for start in range(0, len(samples), CHUNK):
            chunk = samples[start : start + CHUNK].astype(np.float64)
            count, mean, variance = len(chunk), chunk.mean(axis=0), chunk.var(axis=0)
            old = self.samples.reshape(-1, *[1] * (samples.ndim - 1))
            total, step = old + count, mean - self.mean
            self.mean[...] += step * count / total
            squares = self.variance * old + variance * count + step**2 * old * count / total
            self.variance[...] = squares / total
            self.samples[...] += count


class Statistics(NamedTuple):
    """Everything a normalizer has learned, as arrays of a checkpoint."""

    obs: Moments  # of the observations acted on, [S, obs]
    returns: Moments  # of the running discounted return, [S]
    running: NDArray[np.float64]  # that return itself, [S]
    largest: NDArray[np.float64]  # its largest absolute value so far, [S]


def initial_statistics(members: int, obs_dim: int) -> Statistics:
    """Return the statistics before the first observation."""

    def moments(*shape: int) -> Moments:
        samples = np.full(members, FIRST_SAMPLES)
        return Moments(samples, np.zeros((members, *shape)), np.ones((members, *shape)))

    return Statistics(moments(obs_dim), moments(), np.zeros(members), np.zeros(members))


def statistics_of(scales: Scales, samples: int, members: int) -> Statistics:
    """Return statistics of all members that give these scales of one member."""
    # Scales lack the mean return and the largest one; only later changes depend on them.
    obs_dim = len(scales.mean)
    statistics = initial_statistics(members, obs_dim)
    deviation, reward = (np.asarray(x, np.float64) for x in (scales.deviation, scales.reward))
    statistics.obs.mean[...] = np.broadcast_to(np.asarray(scales.mean), (members, obs_dim))
    variance = np.maximum(deviation**2 - FLOOR, 0)
    statistics.obs.variance[...] = np.broadcast_to(variance, (members, obs_dim))
    statistics.returns.variance[...] = np.maximum(reward**2 - FLOOR, 0)
    for moments in (statistics.obs, statistics.returns):
        moments.samples[...] = samples
    return statistics


class IdentityNormalizer:
    """Takes the place of a `Normalizer` for agents that see raw values."""

    def observe(self, *_: Any) -> None:
        """Ignore the arguments."""

    def normalize(self, obs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the observations."""
        return obs

    def scales(self) -> None:
        """Return None."""


class Normalizer:
    """Normalizes observations, and rewards so that no return so far exceeds `limit`."""

    def __init__(self, statistics: Statistics, discount: float, limit: float):
        self.statistics = statistics  # changed in place
        self._discount, self._limit = discount, limit

    def observe(
        self,
        members: Sequence[int] | NDArray[np.int_],
        obs: NDArray[np.float64],
        reward: NDArray[np.float64],
        ended: NDArray[np.bool_],
    ) -> None:
        """Learn from observations [K, obs] that `members` are about to act on."""
        # Reward and ended, [K], are of the step before; they are ignored at a member's first
        # observation.
        index = self._index(members)
        known = self.statistics.obs.samples[index] >= 1
        if known.all():
            self.collect(members, reward, ended)
        else:
            self.collect(np.asarray(members)[known].tolist(), reward[known], ended[known])
        self.statistics.obs.add(index, obs)

    def _index(self, members: Sequence[int] | NDArray[np.int_]) -> Index:
        """Return members as an index; all of them, as in lockstep, as a slice, which is fast."""
        everyone = range(len(self.statistics.running))
        return slice(None) if tuple(members) == tuple(everyone) else np.asarray(members, int)

    def collect(
        self,
        members: Sequence[int] | NDArray[np.int_],
        reward: NDArray[np.float64],
        ended: NDArray[np.bool_],
    ) -> None:
        """Add a step's rewards to the running returns; arguments as in `observe`."""
        # As released, an end cuts off what came before its own step's reward, which thus leaks into
        # the next episode's return.
        index, (_, returns, running, largest) = self._index(members), self.statistics
        running[index] = total = self._discount * ~ended * running[index] + reward
        largest[index] = np.maximum(largest[index], np.abs(total))
        returns.add(index, total)

    def observe_recorded(
        self, obs: NDArray[Any], reward: NDArray[Any], ended: NDArray[np.bool_]
    ) -> None:
        """Learn from recorded steps [N, ...] as if every member had made them.

        Members must have equal statistics. The last step's reward counts with the next
        observation, as in `observe`.
        """
        moments, returns, running, largest = self.statistics
        moments.add_many(obs)
        total, totals = float(running[0]), np.zeros(len(reward) - 1)
        for n, (gain, over) in enumerate(zip(reward[:-1].tolist(), ended.tolist(), strict=False)):
            total = self._discount * (not over) * total + gain
            totals[n] = total
        running[...] = total
        largest[...] = np.maximum(largest, np.abs(totals).max(initial=0))
        returns.add_many(totals)

    def normalize(self, obs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return observations of all members as the networks see them."""
        mean, deviation = self.statistics.obs.mean, self._deviation()
        shape = len(obs), *[1] * (obs.ndim - 2), obs.shape[-1]
        return (obs - np.reshape(mean, shape)) / np.reshape(deviation, shape)

    def scales(self) -> Scales:
        """Return the current scales, [S, ...]."""
        obs, returns, _, largest = self.statistics
        spread = np.sqrt(returns.variance + FLOOR)
        reward = np.maximum(spread, largest / self._limit)
        return Scales(obs.mean.copy(), self._deviation(), reward)

    def _deviation(self) -> NDArray[np.float64]:
        deviation: NDArray[np.float64] = np.sqrt(self.statistics.obs.variance + FLOOR)
        return deviation


def make_normalizer(config: AgentConfig, statistics: Statistics) -> Normalizer | IdentityNormalizer:
    """Return the normalizer of an agent, continuing from statistics."""
    if config.normalization is None:
        return IdentityNormalizer()
    return Normalizer(statistics, *config.normalization)
