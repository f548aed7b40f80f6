"""From an agent's config to the agent."""

from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent
from r2r2.agents.minphi import minphi
from r2r2.agents.simbav2 import simbav2
from r2r2.agents.simbav2_spl import simbav2_spl
from r2r2.agents.td7 import td7
from r2r2.config.agents import AgentConfig
from r2r2.config.minphi import MinPhiConfig
from r2r2.config.simbav2 import SimbaV2Config, SimbaV2SPLConfig
from r2r2.envs.spec import Spec


def make_agent(config: AgentConfig, spec: Spec, utd: int) -> Agent:
    """The algorithm that a config describes.

    Args:
        config: the agent's.
        spec: the task's sizes.
        utd: updates per decision step, for what is scheduled by decision steps.

    Example:
        >>> from r2r2.config.agents import agent_config
        >>> make_agent(agent_config("td7"), Spec(obs_dim=5, action_dim=2), 1).batch_size
        256
    """
    if isinstance(config, SimbaV2SPLConfig):
        return simbav2_spl(config, spec)
    if isinstance(config, SimbaV2Config):
        return simbav2(config, spec)
    if isinstance(config, MinPhiConfig):
        return minphi(config, spec, utd)
    return td7(config, spec)


def state_shapes(agent: Agent) -> Any:
    """One member's state with shapes and types in the place of numbers."""
    return jax.eval_shape(agent.init, jax.random.key(0), jnp.ones((), dtype=int))
