"""One tiny run through the whole program, and the files that it leaves."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny import train_tiny

from r2r2 import api
from r2r2.api import evaluate_run
from r2r2.cli.main import main
from r2r2.cli.train import parse_train
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import parse_toml, to_toml
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.run_folder import lock_run, read_manifest, write_manifest
from r2r2.training.run_config import finalize_config
from tensorboard_reader import scalars

MEMBERS = ["Pendulum-v1_s0", "Pendulum-v1_s3"]


@pytest.fixture(scope="module")
def finished_run(cli_settings, tmp_path_factory):
    """A finished run with updates; take a copy to change it."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(train_tiny(path)) == 0
    return path


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def numbers(line):
    return [float(x) for x in re.findall(r"-?\d+\.\d", line)]


def content(path):
    """Every file of a folder with its content."""
    files = [p for p in path.rglob("*") if p.is_file()]
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


def test_files_of_a_run_folder(finished_run):
    weights = [f"{name}/{kind}.npz" for name in MEMBERS for kind in ("weights", "best_weights")]
    parts = ("json", "npz", "replay.npz", "worlds.npz")
    assert sorted(content(finished_run)) == sorted(
        [
            *("config.toml", "curve.png", "evaluations.csv", "events.jsonl"),
            *("manifest.json", "policy.json", "versions.json", *weights),
            *(f"checkpoints/00000001.{part}" for part in parts),
        ]
    )
    manifest = json.loads((finished_run / "manifest.json").read_text())
    assert (manifest["status"], manifest["members"]) == ("finished", MEMBERS)
    assert (finished_run / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_resolved_config_is_saved(finished_run):
    asked = finalize_config(parse_train(train_tiny("anywhere")[1:]).config)
    text = (finished_run / "config.toml").read_text()
    assert resolve(parse_toml(text)) == asked
    assert text == to_toml(asked)
    assert asked.action_repeat == 1
    assert asked.seeds == (0, 3)


def test_versions_are_saved(finished_run):
    versions = json.loads((finished_run / "versions.json").read_text())
    for name in ("r2r2", "jax", "mujoco", "dm_control", "gymnasium"):
        assert re.match(r"\d+\.\d+", versions[name])
    for name in ("commit", "device", "matmul_precision"):
        assert versions[name]


def test_events_have_three_step_counts(finished_run):
    lines = (finished_run / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        assert event["env_step"] == event["decision_step"] <= 450
        assert 0 <= event["update_step"] <= event["decision_step"]
    kinds = [event["event"] for event in events if event["member"] == MEMBERS[1]]
    assert kinds.count("episode") == 2
    assert kinds.count("evaluation") == 2
    # Warm-up is the first episode; the second is trained on when it is over.
    last = [e for e in events if e["event"] == "evaluation"][-1]
    assert last["update_step"] == 200


def test_evaluations_are_a_long_table(finished_run):
    header = (finished_run / "evaluations.csv").read_text().splitlines()[0]
    assert header == "exp_name,env_name,seed,metric,env_step,value"
    rows = read_evaluations(finished_run / "evaluations.csv")
    assert [(row.seed, row.env_step) for row in rows] == [*((0, 225), (3, 225), (0, 450), (3, 450))]
    for row in rows:
        assert row.exp_name.startswith("td7+r2r2_width=8_latent=8_batch_size=8_")
        assert row.exp_name.endswith("_utd1")
        assert (row.env_name, row.metric) == ("Pendulum-v1", "return")
        assert -2000 < row.value < 0


def test_weights_are_finite_and_differ_between_members(finished_run):
    first, second = (np.load(finished_run / m / "weights.npz") for m in MEMBERS)
    assert len(first.files) > 10
    for name in first.files:
        assert np.isfinite(first[name]).all()
        if first[name].ndim > 1:
            assert (first[name] != second[name]).any()


def test_repeating_a_finished_command_changes_nothing(cli, run):
    before = content(run)
    code, out, err = cli(*train_tiny(run))
    assert (code, err) == (0, "")
    assert out == (
        f"{run} is already finished with the same config.\n"
        f"  evaluate: r2r2 eval {run}\n  curve:    {run}/curve.png\n"
    )
    assert content(run) == before


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"warmup": "210"}, "warmup"), ({"seeds": "0,"}, "seeds"), ({"utd": "2"}, "utd")],
)
def test_another_config_in_the_same_folder_is_rejected(rejected, run, changed, field):
    sentence = rejected(*train_tiny(run, **changed))
    assert str(run) in sentence
    assert field in sentence
    assert "--overwrite" in sentence


def test_repeating_a_command_with_more_steps_resumes_its_run(cli, run):
    steps = 460
    before = (run / "evaluations.csv").read_text()
    code, out, err = cli(*train_tiny(run, steps=steps))
    assert (code, err) == (0, "")
    assert "from step 450\n" in out
    assert f"done {steps}/{steps} 100%" in out
    text = (run / "evaluations.csv").read_text()
    assert text.startswith(before)
    added = [line.split(",")[2:5] for line in text.removeprefix(before).splitlines()]
    assert added == [["0", "return", "460"], ["3", "return", "460"]]
    again = cli(*train_tiny(run, steps=steps))
    assert again.out.startswith(f"{run} is already finished")


