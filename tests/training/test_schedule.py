"""Warm-up, bursts and assessments; traces of TD7 are in golden."""

import numpy as np
import pytest

from r2r2.config.common import AssessmentConfig
from r2r2.config.resolve import resolve
from r2r2.training.rollout import Episode
from r2r2.training.schedule import AssessmentState, Schedule, after_episode, after_updates

LENGTH = 4  # of every episode


def test_burst_is_utd_times_the_steps_since_the_last_one():
    state, action = after_episode(AssessmentState(max_episodes=2), 100, 5.0, utd=20)
    assert action == (False, 0)
    state, action = after_episode(state, 50, 6.0, utd=20)
    assert action == (True, 150 * 20)
    assert state == AssessmentState(max_episodes=2, best_min=5.0)


def test_equal_return_passes_and_worse_return_fails_at_once():
    state = AssessmentState(max_episodes=3, best_min=5.0)
    state, action = after_episode(state, 10, 5.0, utd=1)
    assert action.updates == 0
    state, action = after_episode(state, 10, 4.9, utd=1)
    assert action == (False, 20)
    assert state.best_min == 5.0


@pytest.mark.parametrize(
    ("done", "count", "switched"),
    [(0, 100, False), (0, 101, True), (100, 1, True), (101, 50, False)],
)
def test_switch_happens_in_the_update_at_which_the_counter_equals_it(done, count, switched):
    config = AssessmentConfig(switch=100, late_episodes=20, reset_weight=0.9)
    state = AssessmentState(1, best_min=-10.0)
    state = after_updates(config, state, done, count, utd=10)
    assert state.max_episodes == (20 if switched else 1)
    assert state.best_min == (-9.0 if switched else -10.0)


def test_switch_may_count_decision_steps():
    config = AssessmentConfig(switch=100, count="decisions")
    early = after_updates(config, AssessmentState(1), 0, 1_000, utd=10)
    late = after_updates(config, AssessmentState(1), 0, 1_001, utd=10)
    assert (early.max_episodes, late.max_episodes) == (1, 20)


def pending_after_each_step(agent: str, warmup: int, steps: int, **changes):
    """Return the updates after each step of one member, and when it was warm."""
    values = {"env": "A-v0", "agent": agent, "warmup": warmup, "utd": 3, **changes}
    schedule = Schedule(resolve(values), size=1)
    pending, warm = [], []
    for step in range(steps):
        warm.append(bool(schedule.warm[0]))
        ended = step % LENGTH == LENGTH - 1
        episodes = [Episode(0, step // LENGTH, LENGTH, 1.0)] if ended else []
        schedule.record_step([0], np.array([step + 1]), episodes)
        pending.append(int(schedule.pending[0]))
        schedule.record_updates([0], pending[-1])
    return pending, warm


@pytest.mark.parametrize("warmup", [0, 1, 6])
def test_lockstep_agent_updates_after_every_step_from_warmup_on(warmup):
    pending, warm = pending_after_each_step("minphi", warmup, steps=10)
    assert warm == [False] * warmup + [True] * (10 - warmup)
    assert pending == [0] * warmup + [3] * (10 - warmup)


@pytest.mark.parametrize("agent", ["minphi", "td7"])
def test_random_actions_only_never_warm_up(agent):
    pending, warm = pending_after_each_step(agent, 0, steps=12, random_only=True)
    assert not any(warm)
    assert not any(pending)


@pytest.mark.parametrize(("warmup", "end"), [(0, 4), (4, 4), (5, 8)])
def test_td7_finishes_the_episode_in_warmup(warmup, end):
    changes = {"agent.policy_checkpoints": False}
    pending, warm = pending_after_each_step("td7", warmup, steps=12, **changes)
    assert warm == [False] * end + [True] * (12 - end)
    assert pending == [0] * end + [3] * (12 - end)


def test_burst_follows_an_episode_with_policy_checkpoints():
    pending, _ = pending_after_each_step("td7", warmup=2, steps=12)
    assert pending == [0] * 7 + [12] + [0] * 3 + [12]


def test_only_a_burst_is_skipped_at_the_end_of_a_run():
    for agent, skipped in (("td7", 5), ("minphi", 0)):
        schedule = Schedule(resolve({"env": "A-v0", "agent": agent}), size=1)
        schedule.pending[0] = 5
        assert schedule.skip_pending(0) == skipped
        assert schedule.pending[0] == 5 - skipped


def warm_schedule(agent: str, size: int = 1) -> Schedule:
    values = {"env": "A-v0", "agent": agent, "warmup": LENGTH, "utd": 3}
    schedule = Schedule(resolve(values), size)
    ended = [Episode(member, 0, LENGTH, 1.0) for member in range(size)]
    schedule.record_step(range(size), np.full(size, LENGTH), ended)
    for member in range(size):
        schedule.record_updates([member], int(schedule.pending[member]))
    return schedule


def test_dropped_episode_causes_updates_but_no_assessment():
    schedule = warm_schedule("td7")
    schedule.record_dropped(Episode(0, 1, 2, -1e9))
    assert schedule.pending[0] == 0
    episode = Episode(0, 2, LENGTH, 1.0)
    # The return of the dropped episode does not fail the assessment.
    assert schedule.record_step([0], np.array([10]), [episode]) == [0]
    assert schedule.pending[0] == 3 * (2 + LENGTH)


def test_dropped_episode_in_warmup_causes_no_updates():
    schedule = Schedule(resolve({"env": "A-v0", "warmup": 2}), size=1)
    schedule.record_dropped(Episode(0, 0, 5, 1.0))
    assert not schedule.warm[0]
    schedule.record_step([0], np.array([9]), [Episode(0, 1, LENGTH, 1.0)])
    assert schedule.warm[0]
    assert schedule.arrays()["steps"].tolist() == [0]


def test_lockstep_agent_has_already_updated_for_a_dropped_episode():
    schedule = warm_schedule("minphi")
    schedule.record_step([0], np.array([5]), [])
    schedule.record_dropped(Episode(0, 1, 1, 0.0))
    assert schedule.pending[0] == 3
    assert schedule.arrays()["steps"].tolist() == [0]


def test_more_steps_resume_skipped_updates_unless_stopped():
    schedule = warm_schedule("td7", size=3)
    schedule.pending[:] = 6, 6, 6
    assert [schedule.skip_pending(member) for member in range(3)] == [6, 6, 6]
    schedule.stop(1)
    schedule.resume_skipped(np.array([True, True, False]))
    assert schedule.pending.tolist() == [6, 0, 0]
    schedule.resume_skipped(np.array([True, True, True]))
    assert schedule.pending.tolist() == [6, 0, 6]


def test_stopped_member_has_no_pending_updates():
    schedule = warm_schedule("minphi", size=2)
    schedule.record_step([0, 1], np.array([5, 5]), [])
    schedule.stop(0)
    assert schedule.pending.tolist() == [0, 3]


@pytest.mark.parametrize("agent", ["td7", "minphi"])
def test_restored_schedule_equals_the_saved_one(agent):
    schedule = warm_schedule(agent, size=2)
    schedule.record_step([1], np.array([4, 8]), [Episode(1, 1, LENGTH, 2.5)])
    schedule.record_dropped(Episode(0, 1, 3, 0.0))
    schedule.skip_pending(1)
    saved = {name: array.copy() for name, array in schedule.arrays().items()}
    other = Schedule(resolve({"env": "A-v0", "agent": agent, "utd": 3}), size=2)
    other.restore(saved)
    for name, array in other.arrays().items():
        np.testing.assert_array_equal(array, saved[name])
