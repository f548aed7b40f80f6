"""Agents learn: a one-step task exactly, a real one far beyond chance (slow)."""

import numpy as np
import pytest

from r2r2 import AGENTS, resolve, train
from r2r2.config.presets import QUICK

BANDIT = {
    "env": "toys:Bandit-v0",
    "steps": 1_200,
    "warmup": 200,
    "eval_every": 1_200,
    "eval_episodes": 1,
    "utd": 2,
    "agent.width": 32,
    "agent.latent": 16,
    "agent.batch_size": 64,
    "agent.actor_rate": 1e-3,
    "agent.critic_rate": 1e-3,
    "agent.policy_checkpoints": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_bandit_is_solved(agent, tmp_path):
    result = train(resolve(BANDIT, {"agent": agent, "seeds": 3}), tmp_path / "run")
    # The best is 1, at action 0.5; a random action earns 0.42 on average, action 0
    # earns 0.75. 0.99 is an action within 0.1 of the best.
    assert result.random["toys:Bandit-v0"] == pytest.approx(0.42, abs=0.1)
    assert result.returns.min() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_cartpole_is_swung_up_from_three_seeds(agent, tmp_path):
    """Physics, policy checkpoints, bursts: the whole loop, at the quick preset."""
    config = resolve(QUICK, {"agent": agent, "seeds": 3, "eval_every": 5_000})
    result = train(config, tmp_path / "run")
    # A random policy earns some 50, one that only holds the cart some 200.
    assert result.random["cartpole-swingup"] < 100
    assert np.all(result.returns > 500), result.returns
