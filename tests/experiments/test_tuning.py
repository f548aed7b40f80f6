"""Tuning: files, objectives, studies with a fake run, and a real study that is killed."""

import contextlib
import csv
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from r2r2 import RunOptions, UserError, tune
from r2r2.api import Result
from r2r2.cli import tune as tune_command
from r2r2.cli.main import main
from r2r2.cli.train import parse_train
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Member
from r2r2.experiments import tuning, tuning_trial
from r2r2.experiments.run_report import Source, load_run
from r2r2.experiments.tuning_file import load_tuning_study, parse_study
from r2r2.experiments.tuning_results import TrialRecord, _best_so_far, draw_history
from r2r2.experiments.tuning_trial import objective, read_points
from r2r2.storage.evaluations import Row, append_evaluations
from r2r2.storage.files import LogFile
from r2r2.storage.run_folder import create_run, lock_run, open_run
from r2r2.training.callbacks import CallbackList, EvaluationInfo, StartInfo
from r2r2.training.loop import Progress
from r2r2.training.recovery import NOT_FINITE
from r2r2.training.saved_config import fleet_members, load_config
from synthetic_runs import make_run

ROOT = Path(__file__).parents[2]
BASE = {"env": "Pendulum-v1", "seeds": 2, "steps": 50, "eval_every": 10, "random_only": True}
SPACE = {
    "encoder_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "batch_size": {"choices": [128, 256]},
}
TABLE = {"base": BASE, "space": SPACE, "study": {"trials": 8, "startup": 3}}

FILE = """\
title = "Rates"
[base]
env = "Pendulum-v1"
steps = 50
eval_every = 10
random_only = true

[space]
encoder_rate = {low = 1e-4, high = 1e-2, log = true}
batch_size = {choices = [128, 256]}
latent = {low = 64, high = 512, step = 64}

[study]
trials = 8
"""


def with_study(**settings):
    return TABLE | {"study": TABLE["study"] | settings}


def read_table(folder):
    """The rows of a study's table of trials."""
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


