import dataclasses

import numpy as np
import pytest

from r2r2.bench import end_to_end
from r2r2.bench.end_to_end import (
    PARTS,
    Course,
    Profiler,
    Readings,
    check_course,
    train_timed,
)
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.training import loop as train
from r2r2.training.loop import Progress

COURSE = Course("Pendulum-v1", members=1, utd=1, steps=330)


def tiny():
    small = {"width": 8, "model_width": 8, "latent": 8, "batch_size": 8}
    return dataclasses.replace(agent_config("minphi+r2r2"), **small)


@pytest.fixture(scope="module")
def timed():
    """A run with an evaluation every 100 steps, and how far it was told.

    Without looking into the encoder: what evaluation takes is the episodes'.
    """
    heard = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_to_end, "PERIOD", 100)
        patch.setattr(train, "diagnosing_for", lambda _: None)
        found = train_timed(tiny(), COURSE, heard.append)
    return found, heard


def test_every_part_of_a_training_takes_time(timed):
    shares = timed[0].shares
    assert list(shares) == [*PARTS, "rest"]
    assert all(shares[part] > 0 for part in PARTS)
    assert shares["acting"] > 0.005
    assert 0 <= shares["rest"] < 0.5
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


def test_updates_keep_up_with_the_steps_that_are_timed(timed):
    found, _ = timed
    assert 20 < found.decision_steps < COURSE.steps
    assert found.decision_steps_per_s == pytest.approx(
        found.decision_steps / found.seconds, rel=0.01
    )
    assert found.updates_per_s == pytest.approx(found.decision_steps_per_s, rel=0.05)


def test_what_is_timed_is_told_as_a_fraction(timed):
    assert timed[1] == sorted(timed[1])
    assert 0 < timed[1][0] < 0.1
    assert timed[1][-1] == 1


def progress(steps, updates, point, stopped=False):
    members = np.full(2, steps), np.full(2, updates), np.full(2, updates > 0)
    return Progress(*members, point, np.zeros(2), np.array([stopped, False]))


def test_timing_waits_for_updates_and_an_evaluation_and_stops_at_the_end():
    clock, course = Profiler(PARTS), Course("Hopper-v5", 2, utd=1, steps=500)
    readings = Readings(clock, end_to_end.PERIOD + 500, lambda _: None)
    for steps, updates, point, update_s in [
        (900, 0, 0, 50.0),
        (1001, 1, 0, 60.0),
        (1100, 100, 1000, 61.0),
        (1400, 400, 1000, 61.0),
        (1500, 500, 1000, 99.0),
    ]:
        clock.seconds["update"] = update_s
        readings(progress(steps, updates, point))
    found = readings.summary("td7", course)
    assert found.decision_steps == 600
    assert found.shares["update"] == 0


def test_timing_ends_when_a_member_is_stopped():
    readings = Readings(Profiler(PARTS), end_to_end.PERIOD + 500, lambda _: None)
    readings(progress(1100, 100, 1000))
    readings(progress(1200, 200, 1000))
    readings(progress(1300, 300, 1000, stopped=True))
    found = readings.summary("td7", Course("Hopper-v5", 2, utd=1, steps=500))
    assert found.decision_steps == 200


def test_a_run_too_short_to_be_timed_is_refused():
    readings = Readings(Profiler(PARTS), end_to_end.PERIOD + 3, lambda _: None)
    readings(progress(1002, 0, 1000))
    with pytest.raises(UserError, match=r"^steps is 3; td7 made too few updates"):
        readings.summary("td7", Course("Hopper-v5", 2, utd=1, steps=3))


@pytest.mark.parametrize(
    ("task", "words"),
    [("Hoper-v5", "did you mean 'Hopper-v5'"), ("CartPole-v1", "whose actions are")],
)
def test_a_task_that_cannot_be_trained_is_refused_before_anything_is(task, words):
    with pytest.raises(UserError, match=words):
        check_course(tiny(), COURSE._replace(task=task))
