"""The networks of Minimalist phi (Ni et al., 2024)."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.layers import Linear, NormedLinear, draw_kernels, linears, mlp, orthogonal
from r2r2.config.agent_configs import MinPhiConfig
from r2r2.envs.spec import Spec

Network = TypeVar("Network")


class Encoder(eqx.Module):
    """phi, the latent of an observation; neither bounded nor normalized."""

    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, config: MinPhiConfig):
        width = config.width
        self.layers = linears(spec.obs_dim, width, width, config.latent)

    def __call__(self, obs: Array) -> Array:
        """Map [..., obs] to [..., latent]."""
        return mlp(self.layers, obs)


class LatentModel(eqx.Module):
    """g, which predicts the next latent itself, not its difference to the latent."""

    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, config: MinPhiConfig):
        joined, width = config.latent + spec.action_dim, config.model_width
        self.layers = linears(joined, width, width, config.latent)

    def __call__(self, z: Array, action: Array) -> Array:
        """Map latents and actions to [..., latent]."""
        return mlp(self.layers, z, action)


class Critic(eqx.Module):
    """One of the twins; the pair is stacked on axis 0 and mapped by `twin_values`."""

    embed: NormedLinear
    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, config: MinPhiConfig):
        self.embed = NormedLinear(config.latent + spec.action_dim, config.width)
        self.layers = linears(config.width, config.width, 1)

    def __call__(self, z: Array, action: Array) -> Array:
        """Return the value of each row, [B]."""
        embedded = jnp.tanh(self.embed(z, action))
        return mlp(self.layers, embedded)[..., 0]


class Actor(eqx.Module):
    """The mean action of a latent."""

    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, config: MinPhiConfig):
        width = config.width
        self.layers = linears(config.latent, width, width, spec.action_dim)

    def __call__(self, z: Array) -> Array:
        """Return actions in [-1, 1], [..., action]."""
        return jnp.tanh(mlp(self.layers, z))


class Policy(NamedTuple):
    """An actor, its encoder and the updates made, which decide the noise it adds."""

    actor: Actor
    encoder: Encoder
    updates: Array

    def __call__(self, obs: Array) -> Array:
        """Return the mean action."""
        return self.actor(self.encoder(obs))


def orthogonal_weights(network: Network, key: Array) -> Network:
    """Draw orthogonal kernels of gain 1, output layers included."""
    return draw_kernels(network, Linear, jax.random.normal, orthogonal, key)


def noise_deviation(config: MinPhiConfig, decisions: Array) -> Array:
    """Return the deviation of action noise, `decisions` after the end of warm-up."""
    remaining = 1 - jnp.minimum(decisions / config.noise_steps, 1)
    return config.last_noise + remaining * (config.first_noise - config.last_noise)


def noisy_action(config: MinPhiConfig, actor: Actor, z: Array, noise: Array) -> Array:
    """Return the actor's action with clipped noise, as losses see it."""
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    return straight_through_clip(actor(z) + noise, 1 - config.action_margin)


def straight_through_clip(x: Array, limit: float) -> Array:
    """Clip to [-limit, limit], with the gradient of the identity."""
    return x + jax.lax.stop_gradient(jnp.clip(x, -limit, limit) - x)
