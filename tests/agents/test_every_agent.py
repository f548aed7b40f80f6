"""What every agent must show, whatever it computes."""

import collections
import re

import chex
import jax
import numpy as np
import pytest

from r2r2.agents.registry import make_agent
from r2r2.compute import loop_packing as carry
from r2r2.compute import update_loop as loop
from r2r2.compute.update_grouping import UpdateCall
from r2r2.compute.update_loop import longest_stride
from r2r2.config.agents import AGENTS
from r2r2.config.common import Representation
from r2r2.training.fleet import Fleet
from small_fleets import (
    LENGTHS,
    SPEC,
    check_a_call,
    experience,
    fleet_of,
    member,
    networks,
    scales_of,
    small,
    trained,
    trio,
)

# One of each family at once; the others with the tests that take their time.
AT_ONCE = ("td7-ln+r2r2", "minphi+r2r2", "simbav2-spl+r2r2")


def agents(at_once):
    """Every agent; those that are not tested at once are among the slow tests.

    Without the bases that have R2R2 beside them: with its weights at zero those are
    the same programs, as a test below shows.
    """
    slow = pytest.mark.slow
    names = [name for name in AGENTS if f"{name}+r2r2" not in AGENTS]
    every = [pytest.param(x, marks=() if x in at_once else slow) for x in names]
    return pytest.mark.parametrize("name", every)


every_agent = agents(AT_ONCE)


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_third_of_the_time():
    """These programs run for milliseconds; test_fleet.py has the optimised ones."""
    trio.cache_clear()
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    trio.cache_clear()


@every_agent
def test_same_seed_same_bits(name):
    again = trained(small(name), [0, 1, 2])
    chex.assert_trees_all_equal(trio(name).states, again.states)


@every_agent
def test_seeds_differ_in_every_network(name):
    states = trio(name).states
    for leaf in jax.tree.leaves(states):
        # What nothing has moved yet may be alike: a policy checkpoint's norms.
        if leaf.ndim > 1 and len(np.unique(leaf)) > 1:
            assert not np.allclose(leaf[0], leaf[1])


@agents([name for name in AT_ONCE if name.startswith("td7")])
def test_a_seed_does_not_depend_on_its_neighbours_in_float64(name):
    with jax.enable_x64(True):
        ours = member(trained(small(name), [0, 1, 2]).states, 1)
        alone = member(trained(small(name), [1]).states, 0)
        assert all(leaf.dtype != np.float32 for leaf in jax.tree.leaves(ours))
        chex.assert_trees_all_close(ours, alone, rtol=1e-9, atol=1e-12)


@every_agent
def test_a_call_is_the_updates_one_after_the_other(name, monkeypatch):
    monkeypatch.setattr(loop, "packs", lambda: True)
    monkeypatch.setattr(carry, "SMALL", 40)  # kernels get rows of zeros, as large ones
    check_a_call(name, (1, 3, 5))


def test_a_call_in_strides_is_the_updates_one_after_the_other(monkeypatch):
    monkeypatch.setattr(loop, "packs", lambda: True)
    check_a_call("td7-ln+r2r2", (2, 4, 6), count=8, target_period=4)


@pytest.mark.slow
def test_so_is_one_in_strides_of_an_agent_without_phases(monkeypatch):
    monkeypatch.setattr(loop, "packs", lambda: True)
    check_a_call("minphi+r2r2", (2, 4, 6), count=4)


@pytest.mark.parametrize(
    ("phase", "lone", "sync_period", "alone", "together"),
    [
        (1, 1, 0, 1, 1),
        (1, 2, 0, 2, 1),
        (2, 1, 250, 2, 2),
        (2, 3, 250, 2, 2),
        (2, 4, 8, 4, 2),
        (2, 4, 5, 1, 1),
    ],
)
def test_how_many_updates_are_one_turn(phase, lone, sync_period, alone, together):
    agent = make_agent(small("td7"), SPEC, 1)._replace(
        phase=phase, lone_stride=lone, sync_period=sync_period
    )
    assert [longest_stride(agent, members) for members in (1, 2)] == [alone, together]


def test_an_agent_whose_priorities_would_come_too_late_is_refused():
    agent = make_agent(small("td7"), SPEC, 1)._replace(prioritizes=False)
    with pytest.raises(ValueError, match="have priorities if it says so"):
        Fleet(agent, SPEC, [0], LENGTHS, act_on_cpu=False)


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
    seeds, made = [0, 1, 2], np.zeros(3, int)
    fleet = Fleet(agent, SPEC, seeds, LENGTHS, act_on_cpu=False)
    for step in range(12):
        fleet.act(np.zeros((3, 4)), np.full(3, step), np.arange(3) < step)
        fleet.add(seeds, experience(seeds, step))
        call = UpdateCall((0, 1, 2), 2 + step % 3 * 2)
        fleet.train(call, made, scales_of(agent, [0, 1, step]))
        made += call.updates
        fleet.refresh(seeds)
    # One trace of an update is for the shapes of its metrics.
    expected = collections.Counter(update=2, explore=1, sync=bool(agent.sync_period))
    assert traces == +expected


@every_agent
def test_every_network_learns_and_metrics_are_means(name):
    config = small(name)
    before, after = (
        networks(f.states) for f in (fleet_of(config, [0, 1, 2]), trio(name))
    )
    assert {"actor", "critic", "critic_target"} <= set(before)
    for network in before:
        changed = [
            not np.array_equal(old, new)
            for pair in [(before[network], after[network])]
            for old, new in zip(*map(jax.tree.leaves, pair), strict=True)
        ]
        kept = network.startswith("checkpoint")
        assert not any(changed) if kept else all(changed), network
    means = trained(config, [0, 1, 2], updates=4, call=4).read_metrics()
    assert all(np.isfinite(mean).all() for mean in means.values())
    assert means["loss/critic"].shape == (3,)


def program(config) -> str:
    """What a fleet's updates compute, line by line, before it is compiled."""
    traced = fleet_of(config, [0, 1, 2])._updates.traced(3, True, 1)
    return re.sub("0x[0-9a-f]+", "", str(traced.jaxpr))


@pytest.mark.parametrize("name", [name for name in AGENTS if "+r2r2" in name])
def test_with_both_lambdas_zero_r2r2_is_its_base_line_by_line(name):
    zeroed = small(name, representation=Representation())
    base = program(small(name.removesuffix("+r2r2")))
    assert program(zeroed) == base
    assert program(small(name)) != base


def test_r2r2_changes_the_encoder_and_nothing_directly_else():
    ours, base = (
        trained(small(name), [0], updates=1, call=1).states
        for name in ("td7", "td7+r2r2")
    )
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
