"""Minimalist phi (Ni et al., 2024), optionally with R2R2 on its encoder.

Follows twni2016/self-predictive-rl @dcf9fc7, mujoco_code, with algo=ours, aux=l2,
aux_optim=ema, aux_coef=v-10.0, except that UTD updates follow each step, environments
take actions in [-1, 1], and both batches come from all of replay.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Update, as_metrics
from r2r2.agents.losses.representation import representation_loss, summed_self_prediction
from r2r2.agents.losses.value import half_squared_error, td_target
from r2r2.agents.networks.layers import min_value, twin_values
from r2r2.agents.networks.minphi import (
    Actor,
    Critic,
    Encoder,
    LatentModel,
    Policy,
    noise_deviation,
    noisy_action,
    orthogonal_weights,
)
from r2r2.agents.optimizer import Optimizer, OptState, adam_step, clip_by_global_norm, polyak
from r2r2.config.agent_configs import MinPhiConfig
from r2r2.envs.spec import Spec


class MinPhiState(NamedTuple):
    """Everything an update reads and writes."""

    encoder: Encoder
    encoder_target: Encoder
    model: LatentModel
    critic: Critic  # twins, stacked on axis 0
    critic_target: Critic
    actor: Actor
    encoder_adam: OptState  # takes two steps per update
    model_adam: OptState
    critic_adam: OptState
    actor_adam: OptState
    updates: Array  # made so far


def minphi(config: MinPhiConfig, spec: Spec, utd: int) -> Agent:
    """Return Minimalist phi as a record of pure functions."""
    noise = 3, config.batch_size, spec.action_dim
    return Agent(
        init=lambda key, _: init(config, spec, key),
        behavior_policy=policy,
        eval_policy=policy,
        action_noise=lambda key: jax.random.normal(key, (spec.action_dim,)),
        explore=partial(explore, config, utd),
        greedy=Policy.__call__,
        update_noise=lambda key: jax.random.normal(key, noise),
        update=partial(update, config, utd),
        value=lambda s, obs, action: min_value(s.critic, s.encoder(obs), action),
        batch_size=2 * config.batch_size,
        encode=lambda state, obs: state.encoder(obs),
    )


def init(config: MinPhiConfig, spec: Spec, key: Array) -> MinPhiState:
    """Return new networks with orthogonal kernels; the targets equal them."""
    k_encoder, k_model, k_critic, k_actor = jax.random.split(key, 4)
    twins = partial(orthogonal_weights, Critic(spec, config))
    networks: dict[str, Any] = {
        "encoder": orthogonal_weights(Encoder(spec, config), k_encoder),
        "model": orthogonal_weights(LatentModel(spec, config), k_model),
        "critic": jax.vmap(twins)(jax.random.split(k_critic)),
        "actor": orthogonal_weights(Actor(spec, config), k_actor),
    }
    optimizers = _optimizers(config)
    opt_states: dict[str, Any] = {
        f"{x}_adam": optimizers[x].init(net) for x, net in networks.items()
    }
    return MinPhiState(
        **networks,
        **opt_states,
        encoder_target=networks["encoder"],
        critic_target=networks["critic"],
        updates=jnp.zeros((), dtype=int),
    )


def policy(state: MinPhiState) -> Policy:
    """Return the policy that collects data and, without noise, is evaluated."""
    return Policy(state.actor, state.encoder, state.updates)


def explore(config: MinPhiConfig, utd: int, policy: Policy, obs: Array, noise: Array) -> Array:
    """Return the policy's action with exploration noise; noise is N(0, 1)."""
    deviation = noise_deviation(config, policy.updates // utd)
    limit = 1 - config.action_margin
    return jnp.clip(policy(obs) + deviation * noise, -limit, limit)


def update(
    config: MinPhiConfig, utd: int, state: MinPhiState, batch: Batch, noise: Array, _: Array
) -> tuple[MinPhiState, Update]:
    """Run phases A, B and C, then move the targets; noise is N(0, 1), [3, B, action]."""
    # The batch holds both batches of the algorithm: phase A uses the first half, B and C the
    # second.
    noise = noise_deviation(config, state.updates // utd + 1) * noise
    first = Batch(*(field[: config.batch_size] for field in batch))
    second = Batch(*(field[config.batch_size :] for field in batch))
    state, metrics_a = phase_a(config, state, first, noise[0])
    state, z, metrics_b = phase_b(config, state, second, noise[1])
    state, metrics_c = phase_c(config, state, z, noise[2])
    move = partial(polyak, config.target_rate)
    state = state._replace(
        updates=state.updates + 1,
        encoder_target=move(state.encoder, state.encoder_target),
        critic_target=move(state.critic, state.critic_target),
    )
    return state, Update(None, as_metrics(metrics_a | metrics_b | metrics_c))


def phase_a(
    config: MinPhiConfig, state: MinPhiState, batch: Batch, noise: Array
) -> tuple[MinPhiState, dict[str, Array]]:
    """Train encoder and latent model: self-prediction, R2R2 and the actor's loss."""
    weight = config.prediction_weight * config.representation.lambda_spl
    weights = dataclasses.replace(config.representation, lambda_spl=weight)

    def loss(pair: tuple[Encoder, LatentModel]) -> tuple[Array, dict[str, Array]]:
        encoder, model = pair
        z, target = encoder(batch.obs), state.encoder_target(batch.next_obs)
        predicted = model(z, batch.action)
        prediction = summed_self_prediction(predicted, target)
        inputs = {"predicted": predicted, "target": target, "batch": batch}
        total, terms = representation_loss(weights, z, prediction, inputs)
        metrics = {f"representation/{name}": term for name, term in terms.items()}
        if config.actor_weight:
            actor_loss = policy_loss(config, state.critic, state.actor, z, noise)
            total = total + config.actor_weight * actor_loss
            metrics["loss/encoder_actor"] = actor_loss
        return total, metrics

    pair = state.encoder, state.model
    (total, metrics), grads = jax.value_and_grad(loss, has_aux=True)(pair)
    (encoder, model), norm = clip_by_global_norm(grads, config.gradient_clip)
    metrics |= {"loss/encoder": total, "gradient/phase_a": norm}
    return apply_gradients(config, state, encoder=encoder, model=model), metrics


def phase_b(
    config: MinPhiConfig, state: MinPhiState, batch: Batch, noise: Array
) -> tuple[MinPhiState, Array, dict[str, Array]]:
    """Train critics and encoder on the TD error; also return z from before the step."""
    target = value_target(config, state, batch, noise)

    def loss(pair: tuple[Encoder, Critic]) -> tuple[Array, Array]:
        encoder, critic = pair
        z = encoder(batch.obs)
        q = twin_values(critic, z, batch.action)
        return half_squared_error(q, target), z

    pair = state.encoder, state.critic
    (total, z), grads = jax.value_and_grad(loss, has_aux=True)(pair)
    encoder, encoder_norm = clip_by_global_norm(grads[0], config.gradient_clip)
    critic, critic_norm = clip_by_global_norm(grads[1], config.gradient_clip)
    state = apply_gradients(config, state, critic=critic, encoder=encoder)
    if config.phantom_model_step:
        zeros = jax.tree.map(jnp.zeros_like, state.model)
        state = apply_gradients(config, state, model=zeros)
    norms = {"gradient/phase_b": encoder_norm, "gradient/critic": critic_norm}
    return state, z, norms | {"loss/critic": total}


def phase_c(
    config: MinPhiConfig, state: MinPhiState, z: Array, noise: Array
) -> tuple[MinPhiState, dict[str, Array]]:
    """Train the actor: critics from after their step, z from before the encoder's."""
    loss = jax.value_and_grad(partial(policy_loss, config, state.critic))
    total, grads = loss(state.actor, z, noise)
    grads, norm = clip_by_global_norm(grads, config.gradient_clip)
    state = apply_gradients(config, state, actor=grads)
    return state, {"loss/actor": total, "gradient/actor": norm}


def policy_loss(
    config: MinPhiConfig, critic: Critic, actor: Actor, z: Array, noise: Array
) -> Array:
    """Return minus the smaller value of the actor's noisy actions."""
    # The critics' z has no gradient: an encoder learns through the actor's input only.
    action = noisy_action(config, actor, z, noise)
    return -jnp.mean(min_value(critic, jax.lax.stop_gradient(z), action))


def value_target(config: MinPhiConfig, state: MinPhiState, batch: Batch, noise: Array) -> Array:
    """Return targets [B]: the online actor on the target encoder's latents."""
    z = state.encoder_target(batch.next_obs)
    action = noisy_action(config, state.actor, z, noise)
    next_q = min_value(state.critic_target, z, action)
    target = td_target(batch.reward, batch.terminated, next_q, config.discount)
    return jax.lax.stop_gradient(target)


def apply_gradients(config: MinPhiConfig, state: MinPhiState, **grads: Any) -> MinPhiState:
    """Step the named networks, each with its own optimizer state."""
    for name, grad in grads.items():
        opt_state, params = getattr(state, f"{name}_adam"), getattr(state, name)
        optimizer = _optimizers(config)[name]
        params, opt_state, _ = adam_step(optimizer, grad, opt_state, params)
        state = state._replace(**{name: params, f"{name}_adam": opt_state})
    return state


def _optimizers(config: MinPhiConfig) -> dict[str, Optimizer]:
    rates = {
        "encoder": config.encoder_rate,
        "model": config.encoder_rate,
        "critic": config.critic_rate,
        "actor": config.actor_rate,
    }
    return {name: Optimizer(config.adam, rate) for name, rate in rates.items()}
