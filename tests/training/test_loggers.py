"""Runs logged to W&B, real and pretended; TensorBoard is in test_run_log and test_exact_resume."""

import json
import sys
from types import SimpleNamespace

import pytest
from runs import SMALL, assert_same_results, select

from r2r2 import RunOptions, StopTraining, UserError, WandbCallback, resolve, train
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import read_manifest
from r2r2.training import loggers
from r2r2.training.callbacks import Callback, EndInfo, StartInfo

CONFIG = resolve(SMALL, {"env": "walks:Walk", "seeds": 2})
OPTIONS = RunOptions(workers=0, checkpoint_every="20", wandb=True, wandb_project="tests")
MEMBERS = ("walks.Walk_s0", "walks.Walk_s1")


class PretendedWandb:
    """A module like wandb that keeps what it gets; a method in `failing` raises."""

    def __init__(self, failing=(), account=True):
        self.failing, self.account = failing, account
        self.inits, self.rows, self.metrics, self.codes = [], [], {}, []
        self.dir = "offline/files"

    def Settings(self, **settings):
        return settings

    def _call(self, name):
        if name in self.failing:
            raise RuntimeError(f"{name} is down\nat some server")

    def login(self, prompt):
        self._call("login")
        assert prompt is False
        return self.account

    def init(self, **settings):
        self._call("init")
        self.inits.append(settings)
        return self

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, row):
        self._call("log")
        self.rows.append(row)

    def finish(self, exit_code):
        self._call("finish")
        self.codes.append(exit_code)


