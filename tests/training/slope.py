"""An agent of a few numbers, so that whole runs compile in a moment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Metric, Update, as_metrics

BATCH = 4


class Slope(NamedTuple):
    value: Array  # [obs + action], of the reward
    actor: Array  # [obs]
    kept: Array  # [obs], the policy checkpoint
    updates: Array


def slope(obs_dim: int, action_dim: int, normalises: bool = False) -> Agent:
    """Learns to foresee rewards, and acts by what it foresees."""

    def init(key, _):
        first = jax.random.normal(key, (2 * obs_dim + action_dim,)) / 10
        value, actor = jnp.split(first, [obs_dim + action_dim])
        return Slope(value, actor, actor, jnp.zeros((), dtype=int))

    def greedy(actor, obs):
        lean = jnp.tanh(obs @ actor / 100)
        return jnp.broadcast_to(lean[..., None], (*lean.shape, action_dim))

    return Agent(
        init=init,
        behavior_policy=lambda state: state.actor,
        eval_policy=lambda state: state.kept,
        action_noise=lambda key: jax.random.normal(key, (action_dim,)),
        explore=lambda actor, obs, noise: jnp.tanh(greedy(actor, obs) + noise / 10),
        greedy=greedy,
        update_noise=lambda key: jax.random.normal(key, (BATCH,)),
        update=update,
        value=lambda state, obs, action: foreseen(obs, action) @ state.value,
        batch_size=BATCH,
        prioritizes=True,
        policy_period=2,
        checkpoint_policy=lambda state: state._replace(kept=state.actor),
        normalizes=normalises,
    )


def foreseen(obs: Array, action: Array) -> Array:
    return jnp.concatenate([obs / 1000, action], axis=-1)


def update(state: Slope, batch: Batch, noise: Array, step: Array):
    seen = foreseen(batch.obs, batch.action)

    def loss(value):
        return jnp.mean((seen @ value - batch.reward + noise / 10) ** 2)

    error, gradient = jax.value_and_grad(loss)(state.value)
    value = state.value - 0.01 * gradient
    actor = state.actor + 0.01 * (step % 2) * value[: len(state.actor)]
    metrics = as_metrics({"loss/critic": error})
    metrics["loss/actor"] = Metric(jnp.zeros_like(error), jnp.zeros_like(error))
    # Bounded, as those of LAP are not: what is drawn is told by its priority.
    priorities = 1 + jnp.minimum(jnp.abs(batch.reward), 2.0)
    changed = state._replace(value=value, actor=actor, updates=state.updates + 1)
    return changed, Update(priorities, metrics)
