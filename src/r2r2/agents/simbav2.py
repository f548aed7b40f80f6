"""SimbaV2 (Lee et al., 2025): SAC with hyperspherical networks, categorical critics.

Follows the release, except that
- statistics are float64, and the run's first observation counts in them;
- the first updates follow the policy's first step, not the last random one;
- orthogonal kernels are drawn without QR, which does not return on some machines when mapped;
- normalizing a zero vector has a finite gradient;
- inputs of an embedding are not normalized: its output is, which removes any factor.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Update, as_metrics, frozen
from r2r2.agents.losses.categorical import (
    atoms,
    bellman_atoms,
    cross_entropy,
    expectation,
    min_by_mean,
    project_distribution,
)
from r2r2.agents.losses.policy import entropy_policy_loss, tanh_gaussian, temperature_loss
from r2r2.agents.networks.hypersphere import sphere_weights
from r2r2.agents.networks.simbav2 import Actor, Critic, Gaussian, View, Views
from r2r2.agents.optimizer import Optimizer, OptState, linear_schedule, minimize
from r2r2.config.agent_configs import SimbaV2Config
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec

Policy = Callable[[Array], Gaussian]


class SimbaV2State(NamedTuple):
    """Everything an update reads and writes."""

    actor: Actor
    actor_adam: OptState
    critic: Critic  # one or two, stacked on axis 0
    critic_target: Critic
    critic_adam: OptState
    log_temperature: Array
    temperature_adam: OptState
    horizon: Array  # updates of the run


def simbav2(config: SimbaV2Config, spec: Spec, _: int = 1) -> Agent:
    """Return SimbaV2 as a record of pure functions."""
    for field, example in (("critics", 2), ("discount", 0.99)):
        if not getattr(config, field):
            raise UserError(
                "0 (automatic) depends on the task, which is not known here; expected a value "
                f"such as {field}={example}",
                f"agent.{field}",
            )
    noise = 2, config.batch_size, spec.action_dim
    return Agent(
        init=partial(init, config, spec),
        behavior_policy=lambda state: state.actor,
        eval_policy=lambda state: state.actor,
        action_noise=lambda key: jax.random.normal(key, (spec.action_dim,)),
        explore=explore,
        greedy=greedy,
        update_noise=lambda key: jax.random.normal(key, noise),
        update=partial(update, config),
        value=lambda state, obs, action: value(config, state, View(obs), action),
        batch_size=config.batch_size,
    )


def init(
    config: SimbaV2Config, spec: Spec, key: Array, horizon: Array, latent: int = 0
) -> SimbaV2State:
    """Return new networks; with SPL they also see a latent and its prediction."""
    k_actor, k_critic = jax.random.split(key)
    limits = config.lowest_log_std, config.highest_log_std
    actor = sphere_weights(Actor(config.actor_tower, spec, limits, latent), k_actor)
    blank = Critic(config.critic_tower, spec, config.bins, 2 * latent)
    keys = jax.random.split(k_critic, config.critics)
    critic = jax.vmap(partial(sphere_weights, blank))(keys)
    log_temperature = jnp.log(jnp.asarray(config.temperature, dtype=float))
    optimizer = _optimizer(config, horizon)
    return SimbaV2State(
        actor=actor,
        actor_adam=optimizer.init(actor),
        critic=critic,
        critic_target=critic,
        critic_adam=optimizer.init(critic),
        log_temperature=log_temperature,
        temperature_adam=optimizer.init(log_temperature),
        horizon=horizon,
    )


def explore(policy: Policy, obs: Array, noise: Array) -> Array:
    """Return an action sampled from the policy; noise is N(0, 1)."""
    return tanh_gaussian(*policy(obs), noise)[0]


def greedy(policy: Policy, obs: Array) -> Array:
    """Return the tanh of the distribution's mean."""
    return jnp.tanh(policy(obs).mean)


def update(
    config: SimbaV2Config, state: SimbaV2State, batch: Batch, noise: Array, _: Array
) -> tuple[SimbaV2State, Update]:
    """Update all networks; noise is N(0, 1), [2, B, action]: the actor's, then the target's."""
    view = View(batch.obs)
    views = Views(actor=view, target=View(batch.next_obs), critic=view)
    state, metrics = actor_critic(config, state, batch, noise, views)
    return state, Update(None, as_metrics(metrics))