@pytest.fixture
def pretended(monkeypatch):
    """Put a module in the place of wandb."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(loggers, "require_wandb", lambda: None)

    def install(**settings):
        module = PretendedWandb(**settings)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    return install


def start(path, resumed=False):
    return StartInfo(path, "td7", MEMBERS, 0, 60, resumed, {"utd": 1})


def event(kind, member, step, **fields):
    steps = {"env_step": 2 * step, "decision_step": step, "update_step": 0}
    return {"event": kind, "time": 0.5, "member": member, **steps, **fields}


def test_numbers_are_logged_by_member(pretended, tmp_path):
    wandb, callback = pretended(), WandbCallback("tests")
    callback.on_start(start(tmp_path))
    fields = {"return": 3.5, "length": 7, "random": True, "why": "text", "list": [1.0]}
    callback.on_log(event("episode", MEMBERS[0], 10, **fields))
    callback.on_log(event("policy_checkpoint", MEMBERS[0], 10))
    callback.on_log(event("time", None, 12, updates=0.5))
    callback.on_end(EndInfo(tmp_path, 12, True, "", dict.fromkeys(MEMBERS, 1.0), {}))
    name = MEMBERS[0]
    assert wandb.rows == [
        {
            f"{name}/episode/return": 3.5,
            f"{name}/episode/length": 7,
            f"{name}/env_step": 20,
            f"{name}/decision_step": 10,
            f"{name}/update_step": 0,
        },
        {
            "run/time/updates": 0.5,
            "run/env_step": 24,
            "run/decision_step": 12,
            "run/update_step": 0,
        },
    ]
    assert wandb.metrics[f"{name}/*"] == f"{name}/env_step"
    assert wandb.codes == [0]
    (settings,) = wandb.inits
    assert (settings["project"], settings["mode"]) == ("tests", None)
    assert settings["config"] == {"utd": 1}


def test_mean_is_logged_when_all_members_were_evaluated(pretended, tmp_path):
    wandb, callback = pretended(), WandbCallback()
    callback.on_start(start(tmp_path))
    callback.on_log(event("evaluation", MEMBERS[0], 20, mean=1.0, std=0.0))
    callback.on_log(event("evaluation", MEMBERS[0], 40, mean=9.0, std=0.0))
    assert not any("evaluation/mean" in row for row in wandb.rows)
    callback.on_log(event("evaluation", MEMBERS[1], 20, mean=3.0, std=0.0))
    means = {"evaluation/mean": 2.0, "evaluation/std": 1.0, "evaluation/env_step": 40}
    assert wandb.rows[-1] == means
    callback.on_log(event("stopped", MEMBERS[1], 30, why="it fell"))
    callback.on_log(event("evaluation", MEMBERS[0], 60, mean=5.0, std=0.0))
    assert wandb.rows[-1] == means | {
        "evaluation/mean": 5.0,
        "evaluation/std": 0.0,
        "evaluation/env_step": 120,
    }


def test_resumed_run_has_the_same_id_in_the_same_project(pretended, tmp_path):
    wandb = pretended()
    for project in ("one", "one", "two"):
        WandbCallback(project).on_start(start(tmp_path))
    first, second, third = (settings["id"] for settings in wandb.inits)
    assert first == second != third
    saved = json.loads((tmp_path / "wandb.json").read_text())
    assert saved == {"project": "two", "id": third}
    (tmp_path / "wandb.json").write_text("damaged")
    WandbCallback("two").on_start(start(tmp_path))
    assert wandb.inits[-1]["id"] != third


@pytest.mark.parametrize(
    ("account", "mode", "expected", "says"),
    [
        (True, None, None, False),
        (False, None, "offline", True),
        (False, "offline", None, False),  # left to wandb, which reads the variable
        (False, "online", None, False),
    ],
)
def test_offline_without_an_account(
    pretended, tmp_path, monkeypatch, account, mode, expected, says
):
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    wandb, messages = pretended(account=account), []
    WandbCallback("tests", messages.append).on_start(start(tmp_path))
    assert wandb.inits[0]["mode"] == expected
    assert messages == [loggers.NO_ACCOUNT.format("offline")] * says


@pytest.mark.parametrize(("stopped", "code"), [(MEMBERS[:1], 0), (MEMBERS, 1)])
def test_a_run_without_any_member_left_is_a_failure(pretended, tmp_path, stopped, code):
    wandb, callback = pretended(), WandbCallback("tests")
    callback.on_start(start(tmp_path))
    returns, reasons = dict.fromkeys(MEMBERS, 1.0), dict.fromkeys(stopped, "failed")
    callback.on_end(EndInfo(tmp_path, 12, True, "", returns, reasons))
    assert wandb.codes == [code]


@pytest.mark.parametrize("name", ["login", "init", "log", "finish"])
def test_failures_are_said_once(pretended, tmp_path, name):
    wandb, messages = pretended(failing=(name,)), []
    callback = WandbCallback("tests", messages.append)
    callback.on_start(start(tmp_path))
    for step in range(3):
        callback.on_log(event("episode", MEMBERS[0], step, length=1))
    callback.on_end(EndInfo(tmp_path, 12, True, "", {}, {}))
    text = f"W&B failed, and the run continues without it: RuntimeError: {name} is down"
    assert messages == [text]
    assert (len(wandb.rows), wandb.codes) == (3 if name == "finish" else 0, [])


def test_without_a_place_for_messages_failures_are_warnings(pretended, tmp_path):
    pretended(failing=("init",))
    with pytest.warns(UserWarning, match="W&B failed, .*RuntimeError: init is down"):
        WandbCallback().on_start(start(tmp_path))


def test_missing_library_is_an_error_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        loggers, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None))
    )
    with pytest.raises(UserError, match=r"wandb is not installed; .*pip install 'r2r2\[wandb\]'"):
        train(CONFIG, tmp_path / "run", options=OPTIONS)
    assert not (tmp_path / "run").exists()


def test_run_continues_after_a_failure_and_is_the_same(pretended, tmp_path):
    wandb, messages = pretended(failing=("log",)), []
    result = train(CONFIG, tmp_path / "with", options=OPTIONS, on_message=messages.append)
    assert [message for message in messages if "W&B" in message] == [
        "W&B failed, and the run continues without it: RuntimeError: log is down"
    ]
    assert read_manifest(result.folder.path).status == "finished"
    assert len(wandb.inits) == 1
    without = train(CONFIG, tmp_path / "without", options=OPTIONS._replace(wandb=False))
    assert_same_results(result, without)


@pytest.mark.slow
def test_real_wandb_offline(tmp_path, monkeypatch):
    """A run that is stopped and resumed writes two files of the same W&B run."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")

    class Stop(Callback):
        def on_episode(self, info):
            if info.step > 30:
                raise StopTraining

    path, messages = tmp_path / "run", []
    train(CONFIG, path, options=OPTIONS, callbacks=[Stop()], on_message=messages.append)
    result = train(CONFIG, path, options=OPTIONS, on_message=messages.append)
    assert not [message for message in messages if "failed" in message]
    number = json.loads((path / "wandb.json").read_text())["id"]
    files = sorted((path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        assert file.name == f"run-{number}.wandb"
        content = file.read_bytes()
        for name in (f"{MEMBERS[0]}/episode/length", f"{MEMBERS[1]}/evaluation/mean"):
            assert name.encode() in content
    events = read_events(result.folder.events)
    assert select(events, "evaluation", MEMBERS[0])
