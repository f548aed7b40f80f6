import os
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from r2r2.storage import disk_usage as usage_module
from r2r2.storage.checkpoints import CheckpointContent, latest_valid, write_checkpoint
from r2r2.storage.run_folder import create_run, lock_run, open_run


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def made(path, finish, checkpoints=3):
    """Make a run whose last checkpoint needs a replay segment of the one before."""
    run = create_run(path, "", ["a_s0"], overwrite=False)
    run.weights("a_s0").write_bytes(bytes(2000))
    run.best_weights("a_s0").write_bytes(bytes(1000))
    run.events.write_bytes(bytes(500))
    needs = ()
    for step in range(checkpoints):
        arrays = {"x": np.zeros(1000)}
        content = CheckpointContent(step, {}, arrays, {}, arrays, needs)
        needs = (write_checkpoint(path / "checkpoints", content, keep=3).segments[-1].name,)
    if finish:
        run.finish()
    return path


@pytest.fixture
def runs(workdir):
    """A finished and an unfinished run, and a folder that is not a run."""
    made(workdir / "runs" / "done", finish=True)
    made(workdir / "runs" / "deep" / "half", finish=False)
    (workdir / "runs" / "thesis").mkdir()
    (workdir / "runs" / "thesis" / "manifest.json").write_text('{"name": "a web page"}')
    (workdir / "runs" / "thesis" / "00000001.npz").write_text("precious")
    return workdir / "runs"


@pytest.fixture
def terminal(monkeypatch):
    """A user who gives an answer to every question; returns the questions."""
    asked = []

    def answers(answer):
        def ask(question):
            asked.append(question)
            if answer is None:
                raise EOFError
            return answer

        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("builtins.input", ask)
        return asked

    return answers


@pytest.fixture
def no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))


