"""What golden/test_policy_checkpoints.py does not: UTD, and the other way to count."""

import pytest

from r2r2.config.common import AssessmentConfig
from r2r2.training.policy_checkpointing import (
    AssessmentState,
    after_episode,
    after_updates,
)


def test_a_burst_is_utd_times_the_steps_since_the_last_training():
    tracker = AssessmentState(max_episodes=2)
    tracker, order = after_episode(tracker, 100, 5.0, utd=20)
    assert order == (False, 0)
    tracker, order = after_episode(tracker, 50, 6.0, utd=20)
    assert order == (True, 150 * 20)
    assert tracker == AssessmentState(max_episodes=2, best_min=5.0)


def test_an_equal_score_is_no_failure_and_a_worse_one_ends_the_assessment_at_once():
    tracker = AssessmentState(max_episodes=3, best_min=5.0)
    tracker, order = after_episode(tracker, 10, 5.0, utd=1)
    assert order.updates == 0
    tracker, order = after_episode(tracker, 10, 4.9, utd=1)
    assert order == (False, 20)
    assert tracker.best_min == 5.0


@pytest.mark.parametrize(
    ("made", "count", "switched"),
    [(0, 100, False), (0, 101, True), (100, 1, True), (101, 50, False)],
)
def test_the_switch_comes_before_the_update_at_which_the_counter_equals_it(
    made, count, switched
):
    config = AssessmentConfig(switch=100, late_episodes=20, reset_weight=0.9)
    tracker = after_updates(
        config, AssessmentState(1, best_min=-10.0), made, count, utd=10
    )
    assert tracker.max_episodes == (20 if switched else 1)
    assert tracker.best_min == (-9.0 if switched else -10.0)


def test_the_switch_may_count_decisions_trained_on():
    config = AssessmentConfig(switch=100, count="decisions")
    early = after_updates(config, AssessmentState(1), 0, 1_000, utd=10)
    late = after_updates(config, AssessmentState(1), 0, 1_001, utd=10)
    assert (early.max_episodes, late.max_episodes) == (1, 20)
