"""SimbaV2-SPL: SimbaV2 with a self-predictive encoder, optionally with R2R2.

As in R2R2's release, actor and critics learn from the target encoder's latents but act
on the online encoder's; the actor learns through the latent model from before this
update's step, the critics through the target model.
"""

from functools import partial
from typing import NamedTuple

import jax

from r2r2.agents import simbav2 as base
from r2r2.agents.base import Agent, Array, Batch, Update, as_metrics, frozen
from r2r2.agents.losses.representation import representation_loss, self_prediction
from r2r2.agents.networks.hypersphere import Embed, sphere_weights
from r2r2.agents.networks.simbav2 import LatentModel, LatentPolicy, View, Views
from r2r2.agents.optimizer import Optimizer, OptState, linear_schedule, minimize, polyak
from r2r2.agents.simbav2 import SimbaV2State
from r2r2.config.agent_configs import SimbaV2SPLConfig
from r2r2.envs.spec import Spec


class SPLState(NamedTuple):
    """Everything an update reads and writes."""

    encoder: Embed
    encoder_target: Embed
    model: LatentModel
    model_target: LatentModel
    encoder_adam: OptState  # of encoder and model together
    base: SimbaV2State


def simbav2_spl(config: SimbaV2SPLConfig, spec: Spec, _: int = 1) -> Agent:
    """Return SimbaV2's record with another state."""
    return base.simbav2(config, spec)._replace(
        init=partial(init, config, spec),
        behavior_policy=policy,
        eval_policy=policy,
        update=partial(update, config),
        value=partial(value, config),
        encode=lambda state, obs: state.encoder(obs),
    )


def init(config: SimbaV2SPLConfig, spec: Spec, key: Array, horizon: Array) -> SPLState:
    """Return new networks; the targets equal them."""
    k_encoder, k_model, k_base = jax.random.split(key, 3)
    encoder = Embed(spec.obs_dim, config.latent, config.shift)
    encoder = sphere_weights(encoder, k_encoder)
    model = LatentModel(config.latent, spec.action_dim, config.model_width)
    model = sphere_weights(model, k_model)
    return SPLState(
        encoder=encoder,
        encoder_target=encoder,
        model=model,
        model_target=model,
        encoder_adam=_optimizer(config, horizon).init((encoder, model)),
        base=base.init(config, spec, k_base, horizon, config.latent),
    )


def policy(state: SPLState) -> LatentPolicy:
    """Return the policy that collects data and is evaluated."""
    return LatentPolicy(state.base.actor, state.encoder)


def update(
    config: SimbaV2SPLConfig, state: SPLState, batch: Batch, noise: Array, _: Array
) -> tuple[SPLState, Update]:
    """Update encoder and model, then SimbaV2's networks, then the targets."""
    z, next_z = map(state.encoder_target, (batch.obs, batch.next_obs))
    views = Views(
        actor=latent_view(batch.obs, z, frozen(state.model)),
        target=latent_view(batch.next_obs, next_z, frozen(state.model_target)),
        critic=latent_view(batch.obs, z, state.model_target),
    )
    state, metrics = update_encoder(config, state, batch)
    control, more = base.actor_critic(config, state.base, batch, noise, views)
    move = partial(polyak, config.target_rate)
    state = state._replace(
        base=control,
        encoder_target=move(state.encoder, state.encoder_target),
        model_target=move(state.model, state.model_target),
    )
    return state, Update(None, as_metrics(metrics | more))


def latent_view(obs: Array, z: Array, model: LatentModel) -> View:
    """Return observations with their latents and, for an action, the next latent."""
    return View(obs, (z,), lambda action: (model(z, action),))


def value(config: SimbaV2SPLConfig, state: SPLState, obs: Array, action: Array) -> Array:
    """Return SimbaV2's values on the targets' latents, as the critics are trained."""
    view = latent_view(obs, state.encoder_target(obs), state.model_target)
    return base.value(config, state.base, view, action)


def update_encoder(
    config: SimbaV2SPLConfig, state: SPLState, batch: Batch
) -> tuple[SPLState, dict[str, Array]]:
    """Train encoder and model to predict the next latent, with R2R2's terms."""
    target = state.encoder(batch.next_obs)

    def loss(networks: tuple[Embed, LatentModel]) -> tuple[Array, dict[str, Array]]:
        encoder, model = networks
        z = encoder(batch.obs)
        predicted = model(z, batch.action)
        prediction = self_prediction(predicted, target)
        inputs = {"predicted": predicted, "target": target, "batch": batch}
        return representation_loss(config.representation, z, prediction, inputs)

    optimizer = _optimizer(config, state.base.horizon)
    networks = state.encoder, state.model
    step = minimize(optimizer, loss, networks, state.encoder_adam)
    encoder, model = step.params
    state = state._replace(encoder=encoder, model=model, encoder_adam=step.opt_state)
    metrics = {f"representation/{name}": term for name, term in step.aux.items()}
    return state, metrics | {"loss/encoder": step.loss}


def _optimizer(config: SimbaV2SPLConfig, horizon: Array) -> Optimizer:
    rates = config.encoder_first_rate, config.encoder_last_rate
    return Optimizer(config.adam, linear_schedule(*rates, horizon))
