"""TD7 (Fujimoto et al., 2023), optionally with R2R2 on its encoder.

Follows sfujim/TD7 @c1c280d, except that
- a burst of training has UTD times the steps since the last one (the release: UTD 1);
- replay has the type of the parameters (the release: float64).
As released, target values are clipped to [0, 0] until the first sync.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Metric, Update, as_metrics, cond
from r2r2.agents.losses.representation import representation_loss, self_prediction
from r2r2.agents.losses.value import lap_huber, lap_priority, td_target
from r2r2.agents.networks.layers import twin_values, uniform_weights
from r2r2.agents.networks.td7 import Actor, Critic, Encoder, Policy, both_values, value
from r2r2.agents.optimizer import Optimizer, OptState, minimize
from r2r2.config.agent_configs import TD7Config
from r2r2.envs.spec import Spec


class ValueRange(NamedTuple):
    """Where target values are clipped, and the range of targets seen so far."""

    low: Array
    high: Array
    seen_low: Array
    seen_high: Array


class TD7State(NamedTuple):
    """Everything an update reads and writes."""

    encoder: Encoder  # trained
    fixed_encoder: Encoder  # feeds actor and critic
    fixed_encoder_target: Encoder  # feeds their targets
    critic: Critic  # twins, stacked on axis 0
    critic_target: Critic
    actor: Actor
    actor_target: Actor
    checkpoint_actor: Actor  # the policy checkpoint, which is evaluated
    checkpoint_encoder: Encoder
    encoder_adam: OptState
    critic_adam: OptState
    actor_adam: OptState
    values: ValueRange


def td7(config: TD7Config, spec: Spec, _: int = 1) -> Agent:
    """Return TD7 as a record of pure functions."""
    noise = config.batch_size, spec.action_dim
    return Agent(
        init=lambda key, _: init(config, spec, key),
        behavior_policy=behavior_policy,
        eval_policy=partial(eval_policy, config),
        action_noise=lambda key: jax.random.normal(key, (spec.action_dim,)),
        explore=partial(explore, config),
        greedy=Policy.__call__,
        update_noise=lambda key: jax.random.normal(key, noise),
        update=partial(update, config),
        value=lambda state, *args: value(state.critic, state.fixed_encoder, *args),
        batch_size=config.batch_size,
        prioritizes=True,
        policy_period=config.policy_delay,
        sync_period=config.target_period,
        sync=sync,
        checkpoint_policy=checkpoint_policy,
        encode=lambda state, obs: state.encoder.zs(obs),
    )


def init(config: TD7Config, spec: Spec, key: Array) -> TD7State:
    """Return new networks; targets and the first policy checkpoint equal them."""
    k_encoder, k_critic, k_actor = jax.random.split(key, 3)
    sizes = (spec, config.width, config.latent)
    encoder = uniform_weights(Encoder(*sizes, config.layer_norm), k_encoder)
    twins = partial(uniform_weights, Critic(*sizes))
    critic = jax.vmap(twins)(jax.random.split(k_critic))
    actor = uniform_weights(Actor(*sizes), k_actor)
    return TD7State(
        encoder=encoder,
        fixed_encoder=encoder,
        fixed_encoder_target=encoder,
        critic=critic,
        critic_target=critic,
        actor=actor,
        actor_target=actor,
        checkpoint_actor=actor,
        checkpoint_encoder=encoder,
        encoder_adam=Optimizer(config.adam, config.encoder_rate).init(encoder),
        critic_adam=Optimizer(config.adam, config.critic_rate).init(critic),
        actor_adam=Optimizer(config.adam, config.actor_rate).init(actor),
        values=ValueRange(*(jnp.asarray(x, dtype=float) for x in (0, 0, 1e8, -1e8))),
    )


def behavior_policy(state: TD7State) -> Policy:
    """Return the policy that collects data."""
    return Policy(state.actor, state.fixed_encoder)


def eval_policy(config: TD7Config, state: TD7State) -> Policy:
    """Return the policy checkpoint, or the behavior policy if there are none."""
    if not config.policy_checkpoints:
        return behavior_policy(state)
    return Policy(state.checkpoint_actor, state.checkpoint_encoder)


def checkpoint_policy(state: TD7State) -> TD7State:
    """Copy the behavior policy to the policy checkpoint."""
    return state._replace(checkpoint_actor=state.actor, checkpoint_encoder=state.fixed_encoder)


def explore(config: TD7Config, policy: Policy, obs: Array, noise: Array) -> Array:
    """Return the policy's action with exploration noise; noise is N(0, 1)."""
    return jnp.clip(policy(obs) + config.exploration_noise * noise, -1, 1)


