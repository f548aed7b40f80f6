"""SimbaV2 (Lee et al., 2025): SAC on the sphere with categorical critics.

Follows the release, but for:
- statistics are float64, and the run's first observation counts in them;
- the first updates follow the policy's first step, not the last random one;
- orthogonal kernels are drawn without QR, which hangs on some machines when mapped;
- normalising a zero vector has a finite gradient;
- what an embedding is shown is not normalised: its result is, and loses any factor.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Update, as_metrics
from r2r2.agents.losses.categorical import (
    atoms,
    bellman_atoms,
    cross_entropy,
    expectation,
    min_by_mean,
    project_distribution,
)
from r2r2.agents.losses.policy import (
    entropy_policy_loss,
    tanh_gaussian,
    temperature_loss,
)
from r2r2.agents.networks.hypersphere import draw_weights
from r2r2.agents.networks.simbav2 import Actor, Critic, Gaussian, View, Views
from r2r2.agents.optimizer import (
    Optimizer,
    adam_step,
    adam_step_with_target,
    linear_schedule,
)
from r2r2.compute import fp16_weights as halves
from r2r2.compute.matmul import barrier
from r2r2.config.errors import UserError
from r2r2.config.simbav2 import SimbaV2Config
from r2r2.envs.spec import Spec

Policy = Callable[[Array], Gaussian]


class SimbaV2State(NamedTuple):
    """Everything an update reads and writes."""

    actor: Actor
    actor_adam: Any
    critic: Critic  # one or two, stacked on axis 0
    critic_target: Critic
    critic_adam: Any
    log_temperature: Array
    temperature_adam: Any
    horizon: Array  # updates of the whole run


def simbav2(config: SimbaV2Config, spec: Spec, _: int = 1) -> Agent:
    """SimbaV2 as a record of pure functions.

    Example:
        >>> config = SimbaV2Config(critics=2, discount=0.99, critic_width=16)
        >>> agent = simbav2(config, Spec(obs_dim=5, action_dim=2))
        >>> key, updates = jax.random.key(0), jnp.asarray(10)
        >>> jax.eval_shape(agent.init, key, updates).critic.value.bias.shape
        (2, 101)
    """
    for field in ("critics", "discount"):
        if not getattr(config, field):
            raise UserError(f"agent.{field} is 0, which only a task can replace")
    return Agent(
        init=partial(init, config, spec),
        behavior_policy=acting,
        eval_policy=acting,
        action_noise=lambda key: jax.random.normal(key, (spec.action_dim,)),
        explore=explore,
        greedy=greedy,
        update_noise=partial(draw, config, spec),
        update=partial(update, config),
        value=lambda state, obs, action: value(config, state, View(obs), action),
        enter=partial(critics_as, halves.added),
        leave=partial(critics_as, halves.removed),
        batch_size=config.batch_size,
        normalizes=True,
    )


def init(
    config: SimbaV2Config, spec: Spec, key: Array, horizon: Array, latent: int = 0
) -> SimbaV2State:
    """New networks; with a latent of SPL's, they are shown it and its prediction."""
    k_actor, k_critic = jax.random.split(key)
    limits = config.lowest_log_std, config.highest_log_std
    actor = draw_weights(Actor(config.actor_tower, spec, limits, latent), k_actor)
    blank = Critic(config.critic_tower, spec, config.bins, 2 * latent)
    keys = jax.random.split(k_critic, config.critics)
    critic = jax.vmap(partial(draw_weights, blank))(keys)
    log_temperature = jnp.log(jnp.asarray(config.temperature, dtype=float))
    optimiser = _optimiser(config, horizon)
    return SimbaV2State(
        actor=actor,
        actor_adam=optimiser.init(actor),
        critic=critic,
        critic_target=critic,
        critic_adam=optimiser.init(critic),
        log_temperature=log_temperature,
        temperature_adam=optimiser.init(log_temperature),
        horizon=horizon,
    )


def critics_as(change: Callable[[Critic], Critic], state: SimbaV2State) -> SimbaV2State:
    """The state with its critics and their targets changed."""
    critic, target = change(state.critic), change(state.critic_target)
    return state._replace(critic=critic, critic_target=target)


def acting(state: SimbaV2State) -> Actor:
    """The policy that collects experience, and is evaluated."""
    return state.actor


def explore(policy: Policy, obs: Array, noise: Array) -> Array:
    """An action drawn from the policy; noise is N(0, 1), as the action."""
    return tanh_gaussian(*policy(obs), noise)[0]


def greedy(policy: Policy, obs: Array) -> Array:
    """The action in the middle of the policy's distribution."""
    return jnp.tanh(policy(obs).mean)


def draw(config: SimbaV2Config, spec: Spec, key: Array) -> Array:
    """The noise of one update, [2, B, action]: the actor's, then the target's."""
    return jax.random.normal(key, (2, config.batch_size, spec.action_dim))


