"""What every agent must show, whatever it computes."""

import collections
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.config.agents import AGENTS, agent_config
from r2r2.config.parts import Representation
from r2r2.envs.members import Spec
from r2r2.interact.rollout import Seen
from r2r2.learn.agents.make import make_agent
from r2r2.learn.bursts import Call
from r2r2.learn.fleet import Fleet, Lengths
from r2r2.learn.update import Data, update_once
from r2r2.learn.update import draw as update_draw
from r2r2.learn.update import sync as update_sync

SPEC = Spec(obs_dim=4, action_dim=2)
LENGTHS = Lengths(rows=64, updates=100)
every_agent = pytest.mark.parametrize("name", AGENTS)


def small(name: str, **changes):
    config = agent_config(name)
    return dataclasses.replace(
        config, width=16, latent=12, batch_size=8, target_period=5, **changes
    )


def experience(seeds, step: int) -> Seen:
    """Step `step` of each seed: a function of the two alone."""

    def one(seed):
        rng = np.random.default_rng([seed, step])
        obs = rng.normal(size=4)
        ended = step % 7 == 6
        first = rng.normal(size=4) if ended else obs
        flag = bool(ended and step % 2)
        return rng.uniform(-1, 1, 2), rng.normal(), flag, ended, obs, first

    return Seen(*(np.array(field) for field in zip(*map(one, seeds), strict=True)))


def fleet_of(config, seeds, steps: int = 40) -> Fleet:
    agent = make_agent(config, SPEC, 1)
    obs = np.stack([np.random.default_rng(seed).normal(size=4) for seed in seeds])
    fleet = Fleet(agent, SPEC, seeds, LENGTHS, obs, apart=False)
    for step in range(steps):
        fleet.add(range(len(seeds)), experience(seeds, step))
    return fleet


def trained(config, seeds, updates: int = 20, call: int = 20) -> Fleet:
    fleet, made = fleet_of(config, seeds), np.zeros(len(seeds), int)
    for _ in range(updates // call):
        fleet.train(Call(tuple(range(len(seeds))), call), made)
        made += call
    return fleet


def member(tree, place: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf[place]), tree)


@functools.cache
def trio(name: str) -> Fleet:
    return trained(small(name), [0, 1, 2])


@every_agent
def test_same_seed_same_bits(name):
    again = trained(small(name), [0, 1, 2])
    chex.assert_trees_all_equal(trio(name).states, again.states)


@every_agent
def test_seeds_differ_in_every_network(name):
    states = trio(name).states
    for leaf in jax.tree.leaves(states):
        if leaf.ndim > 1:
            assert not np.allclose(leaf[0], leaf[1])


@every_agent
def test_a_seed_does_not_depend_on_its_neighbours(name):
    ours = member(trio(name).states, 1)
    for seeds in ([7, 1], [5, 1, 3, 4]):
        other = member(trained(small(name), seeds).states, 1)
        chex.assert_trees_all_close(ours, other, rtol=1e-4, atol=1e-6)
    alone = member(trained(small(name), [1]).states, 0)
    chex.assert_trees_all_close(ours, alone, rtol=1e-4, atol=1e-6)


@every_agent
def test_a_seed_does_not_depend_on_its_neighbours_in_float64(name):
    with jax.enable_x64(True):
        ours = member(trained(small(name), [0, 1, 2]).states, 1)
        alone = member(trained(small(name), [1]).states, 0)
        assert all(leaf.dtype != np.float32 for leaf in jax.tree.leaves(ours))
        chex.assert_trees_all_close(ours, alone, rtol=1e-9, atol=1e-12)


@every_agent
def test_calls_do_not_change_what_is_computed(name):
    pieces = trained(small(name), [0, 1, 2], call=4)
    ours, other = trio(name).states, pieces.states
    chex.assert_trees_all_close(ours, other, rtol=1e-4, atol=1e-6)


