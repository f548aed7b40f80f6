"""Construct an agent from its config."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent
from r2r2.config.agents import agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec


def make_agent(config: AgentConfig, spec: Spec, utd: int) -> Agent:
    """Return the algorithm of a config; utd is for schedules that count decision steps."""
    make = agent_spec(config.name).make
    if isinstance(make, str):
        module, _, function = make.partition(":")
        make = getattr(importlib.import_module(module), function)
    agent: Agent = make(config, spec, utd)
    if agent.normalizes and config.normalization is None:
        raise UserError(
            f"agent {config.name!r}: it normalizes observations, but its config has no "
            "`normalization`"
        )
    return agent._replace(normalizes=config.normalization is not None)


def state_shapes(agent: Agent) -> Any:
    """Return the state of one member with shapes and types in place of arrays."""
    return jax.eval_shape(agent.init, jax.random.key(0), jnp.ones((), dtype=int))
