"""Fleets of any agent with small networks, on data that is a function of seeds."""

import dataclasses
import functools

import chex
import equinox as eqx
import jax
import numpy as np

from r2r2.agents.registry import build_agent
from r2r2.compute.precision import DEFAULT_OPTIONS, ComputeOptions
from r2r2.compute.update import RunLengths
from r2r2.compute.update_loop import UpdateCall, longest_stride
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.replay.normalizer import Scales
from r2r2.training.fleet import Fleet, FleetOptions
from r2r2.training.rollout import HostTransition

SPEC = Spec(obs_dim=4, action_dim=2)
LENGTHS = RunLengths(rows=64, updates=100)
SMALL = {
    "width": 16,
    "model_width": 16,
    "actor_width": 16,
    "critic_width": 16,
    "latent": 12,
    "bins": 11,
    "batch_size": 8,
    "target_period": 5,
    "critics": 2,
    "discount": 0.97,
}


def small(name: str, **changes):
    config = agent_config(name)
    names = {field.name for field in dataclasses.fields(config)}
    sizes = {field: size for field, size in SMALL.items() if field in names}
    return dataclasses.replace(config, **(sizes | changes))


def experience(seeds, step: int) -> HostTransition:
    """Return step `step` of each seed."""

    def one(seed):
        rng = np.random.default_rng([seed, step])
        obs = rng.normal(size=4)
        ended = step % 7 == 6
        first = rng.normal(size=4) if ended else obs
        flag = bool(ended and step % 2)
        return rng.uniform(-1, 1, 2), rng.normal(), flag, ended, obs, first, False

    return HostTransition(*(np.array(field) for field in zip(*map(one, seeds), strict=True)))


def fleet_of(
    config, seeds, steps: int = 40, options=DEFAULT_OPTIONS, mixed=None, act_on_cpu=False
) -> Fleet:
    agent = build_agent(config, SPEC, 1)
    obs = np.stack([np.random.default_rng(seed).normal(size=4) for seed in seeds])
    fleet = Fleet(agent, SPEC, seeds, LENGTHS, FleetOptions(act_on_cpu, options), mixed)
    fleet.set_first_obs(obs)
    for step in range(steps):
        fleet.add(range(len(seeds)), experience(seeds, step))
    return fleet


def trained(config, seeds, updates: int = 20, call: int = 20) -> Fleet:
    fleet, made = fleet_of(config, seeds), np.zeros(len(seeds), int)
    for _ in range(updates // call):
        everyone = UpdateCall(tuple(range(len(seeds))), call)
        fleet.train([everyone], made, scales_of(fleet.agent, seeds))
        made += call
    return fleet


def scales_of(agent, seeds) -> Scales | None:
    """Return normalizer scales that are a function of the seeds."""
    if not agent.normalizes:
        return None
    mean = np.stack([np.full(4, 0.1 * seed) for seed in seeds])
    reward = np.array([1.0 + seed for seed in seeds])
    return Scales(mean, 1 + mean, reward)


def networks(state) -> dict[str, eqx.Module]:
    """Return every network of a state by name."""
    trees = {}
    for name, value in state._asdict().items():
        if isinstance(value, eqx.Module):
            trees[name] = value
        elif hasattr(value, "_asdict") and "adam" not in name:
            trees |= networks(value)
    return trees


def member(tree, place: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf[place]), tree)


def trio(name: str) -> Fleet:
    """Return a trained fleet of three, the same for all tests that compile in the same way."""
    return _trio(name, jax.config.values["jax_disable_most_optimizations"])


@functools.cache
def _trio(name: str, unoptimized: bool) -> Fleet:
    return trained(small(name), [0, 1, 2])


def check_paths_agree(
    name: str, made: tuple[int, int, int], updates: int, rtol: float = 1e-9, **changes: float
) -> None:
    """Train a member by the fast path in a fleet, and by the plain path alone.

    The fast path runs in strides where the agent has some, as on an accelerator.
    """
    config = small(name, **changes)
    fast = fleet_of(config, [0, 1, 2])
    fast._stride = longest_stride(fast.agent, members=1)  # the longest possible
    scales = scales_of(fast.agent, [0, 1, 2])
    fast.train([UpdateCall((0, 1, 2), updates)], np.array(made), scales)
    plain = fleet_of(config, [1], options=ComputeOptions(fast=False))
    scales = scales_of(plain.agent, [1])
    plain.train([UpdateCall((0,), updates)], np.array(made[1:2]), scales)
    ours, theirs = member(fast.learners, 1), member(plain.learners, 0)
    chex.assert_trees_all_close(ours, theirs, rtol=rtol, atol=rtol / 1000)
    assert ours.metrics["loss/critic"].times == updates
    period = fast.agent.policy_period
    expected = (made[1] + updates) // period - made[1] // period
    assert ours.metrics["loss/actor"].times == expected
