"""Calls of `train`: failures, Ctrl-C, runs that have ended, threads, and a full disk."""

import os
import pickle
import signal
import threading

import fragile
import numpy as np
import pytest
from runs import SMALL

from r2r2 import (
    RunFailed,
    RunOptions,
    StoppedMembersWarning,
    UserError,
    evaluate_run,
    resolve,
    train,
)
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.files import StorageError
from r2r2.storage.run_folder import read_manifest

CONFIG = resolve(SMALL)
STEPWISE = RunOptions(workers=0, checkpoint_every="20")


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A run that was not interrupted, and its progress."""
    path, reports = tmp_path_factory.mktemp("whole") / "run", []
    return train(CONFIG, path, options=STEPWISE, on_progress=reports.append), reports


def test_progress_does_not_change_afterwards(reported):
    _, reports = reported
    steps, updates = ([int(x[n][0]) for x in reports] for n in (0, 1))
    assert (steps[0], steps[-1], sorted(steps)) == (0, 60, steps)
    assert (updates[0], sorted(updates)) == (0, updates)
    assert len(set(updates)) > 2
    assert not reports[0].warm.any()
    assert not reports[1].warm.any()
    assert reports[-1].warm.all()


def test_run_that_has_ended_is_returned(reported):
    whole, _ = reported
    messages, before = [], files(whole.folder.path)
    again = train(CONFIG, whole.folder.path, on_message=messages.append)
    assert again._replace(returns=None) == whole._replace(returns=None)
    np.testing.assert_array_equal(again.returns, whole.returns)
    assert np.isfinite(whole.returns).all()
    assert whole.random.keys() == {SMALL["env"]}
    assert messages == [f"{whole.folder.path}: has ended already with the same config"]
    assert files(whole.folder.path) == before


def test_failure_of_every_member_is_raised_each_time(tmp_path):
    config = resolve(SMALL, {"env": "arm", "env_faults": 1})
    for _ in range(2):
        with pytest.raises(RunFailed) as failure:
            train(config, tmp_path, env=fragile.Stillborn, options=STEPWISE)
        text = str(failure.value)
        assert text.startswith(f"{tmp_path}: failed: every member was stopped; arm_s0: its ")
        assert f"RuntimeError: no power, in {fragile.__file__}, line " in text
        assert f"see '{tmp_path / 'arm_s0' / 'stopped.json'}'" in text
        assert "RunOptions(retry_failed=True)" in text
        assert list(failure.value.result.stopped) == ["arm_s0"]
        assert str(pickle.loads(pickle.dumps(failure.value))) == text
    assert read_manifest(tmp_path).status == "failed"
    assert not list(tmp_path.glob("*/weights.npz"))
    again = STEPWISE._replace(retry_failed=True)
    repaired = train(config, tmp_path, env=fragile.Calm, options=again)
    assert (repaired.stopped, read_manifest(tmp_path).status) == ({}, "finished")
    assert len(list(tmp_path.glob("*/weights.npz"))) == 1
    text = r"trained with an environment given from Python \(Stillborn\); pass env= to train"
    for call in (evaluate_run, lambda path: train(config, path)):
        with pytest.raises(UserError, match=text):
            call(tmp_path)
    assert evaluate_run(tmp_path, 1, env=fragile.Calm, workers=0).returns.shape == (1, 1)


@pytest.mark.slow
def test_config_must_be_resolved_first():
    with pytest.raises(UserError, match=r"^config: expected a RunConfig, as `resolve` returns"):
        train({"env": "Pendulum-v1"})


def test_failure_of_some_members_is_a_warning_each_time(tmp_path):
    env = "fragile:Calm-v0,fragile:Doomed-v0"
    config = resolve(SMALL, {"env": env, "env_faults": 1})
    for _ in range(2):
        with pytest.warns(StoppedMembersWarning) as caught:
            result = train(config, tmp_path, options=STEPWISE)
        text = "fragile.Doomed-v0_s0 was stopped: its environment failed 2 times: RuntimeError: "
        assert [str(warning.message).startswith(text) for warning in caught] == [True]
        assert caught[0].filename == __file__
        assert list(result.stopped) == ["fragile.Doomed-v0_s0"]
    with pytest.raises(UserError, match="retry_failed: not allowed with overwrite"):
        train(config, tmp_path, options=RunOptions(overwrite=True, retry_failed=True))


def press_at(step):
    """Return a callback that presses Ctrl-C once, at a decision step."""
    pressed = []

    def on_progress(progress):
        if progress.decisions.max() == step and not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return on_progress


@pytest.mark.usefixtures("default_signals")
def test_interrupted_run_returns_and_continues(tmp_path, capsys):
    result = train(CONFIG, tmp_path, on_progress=press_at(33), options=STEPWISE)
    assert result.interrupted
    assert "press Ctrl-C again to quit now" in capsys.readouterr().err
    assert read_manifest(tmp_path).status == "running"
    assert 33 <= latest_valid(tmp_path / "checkpoints")[0].step <= 34
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    messages = []
    resumed = train(CONFIG, tmp_path, options=STEPWISE, on_message=messages.append)
    assert "resuming from step 3" in messages[0]
    assert not resumed.interrupted
    assert read_manifest(tmp_path).status == "finished"


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_second_interruption_is_raised_at_once(tmp_path):
    first, second = press_at(33), press_at(33)

    def on_progress(progress):
        first(progress)
        second(progress)

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, on_progress=on_progress, options=STEPWISE)


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("options", [STEPWISE, STEPWISE._replace(checkpoint_every="never")])
def test_interruption_with_nothing_to_save_is_raised(tmp_path, options):
    step = 0 if options.checkpoint_every == "20" else 33
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, on_progress=press_at(step), options=options)
    assert latest_valid(tmp_path / "checkpoints")[0] is None


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_handler_of_the_caller_stays(tmp_path):
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    config = resolve(SMALL, {"steps": 20})
    assert not train(config, tmp_path, on_progress=press_at(5), options=STEPWISE).interrupted
    assert pressed


@pytest.mark.usefixtures("default_signals")
def test_run_in_a_thread_leaves_no_threads_and_no_handlers(tmp_path):
    before, results = set(threading.enumerate()), []
    config = resolve(SMALL, {"steps": 20})
    thread = threading.Thread(
        target=lambda: results.append(train(config, tmp_path, options=STEPWISE))
    )
    thread.start()
    thread.join()
    assert len(results) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    left = set(threading.enumerate()) - before
    for one in left:
        one.join(20)
    assert not any(one.is_alive() for one in left)


@pytest.mark.slow
def test_file_that_cannot_be_written_is_named_without_claiming_a_checkpoint(tmp_path):
    def on_progress(progress):
        if progress.decisions.max() == 5:
            table = tmp_path / "evaluations.csv"
            table.unlink(missing_ok=True)
            table.mkdir(exist_ok=True)

    options = STEPWISE._replace(checkpoint_every="50")
    with pytest.raises(StorageError) as error:
        train(CONFIG, tmp_path, on_progress=on_progress, options=options)
    assert str(error.value).startswith(f"{tmp_path / 'evaluations.csv'}: cannot write: ")
    assert str(error.value).endswith("from its last checkpoint, if there is one")
