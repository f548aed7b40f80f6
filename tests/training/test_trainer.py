import os
import signal
import threading

import numpy as np
import pytest
from runs import SMALL, assert_same_weights, run
from toys import Story

from r2r2 import Trainer, UserError, load
from r2r2.api import RunFailed

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
    assert trainer.run().status == "interrupted"
    assert_same_weights(trainer.train(), whole)
    assert trainer.step_count == 60
    assert trainer.run().status == "finished"


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
    assert trainer.run().status == "finished"
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


def test_the_progress_bar_ends_at_the_steps_asked_for(tmp_path, capsys):
    trainer = Trainer(config=SMALL, out=tmp_path / "run", workers=0)
    trainer.train(steps=30)
    assert "done 30/30 100%" in capsys.readouterr().out