@every_agent
def test_members_out_of_step_get_the_updates_they_would_have_alone(name):
    """Bursts of different length, in groups that change, syncs at different times."""
    config = small(name)
    fleet, made = fleet_of(config, [0, 1, 2]), np.zeros(3, int)
    for who, updates in (
        ((1,), 6),
        ((0, 1), 4),
        ((0, 1, 2), 8),
        ((0, 2), 8),
        ((1,), 2),
    ):
        fleet.train(Call(who, updates), made)
        made[list(who)] += updates
    assert made.tolist() == [20, 20, 16]
    for place in (0, 1):
        ours = member(fleet.states, place)
        chex.assert_trees_all_close(
            ours, member(trio(name).states, place), rtol=1e-4, atol=1e-6
        )
    assert not np.allclose(
        jax.tree.leaves(member(fleet.states, 2))[0],
        jax.tree.leaves(member(trio(name).states, 2))[0],
    )


@every_agent
def test_a_group_that_is_filled_up_changes_its_members_alone(name):
    """Three of five members fill a group of four."""
    config, seeds = small(name), [0, 1, 2, 3, 4]
    fleet, before = fleet_of(config, seeds), fleet_of(config, seeds)
    fleet.train(Call((0, 2, 4), 20), np.zeros(5, int))
    for place in (0, 2):
        ours, theirs = (
            member(f.states, p) for f, p in ((fleet, place), (trio(name), place))
        )
        chex.assert_trees_all_close(ours, theirs, rtol=1e-4, atol=1e-6)
    for place in (1, 3):
        ours, old = (member(f._learners, place) for f in (fleet, before))
        chex.assert_trees_all_equal(ours, old)
    updates = fleet._learners.metrics["loss/critic"].times
    assert updates.tolist() == [20, 0, 20, 0, 20]


def by_hand(agent, fleet: Fleet, place: int, made: int, count: int):
    """Updates of one member, one after the other, as METHOD.md has them."""
    learner = jax.tree.map(lambda x: x[place], fleet._learners)
    key, who = fleet._keys[place], jnp.asarray(place)
    once, sync = (
        jax.jit(functools.partial(f, agent)) for f in (update_once, update_sync)
    )
    for step in range(made + 1, made + count + 1):
        draws = update_draw(agent, learner.priorities, key, jnp.asarray(step))
        learner = once(Data(fleet._rows), learner, who, draws, jnp.asarray(step))
        if step % agent.sync_period == 0:
            learner = sync(learner)
    return learner


@every_agent
@pytest.mark.parametrize("made", [(0, 0), (1, 3), (4, 6)])
def test_a_call_is_the_updates_one_after_the_other(name, made):
    """Delay, syncs, keys and counters of members apart, from wherever they stand."""
    fleet = fleet_of(small(name), [0, 1])
    expected = [by_hand(fleet._agent, fleet, place, made[place], 7) for place in (0, 1)]
    fleet.train(Call((0, 1), 7), np.array(made))
    for place in (0, 1):
        ours = member(fleet._learners, place)
        chex.assert_trees_all_close(ours, expected[place], rtol=1e-4, atol=1e-6)
        assert ours.metrics["loss/critic"].times == 7
        assert (
            ours.metrics["loss/actor"].times
            == (made[place] + 7) // 2 - made[place] // 2
        )


@every_agent
def test_nothing_is_traced_twice(name):
    agent = make_agent(small(name), SPEC, 1)
    traces = collections.Counter()

    def counted(function, name):
        def traced(*arguments):
            traces[name] += 1
            return function(*arguments)

        return traced

    agent = agent._replace(
        update=counted(agent.update, "update"),
        explore=counted(agent.explore, "explore"),
        sync=counted(agent.sync, "sync"),
    )
    fleet = Fleet(agent, SPEC, [0, 1], LENGTHS, np.zeros((2, 4)), apart=False)
    made = np.zeros(2, int)
    for step in range(12):
        fleet.act(np.zeros((2, 4)), np.full(2, step), np.array([True, step > 3]))
        fleet.add([0, 1], experience([0, 1], step))
        fleet.train(Call((0, 1), 2 + step % 3 * 2), made)
        made += 2 + step % 3 * 2
        fleet.refresh([0, 1])
    # One trace of an update is for the shapes of its metrics.
    assert traces == {"update": 2, "explore": 1, "sync": 1}