def test_fewer_steps_are_rejected(rejected, run):
    sentence = rejected(*train_tiny(run, steps=440))
    assert "440" in sentence
    assert "450" in sentence


def test_overwrite_replaces_a_run_and_tensorboard_files_are_written(cli, run):
    changed = {"steps": "20", "random_only": "true", "eval_every": "10", "seeds": "5,7"}
    options = ("--overwrite", "--tensorboard", "--workers=0")
    code, out, err = cli(*train_tiny(run, **changed), *options)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "td7+r2r2 on Pendulum-v1, UTD 1, seeds 5,7"
    assert lines[1].endswith(f", run folder {run}")
    assert lines[2].startswith("  changed: width=8, latent=8, ")
    assert lines[3] == "  random actions only: there will be no updates"
    assert (
        "no updates of Pendulum-v1_s5, Pendulum-v1_s7 were made: the run is one of random actions"
        " only" in lines
    )
    assert lines[-2:] == [f"  evaluate: r2r2 eval {run}", f"  curve:    {run}/curve.png"]
    folders = [p.name for p in run.iterdir() if p.is_dir()]
    members = ["Pendulum-v1_s5", "Pendulum-v1_s7"]
    assert sorted(folders) == [*members, "checkpoints", "tensorboard"]
    rows = read_evaluations(run / "evaluations.csv")
    assert {(row.seed, row.env_step) for row in rows} == {*((5, 10), (7, 10), (5, 20), (7, 20))}
    assert resolve(parse_toml((run / "config.toml").read_text())).seeds == (5, 7)
    for member in members:
        logged = scalars(run / "tensorboard" / member)
        assert [(step, name) for step, name, _ in logged if "mean" in name] == [
            *((10, "evaluation/mean"), (20, "evaluation/mean"))
        ]


def test_the_opening_is_printed_before_anything_is_compiled(cli, workdir, monkeypatch):
    def broken(*_):
        raise UserError("it broke")

    monkeypatch.setattr(api, "Training", broken)
    code, out, err = cli("train", "--env", "Pendulum-v1", "--seeds", "0,3")
    assert (code, err) == (2, "r2r2: error: it broke\n")
    (folder,) = (workdir / "runs").iterdir()
    lines = out.splitlines()
    assert lines[0] == "td7+r2r2 on Pendulum-v1, UTD 1, seeds 0,3"
    assert lines[1].endswith(f", run folder runs/{folder.name}")
    assert len(lines) == 2
    assert re.fullmatch(r"td7\+r2r2_Pendulum-v1_utd1_[0-9a-f]{8}", folder.name)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == MEMBERS


def test_eval_prints_every_member(cli, run):
    code, out, err = cli("eval", run, "--episodes", "3")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if "Pendulum-v1" in line]
    assert [re.search(r"\S+:\d", row).group() for row in rows] == [
        *("Pendulum-v1:0", "Pendulum-v1:3")
    ]
    for row in rows:
        mean, std, *episodes = numbers(row.partition(":")[2])
        assert len(episodes) == 3
        assert mean == pytest.approx(np.mean(episodes), abs=0.1)
        assert std == pytest.approx(np.std(episodes, ddof=1), abs=0.2)
    # Of these episodes none starts like another.
    assert len({x for row in rows for x in numbers(row)[2:]}) == 6


def test_task_names_are_not_read_as_emoji(cli, workdir, monkeypatch):
    code = "from gymnasium.envs.classic_control.pendulum import PendulumEnv as Rocket"
    (workdir / "robots.py").write_text(code)
    monkeypatch.syspath_prepend(workdir)
    small = ("--env", "robots:Rocket", "--max-episode-steps", "5", "--steps", "10", "--out", "run")
    assert cli("train", *small, "--random-only", "--eval-episodes", "1").code == 0
    assert "robots:Rocket:0" in cli("eval", "run", "--episodes", "1").out


def test_eval_of_one_member(cli, run):
    code, out, err = cli("eval", run, "--member", "Pendulum-v1_s3", "--episodes", "2")
    assert (code, err) == (0, "")
    (row,) = [line for line in out.splitlines() if "Pendulum-v1" in line]
    together = evaluate_run(run, episodes=2)
    assert [member.seed for member in together.members] == [0, 3]
    assert numbers(row)[2:] == pytest.approx(together.returns[1], abs=0.1)
    assert numbers(row)[2:] != pytest.approx(together.returns[0], abs=0.1)


