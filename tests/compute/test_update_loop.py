"""Which members train together, and in how many updates per turn."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2r2.agents.registry import build_agent
from r2r2.compute.update_loop import (
    UpdateCall,
    choose_stride,
    group_size,
    longest_stride,
    next_update_call,
    next_update_calls,
    pad_members,
)
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 30),
)
def test_every_pending_update_is_made_once_and_in_step(members, period, most):
    made = np.array([m for m, _ in members])
    pending = np.array([o for _, o in members])
    expected = made + pending
    calls = 0
    while pending.any():
        call = next_update_call(made, pending, period, most)
        who = list(call.members)
        assert len({int(made[m]) % period for m in who}) == 1
        assert 1 <= call.updates <= min(most, pending[who].min())
        assert len(set(who)) == len(who)
        made[who] += call.updates
        pending[who] -= call.updates
        calls += 1
    np.testing.assert_array_equal(made, expected)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 30),
)
def test_calls_one_after_another_are_those_of_waiting_between_them(members, period, most):
    made = np.array([m for m, _ in members])
    pending = np.array([o for _, o in members])
    if not pending.any():
        return
    before = made.copy(), pending.copy()
    calls = next_update_calls(made, pending, period, most)
    for array, same in zip((made, pending), before, strict=True):
        np.testing.assert_array_equal(array, same)
    left = most
    for number, call in enumerate(calls):
        assert call == next_update_call(made, pending, period, left)
        left -= call.updates
        who = list(call.members)
        made[who] += call.updates
        pending[who] -= call.updates
        chosen = sorted({member for one in calls[: number + 1] for member in one.members})
        ends = (pending[chosen] == 0).any() or left < period
        assert ends == (number == len(calls) - 1)
    assert left >= 0


def test_a_burst_between_odd_numbers_of_updates_is_started_at_once():
    calls = next_update_calls(np.array([3, 8]), np.array([116, 0]), 2, 250)
    assert calls == [UpdateCall((0,), 1), UpdateCall((0,), 114), UpdateCall((0,), 1)]


def test_members_in_step_train_together():
    assert next_update_call(np.full(3, 10), np.full(3, 200), 2, 250) == UpdateCall((0, 1, 2), 200)


def test_calls_make_whole_periods_and_the_rest_comes_last():
    assert next_update_call(np.zeros(1, int), np.array([201]), 2, 250).updates == 200
    assert next_update_call(np.array([200]), np.array([1]), 2, 250).updates == 1


def test_members_out_of_step_make_no_more_updates_than_allowed():
    assert next_update_call(np.array([1]), np.array([2]), 3, 1).updates == 1


@pytest.mark.parametrize(
    ("made", "updates", "stride"), [([2, 4], 4, 2), ([2, 4], 3, 1), ([1, 3], 4, 1), ([2, 3], 4, 2)]
)
def test_strides_need_whole_periods_of_the_members_of_a_call(made, updates, stride):
    members = (0,) if stride == 2 else (0, 1)
    assert choose_stride(UpdateCall(members, updates), np.array(made), 2) == stride


def test_members_out_of_step_train_first():
    assert next_update_call(np.array([3, 4]), np.array([9, 9]), 2, 250) == UpdateCall((0,), 1)


@pytest.mark.parametrize(
    ("members", "fleet", "growth", "size"),
    [
        (1, 5, 2, 1),
        (2, 5, 2, 2),
        (4, 5, 2, 5),
        (5, 5, 2, 5),
        (1, 8, 4, 2),
        (3, 8, 4, 8),
        (5, 64, 4, 16),
    ],
)
def test_groups_are_padded_to_few_sizes(members, fleet, growth, size):
    assert group_size(members, fleet, growth) == size
    assert pad_members(tuple(range(7, 7 + members)), size).tolist()[:members] == list(
        range(7, 7 + members)
    )
    assert set(pad_members((7, 9), 4)) == {7, 9}


@pytest.mark.parametrize(
    ("name", "period", "sync_period", "alone", "together"),
    [
        ("minphi", 1, 0, 2, 1),
        ("td7", 2, 250, 2, 2),
        ("td7", 3, 250, 1, 1),
        ("td7", 3, 12, 6, 3),
        ("simbav2", 1, 0, 1, 1),  # its state is too large to gain
    ],
)
def test_updates_per_turn(name, period, sync_period, alone, together):
    config = agent_config(name)
    if name == "simbav2":
        config = dataclasses.replace(config, critics=2, discount=0.99)
    agent = build_agent(config, Spec(11, 3), 1)
    agent = agent._replace(policy_period=period, sync_period=sync_period)
    assert [longest_stride(agent, members) for members in (1, 2)] == [alone, together]