def tree(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_runs_are_shown_with_their_sizes(cli, runs):
    before = tree(runs)
    (runs / "done" / "out.mp4").write_bytes(bytes(7_000_000))
    code, out, err = cli("clean")
    assert (code, err) == (0, "")
    cells = [re.split(" {2,}", line.strip()) for line in out.splitlines()]
    rows = {row[-1]: row[:-1] for row in cells}
    checkpoints = sum(p.stat().st_size for p in (runs / "done/checkpoints").iterdir())
    assert rows["run"] == ["status", "total", "checkpoints", "weights", "others", "changed"]
    assert rows["runs/done"][0] == "finished"
    assert rows["runs/done"][2:5] == [f"{checkpoints / 1000:.1f} kB", "3.0 kB", "7.0 MB"]
    assert rows["runs/deep/half"][0] == "unfinished"
    assert rows["runs/deep/half"][3] == "3.0 kB"
    assert rows["all"][2] == "6.0 kB"
    assert "thesis" not in out
    assert "r2r2 clean --checkpoints   frees " in out
    assert "r2r2 clean --unfinished    frees " in out
    assert tree(runs) == sorted([*before, "done/out.mp4"])


def test_suggested_commands_repeat_the_arguments(cli, runs):
    made(runs / "two words", finish=False, checkpoints=1)
    _, out, _ = cli("clean", "runs/two words")
    assert "r2r2 clean 'runs/two words' --checkpoints   frees old ones of" in out
    assert "frees 0 " not in out
    _, out, _ = cli("clean", "runs/done")
    assert "--unfinished" not in out


def test_unfinished_runs_keep_their_newest_checkpoint(cli, runs):
    newest, _ = latest_valid(runs / "deep/half/checkpoints")
    size = usage_module.run_usage(runs / "deep/half").total
    code, out, err = cli("clean", "--checkpoints", "--yes")
    assert (code, err) == (0, "")
    assert "runs/done, checkpoints: " in out
    assert "runs/deep/half, all but the newest checkpoint: " in out
    assert out.splitlines()[-1].startswith("freed ")
    assert tree(runs / "done") == [
        *("a_s0", "a_s0/best_weights.npz", "a_s0/weights.npz"),
        *("config.toml", "events.jsonl", "manifest.json"),
    ]
    assert latest_valid(runs / "deep/half/checkpoints") == (newest, [])
    assert len(newest.segments) == 2
    assert sorted(os.listdir(newest.arrays.parent)) == [
        *("00000002.replay.npz", "00000003.json", "00000003.npz"),
        *("00000003.replay.npz", "00000003.worlds.npz"),
    ]
    freed = size - usage_module.run_usage(runs / "deep/half").total
    assert f"half, all but the newest checkpoint: {freed / 1000:.1f} kB" in out
    assert cli("clean", "--checkpoints", "--yes").out == "nothing to delete\n"


def test_a_damaged_newest_checkpoint_is_not_the_one_kept(cli, runs):
    newest, _ = latest_valid(runs / "deep/half/checkpoints")
    newest.env_states.write_bytes(b"")
    assert cli("clean", "runs/deep", "--checkpoints", "--yes").code == 0
    checkpoint, messages = latest_valid(runs / "deep/half/checkpoints")
    assert (checkpoint.number, messages) == (2, [])


def test_without_a_valid_checkpoint_all_are_kept(cli, runs):
    for path in (runs / "deep/half/checkpoints").glob("*.npz"):
        path.write_bytes(b"")
    before = tree(runs)
    assert cli("clean", "runs/deep", "--checkpoints", "--yes").code == 0
    assert tree(runs) == before


def test_unfinished_runs_are_deleted_completely(cli, runs):
    (runs / "deep" / "half" / "mine").mkdir()
    (runs / "deep" / "half" / "mine" / "deeper.txt").write_text("")
    before = tree(runs / "done")
    code, out, _ = cli("clean", "--unfinished", "--yes")
    assert code == 0
    assert "runs/deep/half, unfinished run with everything in its folder: " in out
    assert tree(runs / "deep") == []
    assert tree(runs / "done") == before
    assert (runs / "thesis" / "00000001.npz").exists()


def test_failed_runs_can_be_retried_or_deleted(cli, runs):
    folder = open_run(runs / "done")
    folder.finish(folder.members)
    newest, _ = latest_valid(folder.checkpoints)
    assert "\nfailed " in cli("clean", "runs/done").out
    assert cli("clean", "runs/done", "--checkpoints", "--yes").code == 0
    assert latest_valid(folder.checkpoints)[0] == newest
    assert "runs/done, failed run with" in cli("clean", "--unfinished", "--yes").out
    assert not folder.path.exists()


def test_both_options_can_be_combined(cli, runs):
    assert cli("clean", "--unfinished", "--checkpoints", "runs", "--yes").code == 0
    assert tree(runs / "deep") == []
    assert not (runs / "done" / "checkpoints").exists()


@pytest.mark.parametrize("answer", ["n", "", "maybe", None])
def test_nothing_is_deleted_without_confirmation(cli, runs, terminal, answer):
    asked, before = terminal(answer), tree(runs)
    code, out, _ = cli("clean", "--unfinished")
    assert (code, out.splitlines()[-1]) == (0, "nothing was deleted")
    assert tree(runs) == before
    assert len(asked) == 1
    assert asked[0].startswith("delete these, ")


@pytest.mark.parametrize("answer", ["y", "YES "])
def test_confirmation_deletes(cli, runs, terminal, answer):
    terminal(answer)
    assert cli("clean", "--unfinished").code == 0
    assert tree(runs / "deep") == []


def test_without_a_terminal_yes_is_required(cli, runs, no_terminal):
    before = tree(runs)
    code, out, err = cli("clean", "--unfinished")
    assert (code, err) == (2, "r2r2: error: no terminal to confirm; add --yes\n")
    assert "runs/deep/half, unfinished run" in out
    assert tree(runs) == before


@pytest.mark.parametrize("flag", ["--unfinished", "--checkpoints"])
def test_a_run_in_training_is_skipped(cli, runs, flag):
    half = runs / "deep" / "half"
    with lock_run(half):
        before = tree(half)
        code, out, _ = cli("clean", flag, "--yes")
        assert code == 0
        assert "skipped runs/deep/half: this process is training it\n" in out
        code, _, err = cli("clean", "runs/deep/half", flag, "--yes")
        assert code == 2
        assert "runs/deep/half" in err
        assert "in training" in cli("clean", "runs/deep/half").out
        assert tree(half) == before


@pytest.mark.parametrize("flag", ["--unfinished", "--checkpoints"])
def test_a_run_that_changed_during_the_question_is_rejected(cli, runs, terminal, monkeypatch, flag):
    terminal("y")
    half, done = runs / "deep" / "half", runs / "done"

    def go_on(question):
        for path in (half, done):
            text = (path / "manifest.json").read_text()
            swapped = {"running": "finished", "finished": "running"}
            for old, new in swapped.items():
                if old in text:
                    (path / "manifest.json").write_text(text.replace(old, new))
        return "y"

    monkeypatch.setattr("builtins.input", go_on)
    before = tree(runs)
    code, _, err = cli("clean", flag)
    assert code == 2
    assert err.count("\n") == 1
    assert tree(runs) == before


def test_a_run_of_another_version_is_never_touched(cli, runs):
    newer = made(runs / "newer", finish=True)
    (newer / "manifest.json").write_text('{"kind": "r2r2 run", "format": 2}')
    before = tree(newer)
    assert "other version" in cli("clean", "runs/newer").out
    assert cli("clean", "--checkpoints", "--unfinished", "--yes").code == 0
    assert tree(newer) == before


def test_symlinks_are_not_followed(cli, runs, tmp_path):
    outside = made(tmp_path / "outside", finish=False)
    other = made(tmp_path / "other", finish=True)
    before = tree(tmp_path / "outside"), tree(other)
    (runs / "link").symlink_to(outside)
    (runs / "deep" / "half" / "link").symlink_to(outside)
    linked = create_run(runs / "linked", "", ["a_s0"], overwrite=False)
    linked.finish()
    (runs / "linked" / "checkpoints").symlink_to(other / "checkpoints")
    assert "link " not in cli("clean").out
    assert cli("clean", "--checkpoints", "--unfinished", "--yes").code == 0
    assert not (runs / "deep" / "half").exists()
    assert (tree(outside), tree(other)) == before
    code, _, err = cli("clean", "runs/link", "--unfinished", "--yes")
    message = "r2r2: error: runs/link: is a symbolic link; expected its target\n"
    assert (code, err) == (2, message)


def test_symlinks_count_as_themselves(runs):
    before = usage_module.run_usage(runs / "done").total
    (runs / "done" / "round").symlink_to(".")
    (runs / "done" / "big").symlink_to("a_s0/weights.npz")
    assert usage_module.run_usage(runs / "done").total - before < 100


def test_other_files_among_checkpoints_are_kept(cli, runs):
    (runs / "done" / "checkpoints" / "notes.txt").write_text("mine")
    assert cli("clean", "--checkpoints", "--yes").code == 0
    assert tree(runs / "done" / "checkpoints") == ["notes.txt"]


def test_a_failed_deletion_is_one_sentence(cli, runs, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    code, _, err = cli("clean", "--unfinished", "--yes")
    assert (code, err.count("\n")) == (1, 1)
    assert "runs/deep/half" in err
    assert "Permission denied" in err
    monkeypatch.setattr(usage_module, "delete_files", lambda _: None)
    code, _, err = cli("clean", "runs/done", "--checkpoints", "--yes")
    assert (code, err.count("\n")) == (1, 1)
    assert "runs/done/checkpoints/00000001.json" in err


def test_an_interrupted_deletion_can_be_repeated(cli, runs, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        assert cli("clean", "--unfinished", "--yes").code == 130
    assert "runs/deep/half" in cli("clean").out
    assert cli("clean", "--unfinished", "--yes").code == 0
    assert not (runs / "deep" / "half").exists()


def test_without_runs_there_is_nothing_to_show(cli, workdir):
    assert cli("clean") == (0, "no runs in 'runs'\n", "")
    (workdir / "runs").mkdir()
    assert cli("clean", "--unfinished", "--yes") == (0, "no runs in 'runs'\n", "")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("nowhere", "nowhere"),
        ("empty", "manifest.json"),
        ("file", "manifest.json"),
        ("runs/thesis", "manifest.json"),
        ("runs nowhere --unfinished --yes", "nowhere"),
        ("--checkpoint runs", "--checkpoint: unknown option; did you mean '--checkpoints'?"),
        ("--checkpoints=maybe", "--checkpoints: expected no value, got 'maybe'"),
        ("--yes", "--yes: only used with --checkpoints or --unfinished"),
    ],
)
def test_bad_arguments_are_rejected(rejected, workdir, runs, argv, sentence):
    (workdir / "empty").mkdir()
    (workdir / "file").write_text("")
    assert sentence in rejected("clean", *argv.split())


def test_names_with_markup_are_shown_literally(cli, workdir):
    made(workdir / "runs" / "[bold]x[/bold]", finish=True, checkpoints=0)
    assert "runs/[bold]x[/bold]" in cli("clean").out


def test_long_paths_are_not_broken(cli, workdir, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = "runs/" + "a-long-name/" * 12 + "run [with] blanks"
    made(workdir / path, finish=True, checkpoints=1)
    (line,) = [line for line in cli("clean").out.splitlines() if line.startswith("finished")]
    assert line.endswith(f"  {path}")
