"""One tiny run through the program, and what it leaves behind."""

import json
import re

import numpy as np
import pytest
from tiny import train_tiny

from r2r2 import api as start
from r2r2.api import RunOptions, evaluate_run
from r2r2.cli import train as train_command
from r2r2.cli.train_flags import parse_train
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import parse_toml, to_toml
from r2r2.storage.evaluations import read_evaluations
from r2r2.training.run_config import finalize_config
from tensorboard_reader import scalars

MEMBERS = ["Pendulum-v1_s0", "Pendulum-v1_s3"]


def numbers(line):
    return [float(x) for x in re.findall(r"-?\d+\.\d", line)]


def content(path):
    """Every file of a folder with its content."""
    files = [p for p in path.rglob("*") if p.is_file()]
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


def test_the_folder_holds_what_a_run_is_made_of(trained):
    weights = [f"{name}/weights.npz" for name in MEMBERS]
    parts = ("json", "npz", "replay.npz", "worlds.npz")
    assert sorted(content(trained)) == sorted(
        [
            *("config.toml", "curve.png", "evaluations.csv", "events.jsonl"),
            *("manifest.json", "versions.json", *weights),
            *(f"checkpoints/00000001.{part}" for part in parts),
        ]
    )
    manifest = json.loads((trained / "manifest.json").read_text())
    assert (manifest["status"], manifest["members"]) == ("finished", MEMBERS)
    assert (trained / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_config_is_kept_whole_and_resolved(trained):
    asked = finalize_config(parse_train(train_tiny("anywhere")[1:]).config)
    text = (trained / "config.toml").read_text()
    assert resolve(parse_toml(text)) == asked
    assert text == to_toml(asked)
    assert asked.action_repeat == 1
    assert asked.seeds == (0, 3)


def test_the_versions_are_kept(trained):
    versions = json.loads((trained / "versions.json").read_text())
    for name in ("r2r2", "jax", "mujoco", "dm_control", "gymnasium"):
        assert re.match(r"\d+\.\d+", versions[name])
    for name in ("commit", "device", "matmul_precision"):
        assert versions[name]


def test_events_have_their_three_counts(trained):
    lines = (trained / "events.jsonl").read_text().splitlines()
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


def test_evaluations_are_a_long_table(trained):
    header = (trained / "evaluations.csv").read_text().splitlines()[0]
    assert header == "exp_name,env_name,seed,metric,env_step,value"
    rows = read_evaluations(trained / "evaluations.csv")
    assert [(row.seed, row.env_step) for row in rows] == [
        *((0, 225), (3, 225), (0, 450), (3, 450))
    ]
    for row in rows:
        assert row.exp_name.startswith("td7+r2r2_width=8_latent=8_batch_size=8_")
        assert row.exp_name.endswith("_utd1")
        assert (row.env_name, row.metric) == ("Pendulum-v1", "return")
        assert -2000 < row.value < 0


@pytest.mark.parametrize("member", MEMBERS)
def test_weights_are_finite_numbers_by_name(trained, member):
    with np.load(trained / member / "weights.npz") as weights:
        assert len(weights.files) > 10
        assert all(np.isfinite(weights[name]).all() for name in weights.files)


def test_members_learn_apart(trained):
    first, second = (np.load(trained / m / "weights.npz") for m in MEMBERS)
    kernels = [name for name in first.files if first[name].ndim > 1]
    assert kernels
    assert all((first[name] != second[name]).any() for name in kernels)


def test_the_same_again_says_that_it_is_finished(r2r2, run):
    before = content(run)
    code, out, err = r2r2(*train_tiny(run))
    assert (code, err) == (0, "")
    assert out == (
        f"{run} is finished already, with this very config.\n"
        f"  evaluate: r2r2 eval {run}\n  look at:  {run}/curve.png\n"
    )
    assert content(run) == before


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"warmup": "210"}, "warmup is 200, not 210"),
        ({"seeds": "0,"}, "seeds is [0, 3], not [0]"),
        ({"utd": "2"}, "utd is 1, not 2"),
    ],
)
def test_another_config_in_the_same_folder_is_refused(r2r2, run, changed, differs):
    before = content(run)
    assert r2r2(*train_tiny(run, **changed)) == (
        2,
        "",
        f"r2r2: {run}: contains a finished run with another config ({differs}); "
        "choose another --out, or add --overwrite to delete it\n",
    )
    assert content(run) == before


@pytest.mark.parametrize(("status", "steps"), [("finished", 460), ("running", 450)])
def test_the_same_again_goes_on_with_what_is_left_to_do(r2r2, run, status, steps):
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace("finished", status))
    before = (run / "evaluations.csv").read_bytes()
    code, out, err = r2r2(*train_tiny(run, steps=steps))
    assert (code, err) == (0, "")
    assert f"\n{run}: resuming from step 450\n" in out
    assert f"done {steps}/{steps} 100%" in out
    assert (run / "evaluations.csv").read_bytes() == before
    assert r2r2(*train_tiny(run, steps=steps)).out.startswith(f"{run} is finished")


