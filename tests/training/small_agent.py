"""An agent of a few numbers, so that runs compile fast; `small_agent:SLOPE`."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2 import AgentConfig, AgentSpec
from r2r2.agents.base import Agent, Array, Batch, Metric, Update, as_metrics
from r2r2.config.common import Normalization, Representation
from r2r2.config.fields import at_least, between, option
from r2r2.envs.spec import Spec

LATENT = 8


@dataclasses.dataclass(frozen=True)
class SlopeConfig(AgentConfig):
    """Settings of the agent, each of which turns on a feature of other agents."""

    name: str = "slope"
    batch_size: int = option(4, "transitions per update", at_least(1))
    discount: float = option(0.9, "discount factor", between(0, 1))
    policy_checkpoints: bool = option(False, "assess policies, as TD7 does")
    normalize: bool = option(False, "normalize observations, as SimbaV2 does")

    @property
    def warmup_ends_with_episode(self) -> bool:
        return self.policy_checkpoints

    @property
    def normalization(self) -> Normalization | None:
        return Normalization(self.discount, 5.0) if self.normalize else None

    @property
    def representation(self) -> Representation:
        return Representation()


class SlopeState(NamedTuple):
    value: Array  # [obs + action], linear model of the reward
    actor: Array  # [obs]
    checkpoint: Array  # [obs], the policy checkpoint
    encoder: Array  # [obs, latent], not trained
    updates: Array


def slope(config: SlopeConfig, spec: Spec, utd: int) -> Agent:
    """Learn a linear model of rewards, and act by its gradient."""
    obs_dim, action_dim = spec

    def init(key, _):
        first = jax.random.normal(key, (2 * obs_dim + action_dim,)) / 10
        value, actor = jnp.split(first, [obs_dim + action_dim])
        encoder = jax.random.normal(key, (obs_dim, LATENT)) / 3
        return SlopeState(value, actor, actor, encoder, jnp.zeros((), dtype=int))

    def greedy(actor, obs):
        lean = jnp.tanh(obs @ actor / 100)
        return jnp.broadcast_to(lean[..., None], (*lean.shape, action_dim))

    def eval_policy(state):
        return state.checkpoint if config.policy_checkpoints else state.actor

    return Agent(
        init=init,
        behavior_policy=lambda state: state.actor,
        eval_policy=eval_policy,
        action_noise=lambda key: jax.random.normal(key, (action_dim,)),
        explore=lambda actor, obs, noise: jnp.tanh(greedy(actor, obs) + noise / 10),
        greedy=greedy,
        update_noise=lambda key: jax.random.normal(key, (config.batch_size,)),
        update=update,
        value=lambda state, obs, action: features(obs, action) @ state.value,
        batch_size=config.batch_size,
        prioritizes=True,
        policy_period=2,
        checkpoint_policy=lambda state: state._replace(checkpoint=state.actor),
        encode=lambda state, obs: jnp.sin(obs @ state.encoder),
    )


def features(obs: Array, action: Array) -> Array:
    return jnp.concatenate([obs / 1000, action], axis=-1)


def update(state: SlopeState, batch: Batch, noise: Array, step: Array):
    x = features(batch.obs, batch.action)

    def loss(value):
        return jnp.mean((x @ value - batch.reward + noise / 10) ** 2)

    error, gradient = jax.value_and_grad(loss)(state.value)
    value = state.value - 0.01 * gradient
    actor = state.actor + 0.01 * (step % 2) * value[: len(state.actor)]
    metrics = as_metrics({"loss/critic": error})
    metrics["loss/actor"] = Metric(jnp.zeros_like(error), jnp.zeros_like(error))
    # Bounded, unlike those of LAP: priorities decide which rows are sampled.
    priorities = 1 + jnp.minimum(jnp.abs(batch.reward), 2.0)
    changed = state._replace(value=value, actor=actor, updates=state.updates + 1)
    return changed, Update(priorities, metrics)


SLOPE = AgentSpec("slope", SlopeConfig(), slope, warmup=10)
