"""TD3 (Fujimoto et al., 2018) in one file outside the package.

An example of a user-defined agent: settings, networks, the update and an `AgentSpec`.
Train it from the folder of this file:

    r2r2 train --agent external_td3:TD3 --env Pendulum-v1
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2 import AgentConfig, AgentSpec
from r2r2.agents.base import Agent, Array, Batch, Metric, Update, as_metrics
from r2r2.agents.losses.value import td_target
from r2r2.agents.networks.layers import Linear, linears, mlp, twin_values, uniform_weights
from r2r2.agents.optimizer import Optimizer, OptState, minimize, polyak
from r2r2.config.common import ADAM, Adam
from r2r2.config.fields import NON_NEGATIVE, POSITIVE, at_least, between, option, size
from r2r2.envs.spec import Spec


@dataclasses.dataclass(frozen=True)
class TD3Config(AgentConfig):
    """Settings of TD3; every field is an option of the command line."""

    name: str = "td3"
    width: int = option(256, "units per hidden layer", size(1))
    batch_size: int = option(256, "transitions per update", size(2))
    discount: float = option(0.99, "discount factor", between(0, 1))
    critic_rate: float = option(3e-4, "learning rate of the critics", POSITIVE)
    actor_rate: float = option(3e-4, "learning rate of the actor", POSITIVE)
    policy_delay: int = option(2, "critic updates per actor update", at_least(1))
    target_rate: float = option(0.005, "Polyak coefficient", between(0, 1))
    target_noise: float = option(0.2, "deviation of target policy noise", NON_NEGATIVE)
    noise_clip: float = option(0.5, "clip range of target policy noise", NON_NEGATIVE)
    exploration_noise: float = option(0.1, "deviation of exploration noise", NON_NEGATIVE)
    adam: Adam = ADAM


class Actor(eqx.Module):
    """A deterministic policy."""

    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int):
        self.layers = linears(spec.obs_dim, width, width, spec.action_dim)

    def __call__(self, obs: Array) -> Array:
        return jnp.tanh(mlp(self.layers, obs, activation=jax.nn.relu))


class Critic(eqx.Module):
    """A state-action value."""

    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int):
        self.layers = linears(spec.obs_dim + spec.action_dim, width, width, 1)

    def __call__(self, obs: Array, action: Array) -> Array:
        return mlp(self.layers, obs, action, activation=jax.nn.relu)[..., 0]


class TD3State(NamedTuple):
    """Everything that an update reads and writes."""

    actor: Actor
    critic: Critic  # twins, stacked on axis 0
    actor_target: Actor
    critic_target: Critic
    actor_adam: OptState
    critic_adam: OptState


def make_td3(config: TD3Config, spec: Spec, utd: int) -> Agent:
    """Return TD3 as a record of pure functions; it has no schedule that needs utd."""
    del utd
    noise_shape = config.batch_size, spec.action_dim
    return Agent(
        init=lambda key, _: init(config, spec, key),
        behavior_policy=lambda state: state.actor,
        eval_policy=lambda state: state.actor,
        action_noise=lambda key: jax.random.normal(key, (spec.action_dim,)),
        explore=partial(explore, config),
        greedy=Actor.__call__,
        update_noise=lambda key: jax.random.normal(key, noise_shape),
        update=partial(update, config),
        value=lambda state, obs, action: min_value(state.critic, obs, action),
        batch_size=config.batch_size,
        policy_period=config.policy_delay,
    )


def init(config: TD3Config, spec: Spec, key: Array) -> TD3State:
    """Return new networks, which the targets equal."""
    actor_key, critic_key = jax.random.split(key)
    actor = uniform_weights(Actor(spec, config.width), actor_key)
    new_critic = partial(uniform_weights, Critic(spec, config.width))
    critic = jax.vmap(new_critic)(jax.random.split(critic_key))
    actor_optimizer, critic_optimizer = optimizers(config)
    return TD3State(
        actor, critic, actor, critic, actor_optimizer.init(actor), critic_optimizer.init(critic)
    )


def optimizers(config: TD3Config) -> tuple[Optimizer, Optimizer]:
    """Return the optimizers of actor and critics."""
    rates = config.actor_rate, config.critic_rate
    return Optimizer(config.adam, rates[0]), Optimizer(config.adam, rates[1])


def explore(config: TD3Config, policy: Actor, obs: Array, noise: Array) -> Array:
    """Return the action of the policy with exploration noise."""
    return jnp.clip(policy(obs) + config.exploration_noise * noise, -1, 1)


def min_value(critic: Critic, obs: Array, action: Array) -> Array:
    """Return the smaller value of the twins, [B]."""
    return jnp.min(twin_values(critic, obs, action), axis=0)


def update(
    config: TD3Config, state: TD3State, batch: Batch, noise: Array, step: Array
) -> tuple[TD3State, Update]:
    """Train the critics and, every `policy_delay` updates, actor and targets."""
    state, critic_loss = update_critic(config, state, batch, noise)
    due = step % config.policy_delay == 0
    state, actor_loss = jax.lax.cond(
        due,
        lambda: update_actor_and_targets(config, state, batch),
        lambda: (state, jnp.zeros_like(critic_loss)),
    )
    metrics = as_metrics({"loss/critic": critic_loss})
    metrics["loss/actor"] = Metric(actor_loss, jnp.asarray(due, actor_loss.dtype))
    return state, Update(None, metrics)


def update_critic(
    config: TD3Config, state: TD3State, batch: Batch, noise: Array
) -> tuple[TD3State, Array]:
    """Regress the twins on the smaller target value of a smoothed action."""
    limit = config.noise_clip
    smoothing = jnp.clip(config.target_noise * noise, -limit, limit)
    next_action = jnp.clip(state.actor_target(batch.next_obs) + smoothing, -1, 1)
    next_q = min_value(state.critic_target, batch.next_obs, next_action)
    target = td_target(batch.reward, batch.terminated, next_q, config.discount)

    def loss(critic: Critic) -> tuple[Array, None]:
        q = twin_values(critic, batch.obs, batch.action)
        return jnp.mean((q - jnp.broadcast_to(target, q.shape)) ** 2) * 2, None

    optimizer = optimizers(config)[1]
    step = minimize(optimizer, loss, state.critic, state.critic_adam)
    state = state._replace(critic=step.params, critic_adam=step.opt_state)
    return state, step.loss


def update_actor_and_targets(
    config: TD3Config, state: TD3State, batch: Batch
) -> tuple[TD3State, Array]:
    """Ascend the first critic's value, then move both targets."""

    def loss(actor: Actor) -> tuple[Array, None]:
        q = twin_values(state.critic, batch.obs, actor(batch.obs))
        return -jnp.mean(q[0]), None

    optimizer = optimizers(config)[0]
    step = minimize(optimizer, loss, state.actor, state.actor_adam)
    move = partial(polyak, config.target_rate)
    state = state._replace(
        actor=step.params,
        actor_adam=step.opt_state,
        actor_target=move(step.params, state.actor_target),
        critic_target=move(state.critic, state.critic_target),
    )
    return state, step.loss


TD3 = AgentSpec(
    "td3",
    TD3Config(),
    make_td3,
    warmup=25_000,
    preset={"agent.width": 64, "agent.batch_size": 128},
    description="TD3: twin critics, target smoothing, delayed policy updates",
)