@pytest.fixture
def settings_restored(tmp_path, monkeypatch):
    """Restore what the command line changes."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, value in before.items():
        jax.config.update(name, value)


# Files


def test_the_files_of_the_page_are_studies(tmp_path):
    page = (ROOT / "docs" / "tuning.md").read_text()
    first, second = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "rates.toml").write_text(first)
    study = load_tuning_study(tmp_path / "rates.toml")
    assert study.title == "Learning rates of TD7+R2R2 on Hopper"
    assert [x.name for x in study.space][:3] == ["encoder_rate", "critic_rate", "lambda_rr"]
    assert study.scales == {}
    scales = parse_study("tasks", tomllib.loads(second)).scales
    assert scales["Pendulum-v1"] == (-1500, -150)
    assert scales["Hopper-v5"][1] > 2000
    settings = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", page, re.MULTILINE))
    expected = dataclasses.asdict(parse_study("x", TABLE | {"study": {}}).settings)
    assert settings == {k: str(x) or "none" for k, x in expected.items()}


BAD_FILES = [
    ("encoder_rate", "encoder_rat", "line 9: space.encoder_rat: unknown field; did you mean "
     "'encoder_rate'?"),
    ("low = 1e-4", "low = 1", "line 9: space.encoder_rate: expected low < high, got low = 1.0 and "
     "high = 0.01"),
    ("low = 1e-4", "low = 0", "line 9: space.encoder_rate.low: expected a number > 0 "),
    ("low = 1e-4, ", "", "line 9: space.encoder_rate: low is missing; expected both low and high"),
    ("log = true", "log = 3", "line 9: space.encoder_rate.log: expected true or false, got 3"),
    ("log = true", "logg = true", "line 9: space.encoder_rate: unknown key 'logg'; expected low, "
     "high, step, log, choices; did you mean 'log'?"),
    ("[128, 256]", '[128, "large"]', "line 10: space.batch_size.choices: expected an integer "),
    ("[128, 256]", "[128, 128]", "line 10: space.batch_size.choices: expected at least two "
     "different values, got [128, 128]"),
    ("[128, 256]", "3", "line 10: space.batch_size.choices: expected a list, got 3"),
    ("{choices = [128, 256]}", "128", "line 10: space.batch_size: expected {low = ..., high = ...}"
     " or {choices = [...]}, got 128"),
    ("step = 64}", "step = 100}", "line 11: space.latent.step: expected a step that divides "
     "512 - 64, got 100"),
    ("step = 64}", "step = 64, log = true}", "line 11: space.latent: step is not allowed with log"),
    ("latent = {low", "agent.latent = {low = 2, high = 4}\nlatent = {low", "space.latent: is given "
     "twice, as 'agent.latent' as well"),
    ("latent =", "steps =", "line 11: space.steps: is the same in all trials; expected it in"),
    ("latent =", "agent =", "line 11: space.agent: is the same in all trials; expected it in"),
    ("latent = {low = 64, high = 512, step = 64}", "env_args = {choices = [1, 2]}",
     "space.env_args: is the same in all trials"),
    ("random_only = true", "random_only = true\nlatent = 64", "space.latent: is also in [base]"),
    ("random_only", "random_onyl", "[base] random_onyl: unknown field; did you mean 'random_only'"),
    ("steps = 50", "steps = 0", "steps: expected an integer >= 1, got 0"),
    ("random_only = true", "", "steps: expected more than warmup"),
    ('env = "Pendulum-v1"', "", "env: expected one or more tasks"),
    ('env = "Pendulum-v1"', 'env = ["Pendulum-v1", "my_robot:Arm"]', "line 3: several tasks need a "
     "common scale, and that of 'Pendulum-v1' is not known; expected its returns"),
    ("trials = 8", "trials = 0", "line 14: study.trials: expected an integer >= 1, got 0"),
    ("trials = 8", 'sampler = "tpo"', "study.sampler: expected one of tpe, random, got 'tpo'"),
    ("trials = 8", 'budget = "soon"', "study.budget: expected a time such as 90s"),
    ("trials = 8", "trails = 8", "[study] unknown key 'trails'; expected trials, "),
    ("[study]", "[studdy]", "unknown key 'studdy'; expected title, base, space, study, scales; "
     "did you mean 'study'?"),
    ("trials = 8", "[scales]\nHopper-v5 = [0, 1]", "expected a task of env, got 'Hopper-v5'"),
    ("trials = 8", "[scales]\nPendulum-v1 = [1, 0]", "expected two returns [a, b] with a < b"),
    ('title = "Rates"', "title = 3", "title: expected a text, got 3"),
    ("[base]", "[base", "cannot read: "),
    (FILE[FILE.index("encoder_rate") : FILE.index("[study]")], "", "[space] is empty; expected at "
     "least one field such as width = {choices = [128, 256]}"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "sentence"), BAD_FILES)
def test_a_bad_file_is_one_sentence_and_writes_nothing(workdir, capsys, old, new, sentence):
    assert old in FILE
    Path("rates.toml").write_text(FILE.replace(old, new, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        assert main(["tune", "rates.toml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("r2r2: error: rates.toml: ")
    assert sentence in err
    assert [x.name for x in workdir.iterdir()] == ["rates.toml"]


# Objectives


def test_objectives_of_seeds_and_tasks():
    curve = {step: float(step) for step in range(1, 21)}
    points = {Member("Pendulum-v1", seed): curve for seed in (0, 1)}
    points[Member("Pendulum-v1", 1)] = {1: 7.5}

    def value(**settings):
        return objective(parse_study("x", with_study(**settings)), points)

    assert value() == np.mean([np.mean(range(11, 21)), 7.5])
    assert value(objective="last") == np.mean([20, 7.5])
    many = {Member("Pendulum-v1", seed): {1: float(seed**2)} for seed in range(4)}
    assert objective(parse_study("x", with_study(statistic="iqm")), many) == np.mean([1, 4])


def test_several_tasks_are_scaled():
    base = BASE | {"env": ["cartpole-swingup", "Pendulum-v1"]}
    study = parse_study("x", TABLE | {"base": base, "scales": {"Pendulum-v1": [-1500, -100]}})
    points = {Member("cartpole-swingup", 0): {9: 500.0}, Member("Pendulum-v1", 0): {9: -450.0}}
    assert objective(study, points) == pytest.approx((0.5 + 0.75) / 2)
    assert math.isnan(objective(study, points | {Member("Pendulum-v1", 1): {}}))


# Studies with a fake run


class FakeRuns:
    """Replaces training: returns follow from the learning rate, and points from the steps."""

    def __init__(self):
        self.calls, self.stop_at, self.fails = [], None, {}

    def __call__(self, config, path, *, on_progress, options, callbacks):
        number = int(path.name.removeprefix("trial_"))
        self.calls.append((number, config.agent.encoder_rate))
        if error := self.fails.get(number):
            raise error
        members = fleet_members(config)
        names = [member.name for member in members]
        if (path / "manifest.json").exists():
            folder, resumed = open_run(path), True
        else:
            folder, resumed = create_run(path, to_toml(config), names, False), False
        hooks, values = CallbackList(callbacks), read_points(folder, config)
        done = max(values[members[0]], default=0)
        hooks.call("on_start", lambda: StartInfo(path, "", (), done, 50, resumed, {}))
        with contextlib.ExitStack() as stack:
            log = None
            for step in range(done + 10, config.steps + 1, 10):
                zeros = np.zeros(len(members), dtype=int)
                on_progress(Progress(zeros + step, zeros, zeros > 0, 0, zeros + 0.0, zeros > 0))
                if (number, step) == self.stop_at:
                    raise KeyboardInterrupt
                log = log or stack.enter_context(LogFile(folder.evaluations))
                for member in members:
                    value = self.value(config, member.seed, step)
                    row = Row("x", *member, "return", step, value)
                    append_evaluations(folder.evaluations, [row], log)
                    info = EvaluationInfo(member.name, step, 0, value, 0.0, np.ones(1), value)
                    hooks.call("on_evaluation", lambda info=info: info)
                hooks.raise_error()
                if hooks.stops:
                    return Result(folder, members, np.ones(2), {}, {}, True, hooks.stop_reason)
        folder.finish()
        return Result(folder, members, np.ones(2), {}, {})

    @staticmethod
    def value(config, seed, step):
        distance = math.log10(config.agent.encoder_rate) + 3
        return step * (1 - distance**2) + seed + config.agent.batch_size / 1000


@pytest.fixture
def fake(monkeypatch, settings_restored):
    runs = FakeRuns()
    monkeypatch.setattr(tuning, "draw_history", lambda *_: True)  # takes a second
    monkeypatch.setattr(tuning_trial, "train_finalized", runs)
    return runs


def test_a_study_finds_the_best_and_prunes_bad_trials(fake, tmp_path):
    statuses = []
    result = tune(with_study(trials=16), tmp_path / "a", on_status=statuses.append)
    states = [trial.state for trial in result.trials]
    assert set(states) == {"complete", "pruned"}
    assert set(states[:3]) == {"complete"}
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert result.best.value == max(trial.value for trial in complete)
    assert abs(math.log10(result.best.values["agent.encoder_rate"]) + 3) < 0.2
    config = load_config(open_run(result.best.run))
    assert result.best.value == objective(
        parse_study("x", TABLE), read_points(open_run(result.best.run), config)
    )
    for trial in result.trials:
        reason = trial.run / "pruned.json"
        assert reason.exists() == (trial.state == "pruned")
        if trial.state == "pruned":
            facts = json.loads(reason.read_text())
            assert (facts["trial"], facts["why"]) == (trial.number, trial.why)
            assert f"pruned at step {facts['step']} " in trial.why
    # The best config is that of the run, and what `r2r2 train --config` accepts.
    command = parse_train(["--config", str(result.best_config)])
    assert command.config == config
    rows = read_table(tmp_path / "a")
    assert [row["state"] for row in rows] == states
    assert float(rows[result.best.number - 1]["value"]) == result.best.value
    assert [x.ended.number for x in statuses if x.ended] == list(range(1, 17))
    assert statuses[-1].seconds_left == 0
    assert all(x.seconds_left is not None for x in statuses)


@pytest.mark.parametrize("stop_at", [(1, 10), (2, 30), (8, 10)])
def test_an_interrupted_study_continues_as_if_it_had_not_been(fake, tmp_path, stop_at):
    whole = tune(TABLE, tmp_path / "a")
    fake.stop_at, fake.calls = stop_at, []
    with pytest.raises(KeyboardInterrupt):
        tune(TABLE, tmp_path / "b")
    fake.stop_at = None
    continued = tune(TABLE, tmp_path / "b")
    # Only the interrupted trial ran twice, with the same parameters.
    numbers = [number for number, _ in fake.calls]
    assert sorted(numbers) == sorted([*range(1, 9), stop_at[0]])
    for one, other in zip(whole.trials, continued.trials, strict=True):
        assert (one.number, one.state, one.value) == (other.number, other.state, other.value)
        assert one.values == other.values
    assert continued.best.number == whole.best.number


def test_importances_and_the_picture(fake, tmp_path):
    assert not tune(with_study(trials=2, pruner="none"), tmp_path / "a").importances
    result = tune(with_study(trials=2, pruner="none"), tmp_path / "a", trials=12)
    assert max(result.importances, key=result.importances.get) == "agent.encoder_rate"
    for count in (1, 12):
        path = tmp_path / f"{count}.png"
        assert draw_history(result.study, path, result.trials[:count])
        assert path.read_bytes().startswith(b"\x89PNG")
    values = [(2, "complete", 1.0), (3, "pruned", 9.0), (4, "complete", 0.0), (5, "complete", 2.0)]
    trials = [TrialRecord(*x, {}, 0.0, "", tmp_path) for x in [*values, (6, "pruned", 3.0)]]
    numbers, best = _best_so_far(trials)
    assert [*zip(numbers, best, strict=True)] == [(2, 1), (5, 1), (5, 2), (6, 2)]
    assert not draw_history(result.study, tmp_path / "none.png", [])


def test_more_trials_continue_a_complete_study(fake, tmp_path):
    tune(with_study(trials=2), tmp_path / "a")
    assert len(fake.calls) == 2
    assert len(tune(with_study(trials=2), tmp_path / "a").trials) == 2
    assert len(fake.calls) == 2
    result = tune(with_study(trials=2, budget="9h"), tmp_path / "a", trials=4)
    assert (len(result.trials), len(fake.calls)) == (4, 4)
    whole = tune(with_study(trials=4), tmp_path / "b")
    assert [x.values for x in result.trials] == [x.values for x in whole.trials]


def test_the_command_counts_the_trials_of_its_option(fake, workdir, capsys):
    Path("rates.toml").write_text(FILE)
    assert main(["tune", "rates.toml", "--trials", "2"]) == 0
    assert capsys.readouterr().out.startswith("Rates: 2 trials, objective: ")


def test_hyperband_and_random_sampling(fake, tmp_path):
    table = with_study(trials=12, pruner="hyperband", sampler="random")
    states = [trial.state for trial in tune(table, tmp_path / "a").trials]
    assert {"complete", "pruned"} == set(states)
    assert {x.state for x in tune(with_study(pruner="none", trials=5), tmp_path / "b").trials} == {
        "complete"
    }


def test_a_changed_study_is_refused(fake, tmp_path):
    tune(with_study(trials=1), tmp_path / "a")
    changes = {
        r"another \[base\] \(steps is 50, not 60\)": {"base": BASE | {"steps": 60}},
        r"another \[space\] \(agent.batch_size is \[128, 256\], not none\)": {
            "space": {"encoder_rate": SPACE["encoder_rate"]}
        },
        r"another \[study\] \(sampler is tpe, not random\)": with_study(sampler="random"),
        r"another \[scales\] \(Pendulum-v1 is none, not \[0.0, 1.0\]\)": {
            "scales": {"Pendulum-v1": [0, 1]}
        },
    }
    before = (tmp_path / "a" / "study.json").read_bytes()
    for sentence, change in changes.items():
        with pytest.raises(UserError, match=sentence):
            tune(TABLE | change, tmp_path / "a")
    assert (tmp_path / "a" / "study.json").read_bytes() == before


def test_folders_of_others_and_studies_in_use_are_refused(fake, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    with pytest.raises(UserError, match="not empty and not a tuning study; choose another"):
        tune(TABLE, tmp_path / "notes")
    with pytest.raises(UserError, match="is a file; expected a folder"):
        tune(TABLE, tmp_path / "notes" / "todo.txt")
    tune(with_study(trials=1), tmp_path / "a")
    with (
        lock_run(tmp_path / "a"),
        pytest.raises(UserError, match="in use; this process is running this study"),
    ):
        tune(with_study(trials=2), tmp_path / "a")
    assert [number for number, _ in fake.calls] == [1]


@pytest.mark.parametrize(
    ("field", "value"), [("trials", 0), ("trials", True), ("budget", "soon"), ("budget", 3)]
)
def test_bad_limits(fake, tmp_path, field, value):
    with pytest.raises(UserError, match=f"{field}: expected .*, got {value!r}"):
        tune(TABLE, tmp_path / "a", **{field: value})
    with pytest.raises(UserError, match="overwrite: not allowed"):
        tune(TABLE, tmp_path / "a", options=RunOptions(overwrite=True))
    with pytest.raises(UserError, match="env 'Pendulm-v1': unknown task"):
        tune(TABLE | {"base": BASE | {"env": "Pendulm-v1"}}, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_failing_trial_is_recorded_and_does_not_stop_the_study(fake, tmp_path):
    fake.fails = {2: RuntimeError("out of\nmemory"), 3: UserError("no such file", "prefill")}
    result = tune(with_study(trials=4), tmp_path / "a")
    assert [trial.state for trial in result.trials] == ["complete", "failed", "failed", "complete"]
    assert result.trials[1].why == "RuntimeError: out of memory"
    assert result.trials[2].why == "UserError: prefill: no such file"


def test_a_study_ends_if_its_first_trials_all_fail(fake, workdir, capsys):
    fake.fails = dict.fromkeys(range(1, 9), RuntimeError("broken"))
    Path("rates.toml").write_text(FILE)
    assert main(["tune", "rates.toml", "--device", "auto"]) == 1
    out, err = capsys.readouterr()
    assert len(fake.calls) == tuning.MAX_FIRST_FAILURES
    assert "5 trials: 5 failed" in out
    sentence = "no trial is complete; trial 5: RuntimeError: broken"
    assert err == f"r2r2: error: tuning/rates: {sentence}\n"


def test_a_loss_that_is_not_finite_is_a_bad_trial(fake, tmp_path, monkeypatch):
    def diverging(config, path, **rest):
        result = fake(config, path, **rest)
        why = {"Pendulum-v1_s1": NOT_FINITE if path.name.endswith("1") else "env failed"}
        return result._replace(stopped=why) if path.name[-1] in "12" else result

    monkeypatch.setattr(tuning_trial, "train_finalized", diverging)
    result = tune(with_study(trials=3), tmp_path / "a")
    assert [trial.state for trial in result.trials] == ["diverged", "failed", "complete"]
    assert result.trials[0].why == f"Pendulum-v1_s1 was stopped: {NOT_FINITE}"


def test_no_trial_starts_that_would_end_after_the_budget(fake, tmp_path, monkeypatch):
    now = 0.0

    def later(_):
        nonlocal now
        now += 2.0  # six calls per trial

    monkeypatch.setattr(tuning, "time", types.SimpleNamespace(monotonic=lambda: now))
    table = with_study(pruner="none", budget="30s")
    assert len(tune(table, tmp_path / "a", on_status=later).trials) == 2
    assert len(tune(table, tmp_path / "a", on_status=later, budget="1h").trials) == 8


def test_a_journal_that_was_cut_off_is_repaired_and_a_damaged_one_is_refused(fake, tmp_path):
    tune(with_study(trials=2), tmp_path / "a")
    journal = tmp_path / "a" / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"op_code": 4, "worker_id"')
    (tmp_path / "a" / "journal.jsonl.lock").touch()
    assert len(tune(with_study(trials=3), tmp_path / "a").trials) == 3
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    journal.write_text("{}\n" + journal.read_text())
    with pytest.raises(UserError, match=r"journal.jsonl: damaged"):
        tune(with_study(trials=4), tmp_path / "a")


def test_a_trial_during_which_the_process_dies_again_and_again_is_failed(fake, tmp_path):
    fake.stop_at = (2, 30)
    with pytest.raises(KeyboardInterrupt):
        tune(with_study(trials=3), tmp_path / "a")
    study = parse_study("study", TABLE)
    with lock_run(tmp_path / "a"):
        journal = tuning.open_journal(tmp_path / "a", study)
        trial = journal.trials[-1]
        assert (trial.number, trial.user_attrs["starts"]) == (1, 0)
        # As three killed processes leave it.
        journal._storage.set_trial_user_attr(trial._trial_id, "starts", 3)
    fake.stop_at, fake.calls = None, []
    result = tune(with_study(trials=3), tmp_path / "a")
    assert [trial.state for trial in result.trials] == ["complete", "failed", "complete"]
    assert result.trials[1].why == "the process died 3 times during this trial"
    assert [number for number, _ in fake.calls] == [3]


def test_a_report_says_which_trials_were_pruned(tmp_path):
    run = make_run(tmp_path / "trial_0001", finished=False)
    assert load_run(Source(run, "trial")).status == "interrupted"
    (run / "pruned.json").write_text("{}")
    assert load_run(Source(run, "trial")).status == "pruned"


def test_the_command_prints_progress_the_best_values_and_what_to_do_next(fake, workdir, capsys):
    Path("rates.toml").write_text(FILE.replace("trials = 8", 'trials = 12\npruner = "none"'))
    assert main(["tune", "rates.toml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("Rates: 12 trials, objective: mean of the last 10 evaluations, mean over")
    assert re.search(r"trial 3 of 12: encoder_rate [\d.e-]+, batch_size \d+, latent \d+\n", out)
    assert re.search(r"trial 3: [\d.-]+ in 0:\d\d; best [\d.]+ \(trial \d\), ETA 0:\d\d\n", out)
    assert re.search(r"parameter +value +importance *\n +encoder_rate +[\d.e-]+ +\d+% *\n", out)
    assert "train --config tuning/rates/best.toml --seeds 10,11,12,13,14\n" in out


def test_the_command_says_what_a_study_does_not_show(fake, tmp_path, capsys):
    result = tune(with_study(trials=2, pruner="none"), tmp_path / "a")
    equal = tuple(trial._replace(value=1.0) for trial in result.trials)
    assert tune_command._print_result(result._replace(trials=equal), 3) == 0
    out, err = capsys.readouterr()
    assert "1 of 3 trials were not started; the same command continues the study\n" in out
    assert err.startswith("r2r2: warning: all 2 complete trials have the same value")


def test_ctrl_c_prints_how_to_continue(fake, workdir, capsys):
    fake.stop_at = (2, 30)
    Path("rates.toml").write_text(FILE)
    assert main(["tune", "rates.toml", "--out", "my study"]) == 130
    err = capsys.readouterr().err
    assert err.startswith("r2r2: 'my study' stopped; continue with: ")
    assert err.endswith(" tune rates.toml --out 'my study'\n")
    assert Path("my study/best.toml").exists()


def test_without_optuna_the_extra_is_named(workdir, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"not installed; pip install 'r2r2\[tune\]'"):
        tune(TABLE, "study")
    assert not list(workdir.iterdir())


def test_help_names_the_parts_of_the_file(capsys):
    assert main(["tune", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("[base]", "[space]", "[study]", "--budget"))
    assert tune_command.PARSER.parse(["a.toml", "--trials", "3"])["trials"] == 3


# Real runs

# The width decides how the first policies differ, which evaluations of so short runs show.
REAL = """\
[base]
env = "Pendulum-v1"
steps = 450
warmup = 200
eval_every = 75
eval_episodes = 1
batch_size = 8
latent = 8

