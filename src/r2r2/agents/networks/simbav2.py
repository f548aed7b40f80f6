"""The networks of SimbaV2 and SimbaV2-SPL (Lee et al., 2025; R2R2, ICML 2026).

Actor and critics are the same in both. With SPL they are shown latents too, and a
plain layer first takes what they see themselves to the sphere.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from r2r2.agents.base import Array
from r2r2.agents.networks.hypersphere import Embed, Head, LerpBlock
from r2r2.agents.networks.layers import Linear, linears, mlp, twin_values
from r2r2.compute.fused import log_softmax, to_sphere
from r2r2.config.simbav2 import NetworkSizes
from r2r2.envs.spec import Spec


class Trunk(eqx.Module):
    """From what a network is shown to a point on the sphere."""

    projection: Linear | None  # only where latents stand beside the input
    embed: Embed
    blocks: tuple[LerpBlock, ...]

    def __init__(self, tower: NetworkSizes, n_in: int, latents: int):
        width = tower.width
        self.projection = Linear(n_in, width) if latents else None
        shown = (width if latents else n_in) + latents
        self.embed = Embed(shown, width, tower.shift, bounded=latents > 0)
        block = width, tower.expansion, tower.blocks
        self.blocks = tuple(LerpBlock(*block) for _ in range(tower.blocks))

    def __call__(self, shown: tuple[Array, ...], latents: tuple[Array, ...]) -> Array:
        """Maps what is shown, [..., in], with latents beside it, to [..., width]."""
        if self.projection is not None:
            shown = (to_sphere(self.projection(*shown)),)
        x = self.embed(*shown, *latents)
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
        self,
        tower: NetworkSizes,
        spec: Spec,
        limits: tuple[float, float],
        latents: int = 0,
    ):
        self.trunk = Trunk(tower, spec.obs_dim, latents)
        self.mean = Head(tower.width, spec.action_dim)
        self.log_std = Head(tower.width, spec.action_dim)
        self.limits = limits

    def __call__(self, obs: Array, *latents: Array) -> Gaussian:
        """The distribution for each observation."""
        x = self.trunk((obs,), latents)
        low, high = self.limits
        log_std = low + (high - low) * (1 + jnp.tanh(self.log_std(x))) / 2
        return Gaussian(self.mean(x), log_std)


class Critic(eqx.Module):
    """One critic; one or two are stacked on axis 0 and mapped by `log_probs`."""

    trunk: Trunk
    value: Head

    def __init__(self, tower: NetworkSizes, spec: Spec, bins: int, latents: int = 0):
        self.trunk = Trunk(tower, spec.obs_dim + spec.action_dim, latents)
        self.value = Head(tower.width, bins)

    def __call__(self, obs: Array, action: Array, *latents: Array) -> Array:
        """Log-probabilities of the return's bins, [..., bins]."""
        x = self.trunk((obs, action), latents)
        return log_softmax(self.value(x))


def log_probs(critics: Critic, obs: Array, action: Array, *latents: Array) -> Array:
    """Every critic's log-probabilities for the same rows, [critics, B, bins]."""
    return twin_values(critics, obs, action, *latents)


def _nothing(_: Array) -> tuple[Array, ...]:
    return ()


class View(NamedTuple):
    """What actor and critics are shown of a batch; latents are SPL's."""

    obs: Array  # [B, obs]
    latents: tuple[Array, ...] = ()
    predict: Callable[[Array], tuple[Array, ...]] = _nothing  # action -> more latents

    def policy(self, actor: Actor) -> Gaussian:
        """The distribution of actions, [B, action]."""
        return actor(self.obs, *self.latents)

    def values(self, critic: Critic, action: Array) -> Array:
        """Log-probabilities of the actions' returns, [critics, B, bins]."""
        latents = *self.latents, *self.predict(action)
        return log_probs(critic, self.obs, action, *latents)


class Views(NamedTuple):
    """What each part of an update is shown."""

    actor: View  # of the observations, to improve the actor
    target: View  # of the next observations
    critic: View  # of the observations, to train the critics


class LatentModel(eqx.Module):
    """Predicts the next latent from a latent and an action; ordinary layers."""

    layers: tuple[Linear, ...]

    def __init__(self, latent: int, action_dim: int, width: int):
        self.layers = linears(latent + action_dim, width, width, latent)

    def __call__(self, z: Array, action: Array) -> Array:
        """Maps [..., latent] and [..., action] to [..., latent], of length 1."""
        return to_sphere(mlp(self.layers, z, action))


class LatentPolicy(NamedTuple):
    """What acting needs with SPL: an actor and the encoder that feeds it."""

    actor: Actor
    encoder: Embed

    def __call__(self, obs: Array) -> Gaussian:
        """The distribution for each observation."""
        return self.actor(obs, self.encoder(obs))
