"""Fleets of any agent at a small width, on experience that is a function of seeds."""

import dataclasses
import functools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from one_update import update_once
from r2r2.agents.registry import make_agent
from r2r2.compute.update import Data, RunLengths
from r2r2.compute.update import draw as update_draw
from r2r2.compute.update import sync as update_sync
from r2r2.compute.update_grouping import UpdateCall
from r2r2.compute.update_loop import longest_stride
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.replay.normalizer import Scales
from r2r2.training.fleet import Fleet
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
    own = {field.name for field in dataclasses.fields(config)}
    sizes = {field: size for field, size in SMALL.items() if field in own}
    return dataclasses.replace(config, **(sizes | changes))


def experience(seeds, step: int) -> HostTransition:
    """Step `step` of each seed: a function of the two alone."""

    def one(seed):
        rng = np.random.default_rng([seed, step])
        obs = rng.normal(size=4)
        ended = step % 7 == 6
        first = rng.normal(size=4) if ended else obs
        flag = bool(ended and step % 2)
        return rng.uniform(-1, 1, 2), rng.normal(), flag, ended, obs, first, False

    return HostTransition(
        *(np.array(field) for field in zip(*map(one, seeds), strict=True))
    )


def fleet_of(config, seeds, steps: int = 40) -> Fleet:
    agent = make_agent(config, SPEC, 1)
    obs = np.stack([np.random.default_rng(seed).normal(size=4) for seed in seeds])
    fleet = Fleet(agent, SPEC, seeds, LENGTHS, act_on_cpu=False)
    fleet.set_first_obs(obs)
    for step in range(steps):
        fleet.add(range(len(seeds)), experience(seeds, step))
    return fleet


def trained(config, seeds, updates: int = 20, call: int = 20) -> Fleet:
    fleet, made = fleet_of(config, seeds), np.zeros(len(seeds), int)
    for _ in range(updates // call):
        everyone = UpdateCall(tuple(range(len(seeds))), call)
        fleet.train(everyone, made, scales_of(fleet._agent, seeds))
        made += call
    return fleet


def scales_of(agent, seeds) -> Scales | None:
    """What a member's statistics come to: a function of its seed."""
    if not agent.normalizes:
        return None
    mean = np.stack([np.full(4, 0.1 * seed) for seed in seeds])
    reward = np.array([1.0 + seed for seed in seeds])
    return Scales(mean, 1 + mean, reward)


def networks(state) -> dict[str, eqx.Module]:
    """Every network of a state, by name."""
    found = {}
    for name, value in state._asdict().items():
        if isinstance(value, eqx.Module):
            found[name] = value
        elif hasattr(value, "_asdict") and "adam" not in name:
            found |= networks(value)
    return found


def member(tree, place: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf[place]), tree)


@functools.cache
def trio(name: str) -> Fleet:
    return trained(small(name), [0, 1, 2])


def by_hand(fleet: Fleet, scales, place: int, made: int, count: int):
    """Updates of one member, one after the other, as METHOD.md has them."""
    learner = jax.tree.map(lambda x: x[place], fleet.learners)
    agent, key, who = fleet._agent, fleet._keys[place], jnp.asarray(place)
    data = Data(fleet._rows, scales)
    once, sync = (
        jax.jit(functools.partial(f, agent)) for f in (update_once, update_sync)
    )
    for step in range(made + 1, made + count + 1):
        draws = update_draw(agent, learner.priorities, key, jnp.asarray(step))
        learner = once(data, learner, who, draws, jnp.asarray(step))
        if agent.sync_period and step % agent.sync_period == 0:
            learner = sync(learner)
    return learner


def check_a_call(
    name: str,
    made: tuple[int, int, int],
    count: int = 7,
    near: float = 1e-6,
    **changes: float,
) -> None:
    """Updates in one call are those that the first two members make by hand.

    In strides where the agent has them: as on an accelerator.
    """
    fleet = fleet_of(small(name, **changes), [0, 1, 2])
    fleet._stride = longest_stride(fleet._agent, members=1)  # the longest there are
    scales = scales_of(fleet._agent, [0, 1, 2])
    expected = [by_hand(fleet, scales, place, made[place], count) for place in (0, 1)]
    fleet.train(UpdateCall((0, 1, 2), count), np.array(made), scales)
    delay = fleet._agent.policy_period
    for place in (0, 1):
        ours = member(fleet.learners, place)
        chex.assert_trees_all_close(ours, expected[place], rtol=1e-4, atol=near)
        assert ours.metrics["loss/critic"].times == count
        times = (made[place] + count) // delay - made[place] // delay
        assert ours.metrics["loss/actor"].times == times