def update(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array, step: Array | int
) -> tuple[TD7State, Update]:
    """Update encoder, critics and, when due, the actor; noise is N(0, 1), [B, action]."""
    state, metrics = update_encoder(config, state, batch)
    zs = state.fixed_encoder.zs(batch.obs)
    state, error, critic_loss = update_critic(config, state, batch, noise, zs)
    due = step % config.policy_delay == 0
    actor, actor_adam, actor_loss = cond(
        due,
        lambda: update_actor(config, state, batch, zs),
        lambda: (state.actor, state.actor_adam, jnp.zeros_like(critic_loss)),
    )
    state = state._replace(actor=actor, actor_adam=actor_adam)
    means = as_metrics(metrics | {"loss/critic": critic_loss})
    means["loss/actor"] = Metric(actor_loss, jnp.asarray(due, actor_loss.dtype))
    priorities = lap_priority(error, config.min_priority, config.priority_exponent)
    return state, Update(priorities, means)


def update_encoder(
    config: TD7Config, state: TD7State, batch: Batch
) -> tuple[TD7State, dict[str, Array]]:
    """Train the encoder to predict its own next embedding, with R2R2's terms."""
    target = state.encoder.zs(batch.next_obs)

    def loss(encoder: Encoder) -> tuple[Array, dict[str, Array]]:
        zs = encoder.zs(batch.obs)
        predicted = encoder.zsa(zs, batch.action)
        prediction = self_prediction(predicted, target)
        inputs = {"predicted": predicted, "target": target, "batch": batch}
        return representation_loss(config.representation, zs, prediction, inputs)

    optimizer = Optimizer(config.adam, config.encoder_rate)
    step = minimize(optimizer, loss, state.encoder, state.encoder_adam)
    metrics = {f"representation/{name}": term for name, term in step.aux.items()}
    state = state._replace(encoder=step.params, encoder_adam=step.opt_state)
    return state, metrics | {"loss/encoder": step.loss}


def update_critic(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array, zs: Array
) -> tuple[TD7State, Array, Array]:
    """Train the twins; also return TD errors [2, B] before the step, and the loss."""
    target, values = value_target(config, state, batch, noise)
    zsa = state.fixed_encoder.zsa(zs, batch.action)

    def loss(critic: Critic) -> tuple[Array, Array]:
        q = twin_values(critic, batch.obs, batch.action, zsa, zs)
        error = jnp.abs(q - jnp.broadcast_to(target, q.shape))
        return lap_huber(error, config.min_priority), error

    optimizer = Optimizer(config.adam, config.critic_rate)
    step = minimize(optimizer, loss, state.critic, state.critic_adam)
    state = state._replace(critic=step.params, critic_adam=step.opt_state, values=values)
    return state, step.aux, step.loss


def value_target(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array
) -> tuple[Array, ValueRange]:
    """Return targets [B] from the target networks, and the updated range of targets."""
    encoder = state.fixed_encoder_target
    zs = encoder.zs(batch.next_obs)
    smoothing = jnp.clip(config.target_noise * noise, -config.noise_clip, config.noise_clip)
    action = jnp.clip(state.actor_target(batch.next_obs, zs) + smoothing, -1, 1)
    next_q = both_values(state.critic_target, encoder, batch.next_obs, action, zs)
    values = state.values
    clipped = jnp.clip(jnp.min(next_q, axis=0), values.low, values.high)
    target = td_target(batch.reward, batch.terminated, clipped, config.discount)
    updated = values._replace(
        seen_low=jnp.minimum(values.seen_low, jnp.min(target)),
        seen_high=jnp.maximum(values.seen_high, jnp.max(target)),
    )
    return target, updated


def update_actor(
    config: TD7Config, state: TD7State, batch: Batch, zs: Array
) -> tuple[Actor, OptState, Array]:
    """Return the actor after a step, and its loss; the gradient passes through zsa."""

    def loss(actor: Actor) -> tuple[Array, None]:
        action = actor(batch.obs, zs)
        q = both_values(state.critic, state.fixed_encoder, batch.obs, action, zs)
        return -jnp.mean(q), None  # of both twins; only targets use their minimum

    optimizer = Optimizer(config.adam, config.actor_rate)
    step = minimize(optimizer, loss, state.actor, state.actor_adam)
    return step.params, step.opt_state, step.loss


def sync(state: TD7State) -> TD7State:
    """Move the targets and the clip range, every `target_period` updates."""
    values = state.values
    return state._replace(
        actor_target=state.actor,
        critic_target=state.critic,
        fixed_encoder_target=state.fixed_encoder,
        fixed_encoder=state.encoder,
        values=values._replace(low=values.seen_low, high=values.seen_high),
    )
