import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from r2r2.cli import clean as subject
from r2r2.storage import disk_usage as usage_module
from r2r2.storage.checkpoints import CheckpointContent, latest_valid, write_checkpoint
from r2r2.storage.run_folder import create_run, lock_run


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def made(path, finish, checkpoints=3):
    """A run with weights, and checkpoints of which the last needs a segment before."""
    run = create_run(path, "", ["a_s0"], overwrite=False)
    run.weights("a_s0").write_bytes(bytes(2000))
    run.events.write_bytes(bytes(500))
    needs = ()
    for step in range(checkpoints):
        arrays = {"x": np.zeros(1000)}
        content = CheckpointContent(step, {}, arrays, {}, arrays, needs)
        needs = (
            write_checkpoint(path / "checkpoints", content, keep=3).segments[-1].name,
        )
    if finish:
        run.finish()
    return path


@pytest.fixture
def runs(here):
    """A finished and an unfinished run, and things that are no runs."""
    made(here / "runs" / "done", finish=True)
    made(here / "runs" / "deep" / "half", finish=False)
    (here / "runs" / "thesis").mkdir()
    (here / "runs" / "thesis" / "manifest.json").write_text('{"name": "a web page"}')
    (here / "runs" / "thesis" / "00000001.npz").write_text("precious")
    return here / "runs"


@pytest.fixture
def terminal(monkeypatch):
    """Somebody who gives an answer to every question; what was asked."""
    asked = []

    def sits_there(answer):
        def ask(question):
            asked.append(question)
            if answer is None:
                raise EOFError
            return answer

        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("builtins.input", ask)
        return asked

    return sits_there


@pytest.fixture
def nobody(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))


def tree(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_it_shows_every_run_with_its_parts_and_deletes_nothing(r2r2, runs):
    before = tree(runs)
    (runs / "done" / "out.mp4").write_bytes(bytes(7_000_000))
    code, out, err = r2r2("clean")
    assert (code, err) == (0, "")
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for cells in (line.strip("│┃ ").split("│") for line in out.splitlines())
    }
    checkpoints = sum(p.stat().st_size for p in (runs / "done/checkpoints").iterdir())
    assert rows["runs/done"][:5] == [
        *("finished", rows["runs/done"][1], f"{checkpoints / 1000:.1f} kB", "2.0 kB"),
        "7.0 MB",
    ]
    assert rows["runs/deep/half"][0] == "unfinished"
    assert rows["runs/deep/half"][3] == "2.0 kB"
    assert rows["all"][3] == "4.0 kB"
    assert "thesis" not in out
    assert "r2r2 clean --checkpoints   frees " in out
    assert "r2r2 clean --unfinished    frees " in out
    assert tree(runs) == sorted([*before, "done/out.mp4"])


def test_the_next_steps_name_what_was_named(r2r2, runs):
    made(runs / "two words", finish=False, checkpoints=1)
    _, out, _ = r2r2("clean", "runs/two words")
    assert "r2r2 clean 'runs/two words' --checkpoints   frees old ones of" in out
    assert "frees 0 B" not in out
    _, out, _ = r2r2("clean", "runs/done")
    assert "--unfinished" not in out


def test_checkpoints_are_deleted_but_for_the_newest_of_an_unfinished_run(r2r2, runs):
    newest, _ = latest_valid(runs / "deep/half/checkpoints")
    size = usage_module.run_usage(runs / "deep/half").total
    code, out, err = r2r2("clean", "--checkpoints", "--yes")
    assert (code, err) == (0, "")
    assert "runs/done, checkpoints: " in out
    assert "runs/deep/half, all but the newest checkpoint: " in out
    assert out.splitlines()[-1].startswith("freed ")
    assert tree(runs / "done") == [
        *("a_s0", "a_s0/weights.npz", "config.toml", "events.jsonl", "manifest.json")
    ]
    assert latest_valid(runs / "deep/half/checkpoints") == (newest, [])
    assert len(newest.segments) == 2
    assert sorted(os.listdir(newest.arrays.parent)) == [
        *("00000002.replay.npz", "00000003.json", "00000003.npz"),
        *("00000003.replay.npz", "00000003.worlds.npz"),
    ]
    freed = size - usage_module.run_usage(runs / "deep/half").total
    assert f"half, all but the newest checkpoint: {freed / 1000:.1f} kB" in out
    assert r2r2("clean", "--checkpoints", "--yes").out == "nothing to delete\n"


