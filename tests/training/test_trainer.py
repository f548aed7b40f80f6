import gc
import itertools
import os
import re
import signal
import threading
import weakref

import numpy as np
import pytest
from runs import SMALL, assert_same_weights, run
from toys import Story

from r2r2 import Callback, StopTraining, Trainer, UserError, load
from r2r2.api import RunFailed
from r2r2.training.collector import Collector

# Pendulum saves its state in the middle of an episode.
EXACT = SMALL | {"env": "Pendulum-v1", "max_episode_steps": 10}
OPTIONS = {"workers": 0, "progress": False}


def small(path, **changes):
    return Trainer(config=EXACT, out=path, **OPTIONS, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that the trainers of these tests make in pieces."""
    return run(tmp_path_factory.mktemp("whole") / "run", **(EXACT | {"seeds": 2}))[0]


def test_pieces_give_the_run_that_one_call_gives(tmp_path, whole):
    trainer = small(tmp_path / "run", seeds=2)
    result = trainer.train(steps=25)
    assert trainer.step_count >= 25
    assert not result.interrupted
    assert trainer.saved_run().status == "interrupted"
    assert_same_weights(trainer.train(), whole)
    assert trainer.step_count == 60
    assert trainer.saved_run().status == "finished"


def test_steps_give_the_run_that_one_call_gives(tmp_path, whole):
    with small(tmp_path / "run", seeds=2) as trainer:
        steps = []
        while (progress := trainer.step()) is not None:
            steps.append(int(progress.decisions.min()))
            progress.decisions[:] = -1  # a copy: the run does not see it
            if len(steps) == 30:
                trainer.policy(seed=0)
    assert steps[:2] == [1, 2]
    assert trainer.step_count == 60
    assert_same_weights(trainer.result, whole)


def test_an_abandoned_iteration_goes_on_where_it_was(tmp_path, whole):
    trainer = small(tmp_path / "run", seeds=2)
    for progress in trainer:
        if progress.decisions.min() == 20:
            break
    assert trainer.step_count == 20
    assert [int(x.decisions.min()) for x in trainer.iterate(steps=5)][-1] == 25
    assert_same_weights(trainer.train(), whole)


def test_each_call_adds_steps_where_the_run_has_no_fixed_length(tmp_path):
    fields = {name: x for name, x in SMALL.items() if name != "steps"}
    trainer = Trainer(config=fields, out=tmp_path / "run", **OPTIONS)
    trainer.train(steps=20)
    assert trainer.saved_run().status == "finished"
    trainer.train(steps=15)
    assert trainer.config.steps == trainer.step_count == 35
    assert trainer.curve().decision_steps.tolist() == [20, 35]
    other = Trainer(config=fields, out=tmp_path / "run", **OPTIONS)
    other.train(steps=5)
    assert other.step_count == 40


def test_steps_must_be_known(tmp_path):
    fields = {name: x for name, x in SMALL.items() if name != "steps"}
    trainer = Trainer(config=fields, out=tmp_path / "run", **OPTIONS)
    for call in (trainer.train, trainer.step, lambda: next(iter(trainer))):
        with pytest.raises(UserError, match=r"^steps: expected"):
            call()
    for steps in (0, -5, 1.5, "20"):
        with pytest.raises(UserError, match=r"^steps: expected an integer >= 1, got"):
            trainer.train(steps)
    assert not (tmp_path / "run").exists()


def test_errors_are_those_of_the_command_line(tmp_path):
    with pytest.raises(UserError, match="did you mean 'td7'"):
        Trainer("td77", "Pendulum-v1")
    with pytest.raises(UserError, match="lambda_r"):
        Trainer("td7", "Pendulum-v1", lambda_rrr=1)
    with pytest.raises(UserError, match=r"^env: expected"):
        Trainer("td7", env=3)
    options = {"workers": -1, "checkpoints": 0, "overwrite": "yes", "checkpoint_every": "soon"}
    for name, value in options.items():
        with pytest.raises(UserError, match=rf"{name}: expected .*, got {value!r}"):
            Trainer("td7", "Pendulum-v1", **{name: value})
    with pytest.raises(UserError, match=r"^option: expected one of overwrite"):
        Trainer.from_run(small(tmp_path / "run").train().folder.path, colour="red")
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("kind", ["class", "function", "instance"])
def test_environments_may_be_objects(tmp_path, kind):
    env = {"class": Story, "function": lambda: Story(), "instance": Story()}[kind]
    fields = SMALL | {"steps": 30, "env_timeout": 30}
    del fields["env"]
    trainer = Trainer(config=fields, env=env, out=tmp_path / "run", **OPTIONS)
    assert trainer.train().returns.shape == (1,)
    assert trainer.evaluate(episodes=3).returns.shape == (1, 3)
    assert trainer.config.env == ("lambda" if kind == "function" else "Story",)
    assert trainer.policy()(np.zeros(trainer.policy().parts.spaces.obs_dim)).shape == (1,)
    more = load(tmp_path / "run").resume(steps=10, env=env, **OPTIONS)
    assert more.step_count == 40


class Interrupting(Story):
    """Presses Ctrl-C in its 15th step."""

    steps = 0

    def step(self, action):
        type(self).steps += 1
        if self.steps == 15:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


def test_ctrl_c_saves_and_returns(tmp_path, default_signals):
    Interrupting.steps = 0
    fields = {name: x for name, x in SMALL.items() if name != "env"}
    trainer = Trainer(config=fields, env=Interrupting(), out=tmp_path / "run", **OPTIONS)
    assert trainer.train().interrupted
    assert 0 < trainer.step_count < 60
    assert not trainer.train().interrupted
    assert trainer.step_count == 60


def test_ctrl_c_in_a_step_saves_and_is_raised(tmp_path, default_signals):
    Interrupting.steps = 0
    fields = {name: x for name, x in SMALL.items() if name != "env"}
    with Trainer(config=fields, env=Interrupting(), out=tmp_path / "run", **OPTIONS) as trainer:
        with pytest.raises(KeyboardInterrupt):
            list(trainer)
        assert 0 < trainer.step_count < 60
        assert [int(x.decisions[0]) for x in trainer][-1] == 60


def test_two_trainers_in_threads(tmp_path, whole):
    trainers = [small(tmp_path / name, seeds=2) for name in ("a", "b")]
    threads = [threading.Thread(target=trainer.train) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for trainer in trainers:
        assert_same_weights(trainer.result, whole)


def test_a_failing_run_raises(tmp_path):
    class Broken(Story):
        def step(self, action):
            raise RuntimeError("out of order")

    fields = {name: x for name, x in SMALL.items() if name != "env"} | {"env_faults": 0}
    trainer = Trainer(config=fields, env=Broken(), out=tmp_path / "run", **OPTIONS)
    with pytest.raises(RunFailed, match="every member was stopped"):
        trainer.train()
    again = Trainer(config=fields, env=Broken(), out=tmp_path / "again", **OPTIONS)
    with pytest.raises(RunFailed, match="every member was stopped"), again:
        list(again)


def test_the_progress_bar_ends_at_the_steps_asked_for(tmp_path, capsys):
    trainer = Trainer(config=SMALL, out=tmp_path / "run", workers=0)
    trainer.train(steps=30)
    assert "done 30/30 100%" in capsys.readouterr().out


class Recorder(Callback):
    """Records the ends of a run, and calls `action` at its checkpoints and evaluations."""

    def __init__(self, on_checkpoint=None, on_evaluation=None):
        self.ends, self.starts = [], []
        self._on_checkpoint, self._on_evaluation = on_checkpoint, on_evaluation

    def on_start(self, info):
        self.starts.append(info.step)

    def on_checkpoint(self, info):
        if self._on_checkpoint:
            raise self._on_checkpoint

    def on_evaluation(self, info):
        if self._on_evaluation and info.step == 40:
            raise self._on_evaluation

    def on_end(self, info):
        self.ends.append(info)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])  # the latter: Ctrl-C twice
def test_an_error_in_a_step_is_not_an_end(tmp_path, monkeypatch, whole, error):
    trainer = small(tmp_path / "run", seeds=2, checkpoint_every="10")
    step, calls = Collector.step, itertools.count()

    def broken(self, members):
        if next(calls) == 30:
            raise error
        step(self, members)

    monkeypatch.setattr(Collector, "step", broken)
    with pytest.raises(error):
        list(trainer)
    assert trainer.saved_run().status == "interrupted"
    assert trainer.step_count == 20  # of the last whole checkpoint
    assert_same_weights(trainer.train(), whole)


def test_overwrite_deletes_a_run_once(tmp_path):
    small(tmp_path / "run").train()
    record = Recorder(on_evaluation=StopTraining("now"))
    trainer = small(tmp_path / "run", overwrite=True, callbacks=[record])
    assert trainer.step_count == 0
    assert trainer.train().interrupted
    trainer.train()
    assert record.starts[0] == 0
    assert 40 <= record.starts[1] < 60


def test_a_callback_can_interrupt(tmp_path):
    record = Recorder(on_evaluation=StopTraining("now"))
    result = small(tmp_path / "run", callbacks=[record]).train()
    assert (result.interrupted, result.stop_reason) == (True, "Recorder: now")
    assert record.ends[-1].reason == "Recorder: now"


def test_a_planned_piece_is_no_interruption(tmp_path):
    record = Recorder()
    result = small(tmp_path / "run", callbacks=[record]).train(20)
    assert (result.interrupted, result.stop_reason) == (False, "")
    assert [(x.finished, x.reason) for x in record.ends] == [(False, "interrupted")]


def test_pieces_need_checkpoints(tmp_path):
    trainer = small(tmp_path / "run", checkpoint_every="never")
    for call in (trainer.train, trainer.iterate):
        with pytest.raises(UserError, match=r"^steps: expected .* got steps to 20"):
            call(20)
    assert trainer.train().stop_reason == ""


def test_errors_of_checkpoint_hooks_are_raised(tmp_path):
    trainer = small(tmp_path / "run", callbacks=[Recorder(on_checkpoint=OSError("full"))])
    with pytest.raises(OSError, match="full"):
        trainer.train(20)


def test_nothing_holds_a_closed_session(tmp_path):
    trainer = small(tmp_path / "run")
    trainer.step()
    session = weakref.ref(trainer._session)
    trainer.close()
    gc.collect()
    assert session() is None


def test_a_script_that_extends_its_run_can_be_repeated(tmp_path):
    for _ in range(2):
        trainer = small(tmp_path / "run")
        trainer.train()
        if trainer.step_count == 60:
            trainer.train(10)
        assert trainer.step_count == 70


def test_a_run_of_an_environment_from_python_needs_it(tmp_path):
    fields = {name: x for name, x in SMALL.items() if name != "env"}
    Trainer(config=fields, env=Story, out=tmp_path / "run", **OPTIONS).train(20)
    with pytest.raises(UserError, match="environment given from Python"):
        load(tmp_path / "run").resume()


def test_a_run_that_has_ended_has_no_steps(tmp_path):
    trainer = small(tmp_path / "run")
    trainer.train()
    assert list(trainer) == []
    assert trainer.step() is None


def test_the_display_says_that_a_run_was_stopped(tmp_path, capsys):
    callbacks = [Recorder(on_evaluation=StopTraining("now"))]
    Trainer(config=SMALL, out=tmp_path / "run", workers=0, callbacks=callbacks).train()
    output = capsys.readouterr().out
    assert re.search(r"stopped 4\d/60", output)
    assert "60/60" not in output


def test_the_step_of_a_run_that_ended_early(tmp_path):
    trainer = small(tmp_path / "run", stop_at_return=-1e9, checkpoint_every="never")
    trainer.train()
    step = trainer.policy().info["step"]
    assert 20 <= step < 60
    assert trainer.evaluate(episodes=1).policies.steps == (step,)
