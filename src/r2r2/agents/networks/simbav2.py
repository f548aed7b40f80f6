"""The networks of SimbaV2 and SimbaV2-SPL (Lee et al., 2025; R2R2, ICML 2026).

Actor and critics are the same in both. With SPL they also see latents, and a linear
layer maps their own inputs to the sphere first.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.hypersphere import Embed, Head, LerpBlock, log_softmax, normalize
from r2r2.agents.networks.layers import Linear, linears, mlp, twin_values
from r2r2.config.agent_configs import NetworkSizes
from r2r2.envs.spec import Spec


class Trunk(eqx.Module):
    """The common part of actor and critics: from inputs to a point on the sphere."""

    projection: Linear | None  # only where latents are concatenated to the input
    embed: Embed
    blocks: tuple[LerpBlock, ...]

    def __init__(self, sizes: NetworkSizes, n_in: int, latents: int):
        width = sizes.width
        self.projection = Linear(n_in, width) if latents else None
        n_embed = (width if latents else n_in) + latents
        self.embed = Embed(n_embed, width, sizes.shift, bounded=latents > 0)
        block = width, sizes.expansion, sizes.blocks
        self.blocks = tuple(LerpBlock(*block) for _ in range(sizes.blocks))

    def __call__(self, inputs: tuple[Array, ...], latents: tuple[Array, ...]) -> Array:
        """Map inputs, [..., in] in parts, and latents to [..., width]."""
        if self.projection is not None:
            inputs = (normalize(self.projection(*inputs)),)
        x = self.embed(*inputs, *latents)
        for block in self.blocks:
            x = block(x)
        return x


class Gaussian(NamedTuple):
    """A normal distribution of actions before the tanh, [..., action]."""

    mean: Array
    log_std: Array


class Actor(eqx.Module):
    """The stochastic policy."""

    trunk: Trunk
    mean: Head
    log_std: Head
    limits: tuple[float, float] = eqx.field(static=True)

    def __init__(
        self, sizes: NetworkSizes, spec: Spec, limits: tuple[float, float], latents: int = 0
    ):
        self.trunk = Trunk(sizes, spec.obs_dim, latents)
        self.mean = Head(sizes.width, spec.action_dim)
        self.log_std = Head(sizes.width, spec.action_dim)
        self.limits = limits

    def __call__(self, obs: Array, *latents: Array) -> Gaussian:
        """Return the distribution for each observation."""
        x = self.trunk((obs,), latents)
        low, high = self.limits
        log_std = low + (high - low) * (1 + jnp.tanh(self.log_std(x))) / 2
        return Gaussian(self.mean(x), log_std)


class Critic(eqx.Module):
    """One critic; one or two are stacked on axis 0 and mapped by `twin_values`."""

    trunk: Trunk
    value: Head

    def __init__(self, sizes: NetworkSizes, spec: Spec, bins: int, latents: int = 0):
        self.trunk = Trunk(sizes, spec.obs_dim + spec.action_dim, latents)
        self.value = Head(sizes.width, bins)

    def __call__(self, obs: Array, action: Array, *latents: Array) -> Array:
        """Return log-probabilities of the return's bins, [..., bins]."""
        x = self.trunk((obs, action), latents)
        return log_softmax(self.value(x))


class View(NamedTuple):
    """The inputs of actor and critics for a batch; SPL adds latents."""

    obs: Array  # [B, obs]
    latents: tuple[Array, ...] = ()
    predict: Callable[[Array], tuple[Array, ...]] = lambda _: ()  # action -> latents

    def policy(self, actor: Actor) -> Gaussian:
        """Return the distribution of actions, [B, action]."""
        return actor(self.obs, *self.latents)

    def values(self, critic: Critic, action: Array) -> Array:
        """Return log-probabilities of the returns of actions, [critics, B, bins]."""
        latents = *self.latents, *self.predict(action)
        return twin_values(critic, self.obs, action, *latents)


class Views(NamedTuple):
    """The inputs of each part of an update."""

    actor: View  # of the observations, to train the actor
    target: View  # of the next observations
    critic: View  # of the observations, to train the critics


class LatentModel(eqx.Module):
    """Predicts the next latent from a latent and an action; ordinary layers."""

    layers: tuple[Linear, ...]

    def __init__(self, latent: int, action_dim: int, width: int):
        self.layers = linears(latent + action_dim, width, width, latent)

    def __call__(self, z: Array, action: Array) -> Array:
        """Map [..., latent] and [..., action] to [..., latent], of length 1."""
        return normalize(mlp(self.layers, z, action))


class LatentPolicy(NamedTuple):
    """An actor and the encoder that feeds it."""

    actor: Actor
    encoder: Embed

    def __call__(self, obs: Array) -> Gaussian:
        """Return the distribution for each observation."""
        return self.actor(obs, self.encoder(obs))
