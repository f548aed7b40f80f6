"""TD7 (Fujimoto et al., 2023), optionally with R2R2 on its encoder.

Follows sfujim/TD7 @c1c280d, but for:
- a burst of training is UTD times the steps since the last one (the release has UTD 1);
- replay holds the parameters' type (the release: float64).
As released, target values are clipped to [0, 0] until the first sync.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Metric, Update, as_metrics
from r2r2.agents.losses.policy import deterministic_policy_loss
from r2r2.agents.losses.representation import representation_loss, self_prediction
from r2r2.agents.losses.value import lap_huber, lap_priority, td_target
from r2r2.agents.networks.layers import random_weights, twin_values
from r2r2.agents.networks.td7 import Actor, Critic, Encoder, Policy, both_values, value
from r2r2.agents.optimizer import Optimizer, adam_step
from r2r2.agents.tree_ops import cond
from r2r2.config.td7 import TD7Config
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
    encoder_adam: Any
    critic_adam: Any
    actor_adam: Any
    values: ValueRange


def td7(config: TD7Config, spec: Spec, _: int = 1) -> Agent:
    """TD7 as a record of pure functions.

    Example:
        >>> agent = td7(TD7Config(width=16, latent=16), Spec(obs_dim=5, action_dim=2))
        >>> keys = jax.random.split(jax.random.key(0), 5)
        >>> states = jax.vmap(agent.init, in_axes=(0, None))(keys, 1000)
        >>> states.critic.embed.kernel.shape
        (5, 2, 7, 16)
    """
    return Agent(
        init=lambda key, _: init(config, spec, key),
        behavior_policy=acting,
        eval_policy=partial(evaluated, config),
        action_noise=partial(_normal, (spec.action_dim,)),
        explore=partial(explore, config),
        greedy=Policy.__call__,
        update_noise=partial(_normal, (config.batch_size, spec.action_dim)),
        update=partial(update, config),
        value=lambda state, *given: value(state.critic, state.fixed_encoder, *given),
        batch_size=config.batch_size,
        prioritizes=True,
        policy_period=config.policy_delay,
        sync_period=config.target_period,
        sync=sync,
        checkpoint_policy=keep,
        encode=lambda state, obs: state.encoder.zs(obs),
    )


def init(config: TD7Config, spec: Spec, key: Array) -> TD7State:
    """New networks; the targets and the first policy checkpoint equal them."""
    k_encoder, k_critic, k_actor = jax.random.split(key, 3)
    sizes = (spec, config.width, config.latent)
    encoder = random_weights(Encoder(*sizes, config.layer_norm), k_encoder)
    twins = partial(random_weights, Critic(*sizes))
    critic = jax.vmap(twins)(jax.random.split(k_critic))
    actor = random_weights(Actor(*sizes), k_actor)
    for_encoder, for_critic, for_actor = _optimisers(config)
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
        encoder_adam=for_encoder.init(encoder),
        critic_adam=for_critic.init(critic),
        actor_adam=for_actor.init(actor),
        values=ValueRange(*(jnp.asarray(x, dtype=float) for x in (0, 0, 1e8, -1e8))),
    )


def acting(state: TD7State) -> Policy:
    """The policy that collects experience."""
    return Policy(state.actor, state.fixed_encoder)


def evaluated(config: TD7Config, state: TD7State) -> Policy:
    """The policy checkpoint or, where there are none, the acting policy."""
    if not config.policy_checkpoints:
        return acting(state)
    return Policy(state.checkpoint_actor, state.checkpoint_encoder)


def explore(config: TD7Config, policy: Policy, obs: Array, noise: Array) -> Array:
    """The policy's action with exploration noise; noise is N(0, 1), as the action."""
    return jnp.clip(policy(obs) + config.exploration_noise * noise, -1, 1)


def keep(state: TD7State) -> TD7State:
    """The acting policy becomes the policy checkpoint."""
    return state._replace(
        checkpoint_actor=state.actor, checkpoint_encoder=state.fixed_encoder
    )


def update(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array, step: Array | int
) -> tuple[TD7State, Update]:
    """One update, in the paper's order; noise is N(0, 1), [B, action]."""
    state, metrics = update_encoder(config, state, batch)
    zs = state.fixed_encoder.zs(batch.obs)
    state, error, critic_loss = update_critic(config, state, batch, noise, zs)
    improve = step % config.policy_delay == 0
    actor, actor_adam, actor_loss = cond(
        improve,
        lambda: improve_actor(config, state, batch, zs),
        lambda: (state.actor, state.actor_adam, jnp.zeros_like(critic_loss)),
    )
    state = state._replace(actor=actor, actor_adam=actor_adam)
    means = as_metrics(metrics | {"loss/critic": critic_loss})
    means["loss/actor"] = Metric(actor_loss, jnp.asarray(improve, actor_loss.dtype))
    priorities = lap_priority(error, config.min_priority, config.priority_exponent)
    return state, Update(priorities, means)