[space]
encoder_rate = {low = 1e-4, high = 1e-2, log = true}
width = {low = 8, high = 64, step = 8}

[study]
trials = 4
startup = 1
"""


@pytest.fixture
def start(monkeypatch, workdir):
    """A function that starts a study in a folder; processes that are left are killed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(workdir / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiles faster
    Path("real.toml").write_text(REAL)
    processes = []

    def run(out):
        command = ["-m", "r2r2", "tune", "real.toml", "--out", out, "--workers", "0"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen([sys.executable, *command], **output))
        return processes[-1]

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(process, condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def kill_during(process, out, trial, signal_number):
    """Send a signal to a study once a trial has written evaluations."""
    wait_for(process, (Path(out) / "runs" / trial / "evaluations.csv").exists)
    process.send_signal(signal_number)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.slow
def test_a_real_study_that_is_killed_and_interrupted_ends_as_one_that_was_not(start):
    whole = start("whole")
    wait_for(whole, Path("whole/runs/trial_0001").exists)
    refused = start("whole")
    output, _ = refused.communicate(timeout=120)
    assert refused.returncode == 2
    assert f"in use; another process (pid {whole.pid}) is running this study" in output
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    assert "pruned" in output
    assert kill_during(start("parts"), "parts", "trial_0001", signal.SIGKILL)[0] == -signal.SIGKILL
    code, output = kill_during(start("parts"), "parts", "trial_0002", signal.SIGTERM)
    assert (code, "continue with: " in output) == (143, True), output
    continued = start("parts")
    output, _ = continued.communicate(timeout=300)
    assert continued.returncode == 0, output

    def table(out):
        return [{k: x for k, x in row.items() if k != "seconds"} for row in read_table(Path(out))]

    assert table("parts") == table("whole")
    assert {"complete", "pruned"} <= {row["state"] for row in table("whole")}
    assert Path("parts/best.toml").read_text() == Path("whole/best.toml").read_text()
    assert not list(Path("parts/runs").glob("*/checkpoints"))
