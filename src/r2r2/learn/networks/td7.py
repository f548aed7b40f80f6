"""The encoder, critic and actor of TD7 (Fujimoto et al., 2023)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from r2r2.core import Array
from r2r2.envs.members import Spec
from r2r2.learn.networks.basic import Linear, avg_l1_norm, linears


class Encoder(eqx.Module):
    """State and state-action embeddings."""

    state_layers: tuple[Linear, ...]
    action_layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int):
        self.state_layers = linears(spec.obs_dim, width, width, latent)
        self.action_layers = linears(latent + spec.action_dim, width, width, latent)

    def zs(self, obs: Array) -> Array:
        """Embeds observations, [..., obs] to [..., latent], with AvgL1Norm."""
        return avg_l1_norm(_elu_mlp(self.state_layers, obs))

    def zsa(self, zs: Array, action: Array) -> Array:
        """Predicts the next embedding from an embedding and an action."""
        return _elu_mlp(self.action_layers, jnp.concatenate([zs, action], axis=-1))


class Critic(eqx.Module):
    """One of the twins; the pair is stacked on axis 0 and mapped by `twin_values`."""

    embed: Linear
    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int):
        self.embed = Linear(spec.obs_dim + spec.action_dim, width)
        self.layers = linears(width + 2 * latent, width, width, 1)

    def __call__(self, obs: Array, action: Array, zsa: Array, zs: Array) -> Array:
        """The value of each row, [B]."""
        embedded = avg_l1_norm(self.embed(jnp.concatenate([obs, action], axis=-1)))
        joined = jnp.concatenate([embedded, zsa, zs], axis=-1)
        return _elu_mlp(self.layers, joined)[..., 0]


def twin_values(
    twins: Critic, obs: Array, action: Array, zsa: Array, zs: Array
) -> Array:
    """Both critics' values of the same rows, [2, B]."""
    q: Array = jax.vmap(lambda critic: critic(obs, action, zsa, zs))(twins)
    return q


class Actor(eqx.Module):
    """The deterministic policy on an observation and its embedding."""

    embed: Linear
    layers: tuple[Linear, ...]

    def __init__(self, spec: Spec, width: int, latent: int):
        self.embed = Linear(spec.obs_dim, width)
        self.layers = linears(width + latent, width, width, spec.action_dim)

    def __call__(self, obs: Array, zs: Array) -> Array:
        """Actions in [-1, 1], [..., action]."""
        x = jnp.concatenate([avg_l1_norm(self.embed(obs)), zs], axis=-1)
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return jnp.tanh(self.layers[-1](x))


class Policy(NamedTuple):
    """What acting needs: an actor and the encoder that feeds it."""

    actor: Actor
    encoder: Encoder

    def __call__(self, obs: Array) -> Array:
        """The policy's own action, without exploration."""
        return self.actor(obs, self.encoder.zs(obs))


def _elu_mlp(layers: tuple[Linear, ...], x: Array) -> Array:
    for layer in layers[:-1]:
        x = jax.nn.elu(layer(x))
    return layers[-1](x)
