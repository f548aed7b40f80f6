import dataclasses

import numpy as np
import pytest

from r2r2.bench import end_to_end
from r2r2.bench.end_to_end import TrainingSetup, TrainingTimer, check_setup, time_training
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.training import loop as train
from r2r2.training.loop import Progress
from r2r2.training.time_account import CHECKPOINTS, PARTS, TimeAccount

SETUP = TrainingSetup("Pendulum-v1", members=1, utd=1, steps=330)


def tiny():
    small = {"width": 8, "model_width": 8, "latent": 8, "batch_size": 8}
    return dataclasses.replace(agent_config("minphi+r2r2"), **small)


@pytest.fixture(scope="module")
def timed():
    """A run with an evaluation every 100 steps and without diagnostics."""
    fractions = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_to_end, "PERIOD", 100)
        patch.setattr(train, "make_diagnoser", lambda _: None)
        result = time_training(tiny(), SETUP, fractions.append)
    return result, fractions


@pytest.mark.slow
def test_every_part_takes_time(timed):
    shares = timed[0].shares
    assert tuple(shares) == PARTS
    assert all(shares[part] > 0 for part in PARTS if part != CHECKPOINTS)
    assert shares["acting"] > 0.005
    assert 0 <= shares["rest"] < 0.5
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_updates_keep_up_with_the_timed_steps(timed):
    result, _ = timed
    assert 20 < result.decision_steps < SETUP.steps
    assert result.decision_steps_per_s == pytest.approx(
        result.decision_steps / result.seconds, rel=0.01
    )
    assert result.updates_per_s == pytest.approx(result.decision_steps_per_s, rel=0.05)


@pytest.mark.slow
def test_progress_is_reported_as_a_fraction(timed):
    assert timed[1] == sorted(timed[1])
    assert 0 < timed[1][0] < 0.1
    assert timed[1][-1] == 1


def progress(steps, updates, point, stopped=False):
    members = np.full(2, steps), np.full(2, updates), np.full(2, updates > 0)
    return Progress(*members, point, np.zeros(2), np.array([stopped, False]))


def test_timing_starts_after_updates_and_an_evaluation():
    clock, setup = [0.0], TrainingSetup("Hopper-v5", 2, utd=1, steps=500)
    times = TimeAccount(lambda: clock[0])
    times.switch("updates")
    timer = TrainingTimer(times, end_to_end.PERIOD + 500, lambda _: None)
    for steps, updates, point, update_s in [
        (900, 0, 0, 50.0),
        (1001, 1, 0, 60.0),
        (1100, 100, 1000, 61.0),
        (1400, 400, 1000, 61.0),
        (1500, 500, 1000, 99.0),
    ]:
        clock[0] = update_s
        timer(progress(steps, updates, point))
    result = timer.result("td7", setup)
    assert result.decision_steps == 600
    assert result.shares["updates"] == 0


def test_timing_ends_when_a_member_is_stopped():
    timer = TrainingTimer(TimeAccount(), end_to_end.PERIOD + 500, lambda _: None)
    timer(progress(1100, 100, 1000))
    timer(progress(1200, 200, 1000))
    timer(progress(1300, 300, 1000, stopped=True))
    result = timer.result("td7", TrainingSetup("Hopper-v5", 2, utd=1, steps=500))
    assert result.decision_steps == 200


def test_too_short_run_is_rejected():
    timer = TrainingTimer(TimeAccount(), end_to_end.PERIOD + 3, lambda _: None)
    timer(progress(1002, 0, 1000))
    with pytest.raises(UserError, match=r"^--steps: too few for td7 .* got 3$"):
        timer.result("td7", TrainingSetup("Hopper-v5", 2, utd=1, steps=3))


@pytest.mark.parametrize(
    ("task", "words"),
    [("Hoper-v5", "did you mean 'Hopper-v5'"), ("CartPole-v1", "unsupported action space")],
)
def test_unsuitable_task_is_rejected_before_training(task, words):
    with pytest.raises(UserError, match=words):
        check_setup(tiny(), SETUP._replace(task=task))
