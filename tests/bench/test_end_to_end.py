import dataclasses

import numpy as np
import pytest

from r2r2.bench import end_to_end
from r2r2.bench.end_to_end import TrainingSetup, TrainingTimer, check_setup, time_training
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.experiments.costs import measure_speed
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
    fractions, speeds = [], []

    def record(run, result):
        speeds.append((measure_speed(run), result))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_to_end, "PERIOD", 100)
        patch.setattr(train, "make_diagnoser", lambda _: None)
        result = time_training(tiny(), SETUP, fractions.append, record)
    return result, fractions, speeds


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
    result = timed[0]
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


@pytest.mark.slow
def test_the_run_says_its_speed_before_it_is_deleted(timed):
    ((speed, result),) = timed[2]
    assert result is timed[0]
    assert speed.config.agent == tiny()
    assert speed.spec == Spec(3, 1)
    per_step = speed.step + speed.update  # at UTD 1
    assert per_step == pytest.approx(1 / result.decision_steps_per_s, rel=0.5)
    assert 0 < speed.startup < speed.seconds
    assert result.busy_cores > 0


def test_cpu_time_counts_where_the_run_is_timed(monkeypatch):
    run, spent = Run(monkeypatch), iter([5.0, 9.0])
    monkeypatch.setattr(end_to_end.time, "process_time", lambda: next(spent))
    run.report(61.0, 1100, 100)
    run.report(62.0, 1200, 200)
    run.report(64.0, 1400, 400)
    assert run.timer.result("td7").busy_cores == 2


def progress(steps, updates, point, stopped=False):
    members = np.full(2, steps), np.full(2, updates), np.full(2, updates > 0)
    return Progress(*members, point, np.zeros(2), np.array([stopped, False]))


class Run:
    """A run of two members whose progress is reported to a timer."""

    def __init__(self, monkeypatch, utd=1):
        self.clock = 0.0
        monkeypatch.setattr(end_to_end.time, "perf_counter", lambda: self.clock)
        self.times = TimeAccount(lambda: self.clock)
        self.times.switch("updates")
        self.pending = np.zeros(2, dtype=int)
        setup = TrainingSetup("Hopper-v5", 2, utd, steps=500)
        self.timer = TrainingTimer(self.times, self, setup, end_to_end.PERIOD + 500, ignore)

    def report(self, clock, steps, updates, point=1000, pending=0, stopped=False):
        self.clock, self.pending[:] = clock, pending
        self.timer(progress(steps, updates, point, stopped))


def ignore(_):
    pass


def test_timing_starts_after_updates_and_an_evaluation(monkeypatch):
    run = Run(monkeypatch)
    run.report(50.0, 900, 0, point=0)
    run.report(60.0, 1001, 1, point=0)
    run.report(61.0, 1100, 100)
    run.times.switch("rest")
    run.report(64.0, 1400, 400)
    run.report(99.0, 1500, 500)
    result = run.timer.result("td7")
    assert (result.decision_steps, result.seconds) == (600, 3)
    assert (result.decision_steps_per_s, result.updates_per_s) == (200, 200)
    assert (result.shares["updates"], result.shares["rest"]) == (0, 1)


def test_timing_goes_from_the_end_of_a_burst_to_the_end_of_another(monkeypatch):
    run = Run(monkeypatch, utd=20)
    run.report(10.0, 1050, 100)
    run.report(11.0, 1050, 350, pending=650)  # inside a burst
    run.report(12.0, 1050, 1000)
    run.report(13.0, 1100, 1000)  # collects
    run.report(20.0, 1100, 2000)
    run.report(21.0, 1150, 2000)
    run.report(22.0, 1150, 2250, pending=750)
    result = run.timer.result("td7")
    assert (result.decision_steps, result.seconds) == (100, 8)  # 50 steps of each member
    assert result.updates_per_s == 250
    assert result.decision_steps_per_s == 12.5


def test_every_member_is_timed_by_its_own_bursts(monkeypatch):
    run = Run(monkeypatch)
    for clock, updates, pending in [
        (1.0, (1, 1), (0, 0)),
        (2.0, (101, 1), (0, 300)),
        (4.0, (101, 301), (0, 0)),
        (6.0, (501, 301), (0, 0)),
        (7.0, (501, 401), (0, 0)),
    ]:
        run.clock, run.pending = clock, np.array(pending)
        run.timer(progress(1100, 9, 1000)._replace(updates=np.array(updates)))
    result = run.timer.result("td7")
    assert result.updates_per_s == pytest.approx(400 / 4 + 100 / 3, rel=1e-3)
    assert result.decision_steps == 500


def test_timing_ends_when_a_member_is_stopped(monkeypatch):
    run = Run(monkeypatch)
    run.report(0.0, 1050, 50)
    run.report(1.0, 1100, 100)
    run.report(2.0, 1200, 200)
    run.report(3.0, 1300, 300, stopped=True)
    assert run.timer.result("td7").decision_steps == 200


def test_too_short_run_is_rejected(monkeypatch):
    run = Run(monkeypatch)
    run.report(1.0, 1002, 0)
    run.report(2.0, 1003, 1)
    with pytest.raises(UserError, match=r"^--steps: too few for td7 .* got 500$"):
        run.timer.result("td7")


def test_several_tasks_are_trained_together():
    setup = TrainingSetup("dog-run,dog-trot", members=2, utd=1, steps=100)
    config = end_to_end._config(agent_config("td7"), setup)
    assert config.env == ("dog-run", "dog-trot")
    assert config.seeds == (0, 1)


@pytest.mark.parametrize(
    ("task", "words"),
    [("Hoper-v5", "did you mean 'Hopper-v5'"), ("CartPole-v1", "unsupported action space")],
)
def test_unsuitable_task_is_rejected_before_training(task, words):
    with pytest.raises(UserError, match=words):
        check_setup(tiny(), SETUP._replace(task=task))
