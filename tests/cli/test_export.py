"""`r2r2 export`, `push` and `pull`."""

import shutil

import numpy as np
import pytest

import r2r2
from r2r2.cli import export as export_module
from r2r2.export import measure


@pytest.fixture
def run(short_run, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(short_run, tmp_path / "run")


def test_a_policy_is_exported_in_all_formats(cli, run, workdir):
    code, out, err = cli("export", run, "--member", "Pendulum-v1:3", "--format=all", "--out=p")
    assert (code, err) == (0, "")
    assert "p: td7+r2r2, Pendulum-v1:3, last weights at step 20" in out
    for name in ("numpy", "onnx", "stablehlo"):
        row = next(line for line in out.splitlines() if f" {name} " in line)
        assert " us " in row
        assert "B " in row
    names = {"policy.npz", "policy.py", "policy.onnx", "policy.stablehlo", "policy.h"}
    assert {path.name for path in (workdir / "p").iterdir()} == names | {"README.md", "export.json"}
    policy = r2r2.load(run).policy("Pendulum-v1", seed=3)
    with np.load(workdir / "p" / "policy.npz") as arrays:
        actions = policy(arrays["check_observations"])
        np.testing.assert_allclose(actions, arrays["check_actions"], atol=1e-5)
        assert arrays["action_high"] == [2.0]


def test_the_first_member_is_the_default_and_best_weights_can_be_chosen(cli, run, workdir):
    argv = ("export", run, "--format", "c", "--weights", "best", "--out", "p")
    code, out, _ = cli(*argv)
    assert code == 0
    assert "p: td7+r2r2, Pendulum-v1:0, best weights" in out
    assert "Weights | of the best evaluation |" in (workdir / "p" / "README.md").read_text()
    assert cli(*argv).code == 2
    assert cli(*argv, "--overwrite").code == 0


def test_without_a_compiler_the_time_is_not_measured(cli, run, monkeypatch):
    monkeypatch.setattr(export_module, "action_seconds", lambda *_: None)
    code, out, _ = cli("export", run, "--format", "c", "--out", "p")
    assert code == 0
    assert "not measured: no C compiler" in " ".join(out.split())


def test_a_format_that_does_not_run_is_reported_after_writing(cli, run, workdir, monkeypatch):
    monkeypatch.setattr(measure, "C_PROGRAM", "%s syntax error")
    code, out, err = cli("export", run, "--format", "c", "--out", "p")
    assert code == 1
    assert " failed " in out
    assert err.startswith("r2r2: error: p: format 'c' was written but does not run here: cc: ")
    assert "error:" in err
    assert err.count("\n") == 1
    assert (workdir / "p" / "policy.h").exists()
    monkeypatch.setattr(measure.shutil, "which", lambda name: None)
    assert cli("export", run, "--format", "c", "--out", "p", "--overwrite").code == 0


def test_only_a_video_of_the_member_is_published(cli, run, workdir):
    for name in ("film", "Pendulum-v1_s0", "Pendulum-v1_s33"):
        (run / f"{name}.mp4").write_bytes(b"another member")
    assert cli("push", run, "hub", "--member", "Pendulum-v1:3").code == 0
    assert not (workdir / "hub" / "replay.mp4").exists()
    (run / "Pendulum-v1_s3.mp4").symlink_to("nowhere.mp4")
    code, _, err = cli("push", run, "hub2", "--member", "Pendulum-v1:3")
    assert code == 2
    assert "Pendulum-v1_s3.mp4: cannot read" in err
    assert not (workdir / "hub2").exists()


def test_a_policy_is_published_and_fetched(cli, run, workdir):
    (run / "best Pendulum-v1_s3.mp4").write_bytes(b"video")
    code, out, err = cli("push", run, "hub", "--member", "Pendulum-v1:3")
    assert (code, err) == (0, "")
    assert out == "published td7+r2r2, Pendulum-v1:3, last weights at step 20: hub\n"
    code, out, err = cli("pull", "hub", "got")
    assert (code, err) == (0, "")
    assert out == (
        "got: README.md, config.toml, curve.png, evaluations.csv, export.json, policy.npz, "
        "policy.py, replay.mp4\n"
    )
    assert (workdir / "got" / "replay.mp4").read_bytes() == b"video"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("export", "expected a run folder, as in 'r2r2 export RUN'"),
        ("export RUN --out p", "--format: value missing; expected one of numpy, onnx, "),
        ("export RUN --format c", "--out: value missing; expected the name of a folder"),
        ("export RUN --format onx --out p", "--format: expected one of numpy, onnx, "),
        ("export RUN --format c --out p --member Pendulum-v1:1", "did you mean 'Pendulum-v1:"),
        ("export RUN --format c --out p --weights first", "--weights: expected one of last, best"),
        ("export nowhere --format c --out p", "nowhere"),
        ("export RUN --format c --out RUN", "not empty and not an export"),
        ("export RUN --format c --out .", ".: is the working folder or contains it, and cannot"),
        ("push RUN ..", "..: is the working folder or contains it"),
        ("pull RUN .", ".: is the working folder or contains it"),
        ("push RUN", "expected a run folder and a destination: r2r2 push RUN DEST"),
        ("push RUN a b", "unexpected argument 'b'"),
        ("push RUN hf:me", "expected a folder or hf:owner/name, got 'hf:me'"),
        ("push nowhere p", "nowhere"),
        ("pull a", "expected a source and a folder: r2r2 pull SRC DIR"),
        ("pull RUN p", "not a published policy; expected a file export.json"),
        ("pull RUN RUN", "not empty and not an export"),
    ],
)
def test_bad_arguments_are_rejected(rejected, run, argv, sentence):
    assert sentence in rejected(*(str(run) if x == "RUN" else x for x in argv.split()))
