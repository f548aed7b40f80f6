"""How a fleet combines updates and acting, for any agent."""

import math
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import build_agent
from r2r2.compute import update_loop
from r2r2.compute.compiled import CompiledUpdates, ProgramKey
from r2r2.compute.update_loop import UpdateCall, group_size
from r2r2.training import fleet as training_fleet
from r2r2.training.fleet import UpdateTimes
from small_fleets import (
    SPEC,
    check_paths_agree,
    experience,
    fleet_of,
    member,
    scales_of,
    small,
    trained,
    trio,
)

pytestmark = [pytest.mark.slow, pytest.mark.optimized]  # a minute or two: every group is a program


@pytest.fixture
def packs(request, monkeypatch):
    """Whether learners are held packed, as on a GPU; they are without a parameter."""
    packed = getattr(request, "param", True)
    monkeypatch.setattr(update_loop, "packs", lambda: packed)


plain_and_packed = pytest.mark.parametrize(
    "packs", [False, True], ids=["plain", "packed"], indirect=True
)


with_and_without_sync = pytest.mark.parametrize("name", ["td7+r2r2", "minphi+r2r2"])


@with_and_without_sync
def test_a_seed_does_not_depend_on_the_other_seeds(name):
    ours = member(trio(name).states, 1)
    for seeds in ([7, 1], [5, 1, 3, 4]):
        other = member(trained(small(name), seeds).states, 1)
        chex.assert_trees_all_close(ours, other, rtol=1e-4, atol=1e-6)
    alone = member(trained(small(name), [1]).states, 0)
    chex.assert_trees_all_close(ours, alone, rtol=1e-4, atol=1e-6)


@plain_and_packed
@pytest.mark.usefixtures("packs")
@with_and_without_sync
def test_members_out_of_step_make_the_same_updates_as_alone(name):
    """Bursts of different length, in groups that change, syncs at different times."""
    config = small(name)
    fleet, made = fleet_of(config, [0, 1, 2]), np.zeros(3, int)
    for who, updates in (((1,), 6), ((0, 1), 4), ((0, 1, 2), 8), ((0, 2), 8), ((1,), 2)):
        fleet.train([UpdateCall(who, updates)], made)
        made[list(who)] += updates
    assert made.tolist() == [20, 20, 16]
    for place in (0, 1):
        ours = member(fleet.states, place)
        chex.assert_trees_all_close(ours, member(trio(name).states, place), rtol=1e-4, atol=1e-6)
    assert not np.allclose(
        jax.tree.leaves(member(fleet.states, 2))[0],
        jax.tree.leaves(member(trio(name).states, 2))[0],
    )


@with_and_without_sync
def test_calls_one_after_another_are_those_of_waiting_between_them(name):
    calls = [UpdateCall((1,), 1), UpdateCall((0, 1, 2), 7), UpdateCall((0, 2), 4)]
    together, apart = (fleet_of(small(name), [0, 1, 2]) for _ in range(2))
    made = np.array([0, 1, 0])
    together.train(calls, made)
    assert made.tolist() == [0, 1, 0]
    for call in calls:
        apart.train([call], made)
        made[list(call.members)] += call.updates
    assert together.states is not apart.states
    chex.assert_trees_all_equal(together.states, apart.states)


# Groups padded to the size of the fleet, and to less; one agent samples ahead.
GROUPS = [
    ("td7+r2r2", 5, (0, 2, 4), 4, 5),
    ("td7+r2r2", 5, (2,), 4, 2),
    ("minphi+r2r2", 5, (0, 2, 4), 4, 5),
]


@pytest.mark.parametrize(("name", "size", "who", "growth", "padded_to"), GROUPS)
def test_a_group_changes_only_its_members(name, size, who, growth, padded_to):
    assert group_size(len(who), size, growth) == padded_to
    config, seeds = small(name), list(range(size))
    fleet, before = fleet_of(config, seeds), fleet_of(config, seeds)
    fleet._growth = growth
    fleet.train([UpdateCall(who, 20)], np.zeros(size, int))
    for place in set(who) & {0, 1, 2}:
        ours, theirs = (member(f.states, place) for f in (fleet, trio(name)))
        chex.assert_trees_all_close(ours, theirs, rtol=1e-4, atol=1e-6)
    for place in set(seeds) - set(who):
        ours, old = (member(f.learners, place) for f in (fleet, before))
        chex.assert_trees_all_equal(ours, old)
    updates = fleet.learners.metrics["loss/critic"].times
    assert updates.tolist() == [20 * (place in who) for place in seeds]


