"""DDPG (Lillicrap et al., 2015), an agent outside the package.

    r2r2 train --agent ddpg:DDPG --env Pendulum-v1 --steps 10k

from the folder of this file.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2 import Agent, AgentConfig, AgentSpec, Batch, Update
from r2r2.agents.base import Array, as_metrics
from r2r2.agents.networks.layers import Linear, linears, mlp, uniform_weights
from r2r2.agents.optimizer import Optimizer, OptState, minimize, polyak
from r2r2.config.common import ADAM
from r2r2.config.fields import POSITIVE, between, option, size
from r2r2.envs.spec import Spec

Layers = tuple[Linear, ...]


@dataclasses.dataclass(frozen=True)
class DDPGConfig(AgentConfig):
    """Settings of DDPG: options of the command line, keys in TOML, arguments of `make_agent`."""

    name: str = "ddpg"
    width: int = option(256, "units per hidden layer", size(1))
    batch_size: int = option(256, "transitions per update", size(2))
    discount: float = option(0.99, "discount factor", between(0, 1))
    rate: float = option(1e-3, "learning rate", POSITIVE)
    target_rate: float = option(0.005, "Polyak coefficient of targets", between(0, 1))
    noise: float = option(0.1, "deviation of exploration noise", POSITIVE)


class DDPGState(NamedTuple):
    """Everything that an update reads and writes: arrays only."""

    actor: Layers
    critic: Layers
    actor_target: Layers
    critic_target: Layers
    actor_adam: OptState
    critic_adam: OptState


def action_of(actor: Layers, obs: Array) -> Array:
    """Return actions in [-1, 1]."""
    return jnp.tanh(mlp(actor, obs, activation=jax.nn.relu))


def value_of(critic: Layers, obs: Array, action: Array) -> Array:
    """Return values, [B]."""
    return mlp(critic, obs, action, activation=jax.nn.relu)[..., 0]


def make_ddpg(config: DDPGConfig, spec: Spec, utd: int) -> Agent:
    """Return DDPG as a record of pure functions; it has no schedule that needs utd."""
    del utd
    return Agent(
        init=lambda key, updates: init(config, spec, key),
        behavior_policy=lambda state: state.actor,
        eval_policy=lambda state: state.actor,
        action_noise=lambda key: config.noise * jax.random.normal(key, (spec.action_dim,)),
        explore=lambda actor, obs, noise: jnp.clip(action_of(actor, obs) + noise, -1, 1),
        greedy=action_of,
        update_noise=lambda key: None,  # an update needs no random numbers
        update=partial(update, config),
        value=lambda state, obs, action: value_of(state.critic, obs, action),
        batch_size=config.batch_size,
    )


def init(config: DDPGConfig, spec: Spec, key: Array) -> DDPGState:
    """Return new networks, which the targets equal."""
    width, optimizer = config.width, Optimizer(ADAM, config.rate)
    keys = jax.random.split(key)
    actor = uniform_weights(linears(spec.obs_dim, width, width, spec.action_dim), keys[0])
    critic = uniform_weights(linears(sum(spec), width, width, 1), keys[1])
    optimizers = optimizer.init(actor), optimizer.init(critic)
    return DDPGState(actor, critic, actor, critic, *optimizers)


def update(
    config: DDPGConfig, state: DDPGState, batch: Batch, noise: None, step: Array
) -> tuple[DDPGState, Update]:
    """Train the critic on TD targets, then the actor on the critic; move the targets."""
    del noise, step
    next_action = action_of(state.actor_target, batch.next_obs)
    next_value = value_of(state.critic_target, batch.next_obs, next_action)
    target = batch.reward + config.discount * jnp.where(batch.terminated, 0, next_value)

    def critic_loss(critic: Layers) -> tuple[Array, None]:
        return jnp.mean((value_of(critic, batch.obs, batch.action) - target) ** 2), None

    def actor_loss(actor: Layers) -> tuple[Array, None]:
        return -jnp.mean(value_of(critic.params, batch.obs, action_of(actor, batch.obs))), None

    train, tau = partial(minimize, Optimizer(ADAM, config.rate)), config.target_rate
    critic = train(critic_loss, state.critic, state.critic_adam)
    actor = train(actor_loss, state.actor, state.actor_adam)
    targets = (
        polyak(tau, actor.params, state.actor_target),
        polyak(tau, critic.params, state.critic_target),
    )
    state = DDPGState(actor.params, critic.params, *targets, actor.opt_state, critic.opt_state)
    return state, Update(None, as_metrics({"loss/critic": critic.loss, "loss/actor": actor.loss}))


DDPG = AgentSpec("ddpg", DDPGConfig(), make_ddpg, warmup=1_000, description="DDPG (2015)")