def test_eval_prints_one_json_document_and_saves_the_same(cli, run, workdir):
    before = content(run)
    code, out, err = cli("eval", run, "--episodes", "1", "--json", "--workers", "0")
    assert (code, err) == (0, "")
    results = json.loads(out)
    saved = Path(results.pop("file"))
    assert json.loads(saved.read_text()) == results
    assert (results["run"], results["status"]) == (str(run), "finished")
    assert (results["weights"], results["episodes"], results["video"]) == ("last", 1, None)
    assert results["description"] == "final weights"
    returns = evaluate_run(run, episodes=1, workers=0).returns
    assert results["members"] == [
        {
            "member": member,
            "step": 450,
            "mean": mean,
            "std": None,  # NaN for one episode
            "returns": [mean],
            "best_mean_in_training": None,
        }
        for member, mean in zip(("Pendulum-v1:0", "Pendulum-v1:3"), returns[:, 0], strict=True)
    ]
    # Nothing else has changed, and the next results get their own file.
    code, out, err = cli("eval", run, "--episodes", "1", "--workers", "0")
    assert (code, err) == (0, "")
    (again,) = [line for line in out.splitlines() if line.startswith("saved: ")]
    new = {str(saved.relative_to(run)), str(Path(again[7:]).relative_to(run))}
    assert len(new) == 2
    after = content(run)
    assert {name: after.pop(name) for name in new}
    assert after == before
    assert list(workdir.iterdir()) == []


def test_results_that_cannot_be_saved_are_still_printed(cli, run):
    (run / "evals").write_text("")
    code, out, err = cli("eval", run, "--episodes", "1", "--workers", "0")
    assert code == 0
    assert "Pendulum-v1:3" in out
    assert out.endswith("not saved\n")
    assert re.fullmatch(r"r2r2: warning: .*evals.*: cannot write: .*\n", err)


def unfinish(run):
    """Let a finished run be one that was interrupted after its last checkpoint."""
    write_manifest(run, MEMBERS, "running", read_manifest(run).copies)
    for name in MEMBERS:
        (run / name / "weights.npz").unlink()


def test_unfinished_run_is_evaluated_from_its_checkpoint(cli, run):
    """The last checkpoint of a finished run has its final weights."""
    final = evaluate_run(run, episodes=1, workers=0).returns
    unfinish(run)
    argv = ("eval", run, "--episodes", "1", "--workers", "0")
    line = "checkpoint at step 450 of 450; the run is interrupted"
    assert cli(*argv).out.splitlines()[0] == line
    with lock_run(run):
        results = json.loads(cli(*argv, "--json").out)
    assert results["description"] == line.replace("interrupted", "running")
    assert [member["step"] for member in results["members"]] == [450, 450]
    assert [member["returns"] for member in results["members"]] == final.tolist()


def test_run_without_a_checkpoint_cannot_be_evaluated(rejected, run):
    unfinish(run)
    shutil.rmtree(run / "checkpoints")
    sentence = rejected("eval", run)
    assert sentence == f"{run}: no weights yet; not finished, and has no checkpoint"


def test_best_weights_are_evaluated(cli, run):
    argv = ("eval", run, "--episodes", "1", "--weights", "best", "--workers", "0", "--json")
    results = json.loads(cli(*argv).out)
    assert results["description"] == "weights of the best evaluation of each member"
    rows = read_evaluations(run / "evaluations.csv")
    for seed, member in zip((0, 3), results["members"], strict=True):
        best = max((row for row in rows if row.seed == seed), key=lambda row: row.value)
        assert member["step"] == best.env_step
        assert member["best_mean_in_training"] == best.value


def test_run_without_best_weights_says_so(rejected, run):
    (run / MEMBERS[1] / "best_weights.npz").unlink()
    assert f"no best weights of {MEMBERS[1]}" in rejected("eval", run, "--weights", "best")
    assert "expected one of last, best, got 'first'" in rejected("eval", run, "--weights=first")


def test_advice_without_checkpoints_can_be_followed(cli, rejected, run):
    assert cli("clean", run, "--checkpoints", "--yes").code == 0
    for argv in (["train", "--resume", run, "--steps", "460"], train_tiny(run, steps=460)):
        sentence = rejected(*argv)
        advice = sentence.partition("use r2r2 train ")[2].replace("RUN", str(run))
        command = parse_train(advice.split())
        assert (command.out, command.options.overwrite) == (run, True)
        assert to_toml(finalize_config(command.config)) == (run / "config.toml").read_text()


def test_a_report_of_the_run_is_complete(cli, workdir, finished_run):
    assert cli("report", finished_run).code == 0
    tables = workdir / "report" / "tables"
    with (tables / "runs.csv").open(newline="") as file:
        (run,) = csv.DictReader(file)
    assert (run["status"], run["seeds"]) == ("finished", "0, 3")
    assert (run["environment steps"], run["remarks"]) == ("450", "none")
    with (tables / "timing.csv").open(newline="") as file:
        (timing,) = csv.DictReader(file)
    assert float(timing["updates: value"]) > 0


def test_tensorboard_without_its_library_is_rejected(rejected, workdir, monkeypatch):
    monkeypatch.setattr("r2r2.storage.tensorboard.LIBRARY", "no_such_library")
    sentence = rejected(*train_tiny(workdir / "run"), "--tensorboard")
    assert "no_such_library" in sentence
