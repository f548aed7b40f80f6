"""Named starting points."""

from typing import Any

from r2r2.config.agents import AgentConfig, agent_config
from r2r2.config.minphi import MinPhiConfig
from r2r2.config.resolve import DEFAULT_AGENT
from r2r2.config.simbav2 import SimbaV2Config, SimbaV2SPLConfig
from r2r2.config.td7 import TD7Config

TASK = {
    "env": "cartpole-swingup",
    "steps": 15_000,
    "warmup": 1_000,
    "utd": 3,
    "eval_every": 1_000,
    "eval_episodes": 5,
}

# Small networks learn faster with larger steps, more noise and a shorter horizon than
# the agents' own; `benchmarks/quick.py` shows what this reaches, seed by seed.
RATES = {
    "agent.encoder_rate": 1e-3,
    "agent.critic_rate": 1e-3,
    "agent.actor_rate": 1e-3,
}
SIMBA = {
    "agent.actor_width": 64,
    "agent.critic_width": 64,
    "agent.batch_size": 128,
    "agent.discount": 0.98,
    "agent.first_rate": 1e-3,
    "agent.last_rate": 5e-4,
}
SMALL: dict[type[AgentConfig], dict[str, Any]] = {
    TD7Config: {
        "agent.width": 64,
        "agent.latent": 64,
        "agent.batch_size": 128,
        "agent.discount": 0.98,
        **RATES,
        "agent.exploration_noise": 0.3,
        "agent.target_period": 100,
    },
    MinPhiConfig: {
        "agent.width": 64,
        "agent.model_width": 64,
        "agent.batch_size": 128,
        "agent.discount": 0.98,
        **RATES,
        "agent.noise_steps": 5_000,
    },
    SimbaV2Config: SIMBA,
    SimbaV2SPLConfig: {
        **SIMBA,
        "agent.latent": 64,
        "agent.model_width": 64,
        "agent.encoder_first_rate": 1e-3,
        "agent.encoder_last_rate": 5e-4,
    },
}
QUICK_TARGET = 500


def quick_config(agent: str = DEFAULT_AGENT) -> dict[str, Any]:
    """A small real task for an agent at a small size: minutes on two cores.

    Example:
        >>> quick_config("simbav2")["agent.critic_width"]
        64
    """
    return {"agent": agent, **TASK, **SMALL[type(agent_config(agent))]}


QUICK = quick_config()
