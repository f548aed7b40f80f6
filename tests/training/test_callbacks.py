"""Callbacks: what they get, how they stop a run, and that they change nothing."""

import itertools

import numpy as np
import pytest
from runs import SMALL, assert_same_results, select
from test_accelerated_loop import pretend

from r2r2 import Callback, RunOptions, StopTraining, UserError, resolve, train
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import read_manifest
from r2r2.training import collector
from r2r2.training.callbacks import HOOKS, CallbackList

STEPWISE = RunOptions(workers=0, checkpoint_every="20")
CONFIG = resolve(SMALL, {"env": "walks:Walk", "seeds": 2})


class Recorder(Callback):
    """Keeps everything that it gets, by hook and in order."""

    def __init__(self):
        self.calls = []

    def infos(self, hook):
        return [info for name, info in self.calls if name == hook]


def record_hook(hook):
    def method(self, info):
        self.calls.append((hook, info))

    return method


for hook in HOOKS:
    setattr(Recorder, hook, record_hook(hook))


class Vandal(Callback):
    """Overwrites every array and dictionary that it gets."""


def spoil_hook(self, info):
    for value in info if isinstance(info, tuple) else [info]:
        if isinstance(value, np.ndarray):
            value[...] = True if value.dtype == bool else 77
        if isinstance(value, dict):
            for inner in value.values():
                if isinstance(inner, list):
                    inner[:] = [77.0]
            value.clear()


for hook in HOOKS:
    setattr(Vandal, hook, spoil_hook)


