"""Noise of exploring actions that workers are given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import build_agent
from r2r2.compute import compiled
from r2r2.compute.update import member_key
from r2r2.training.acting import BLOCK, ExplorationNoise
from small_fleets import SPEC, small

SEEDS = (3, 4)


@pytest.fixture(scope="module")
def agent():
    return build_agent(small("td7"), SPEC, 1)


@pytest.fixture(scope="module")
def noise(agent):
    return ExplorationNoise(agent, SEEDS)


def test_noise_is_that_of_actions_in_the_main_process(agent, noise):
    def explore(policy, obs, drawn):
        return drawn

    steps = np.array([0, 1, 5, BLOCK - 1, BLOCK, 1000])
    keys = jnp.stack([member_key(seed) for seed in SEEDS])
    acts = jax.jit(lambda *x: compiled.act(agent._replace(explore=explore), None, *x))
    for step in steps:
        expected = acts(keys, np.zeros((2, SPEC.obs_dim)), np.full(2, step))
        actual = np.concatenate([noise(member, step, 1) for member in (0, 1)])
        np.testing.assert_array_equal(actual, expected)


def test_noise_does_not_depend_on_how_it_is_requested(noise):
    rows = np.stack([noise(1, step, 1)[0] for step in range(3 * BLOCK)])
    assert rows.shape == (3 * BLOCK, SPEC.action_dim)
    assert len(np.unique(rows)) == rows.size
    for first, count in [(0, 1), (0, BLOCK), (1, BLOCK), (BLOCK, 5), (BLOCK - 1, 2 * BLOCK)]:
        np.testing.assert_array_equal(noise(1, first, count), rows[first : first + count])
        assert not np.isin(noise(0, first, count), rows).any()