def update(
    config: SimbaV2Config, state: SimbaV2State, batch: Batch, noise: Array, _: Array
) -> tuple[SimbaV2State, Update]:
    """One update; noise is N(0, 1), [2, B, action]."""
    now = View(batch.obs)
    views = Views(actor=now, target=View(batch.next_obs), critic=now)
    state, metrics = actor_critic(config, state, batch, noise, views)
    return state, Update(None, as_metrics(metrics))


def actor_critic(
    config: SimbaV2Config,
    state: SimbaV2State,
    batch: Batch,
    noise: Array,
    views: Views,
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Actor, temperature, critics, targets: each with what those before it became."""
    state, metrics = update_actor(config, state, views.actor, noise[0])
    state, temperature = update_temperature(config, state, metrics["policy/entropy"])
    target = value_target(config, state, batch, views.target, noise[1])
    state, critic_loss = update_critic(config, state, views.critic, batch, target)
    return state, metrics | temperature | {"loss/critic": critic_loss}


def update_actor(
    config: SimbaV2Config, state: SimbaV2State, view: View, noise: Array
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Improves the actor by the critics from before their step."""
    temperature = jnp.exp(state.log_temperature)
    # Or XLA makes one product of this pass and the critics' own, and this one waits.
    critic = barrier(state.critic)

    def loss(actor: Actor) -> tuple[Array, Array]:
        action, log_prob = tanh_gaussian(*view.policy(actor), noise)
        q = expectation(view.values(critic, action), _atoms(config))
        return entropy_policy_loss(q, log_prob, temperature), -jnp.mean(log_prob)

    (total, entropy), grads = jax.value_and_grad(loss, has_aux=True)(state.actor)
    optimiser = _optimiser(config, state.horizon)
    actor, moments = adam_step(optimiser, grads, state.actor_adam, state.actor)
    state = state._replace(actor=actor, actor_adam=moments)
    return state, {"loss/actor": total, "policy/entropy": entropy}


def update_temperature(
    config: SimbaV2Config, state: SimbaV2State, entropy: Array
) -> tuple[SimbaV2State, dict[str, Array]]:
    """Moves the temperature so that the entropy comes to its target."""
    actions = state.actor.mean.bias.shape[-1]

    def loss(log_temperature: Array) -> Array:
        target = config.target_entropy * actions
        return temperature_loss(jnp.exp(log_temperature), entropy, target)

    old, optimiser = state.log_temperature, _optimiser(config, state.horizon)
    total, grads = jax.value_and_grad(loss)(old)
    new, moments = adam_step(optimiser, grads, state.temperature_adam, old)
    state = state._replace(log_temperature=new, temperature_adam=moments)
    return state, {"loss/temperature": total, "policy/temperature": jnp.exp(old)}


def value_target(
    config: SimbaV2Config, state: SimbaV2State, batch: Batch, after: View, noise: Array
) -> Array:
    """Probabilities of the atoms, [B, bins], from the target critics."""
    values = _atoms(config)
    action, log_prob = tanh_gaussian(*after.policy(state.actor), noise)
    least = min_by_mean(after.values(state.critic_target, action), values)
    entropy = jnp.exp(state.log_temperature) * log_prob
    places = bellman_atoms(
        batch.reward, batch.terminated, entropy, values, config.discount
    )
    return project_distribution(jnp.exp(least), places, values)


def update_critic(
    config: SimbaV2Config, state: SimbaV2State, view: View, batch: Batch, target: Array
) -> tuple[SimbaV2State, Array]:
    """Trains the critics on the distribution of returns, moves their targets."""

    def loss(critic: Critic) -> Array:
        read = halves.borrowed(critic, state.critic)
        return cross_entropy(view.values(read, batch.action), target)

    total, grads = jax.value_and_grad(loss)(halves.removed(state.critic))
    optimiser = _optimiser(config, state.horizon)
    old = state.critic_adam, state.critic, state.critic_target
    critic, moments, moved = adam_step_with_target(
        optimiser, grads, *old, config.target_rate
    )
    state = state._replace(critic=critic, critic_adam=moments, critic_target=moved)
    return state, total


def value(
    config: SimbaV2Config, state: SimbaV2State, view: View, action: Array
) -> Array:
    """What the critics hold of actions, [B]: the lesser, as their targets take it.

    Of normalised rewards, and with the entropy to come, as they are trained.
    """
    q = expectation(view.values(state.critic, action), _atoms(config))
    return jnp.min(q, axis=0)


def _atoms(config: SimbaV2Config) -> Array:
    return atoms(config.lowest_value, config.highest_value, config.bins)


def _optimiser(config: SimbaV2Config, horizon: Array) -> Any:
    return Optimizer(
        config.adam, linear_schedule(config.first_rate, config.last_rate, horizon)
    )
