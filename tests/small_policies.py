"""Small policies that workers can play."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.compute.policy_tracing import trace
from r2r2.envs.spec import Spec
from r2r2.envs.vector.streams import Actors
from r2r2.policy.actor import PolicySpec


def policy_spec(function: Callable[..., Any], policy: Any, *inputs: Any) -> PolicySpec:
    """Return `function(policy, obs, *noise)` as workers need it; the arguments give shapes."""
    leaves, noise = jax.tree.leaves(policy), tuple(x.shape for x in inputs[1:])
    shapes, dtypes = tuple(x.shape for x in leaves), tuple(str(x.dtype) for x in leaves)
    return PolicySpec(trace(function, policy, *inputs), shapes, dtypes, "float32", noise=noise)


def greedy_actors(greedy: Callable[..., Any], policy: Any, seeds: Sequence[int]) -> Any:
    """Return what an `EnvPool` needs to play `greedy(policy, obs)`; `policy` gives shapes."""

    def actors(spec: Spec) -> Actors:
        return Actors(None, policy_spec(greedy, policy, jnp.zeros(spec.obs_dim)), tuple(seeds), 0)

    return actors


def linear(policy, obs, noise=0.0):
    """Return the actions of a matrix [obs, action]."""
    return jnp.tanh(obs @ policy + noise)


def linear_actors(seeds: Sequence[int]) -> Any:
    """Return what an `EnvPool` needs to play `linear`, with and without noise."""

    def actors(spec: Spec) -> Actors:
        policy, obs = jnp.zeros(spec), jnp.zeros(spec.obs_dim)
        explore = policy_spec(linear, policy, obs, jnp.zeros(spec.action_dim))
        greedy = policy_spec(linear, policy, obs)
        noise = sum(map(math.prod, explore.noise))
        return Actors(explore, greedy, tuple(seeds), noise)

    return actors
