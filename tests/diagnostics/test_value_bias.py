"""Value bias: the critics' estimates against discounted returns."""

import json

import numpy as np

from r2r2.diagnostics.value_bias import ValueBiasTracker, value_bias


def two_episodes(discount=0.5):
    tracker = ValueBiasTracker(discount)
    tracker.begin(3, np.array([1.0, 2.0]))
    return tracker


def test_bias_is_positive_for_overestimation():
    assert value_bias(np.array([2.0, 1.0]), np.array([1.0, 0.5])) == 0.75


def test_rewards_are_discounted_from_the_start_of_each_episode():
    tracker = two_episodes()
    for reward in (8.0, 8.0, 8.0):
        tracker.record(3, 0, reward)
    tracker.record(3, 1, 2.0)
    assert tracker.finish(3) == {
        "expected": 1.5,
        "discounted_return": (14 + 2) / 2,
        "bias": 1.5 - 8,
        "episodes": 2,
    }
    assert tracker.finish(3) is None


def test_restart_discards_rewards():
    tracker = two_episodes()
    tracker.record(3, 1, 100.0)
    tracker.restart(3, 1, same_start=True)
    tracker.record(3, 1, 4.0)
    tracker.record(3, 1, 4.0)
    assert tracker.finish(3)["discounted_return"] == 3


def test_episode_with_another_start_does_not_count():
    tracker = two_episodes()
    tracker.restart(3, 0, same_start=False)
    tracker.record(3, 0, 100.0)
    tracker.record(3, 1, 4.0)
    summary = tracker.finish(3)
    assert (summary["episodes"], summary["expected"], summary["bias"]) == (1, 2, -2)
    tracker = two_episodes()
    for number in (0, 1):
        tracker.restart(3, number, same_start=False)
    assert tracker.finish(3) is None


def test_later_episodes_in_a_slot_do_not_count():
    tracker = two_episodes()
    tracker.record(3, 2, 5.0)
    tracker.restart(3, 2, same_start=True)
    assert tracker.finish(3)["discounted_return"] == 0


def test_restored_tracker_continues():
    tracker, other = ValueBiasTracker(0.9), ValueBiasTracker(0.9)
    tracker.begin(3, np.array([0.1, 0.2], np.float32))
    tracker.record(3, 0, 0.3)
    tracker.restart(3, 0, same_start=True)
    tracker.record(3, 0, 0.3)
    other.restore(json.loads(json.dumps(tracker.rows())), again=False)
    for each in (tracker, other):
        each.record(3, 0, 0.7)
    assert other.finish(3) == tracker.finish(3)


def test_restored_tracker_starts_over_with_evaluations():
    tracker = two_episodes()
    tracker.record(3, 0, 9.0)
    tracker.restore(tracker.rows(), again=True)
    assert tracker.finish(3) == two_episodes().finish(3)