def raising(hook, error, call=1):
    """Return a callback whose hook raises at its n-th call."""

    class Raising(Callback):
        calls = ended = 0

        def on_end(self, info):
            self.ended += 1
            self.end = info

    original = getattr(Raising, hook)

    def method(self, info):
        original(self, info)
        self.calls += 1
        if self.calls == call:
            raise error

    setattr(Raising, hook, method)
    return Raising()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with a recorder after a callback that spoils what it gets."""
    path, recorder = tmp_path_factory.mktemp("recorded") / "run", Recorder()
    result = train(CONFIG, path, options=STEPWISE, callbacks=[Vandal(), recorder])
    return result, recorder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("whole") / "run", options=STEPWISE)


def test_callbacks_change_nothing(recorded, whole):
    assert_same_results(recorded[0], whole)
    assert recorded[0].stop_reason == whole.stop_reason == ""


@pytest.mark.slow
def test_lockstep_runs_are_not_changed_either(tmp_path):
    changes = {"agent.policy_checkpoints": False, "agent.normalize": True}
    config, results = resolve(SMALL, changes), []
    for name, callbacks in {"with": [Vandal(), recorder := Recorder()], "without": []}.items():
        results.append(train(config, tmp_path / name, options=STEPWISE, callbacks=callbacks))
    assert_same_results(*results)
    assert [info.step for info in recorder.infos("on_step")] == [*range(1, 61)]


def test_start_comes_first_and_end_last(recorded):
    result, recorder = recorded
    hooks = [hook for hook, _ in recorder.calls]
    assert (hooks[0], hooks[-1]) == ("on_start", "on_end")
    assert (hooks.count("on_start"), hooks.count("on_end")) == (1, 1)
    assert set(hooks) == {*HOOKS}
    start, end = recorder.calls[0][1], recorder.calls[-1][1]
    names = ("walks.Walk_s0", "walks.Walk_s1")
    assert start[:6] == (result.folder.path, "small_agent:SLOPE", names, 0, 60, False)
    assert start.config["eval_every"] == 20
    assert start.config["agent.batch_size"] == 4
    assert end[:4] == (result.folder.path, 60, True, "")
    assert end.returns == dict(zip(names, result.returns.tolist(), strict=True))
    assert end.stopped == {}


def test_every_step_is_a_transition_of_one_member(recorded):
    result, recorder = recorded
    steps = recorder.infos("on_step")
    for name in result.folder.members:
        own = [info for info in steps if info.member == name]
        assert [info.step for info in own] == [*range(1, 61)]
        assert {info.count for info in own} == {1}
        for info, following in itertools.pairwise(own):
            assert info.obs.shape == info.next_obs.shape == (1, 3)
            assert (info.action.shape, info.reward.shape) == ((1, 2), (1,))
            assert np.abs(info.action).max() <= 1
            np.testing.assert_allclose(info.reward, -np.abs(info.next_obs).sum(1))
            ended = bool(info.terminated[0] or info.truncated[0])
            assert (following.obs == info.next_obs).all() == (not ended)


def test_episodes_evaluations_and_checkpoints_are_those_of_the_log(recorded):
    result, recorder = recorded
    events = read_events(result.folder.events)
    rows = [
        (e["member"], e["decision_step"], e["episode"], e["length"], e["return"], e["random"])
        for e in select(events, "episode")
    ]
    infos = recorder.infos("on_episode")
    assert [(x.member, x.step, *x[3:]) for x in infos] == rows
    evaluations = recorder.infos("on_evaluation")
    assert [(x.member, x.step, x.updates, x.mean, x.std) for x in evaluations] == [
        (e["member"], e["decision_step"], e["update_step"], e["mean"], e["std"])
        for e in select(events, "evaluation")
    ]
    for info in evaluations:
        assert (info.returns.shape, info.returns.mean()) == ((2,), info.mean)
        assert info.point == info.mean
    checkpoints = recorder.infos("on_checkpoint")
    assert len(checkpoints) >= 3
    assert checkpoints[-1].step == 60
    assert checkpoints[-1].path.exists()
    assert checkpoints[-1].path == latest_valid(result.folder.checkpoints)[0].arrays.with_suffix(
        ".json"
    )


def test_log_events_are_those_of_the_file(recorded):
    result, recorder = recorded
    events = [
        {name: float(x) if x == "nan" else x for name, x in event.items()}
        for event in read_events(result.folder.events)
    ]
    np.testing.assert_equal(recorder.infos("on_log"), events)


@pytest.mark.slow
def test_averaged_evaluations_have_a_point_only_when_it_is_complete(tmp_path):
    recorder = Recorder()
    config = resolve(SMALL, {"eval_average": 2})
    train(config, tmp_path / "run", options=STEPWISE, callbacks=[recorder])
    infos = recorder.infos("on_evaluation")
    assert [info.step for info in infos] == [10, 20, 30, 40, 50, 60]
    assert [info.point is None for info in infos] == [True, False] * 3
    assert infos[1].point == np.mean([infos[0].mean, infos[1].mean])


STOP, CTRL_C, ERROR = StopTraining("enough"), KeyboardInterrupt(), ValueError("oh")


def slow_case(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("hook", "call", "error"),
    [
        ("on_step", 37, STOP),
        ("on_evaluation", 2, CTRL_C),
        ("on_episode", 2, ERROR),
        slow_case("on_start", 1, STOP),
        slow_case("on_start", 1, CTRL_C),
        slow_case("on_start", 1, ERROR),
        slow_case("on_evaluation", 3, STOP),
        slow_case("on_checkpoint", 1, STOP),
        slow_case("on_checkpoint", 1, ERROR),
        slow_case("on_log", 9, STOP),
        slow_case("on_log", 9, ERROR),
    ],
)
def test_a_run_stopped_by_a_callback_resumes_exactly(whole, tmp_path, hook, call, error):
    path, callback = tmp_path / "run", raising(hook, error, call)
    others = Recorder()

    def run():
        return train(CONFIG, path, options=STEPWISE, callbacks=[callback, others])

    if isinstance(error, ValueError):
        with pytest.raises(ValueError, match="oh") as raised:
            run()
        assert raised.value is error
        step = others.infos("on_end")[0].step
        note = f"raised in {hook} of the callback Raising"
        assert raised.value.__notes__[-2:] == [note, f"the run stopped at step {step}"]
        reason = "ValueError: oh"
    else:
        result = run()
        reason = "Raising: enough" if isinstance(error, StopTraining) else "interrupted"
        assert (result.interrupted, result.stop_reason) == (True, reason)
    assert read_manifest(path).status == "running"
    assert callback.ended == 1
    assert (callback.end.finished, callback.end.reason) == (False, reason)
    assert callback.end.step == latest_valid(path / "checkpoints")[0].step
    again = Recorder()
    resumed = train(CONFIG, path, options=STEPWISE, callbacks=[again])
    assert (resumed.interrupted, resumed.stop_reason) == (False, "")
    assert_same_results(resumed, whole)
    start = again.infos("on_start")[0]
    assert (start.resumed, start.step) == (True, callback.end.step)
    first, *_ = again.infos("on_log")
    assert first["event"] == "resumed"


@pytest.mark.slow
def test_stop_at_the_last_step_is_a_finished_run(tmp_path):
    class Late(Callback):
        def on_step(self, info):
            if info.step == 60:
                raise StopTraining("too late")

        def on_checkpoint(self, info):
            raise StopTraining("too late")

    config = resolve(SMALL, {"eval_episodes": 1})
    options = STEPWISE._replace(checkpoint_every="1000")
    result = train(config, tmp_path / "run", options=options, callbacks=[Late()])
    # The last evaluation is still to be made then: the run stops and is resumed.
    assert result.interrupted
    result = train(config, tmp_path / "run", options=options, callbacks=[Late()])
    assert (result.interrupted, result.stop_reason) == (False, "")
    assert read_manifest(tmp_path / "run").status == "finished"


@pytest.mark.slow
def test_stop_without_checkpoints_starts_over(tmp_path):
    options = STEPWISE._replace(checkpoint_every="never")
    stop = raising("on_episode", StopTraining(), 3)
    result = train(CONFIG, tmp_path / "run", options=options, callbacks=[stop])
    assert (result.interrupted, result.stop_reason) == (True, "Raising")
    messages = []
    train(CONFIG, tmp_path / "run", options=options, on_message=messages.append)
    assert messages[0].endswith("stopped before its first checkpoint; starting from step 0")


@pytest.mark.slow
def test_error_at_the_end_is_raised_from_a_finished_run(tmp_path, whole):
    other = Recorder()
    callbacks = [raising("on_end", ValueError("oh")), other]
    with pytest.raises(ValueError, match="oh") as raised:
        train(CONFIG, tmp_path / "run", options=STEPWISE, callbacks=callbacks)
    assert raised.value.__notes__ == ["raised in on_end of the callback Raising"]
    assert other.infos("on_end")[0].finished
    assert read_manifest(tmp_path / "run").status == "finished"
    assert_same_results(train(CONFIG, tmp_path / "run"), whole)


def test_a_failed_callback_gets_no_further_hooks_but_the_end(tmp_path):
    failing = raising("on_log", ValueError("oh"), 4)
    with pytest.raises(ValueError, match="oh"):
        train(CONFIG, tmp_path / "run", options=STEPWISE, callbacks=[failing])
    assert (failing.calls, failing.ended) == (4, 1)


@pytest.mark.slow
def test_checkpoint_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("r2r2.training.loop.save_checkpoint", fail)
    with pytest.raises(ValueError, match="oh") as raised:
        train(CONFIG, tmp_path / "run", callbacks=[raising("on_step", ValueError("oh"))])
    assert raised.value.__notes__[-1] == "no checkpoint was written: no space"
    with pytest.raises(OSError, match="no space"):
        train(CONFIG, tmp_path / "other", callbacks=[raising("on_step", StopTraining())])


@pytest.mark.slow
def test_blocks_of_steps_beside_an_accelerator(tmp_path, monkeypatch):
    pretend(monkeypatch, async_updates=True, accelerated=True)
    recorder, options = Recorder(), STEPWISE._replace(workers=1)
    result = train(CONFIG, tmp_path / "run", options=options, callbacks=[recorder])
    for name in result.folder.members:
        own = [info for info in recorder.infos("on_step") if info.member == name]
        assert sum(info.count for info in own) == 60
        assert np.cumsum([info.count for info in own]).tolist() == [info.step for info in own]
        fields = ("obs", "next_obs", "terminated", "truncated")
        obs, next_obs, *flags = (
            np.concatenate([getattr(info, field) for info in own]) for field in fields
        )
        ended = (flags[0] | flags[1])[:-1]
        assert ((obs[1:] == next_obs[:-1]).all(1) == ~ended).all()
    assert any(info.count > 1 for info in recorder.infos("on_step"))


def test_steps_are_not_copied_for_other_callbacks(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError

    class OnlyEpisodes(Callback):
        def on_episode(self, info):
            pass

    monkeypatch.setattr(collector, "step_info", fail)
    train(CONFIG, tmp_path / "run", options=STEPWISE, callbacks=[OnlyEpisodes()])


def test_hooks_may_be_set_on_an_instance():
    callback = Callback()
    assert not CallbackList([callback]).wants("on_step")
    callback.on_step = print
    assert CallbackList([callback]).wants("on_step")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (Callback(), "expected a list, got <r2r2.*Callback object"),
        ([Callback], "expected instances of subclasses of r2r2.Callback, got <class"),
        ((print,), "expected instances of subclasses of r2r2.Callback, got <built-in"),
    ],
)
def test_wrong_callbacks_are_refused_before_anything_is_written(tmp_path, callbacks, message):
    with pytest.raises(UserError, match=f"callbacks: {message}"):
        train(CONFIG, tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()