def test_beside_an_accelerator_a_group_uses_the_smallest_compiled_program(monkeypatch):
    who, made, sizes = (0, 2, 4), np.zeros(5, int), []
    config, program_for = small("td7+r2r2"), CompiledUpdates.program_for
    fleet = fleet_of(config, list(range(5)))
    fleet.async_updates, fleet._growth = True, 4
    fleet._updates.program(ProgramKey(3, False, 1)).result()

    def seen(self, *args):
        size, program = program_for(self, *args)
        sizes.append(size)
        return size, program

    monkeypatch.setattr(CompiledUpdates, "program_for", seen)
    fleet.train([UpdateCall(who, 20)], made)
    for place in (0, 2):
        ours, theirs = (member(f.states, place) for f in (fleet, trio("td7+r2r2")))
        chex.assert_trees_all_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert sizes == [3]


@with_and_without_sync
@pytest.mark.parametrize("made", [(0, 0, 0), (4, 6, 2)])
def test_a_call_may_start_anywhere(name, made):
    with jax.enable_x64(True):
        check_paths_agree(name, made, updates=7)


@plain_and_packed
@pytest.mark.usefixtures("packs")
def test_checkpointing_copies_only_the_chosen_policies():
    fleet = trained(small("td7"), [0, 1])
    before = member(fleet.states.checkpoint_actor, 0)
    fleet.checkpoint_policies([1])
    states = fleet.states
    chex.assert_trees_all_equal(member(states.checkpoint_actor, 1), member(states.actor, 1))
    chex.assert_trees_all_equal(
        member(states.checkpoint_encoder, 1), member(states.fixed_encoder, 1)
    )
    chex.assert_trees_all_equal(member(states.checkpoint_actor, 0), before)


def test_members_act_with_the_old_policy_until_it_is_refreshed():
    config = small("td7", exploration_noise=0.0)
    fleet, obs = fleet_of(config, [0, 1]), np.ones((2, 4))
    steps = np.zeros(2, int)
    before = fleet.act(obs, steps)
    fleet.train([UpdateCall((0, 1), 20)], np.zeros(2, int))
    np.testing.assert_array_equal(fleet.act(obs, steps), before)
    fleet.refresh([1])
    after = fleet.act(obs, steps)
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.allclose(after[1], before[1])
    fleet.refresh([0, 1])
    assert not np.allclose(fleet.act(obs, steps)[0], before[0])


@pytest.mark.parametrize("packed", [False, True])
def test_members_that_act_on_the_host_refresh_to_the_same_actions(packed):
    """Leaf by leaf, as on a CPU, and packed, as from an accelerator."""
    config = small("td7")
    fleet, host = fleet_of(config, [0, 1, 2]), fleet_of(config, [0, 1, 2], act_on_cpu=True)
    host._copy_to_host._packed = packed
    obs, steps, made = np.ones((3, 4)), np.zeros(3, int), np.zeros(3, int)
    for one in (fleet, host):
        one.train([UpdateCall((0, 1, 2), 20)], made)
    for members in ([1], [0, 2], [0, 1, 2]):
        before = host.act(obs, steps)
        for one in (fleet, host):
            one.refresh(members)
        np.testing.assert_array_equal(host.act(obs, steps), fleet.act(obs, steps))
        changed = members if len(members) < 3 else []
        assert (host.act(obs, steps) != before).any(axis=1).nonzero()[0].tolist() == changed


def test_policy_checkpoints_are_evaluated_if_enabled():
    state = member(trio("td7").states, 0)
    obs = jnp.ones(4)
    for enabled, network in ((True, "checkpoint_actor"), (False, "actor")):
        agent = build_agent(small("td7", policy_checkpoints=enabled), SPEC, 1)
        policy = agent.eval_policy(state)
        chex.assert_trees_all_equal(policy.actor, getattr(state, network))
        assert agent.greedy(policy, obs).shape == (2,)


