"""Policies of any agent as parts, with random weights, beside the JAX policy they come from."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.policy_tracing import host_parameters, trace_greedy
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.policy.policy import PolicyParts
from r2r2.policy.spaces import ObservationPart, TaskSpaces
from small_fleets import small

BOX = (ObservationPart((), (11,)),)  # as Hopper-v5
NESTED = (  # the same size
    ObservationPart(("arm", 0), (2, 3)),
    ObservationPart(("arm", 1), ()),
    ObservationPart(("goal",), (4,)),
)
LOW, HIGH = np.array([-2.0, 0.5, -1.0]), np.array([2.0, 3.0, 7.0])  # asymmetric
INFO = {
    "agent": "td7+r2r2",
    "task": "Hopper-v5",
    "seed": 3,
    "step": 50_000,
    "weights": "last",
    "versions": {"r2r2": "0.1.0", "commit": "0123abcd"},
    "return": {"mean": 3210.5, "seeds": [3210.5, 3000.0], "step": 50_000},
}


class Sample(NamedTuple):
    """A policy as parts, and the same policy in JAX."""

    parts: PolicyParts
    expected: Callable[[Any], np.ndarray]  # [B, obs] -> [B, action] in the environment's range


def _random_leaf(rng: np.random.Generator, strength: float, leaf: Any) -> np.ndarray:
    if leaf.dtype.kind == "i":
        return rng.integers(10, 100, leaf.shape).astype(leaf.dtype)
    scale = strength * (1 / np.sqrt(leaf.shape[0]) if len(leaf.shape) == 2 else 0.3)
    return np.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype)


@functools.cache
def sample(name: str, default_size: bool = False, nested: bool = False) -> Sample:
    """Return a policy of an agent, small unless `default_size`."""
    config = small(name)
    if default_size:
        automatic = {"critics": 2, "discount": 0.99} if hasattr(config, "critics") else {}
        config = dataclasses.replace(agent_config(name), **automatic)
    agent, rng = build_agent(config, Spec(11, 3), 1), np.random.default_rng(7)
    shapes = jax.eval_shape(agent.eval_policy, state_shapes(agent))
    strength = 1.2 if default_size else 1.5
    policy = jax.tree.map(functools.partial(_random_leaf, rng, strength), shapes)
    spaces = TaskSpaces(NESTED if nested else BOX, LOW, HIGH)
    mean = deviation = None
    if agent.normalizes:
        mean, deviation = rng.normal(size=11), rng.uniform(0.1, 3, size=11)
    parts = PolicyParts(
        trace_greedy(agent, policy, 11),
        tuple(host_parameters(policy)),
        "float32",
        spaces,
        mean,
        deviation,
        INFO | {"agent": name},
    )
    greedy = jax.jit(jax.vmap(agent.greedy, (None, 0)))

    def expected(obs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            seen = obs if mean is None else (obs - mean) / deviation
            seen = seen.astype(np.float32)
        action = np.asarray(greedy(policy, jnp.asarray(seen)), np.float64)
        action = LOW + (HIGH - LOW) * (action + 1) / 2
        action[~np.isfinite(seen).all(axis=1)] = np.nan  # the documented behaviour
        return action

    return Sample(parts, expected)


@functools.cache
def real_observations(count: int = 1000) -> np.ndarray:
    """Return observations of Hopper-v5 under random actions, [count, 11]."""
    env, rows = gymnasium.make("Hopper-v5", disable_env_checker=True), []
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    while len(rows) < count:
        rows.append(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return np.stack(rows)
