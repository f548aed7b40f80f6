"""Construct an agent from its config."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch
from r2r2.agents.losses.representation import extra_term
from r2r2.config.agents import agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.imports import EXTRA_FIELD
from r2r2.envs.spec import Spec


def build_agent(config: AgentConfig, spec: Spec, utd: int) -> Agent:
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


def check_extra_loss(config: AgentConfig, spec: Spec) -> None:
    """Check that the extra term of an encoder's loss can be computed and differentiated.

    Raises:
        UserError: It cannot; the message has the reason.
    """
    weights, agent = config.representation, build_agent(config, spec, 1)
    if weights is None or agent.encode is None or not (weights.extra and weights.lambda_extra):
        return
    name, rows = weights.extra, config.batch_size
    obs, action = (jnp.zeros((rows, size)) for size in spec)
    batch = Batch(obs, action, jnp.zeros(rows), next_obs=obs, terminated=jnp.zeros(rows, bool))
    latents = jax.eval_shape(agent.encode, state_shapes(agent), obs)

    def term(z: Array, predicted: Array, target: Array) -> Array:
        return extra_term(name, z, {"predicted": predicted, "target": target, "batch": batch})

    try:
        jax.eval_shape(jax.grad(term), latents, latents, latents)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise UserError(
            f"{name!r} cannot be computed and differentiated by JAX on latents of shape "
            f"{latents.shape} ({reason})",
            EXTRA_FIELD,
        ) from error


def state_shapes(agent: Agent) -> Any:
    """Return the state of one member with shapes and types in place of arrays."""
    return jax.eval_shape(agent.init, jax.random.key(0), jnp.ones((), dtype=int))
