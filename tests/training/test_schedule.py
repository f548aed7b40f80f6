"""Warm-up and what it leads to; bursts are in golden/test_policy_checkpoints.py."""

import numpy as np
import pytest

from r2r2.config.resolve import resolve
from r2r2.training.rollout import Episode
from r2r2.training.schedule import Schedule

LENGTH = 4  # of every episode


def owed_after_each_step(agent: str, warmup: int, steps: int, utd: int = 3, **changes):
    """What one member owes after each step, paid at once; and when it was warm."""
    values = {"env": "A-v0", "agent": agent, "warmup": warmup, "utd": utd, **changes}
    schedule = Schedule(resolve(values), size=1)
    owed, warm = [], []
    for step in range(steps):
        warm.append(bool(schedule.warm[0]))
        ended = step % LENGTH == LENGTH - 1
        episodes = [Episode(0, step // LENGTH, LENGTH, 1.0)] if ended else []
        schedule.after_step([0], np.array([step + 1]), episodes)
        owed.append(int(schedule.owed[0]))
        schedule.book([0], owed[-1])
    return owed, warm


@pytest.mark.parametrize("warmup", [0, 1, 6])
def test_minphi_acts_for_itself_from_step_number_warmup_on(warmup):
    owed, warm = owed_after_each_step("minphi", warmup, steps=10)
    assert warm == [False] * warmup + [True] * (10 - warmup)
    assert owed == [0] * warmup + [3] * (10 - warmup)


@pytest.mark.parametrize(("warmup", "end"), [(0, 4), (4, 4), (5, 8)])
def test_td7_finishes_the_episode_first(warmup, end):
    changes = {"agent.policy_checkpoints": False}
    owed, warm = owed_after_each_step("td7", warmup, steps=12, **changes)
    assert warm == [False] * end + [True] * (12 - end)
    assert owed == [0] * end + [3] * (12 - end)


def test_with_policy_checkpoints_a_burst_follows_an_episode():
    owed, _ = owed_after_each_step("td7", warmup=2, steps=12)
    assert owed == [0] * 7 + [12] + [0] * 3 + [12]


def test_a_run_ends_with_its_last_burst_forgiven_and_nothing_else():
    for agent, forgiven in (("td7", 5), ("minphi", 0)):
        schedule = Schedule(resolve({"env": "A-v0", "agent": agent}), size=1)
        schedule.owed[0] = 5
        assert schedule.forgive(0) == forgiven
        assert schedule.owed[0] == 5 - forgiven


def warm_schedule(agent: str, size: int = 1) -> Schedule:
    values = {"env": "A-v0", "agent": agent, "warmup": LENGTH, "utd": 3}
    schedule = Schedule(resolve(values), size)
    ended = [Episode(member, 0, LENGTH, 1.0) for member in range(size)]
    schedule.after_step(range(size), np.full(size, LENGTH), ended)
    for member in range(size):
        schedule.book([member], int(schedule.owed[member]))
    return schedule


def test_a_dropped_episode_is_trained_on_with_the_next_and_does_not_count_as_one():
    schedule = warm_schedule("td7")
    tracker = schedule.trackers[0]
    schedule.drop(Episode(0, 1, 2, -1e9))
    assert schedule.owed[0] == 0
    assert schedule.trackers[0] == tracker._replace(steps=2)
    kept = schedule.after_step([0], np.array([10]), [Episode(0, 2, LENGTH, 1.0)])
    assert kept == [0]  # the return of what was dropped does not stand against it
    assert schedule.owed[0] == 3 * (2 + LENGTH)


def test_an_episode_dropped_in_warm_up_is_not_trained_on():
    schedule = Schedule(resolve({"env": "A-v0", "warmup": 2}), size=1)
    schedule.drop(Episode(0, 0, 5, 1.0))
    assert not schedule.warm[0]
    schedule.after_step([0], np.array([9]), [Episode(0, 1, LENGTH, 1.0)])
    assert (schedule.warm[0], schedule.trackers[0].steps) == (True, 0)


def test_an_agent_without_bursts_has_paid_for_a_dropped_episode_already():
    schedule = warm_schedule("minphi")
    schedule.after_step([0], np.array([5]), [])
    schedule.drop(Episode(0, 1, 1, 0.0))
    assert schedule.owed[0] == 3
    assert schedule.trackers[0].steps == 0


def test_who_gets_more_steps_owes_what_was_forgiven_unless_it_was_stopped():
    schedule = warm_schedule("td7", size=3)
    schedule.owed[:] = 6, 6, 6
    assert [schedule.forgive(member) for member in range(3)] == [6, 6, 6]
    schedule.stop(1)
    schedule.go_on(np.array([True, True, False]))
    assert schedule.owed.tolist() == [6, 0, 0]
    schedule.go_on(np.array([True, True, True]))
    assert schedule.owed.tolist() == [6, 0, 6]


def test_who_is_stopped_owes_nothing():
    schedule = warm_schedule("minphi", size=2)
    schedule.after_step([0, 1], np.array([5, 5]), [])
    schedule.stop(0)
    assert schedule.owed.tolist() == [0, 3]


@pytest.mark.parametrize("agent", ["td7", "minphi"])
def test_a_schedule_stands_where_a_saved_one_stood(agent):
    schedule = warm_schedule(agent, size=2)
    schedule.after_step([1], np.array([4, 8]), [Episode(1, 1, LENGTH, 2.5)])
    schedule.drop(Episode(0, 1, 3, 0.0))
    schedule.forgive(1)
    saved = {name: array.copy() for name, array in schedule.arrays().items()}
    other = Schedule(resolve({"env": "A-v0", "agent": agent, "utd": 3}), size=2)
    other.restore(saved)
    assert other.trackers == schedule.trackers
    for name, array in other.arrays().items():
        np.testing.assert_array_equal(array, saved[name])