def actor_critic(
    config: SimbaV2Config, state: SimbaV2State, batch: Batch, noise: Array, views: Views
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Update in order: each part uses the results of those before it."""
    state, metrics = update_actor(config, state, views.actor, noise[0])
    state, temperature = update_temperature(config, state, metrics["policy/entropy"])
    target = value_target(config, state, batch, views.target, noise[1])
    state, critic_loss = update_critic(config, state, views.critic, batch, target)
    return state, metrics | temperature | {"loss/critic": critic_loss}


def update_actor(
    config: SimbaV2Config, state: SimbaV2State, view: View, noise: Array
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Train the actor on the critics from before their step."""
    temperature = jnp.exp(state.log_temperature)
    critic = frozen(state.critic)

    def loss(actor: Actor) -> tuple[Array, Array]:
        action, log_prob = tanh_gaussian(*view.policy(actor), noise)
        q = expectation(view.values(critic, action), _atoms(config))
        return entropy_policy_loss(q, log_prob, temperature), -jnp.mean(log_prob)

    optimizer = _optimizer(config, state.horizon)
    step = minimize(optimizer, loss, state.actor, state.actor_adam)
    state = state._replace(actor=step.params, actor_adam=step.opt_state)
    return state, {"loss/actor": step.loss, "policy/entropy": step.aux}


def update_temperature(
    config: SimbaV2Config, state: SimbaV2State, entropy: Array
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Move the temperature so that the entropy approaches its target."""
    old = state.log_temperature
    target = config.target_entropy * state.actor.mean.bias.shape[-1]

    def loss(log_temperature: Array) -> tuple[Array, None]:
        return temperature_loss(jnp.exp(log_temperature), entropy, target), None

    optimizer = _optimizer(config, state.horizon)
    step = minimize(optimizer, loss, old, state.temperature_adam)
    state = state._replace(log_temperature=step.params, temperature_adam=step.opt_state)
    return state, {"loss/temperature": step.loss, "policy/temperature": jnp.exp(old)}


def value_target(
    config: SimbaV2Config, state: SimbaV2State, batch: Batch, view: View, noise: Array
) -> Array:
    """Return probabilities of the atoms, [B, bins], from the target critics."""
    values = _atoms(config)
    action, log_prob = tanh_gaussian(*view.policy(state.actor), noise)
    log_probs = min_by_mean(view.values(state.critic_target, action), values)
    entropy = jnp.exp(state.log_temperature) * log_prob
    moved = bellman_atoms(batch.reward, batch.terminated, entropy, values, config.discount)
    return project_distribution(jnp.exp(log_probs), moved, values)


def update_critic(
    config: SimbaV2Config, state: SimbaV2State, view: View, batch: Batch, target: Array
) -> tuple[SimbaV2State, Array]:
    """Train the critics on the distribution of returns, and move their targets."""

    def loss(critic: Critic) -> tuple[Array, None]:
        return cross_entropy(view.values(critic, batch.action), target), None

    optimizer = _optimizer(config, state.horizon)
    critic = state.critic, state.critic_adam, state.critic_target
    step = minimize(optimizer, loss, *critic, config.target_rate)
    state = state._replace(
        critic=step.params, critic_adam=step.opt_state, critic_target=step.target
    )
    return state, step.loss


def value(config: SimbaV2Config, state: SimbaV2State, view: View, action: Array) -> Array:
    """Return the smaller value, [B], of normalized rewards with future entropy, as trained."""
    q = expectation(view.values(state.critic, action), _atoms(config))
    return jnp.min(q, axis=0)


def _atoms(config: SimbaV2Config) -> Array:
    return atoms(config.lowest_value, config.highest_value, config.bins)


def _optimizer(config: SimbaV2Config, horizon: Array) -> Optimizer:
    rates = config.first_rate, config.last_rate
    return Optimizer(config.adam, linear_schedule(*rates, horizon))