@every_agent
def test_every_network_learns_and_metrics_are_means(name):
    config = small(name)
    before, after = fleet_of(config, [0, 1, 2]).states, trio(name).states
    for network in ("encoder", "critic", "actor", "fixed_encoder", "critic_target"):
        pair = getattr(before, network), getattr(after, network)
        for old, new in zip(*map(jax.tree.leaves, pair), strict=True):
            assert not np.allclose(old, new)
    means = trained(config, [0, 1, 2], updates=4, call=4).read_metrics()
    assert all(np.isfinite(mean).all() for mean in means.values())
    assert means["loss/critic"].shape == (3,)


def test_with_both_lambdas_zero_r2r2_is_its_base_to_the_bit():
    zeroed = small("td7+r2r2", representation=Representation())
    base = small("td7")
    chex.assert_trees_all_equal(
        trained(zeroed, [0, 1]).states, trained(base, [0, 1]).states
    )


def test_r2r2_changes_the_encoder_and_nothing_directly_else():
    ours, base = (trained(small(n), [0], updates=1, call=1).states for n in AGENTS)
    differs = [
        field
        for field in ours._fields
        if not all(
            map(
                np.array_equal,
                *map(jax.tree.leaves, (getattr(ours, field), getattr(base, field))),
            )
        )
    ]
    assert differs == ["encoder", "encoder_adam"]


@every_agent
def test_exploration_is_the_members_own_and_its_steps(name):
    agent = make_agent(small(name), SPEC, 1)
    obs, warm = np.zeros((2, 4)), np.array([False, False])
    pair = Fleet(agent, SPEC, [3, 4], LENGTHS, obs, apart=False)
    alone = Fleet(agent, SPEC, [4], LENGTHS, obs[:1], apart=False)
    first = pair.act(obs, np.array([0, 5]), warm)
    assert not np.allclose(first[0], first[1])
    np.testing.assert_array_equal(
        alone.act(obs[:1], np.array([5]), warm[:1])[0], first[1]
    )
    assert not np.allclose(pair.act(obs, np.array([1, 6]), warm), first)
    many = np.stack([pair.act(obs, np.full(2, t), warm) for t in range(200)])
    # Uniform on [-1, 1]: mean 0, deviation 0.577, and both ends reached.
    assert abs(many.mean()) < 0.1
    assert 0.5 < many.std() < 0.65
    assert np.abs(many).max() > 0.98


def test_keep_copies_the_acting_policy_of_the_chosen_alone():
    fleet = trained(small("td7"), [0, 1])
    kept_before = member(fleet.states.checkpoint_actor, 0)
    fleet.keep([1])
    states = fleet.states
    chex.assert_trees_all_equal(
        member(states.checkpoint_actor, 1), member(states.actor, 1)
    )
    chex.assert_trees_all_equal(
        member(states.checkpoint_encoder, 1), member(states.fixed_encoder, 1)
    )
    chex.assert_trees_all_equal(member(states.checkpoint_actor, 0), kept_before)


def test_acting_goes_on_with_the_old_policy_until_it_is_refreshed():
    config = small("td7", exploration_noise=0.0)
    fleet, obs = fleet_of(config, [0, 1]), np.ones((2, 4))
    warm, steps = np.ones(2, bool), np.zeros(2, int)
    before = fleet.act(obs, steps, warm)
    fleet.train(Call((0, 1), 20), np.zeros(2, int))
    np.testing.assert_array_equal(fleet.act(obs, steps, warm), before)
    fleet.refresh([1])
    after = fleet.act(obs, steps, warm)
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.allclose(after[1], before[1])
    fleet.refresh([0, 1])
    assert not np.allclose(fleet.act(obs, steps, warm)[0], before[0])


def test_greedy_evaluates_the_policy_checkpoint_only_where_there_are_any():
    state = member(trio("td7").states, 0)
    obs = jnp.ones(4)
    for enabled, network in ((True, "checkpoint_actor"), (False, "actor")):
        agent = make_agent(small("td7", policy_checkpoints=enabled), SPEC, 1)
        policy = agent.evaluated(state)
        chex.assert_trees_all_equal(policy.actor, getattr(state, network))
        assert agent.greedy(policy, obs).shape == (2,)
