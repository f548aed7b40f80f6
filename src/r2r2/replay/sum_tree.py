"""Sampling rows in proportion to weights that change after every update.

A tree of sums with a wide fan-out: level 0 holds the weights in blocks, and each level
above holds the sums of the blocks below. Sampling descends one block per level and a
change ascends, so neither reads all weights. There is one uniform number per level, not
one for the whole descent: single precision has too few digits for a million rows.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Array

FANOUT = 128


class SumTree(NamedTuple):
    """Weights and their sums; `levels[0]` is [blocks, fanout], the last [1, n]."""

    levels: tuple[Array, ...]

    @property
    def weights(self) -> Array:
        """All weights in order, [..., rows], padded with zeros to whole blocks."""
        *fleet, blocks, fanout = self.levels[0].shape
        return self.levels[0].reshape(*fleet, blocks * fanout)


def init(rows: int, fanout: int) -> SumTree:
    """Return a tree over `rows` weights, all zero."""
    levels: list[Array] = []
    entries = rows
    while entries > fanout:
        blocks = math.ceil(entries / fanout)
        levels.append(jnp.zeros((blocks, fanout)))
        entries = blocks
    return SumTree((*levels, jnp.zeros((1, entries))))


def build_levels(weights: NDArray[np.floating], fanout: int = FANOUT) -> list[NDArray[Any]]:
    """Return the levels of the trees over weights [S, rows], computed on the host."""
    levels: list[NDArray[Any]] = []
    while weights.shape[-1] > fanout:
        blocks = math.ceil(weights.shape[-1] / fanout)
        padding = blocks * fanout - weights.shape[-1]
        padded = np.pad(weights, ((0, 0), (0, padding)))
        levels.append(padded.reshape(len(weights), blocks, fanout))
        weights = levels[-1].sum(axis=-1)
    return [*levels, weights[:, None]]


def assign(tree: SumTree, index: Array, weights: Array, member: tuple[Array, ...] = ()) -> SumTree:
    """Set the weights at `index`, and recompute the sums above from their entries."""
    # Sums are never changed by differences, which would accumulate errors. The tree is that of one
    # member or, with the `member` of each row, of the whole fleet.
    levels: list[Array] = []
    for level in tree.levels:
        block, place = jnp.divmod(index, level.shape[-1])
        level = level.at[(*member, block, place)].set(weights)
        levels.append(level)
        index, weights = block, jnp.sum(level[(*member, block)], axis=-1)
    return SumTree(tuple(levels))


def sample(tree: SumTree, uniforms: Array) -> Array:
    """Return rows [B] drawn by weight; uniforms is [B, levels], in (0, 1]."""
    index = jnp.zeros(uniforms.shape[:1], dtype=int)
    for level, u in zip(reversed(tree.levels), uniforms.T, strict=True):
        index = index * level.shape[-1] + inverse_cdf(level[index], u)
    return index


def inverse_cdf(weights: Array, uniform: Array) -> Array:
    """Return the first index of positive weight whose cumulative sum reaches u x total."""
    # Maps [..., n] and [...] to [...]. A parallel cumulative sum is not exactly monotone, so
    # entries of weight zero are excluded by their weight, not by their sum.
    live = weights > 0
    sums = jnp.cumsum(weights, axis=-1)
    total = jnp.max(jnp.where(live, sums, 0), axis=-1)
    reached = sums >= jnp.broadcast_to((uniform * total)[..., None], sums.shape)
    return jnp.argmax(live & reached, axis=-1)
