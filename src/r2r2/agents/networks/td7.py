"""The encoder, critic and actor of TD7 (Fujimoto et al., 2023)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.layers import Linear, avg_l1_norm, linears, mlp, twin_values
from r2r2.envs.spec import Spec


class Encoder(eqx.Module):
    """State and state-action embeddings; TD7-LN normalizes the hidden layers."""

    state_layers: tuple[Linear, ...]
    action_layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int, normed: bool):
        inner, joined = (width, width, latent), latent + spec.action_dim
        self.state_layers = linears(spec.obs_dim, *inner, normed=normed)
        self.action_layers = linears(joined, *inner, normed=normed)

    def zs(self, obs: Array) -> Array:
        """Embed observations, [..., obs] to [..., latent]."""
        return avg_l1_norm(mlp(self.state_layers, obs))

    def zsa(self, zs: Array, action: Array) -> Array:
        """Predict the next embedding from an embedding and an action."""
        return mlp(self.action_layers, zs, action)


class Critic(eqx.Module):
    """One of the twins; the pair is stacked on axis 0 and mapped by `twin_values`."""

    embed: Linear
    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int):
        self.embed = Linear(spec.obs_dim + spec.action_dim, width)
        self.layers = linears(width + 2 * latent, width, width, 1)

    def __call__(self, obs: Array, action: Array, zsa: Array, zs: Array) -> Array:
        """Return the value of each row, [B]."""
        embedded = avg_l1_norm(self.embed(obs, action))
        return mlp(self.layers, embedded, zsa, zs)[..., 0]


def both_values(critic: Critic, encoder: Encoder, obs: Array, action: Array, zs: Array) -> Array:
    """Return both twins' values, [2, B]; `encoder`, which made zs, makes zsa."""
    return twin_values(critic, obs, action, encoder.zsa(zs, action), zs)


def value(critic: Critic, encoder: Encoder, obs: Array, action: Array) -> Array:
    """Return the smaller of the twins' values, [B]."""
    return jnp.min(both_values(critic, encoder, obs, action, encoder.zs(obs)), axis=0)


class Actor(eqx.Module):
    """The deterministic policy on an observation and its embedding."""

    embed: Linear
    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int):
        self.embed = Linear(spec.obs_dim, width)
        self.layers = linears(width + latent, width, width, spec.action_dim)

    def __call__(self, obs: Array, zs: Array) -> Array:
        """Return actions in [-1, 1], [..., action]."""
        embedded = avg_l1_norm(self.embed(obs))
        return jnp.tanh(mlp(self.layers, embedded, zs, activation=jax.nn.relu))


class Policy(NamedTuple):
    """An actor and the encoder that feeds it."""

    actor: Actor
    encoder: Encoder

    def __call__(self, obs: Array) -> Array:
        """Return the action without exploration noise."""
        return self.actor(obs, self.encoder.zs(obs))
