"""Example chains have the structure that their names promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import SEEDS, SIZES

from r2r2 import UserError
from r2r2.theory import chains
from r2r2.theory.chains import STATES, Structure, examples, structure

EXPECTED = {
    # symmetric, doubly stochastic, irreducible, aperiodic
    "grid world": Structure(True, True, True, True),
    "random symmetric": Structure(True, True, True, True),
    "lazy symmetric": Structure(True, True, True, True),
    "ring, period 2": Structure(True, True, True, False),
    "doubly stochastic": Structure(False, True, True, True),
    "directed cycle": Structure(False, True, True, False),
    "drifting walk": Structure(False, False, True, True),
    "random ergodic": Structure(False, False, True, True),
    "absorbing walk": Structure(False, False, False, True),
}


def test_every_example_has_its_structure():
    assert {chain.name: structure(chain.matrix) for chain in examples()} == EXPECTED


def test_examples_have_the_same_size_and_are_a_function_of_the_seed():
    first, again, other = examples(), examples(), examples(seed=1)
    assert {chain.matrix.shape for chain in first} == {(STATES, STATES)}
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.matrix, b.matrix)
    assert any((a.matrix != b.matrix).any() for a, b in zip(first, other, strict=True))


@settings(max_examples=30)
@given(SIZES, SEEDS)
def test_random_chains_are_stochastic(states, seed):
    rng = np.random.default_rng(seed)
    symmetric = chains.random_symmetric(states, rng)
    doubly = chains.random_doubly_stochastic(states, rng)
    ergodic = chains.random_ergodic(states, rng)
    for p in (symmetric, doubly, ergodic):
        assert (p >= 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(doubly.sum(axis=0), 1, atol=1e-13)
    np.testing.assert_array_equal(symmetric, symmetric.T)
    assert (ergodic > 0).all()


def test_a_grid_world_stops_at_walls():
    p = chains.grid_world(2, 2)
    # Corner: stay 1/5, two walls 2/5, two neighbors 1/5 each, never the opposite corner.
    np.testing.assert_allclose(p[0], [0.6, 0.2, 0.2, 0.0])


def test_a_drifting_walk_prefers_the_right():
    p = chains.drifting_walk(3)
    np.testing.assert_allclose(p, [[0.6, 0.4, 0], [0.3, 0.3, 0.4], [0, 0.3, 0.7]])


def test_absorbing_ends_are_never_left():
    p = chains.absorbing_walk(5)
    np.testing.assert_array_equal(p[0], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(p[2], [0, 0.5, 0, 0.5, 0])


def test_a_chain_of_one_state_is_refused():
    with pytest.raises(UserError, match=r"states: expected an integer >= 2, got 1"):
        chains.ring(1)