def update_encoder(
    config: TD7Config, state: TD7State, batch: Batch
) -> tuple[TD7State, dict[str, Array]]:
    """Trains the encoder to predict its own next latent, with R2R2's terms."""
    target = state.encoder.zs(batch.next_obs)

    def loss(encoder: Encoder) -> tuple[Array, dict[str, Array]]:
        zs = encoder.zs(batch.obs)
        prediction = self_prediction(encoder.zsa(zs, batch.action), target)
        return representation_loss(config.representation, zs, prediction)

    (total, terms), grads = jax.value_and_grad(loss, has_aux=True)(state.encoder)
    encoder, moments = adam_step(
        _optimisers(config)[0], grads, state.encoder_adam, state.encoder
    )
    metrics = {f"representation/{name}": term for name, term in terms.items()}
    metrics["loss/encoder"] = total
    return state._replace(encoder=encoder, encoder_adam=moments), metrics


def update_critic(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array, zs: Array
) -> tuple[TD7State, Array, Array]:
    """Trains the twins; also the absolute TD errors [2, B] from before the step."""
    target, values = value_target(config, state, batch, noise)
    zsa = state.fixed_encoder.zsa(zs, batch.action)

    def loss(critic: Critic) -> tuple[Array, Array]:
        q = twin_values(critic, batch.obs, batch.action, zsa, zs)
        error = jnp.abs(q - jnp.broadcast_to(target, q.shape))
        return lap_huber(error, config.min_priority), error

    (total, error), grads = jax.value_and_grad(loss, has_aux=True)(state.critic)
    critic, moments = adam_step(
        _optimisers(config)[1], grads, state.critic_adam, state.critic
    )
    state = state._replace(critic=critic, critic_adam=moments, values=values)
    return state, error, total


def value_target(
    config: TD7Config, state: TD7State, batch: Batch, noise: Array
) -> tuple[Array, ValueRange]:
    """Targets [B] from the target networks, and the range of targets seen with them."""
    encoder = state.fixed_encoder_target
    zs = encoder.zs(batch.next_obs)
    smoothing = jnp.clip(
        config.target_noise * noise, -config.noise_clip, config.noise_clip
    )
    action = jnp.clip(state.actor_target(batch.next_obs, zs) + smoothing, -1, 1)
    inputs = batch.next_obs, action, zs
    next_q = both_values(state.critic_target, encoder, *inputs)
    values = state.values
    clipped = jnp.clip(jnp.min(next_q, axis=0), values.low, values.high)
    target = td_target(batch.reward, batch.terminated, clipped, config.discount)
    seen = values._replace(
        seen_low=jnp.minimum(values.seen_low, jnp.min(target)),
        seen_high=jnp.maximum(values.seen_high, jnp.max(target)),
    )
    return target, seen


def improve_actor(
    config: TD7Config, state: TD7State, batch: Batch, zs: Array
) -> tuple[Actor, Any, Array]:
    """The actor, its moments and its loss; the gradient also passes through zsa."""

    def loss(actor: Actor) -> Array:
        inputs = batch.obs, actor(batch.obs, zs), zs
        q = both_values(state.critic, state.fixed_encoder, *inputs)
        return deterministic_policy_loss(q)

    total, grads = jax.value_and_grad(loss)(state.actor)
    optimiser = _optimisers(config)[2]
    return *adam_step(optimiser, grads, state.actor_adam, state.actor), total


def sync(state: TD7State) -> TD7State:
    """Every `target_period` updates: the targets and the clip range move up."""
    values = state.values
    return state._replace(
        actor_target=state.actor,
        critic_target=state.critic,
        fixed_encoder_target=state.fixed_encoder,
        fixed_encoder=state.encoder,
        values=values._replace(low=values.seen_low, high=values.seen_high),
    )


def _optimisers(config: TD7Config) -> tuple[Any, Any, Any]:
    rates = config.encoder_rate, config.critic_rate, config.actor_rate
    encoder, critic, actor = (Optimizer(config.adam, rate) for rate in rates)
    return encoder, critic, actor


def _normal(shape: tuple[int, ...], key: Array) -> Array:
    return jax.random.normal(key, shape)
