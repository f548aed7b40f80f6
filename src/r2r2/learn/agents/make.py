"""From an agent's config to the agent."""

from r2r2.config.agents import AgentConfig
from r2r2.core import Agent
from r2r2.envs.members import Spec
from r2r2.learn.agents.td7 import td7


def make_agent(config: AgentConfig, spec: Spec) -> Agent:
    """The algorithm that a config describes, for a task's sizes.

    Example:
        >>> from r2r2.config.agents import agent_config
        >>> make_agent(agent_config("td7"), Spec(obs_dim=5, action_dim=2)).batch_size
        256
    """
    return td7(config, spec)