def test_fewer_steps_than_a_run_has_are_refused(r2r2, run):
    before = content(run)
    assert r2r2(*train_tiny(run, steps=440)) == (
        2,
        "",
        f"r2r2: steps: expected 450 or more, as in '{run}', got 440\n",
    )
    assert content(run) == before


def test_a_run_is_overwritten_when_asked(r2r2, run):
    shorter = {"steps": "20", "warmup": "30", "eval_every": "10", "seeds": "7,"}
    code, out, err = r2r2(*train_tiny(run, **shorter), "--overwrite")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "td7+r2r2 on Pendulum-v1, UTD 1, seeds 7"
    assert lines[1].endswith(f", run folder {run}")
    assert lines[2].startswith("  changed: width=8, latent=8, ")
    assert lines[3] == "  warm-up covers the whole run: no updates will be made"
    assert lines[-2:] == [
        f"  evaluate: r2r2 eval {run}",
        f"  look at:  {run}/curve.png",
    ]
    folders = [p.name for p in run.iterdir() if p.is_dir()]
    assert sorted(folders) == ["Pendulum-v1_s7", "checkpoints"]
    rows = read_evaluations(run / "evaluations.csv")
    assert [(row.seed, row.env_step) for row in rows] == [(7, 10), (7, 20)]
    assert resolve(parse_toml((run / "config.toml").read_text())).seeds == (7,)


def test_a_finished_run_is_overwritten_too(r2r2, run, monkeypatch):
    asked = []
    monkeypatch.setattr(
        train_command,
        "train",
        lambda *given, **how: asked.append((given, how)) or 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        r2r2(*train_tiny(run), "--overwrite", "--workers=1", "--tensorboard")
    (((config, out), given),) = asked
    assert (to_toml(config), out) == ((run / "config.toml").read_text(), run)
    assert given["how"] == RunOptions(overwrite=True, tensorboard=True, workers=1)


def test_a_run_is_announced_before_anything_is_compiled(r2r2, here, monkeypatch):
    def broken(*_):
        raise UserError("it broke")

    monkeypatch.setattr(start, "Training", broken)
    code, out, err = r2r2("train", "--env", "Pendulum-v1", "--seeds", "0,3")
    assert (code, err) == (2, "r2r2: it broke\n")
    (folder,) = (here / "runs").iterdir()
    lines = out.splitlines()
    assert lines[0] == "td7+r2r2 on Pendulum-v1, UTD 1, seeds 0,3"
    assert lines[1].endswith(f", run folder runs/{folder.name}")
    assert len(lines) == 2
    assert re.fullmatch(r"td7\+r2r2_Pendulum-v1_utd1_[0-9a-f]{8}", folder.name)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == MEMBERS


def test_a_run_is_evaluated(r2r2, trained):
    code, out, err = r2r2("eval", trained, "--episodes", "3")
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


@pytest.mark.parametrize("name", ["Pendulum-v1:3", "Pendulum-v1_s3"])
def test_one_member_is_evaluated_alone(r2r2, trained, name):
    code, out, err = r2r2("eval", trained, "--member", name, "--episodes", "2")
    assert (code, err) == (0, "")
    (row,) = [line for line in out.splitlines() if "Pendulum-v1" in line]
    together = evaluate_run(trained, episodes=2)
    assert [member.seed for member in together.members] == [0, 3]
    assert numbers(row)[2:] == pytest.approx(together.returns[1], abs=0.1)
    assert numbers(row)[2:] != pytest.approx(together.returns[0], abs=0.1)


def test_evaluating_changes_nothing_in_the_run(r2r2, run, here):
    before = content(run)
    assert r2r2("eval", run, "--episodes", "1").code == 0
    assert content(run) == before
    assert list(here.iterdir()) == []


def test_a_run_has_a_board_of_every_member_if_wanted(r2r2, here):
    fields = {"steps": "200", "warmup": "300", "eval_every": "100"}
    argv = train_tiny(here / "run", **fields)
    assert r2r2(*argv, "--tensorboard", "--workers=0").code == 0
    for member in MEMBERS:
        found = scalars(here / "run" / "tensorboard" / member)
        assert [(step, name) for step, name, _ in found if "mean" in name] == [
            *((100, "evaluation/mean"), (200, "evaluation/mean"))
        ]
        assert (200, "episode/length", 200.0) in found


def test_a_board_that_cannot_be_written_is_refused_before_anything_is(
    r2r2, here, monkeypatch
):
    monkeypatch.setattr("r2r2.storage.tensorboard.LIBRARY", "no_such_library")
    code, out, err = r2r2(*train_tiny(here / "run"), "--tensorboard")
    assert (code, out) == (2, "")
    assert err.startswith("r2r2: --tensorboard: no_such_library is not installed;")
    assert list(here.iterdir()) == []