def test_a_damaged_newest_checkpoint_is_not_the_one_that_stays(r2r2, runs):
    newest, _ = latest_valid(runs / "deep/half/checkpoints")
    newest.env_states.write_bytes(b"")
    assert r2r2("clean", "runs/deep", "--checkpoints", "--yes").code == 0
    found, said = latest_valid(runs / "deep/half/checkpoints")
    assert (found.number, said) == (2, [])


def test_without_a_good_checkpoint_all_stay(r2r2, runs):
    for path in (runs / "deep/half/checkpoints").glob("*.npz"):
        path.write_bytes(b"")
    before = tree(runs)
    assert r2r2("clean", "runs/deep", "--checkpoints", "--yes").code == 0
    assert tree(runs) == before


def test_unfinished_runs_are_deleted_whole(r2r2, runs):
    (runs / "deep" / "half" / "mine").mkdir()
    (runs / "deep" / "half" / "mine" / "deeper.txt").write_text("")
    before = tree(runs / "done")
    code, out, _ = r2r2("clean", "--unfinished", "--yes")
    assert code == 0
    assert "runs/deep/half, an unfinished run with all that is in it: " in out
    assert tree(runs / "deep") == []
    assert tree(runs / "done") == before
    assert (runs / "thesis" / "00000001.npz").exists()


def test_both_can_be_deleted_at_once(r2r2, runs):
    assert r2r2("clean", "--unfinished", "--checkpoints", "runs", "--yes").code == 0
    assert tree(runs / "deep") == []
    assert not (runs / "done" / "checkpoints").exists()


@pytest.mark.parametrize("answer", ["n", "", "maybe", None])
def test_nothing_is_deleted_unless_the_answer_is_yes(r2r2, runs, terminal, answer):
    asked, before = terminal(answer), tree(runs)
    code, out, _ = r2r2("clean", "--unfinished")
    assert (code, out.splitlines()[-1]) == (0, "nothing is deleted")
    assert tree(runs) == before
    assert len(asked) == 1
    assert asked[0].startswith("delete these, ")


@pytest.mark.parametrize("answer", ["y", "YES "])
def test_an_answer_of_yes_deletes(r2r2, runs, terminal, answer):
    terminal(answer)
    assert r2r2("clean", "--unfinished").code == 0
    assert tree(runs / "deep") == []


def test_without_a_terminal_nothing_is_deleted_and_it_is_said(r2r2, runs, nobody):
    before = tree(runs)
    code, out, err = r2r2("clean", "--unfinished")
    assert (code, err) == (
        2,
        "r2r2: yes is false; without a terminal to ask at, nothing is deleted unless "
        "--yes is given\n",
    )
    assert "runs/deep/half, an unfinished run" in out
    assert tree(runs) == before


@pytest.mark.parametrize("flag", ["--unfinished", "--checkpoints"])
def test_a_run_in_training_is_left_alone(r2r2, runs, flag):
    half = runs / "deep" / "half"
    with lock_run(half):
        before = tree(half)
        code, out, _ = r2r2("clean", flag, "--yes")
        assert code == 0
        said = "left alone is runs/deep/half, which this process is training\n"
        assert said in out
        code, _, err = r2r2("clean", "runs/deep/half", flag, "--yes")
        assert (code, err) == (
            2,
            "r2r2: runs/deep/half: in use; this process is training this run\n",
        )
        assert "in training" in r2r2("clean", "runs/deep/half").out
        assert tree(half) == before


@pytest.mark.parametrize("flag", ["--unfinished", "--checkpoints"])
def test_a_run_that_changed_while_the_question_stood_is_refused(
    r2r2, runs, terminal, monkeypatch, flag
):
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
    code, _, err = r2r2("clean", flag)
    assert code == 2
    assert err.endswith("the run has changed in the meantime\n")
    assert tree(runs) == before


def test_a_run_of_another_version_is_shown_and_left_alone(r2r2, runs):
    newer = made(runs / "newer", finish=True)
    (newer / "manifest.json").write_text('{"kind": "r2r2 run", "format": 2}')
    before = tree(newer)
    assert "other version" in r2r2("clean", "runs/newer").out
    assert r2r2("clean", "--checkpoints", "--unfinished", "--yes").code == 0
    assert tree(newer) == before