@pytest.mark.usefixtures("packs")
def test_policies_fetched_after_updates_are_those_of_a_refresh():
    """Of the members asked for, and of no others."""
    config, made = small("td7"), np.zeros(4, int)
    plain, fetching = (fleet_of(config, [0, 1, 2, 3], act_on_cpu=True) for _ in range(2))
    fetching.accelerated = fetching._copy_to_host._packed = True
    before = jax.tree.map(np.copy, fetching.policies)
    plain.train([UpdateCall((0, 1, 3), 4)], made)
    fetching.train([UpdateCall((0, 1, 3), 4)], made, None, [0, 1, 3])
    fetching.wait()
    fetching._copy_to_host.pack = None  # it is done
    for fleet in (plain, fetching):
        fleet.refresh([0, 3])
    chex.assert_trees_all_equal(fetching.policies, plain.policies)
    chex.assert_trees_all_equal(member(fetching.policies, 1), member(before, 1))


@pytest.mark.usefixtures("packs")
def test_fetched_policies_are_written_while_others_train_but_never_old_ones():
    config, made = small("td7"), np.zeros(2, int)
    plain, fetching = (fleet_of(config, [0, 1], act_on_cpu=True) for _ in range(2))
    fetching.accelerated = fetching._copy_to_host._packed = True
    for fleet in (plain, fetching):
        fleet.train([UpdateCall((0,), 4)], made, None, [0])
        fleet.wait()
    plain.refresh([0])
    began, may_end, run_one = threading.Event(), threading.Event(), fetching._fetch

    def wait_and_fetch(*args):
        began.set()
        may_end.wait(60)
        return run_one(*args)

    fetching._fetch = wait_and_fetch
    fetching.train([UpdateCall((1,), 4)], made)
    began.wait(60)
    fetching.refresh([0])  # does not wait
    assert not fetching.ready
    chex.assert_trees_all_equal(fetching.policies, plain.policies)
    may_end.set()
    fetching.train([UpdateCall((0,), 4)], np.array([4, 4]), None, [0])
    fetching.wait()
    fetching.train([UpdateCall((0,), 4)], np.array([8, 4]))  # without fetching them
    fetching.refresh([0, 1])
    trained_policies = fetching.agent.behavior_policy(fetching.states)
    used = fetching._copy_to_host._select
    chex.assert_trees_all_equal(used(fetching.policies), used(trained_policies))


def test_the_time_of_updates_is_estimated_from_earlier_ones():
    times = UpdateTimes()
    assert times.estimate({2: 10}) == math.inf
    times.record({2: 10}, 0.01)
    times.record({2: 10, 5: 10}, 0.03)  # the first of a program of size 5
    assert times.estimate({2: 20}) == pytest.approx(0.02)
    assert times.estimate({5: 10}) == pytest.approx(0.015)
    for _ in range(30):
        times.record({2: 10}, 0.04)
    assert times.estimate({2: 10}) == pytest.approx(0.04, rel=0.02)


def test_updates_end_soon_when_their_time_is_nearly_over(monkeypatch):
    fleet, now = fleet_of(small("td7"), [0, 1], act_on_cpu=True), [0.0]
    monkeypatch.setattr(training_fleet.time, "perf_counter", lambda: now[0])
    fleet._times.record({2: 100}, 1.0)
    may_end, fetch = threading.Event(), fleet._fetch
    fleet._fetch = lambda *args: may_end.wait(60) and fetch(*args)
    assert not fleet.ends_soon
    fleet.train([UpdateCall((0, 1), 10)], np.zeros(2, int))
    seen = list[bool]()
    for now[0] in (0.0, 0.09, 0.11):  # they end after 0.1 s, and the time to start them
        seen.append(fleet.ends_soon)
    fleet.train([UpdateCall((0, 1), 10)], np.full(2, 10))
    seen.append(fleet.ends_soon)  # the next ones have been started
    may_end.set()
    fleet.wait()
    assert seen == [False, False, True, False]


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("read", ["snapshot", "read_metrics"])
def test_the_step_that_the_next_fused_call_stores_is_left_to_it(read):
    fleet = fleet_of(small("minphi+r2r2"), [0, 1])
    fleet.catch_up()
    fleet.fuses_steps = True
    counts = np.zeros(2, int), np.full(2, 41)
    fleet.add(range(2), experience([0, 1], 40))
    fleet.update_and_act(1, *counts, scales_of(fleet.agent, [0, 1]), np.ones((2, 4)))
    fleet.add(range(2), experience([0, 1], 41))
    fleet.settle()
    opened = fleet.opened.copy()
    getattr(fleet, read)()
    assert fleet.has_one_step
    np.testing.assert_array_equal(fleet.opened, opened)
