"""Markov chains for hypothesis."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

SIZES = st.integers(2, 12)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def row_stochastic(draw):
    """Any chain: rows of weights, some of which are 0, scaled to sum 1."""
    states = draw(SIZES)
    weights = st.sampled_from([0.0, 0.0, 1e-3, 0.1, 1.0, 1.0, 2.0])
    matrix = draw(arrays(np.float64, (states, states), elements=weights))
    matrix[matrix.sum(axis=1) == 0] = 1.0
    return matrix / matrix.sum(axis=1, keepdims=True)


@st.composite
def doubly_stochastic(draw):
    """A mean of permutation matrices."""
    states = draw(SIZES)
    permutations = draw(st.lists(st.permutations(range(states)), min_size=1, max_size=6))
    return np.mean([np.eye(states)[list(p)] for p in permutations], axis=0)


@st.composite
def symmetric(draw):
    """A mean of a doubly stochastic chain and its transpose."""
    p = draw(doubly_stochastic())
    return (p + p.T) / 2