def test_links_are_not_followed(r2r2, runs, tmp_path):
    outside = made(tmp_path / "outside", finish=False)
    other = made(tmp_path / "other", finish=True)
    before = tree(tmp_path / "outside"), tree(other)
    (runs / "link").symlink_to(outside)
    (runs / "deep" / "half" / "link").symlink_to(outside)
    linked = create_run(runs / "linked", "", ["a_s0"], overwrite=False)
    linked.finish()
    (runs / "linked" / "checkpoints").symlink_to(other / "checkpoints")
    assert "link " not in r2r2("clean").out
    assert r2r2("clean", "--checkpoints", "--unfinished", "--yes").code == 0
    assert not (runs / "deep" / "half").exists()
    assert (tree(outside), tree(other)) == before
    code, _, err = r2r2("clean", "runs/link", "--unfinished", "--yes")
    assert (code, err) == (
        2,
        "r2r2: run is 'runs/link', which is a link; give what it leads to\n",
    )


def test_a_link_takes_what_a_link_takes(runs):
    before = usage_module.run_usage(runs / "done").total
    (runs / "done" / "round").symlink_to(".")
    (runs / "done" / "big").symlink_to("a_s0/weights.npz")
    assert usage_module.run_usage(runs / "done").total - before < 100


def test_a_file_of_the_users_among_checkpoints_stays(r2r2, runs):
    (runs / "done" / "checkpoints" / "notes.txt").write_text("mine")
    assert r2r2("clean", "--checkpoints", "--yes").code == 0
    assert tree(runs / "done" / "checkpoints") == ["notes.txt"]


def test_what_cannot_be_deleted_is_one_sentence(r2r2, runs, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(usage_module.shutil, "rmtree", refuse)
    code, _, err = r2r2("clean", "--unfinished", "--yes")
    sentence = "r2r2: runs/deep/half: cannot delete: Permission denied\n"
    assert (code, err) == (1, sentence)
    monkeypatch.setattr(usage_module, "delete_files", lambda _: None)
    code, _, err = r2r2("clean", "runs/done", "--checkpoints", "--yes")
    first = "runs/done/checkpoints/00000001.json"
    assert (code, err) == (1, f"r2r2: {first}: cannot delete\n")


def test_an_interrupted_deletion_can_be_ended_later(r2r2, runs, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(usage_module.shutil, "rmtree", stop)
        assert r2r2("clean", "--unfinished", "--yes").code == 130
    assert "runs/deep/half" in r2r2("clean").out
    assert r2r2("clean", "--unfinished", "--yes").code == 0
    assert not (runs / "deep" / "half").exists()


def test_without_runs_there_is_nothing_to_show(r2r2, here):
    assert r2r2("clean") == (0, "no runs in 'runs'\n", "")
    (here / "runs").mkdir()
    assert r2r2("clean", "--unfinished", "--yes") == (0, "no runs in 'runs'\n", "")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("nowhere", "nowhere: does not exist"),
        (
            "empty",
            "empty: not a run folder; it has no manifest.json",
        ),
        (
            "file",
            "file: not a run folder; it has no manifest.json",
        ),
        (
            "runs/thesis",
            "runs/thesis/manifest.json: damaged or not a run's manifest",
        ),
        ("runs nowhere --unfinished --yes", "nowhere: does not exist"),
        ("--checkpoint runs", "'checkpoint' is not a field; did you mean 'check"),
        ("--all", "'all' is not a field; see --help"),
        ("--checkpoints=maybe", "checkpoints is 'maybe'; allowed is true or false"),
        ("--yes", "yes is true, but there is no --checkpoints or --unfinished"),
    ],
)
def test_it_refuses_in_a_sentence_and_deletes_nothing(r2r2, here, runs, argv, sentence):
    (here / "empty").mkdir()
    (here / "file").write_text("")
    before = tree(here)
    code, out, err = r2r2("clean", *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"r2r2: {sentence}")
    assert err.count("\n") == 1
    assert tree(here) == before


def test_a_name_with_markup_is_shown_as_it_is(r2r2, here):
    made(here / "runs" / "[bold]x[/bold]", finish=True, checkpoints=0)
    assert "runs/[bold]x[/bold]" in r2r2("clean").out


def test_help_says_what_goes_and_what_stays(r2r2):
    code, out, _ = r2r2("clean", "runs", "--help")
    assert code == 0
    for words in (
        "--[no-]checkpoints",
        "--[no-]unfinished",
        "--[no-]yes",
        "weights st",
    ):
        assert words in out
    assert max(map(len, subject.HELP.splitlines())) <= 88
    assert "r2r2 clean" in r2r2("--help").out
