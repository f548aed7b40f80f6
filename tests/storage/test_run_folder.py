import errno
import json
import os
from pathlib import Path

import pytest

from r2r2.config.errors import UserError
from r2r2.storage import run_folder as subject
from r2r2.storage.run_folder import create_run, open_run, read_manifest, reopen_run, write_manifest

CONFIG = 'agent = "td7"\r\n# é\n'
MEMBERS = ["Hopper-v5_s0", "Hopper-v5_s1"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "one"


def tree(path):
    """Return all files below a folder with their content, and all folders."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")
    }


def finished(path, config=CONFIG, members=MEMBERS):
    run = create_run(path, config, members, overwrite=False)
    (path / "extra").mkdir()
    (path / "extra" / "deep").write_text("old")
    run.events.write_text("old")
    run.finish()
    return run


def test_new_run_has_config_manifest_and_member_folders(path):
    create_run(path, CONFIG, MEMBERS, overwrite=False)
    assert sorted(os.listdir(path)) == sorted([*MEMBERS, "config.toml", "manifest.json"])
    assert (path / "config.toml").read_bytes() == CONFIG.encode()
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["status"] == "running"
    assert manifest["members"] == MEMBERS


def test_paths_are_inside_the_run(path):
    run = create_run(path, CONFIG, MEMBERS, overwrite=False)
    assert run.events == path / "events.jsonl"
    assert run.evaluations == path / "evaluations.csv"
    assert run.curve == path / "curve.png"
    assert run.weights("Hopper-v5_s1") == path / "Hopper-v5_s1" / "weights.npz"
    assert run.best_weights("Hopper-v5_s1") == path / "Hopper-v5_s1" / "best_weights.npz"
    with pytest.raises(ValueError, match="not a member"):
        run.weights("../../Hopper-v5_s1")


def test_versions_are_written(path):
    run = create_run(path, CONFIG, MEMBERS, overwrite=False)
    run.write_versions({"jax": "0.10"})
    assert json.loads((path / "versions.json").read_text()) == {"jax": "0.10"}


def test_run_without_finished_members_has_failed(path):
    run = create_run(path, CONFIG, MEMBERS, overwrite=False)
    run.report(MEMBERS[0]).write_text('{"why": "no power"}')
    run.finish(MEMBERS[:1])
    assert (read_manifest(path).status, run.stopped()) == ("finished", {MEMBERS[0]: "no power"})
    assert json.loads((path / "manifest.json").read_text())["stopped"] == MEMBERS[:1]
    run.finish(MEMBERS)
    assert read_manifest(path).status == "failed"
    with pytest.raises(UserError, match="contains a failed run with the same config"):
        create_run(path, CONFIG, MEMBERS, overwrite=False)
    run.finish()
    assert "stopped" not in json.loads((path / "manifest.json").read_text())


def test_empty_folder_is_used(path):
    path.mkdir(parents=True)
    create_run(path, CONFIG, MEMBERS, overwrite=False)
    assert (path / "config.toml").exists()


@pytest.mark.parametrize(
    ("config", "finish", "why"),
    [
        (CONFIG, True, "a finished run with the same config"),
        ("other", True, "a finished run with another config"),
        (CONFIG, False, "an unfinished run with the same config"),
    ],
)
def test_run_is_not_overwritten_by_default(path, config, finish, why):
    run = create_run(path, config, MEMBERS, overwrite=False)
    if finish:
        run.finish()
    before = tree(path)
    with pytest.raises(UserError) as error:
        create_run(path, CONFIG, ["other_s0"], overwrite=False)
    sentence = f"{path}: contains {why}; choose another --out, or add --overwrite to delete it"
    assert str(error.value) == sentence
    assert tree(path) == before


def test_overwrite_deletes_the_old_run(path):
    finished(path, "other", ["old_s0"])
    run = create_run(path, CONFIG, MEMBERS, overwrite=True)
    assert sorted(os.listdir(path)) == sorted([*MEMBERS, "config.toml", "manifest.json"])
    assert open_run(path) == run
    assert read_manifest(path).status == "running"


def test_run_of_a_newer_version_can_be_overwritten(path):
    finished(path)
    (path / "manifest.json").write_text('{"kind": "r2r2 run", "format": 2}')
    with pytest.raises(UserError, match=r"a run of another version of r2r2; .*overwrite"):
        create_run(path, CONFIG, MEMBERS, overwrite=False)
    create_run(path, CONFIG, MEMBERS, overwrite=True)
    assert not (path / "extra").exists()


def test_overwrite_deletes_links_but_not_their_targets(path, tmp_path):
    finished(path)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (path / "link").symlink_to(tmp_path / "precious")
    create_run(path, CONFIG, MEMBERS, overwrite=True)
    assert not (path / "link").is_symlink()
    assert (tmp_path / "precious" / "file").read_text() == "kept"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("manifest", [None, "{", '{"name": "a web page"}'])
def test_folder_that_is_not_a_run_is_never_changed(path, overwrite, manifest):
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("precious")
    if manifest is not None:
        (path / "manifest.json").write_text(manifest)
    before = tree(path)
    with pytest.raises(UserError, match=r"not a run folder, so --overwrite does not delete it"):
        create_run(path, CONFIG, MEMBERS, overwrite)
    assert tree(path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_file_instead_of_a_folder_is_rejected(path, overwrite):
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(UserError, match=f"{path}: is a file"):
        create_run(path, CONFIG, MEMBERS, overwrite)
    assert path.read_text() == "precious"


def test_unwritable_folder_is_rejected(path, monkeypatch):
    (path.parent).write_text("a file where a folder is needed")
    with pytest.raises(UserError, match=f"{path}: cannot write: Not a directory"):
        create_run(path, CONFIG, MEMBERS, overwrite=False)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    path.parent.unlink()
    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UserError, match=f"{path}: cannot write: Permission denied"):
        create_run(path, CONFIG, MEMBERS, overwrite=False)


@pytest.mark.parametrize("members", [["../../evil"], ["a_s0", "a_s0"]])
def test_members_are_checked_before_writing(path, members):
    finished(path)
    before = tree(path)
    with pytest.raises(UserError, match="member '"):
        create_run(path, CONFIG, members, overwrite=True)
    assert tree(path) == before


@pytest.mark.parametrize(("crash_at", "left"), [("manifest.json", True), ("config.toml", False)])
def test_crash_while_overwriting_leaves_no_finished_run(path, monkeypatch, crash_at, left):
    finished(path)
    write = subject.atomic_write

    def write_then_crash(target, text):
        write(target, text)
        assert target.name != crash_at

    with monkeypatch.context() as patch:
        patch.setattr(subject, "atomic_write", write_then_crash)
        with pytest.raises(AssertionError):
            create_run(path, CONFIG, MEMBERS, overwrite=True)
    assert (read_manifest(path).status == "running") if left else (os.listdir(path) == [])
    create_run(path, CONFIG, MEMBERS, overwrite=True)


def test_open_run_returns_members_and_config(path):
    made = finished(path)
    opened = open_run(path)
    assert opened == made
    assert opened.config_text() == CONFIG


def test_unfinished_run_can_be_opened(path):
    made = create_run(path, CONFIG, MEMBERS, overwrite=False)
    assert open_run(path) == made


def test_failed_finish_leaves_the_run_unfinished(path, monkeypatch):
    run = create_run(path, CONFIG, MEMBERS, overwrite=False)
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.finish()
    assert open_run(path) == run
    assert read_manifest(path).status == "running"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, ": not a run folder; it has no manifest.json"),
        ("", "/manifest.json: damaged or not a run's manifest"),
        (
            '{"kind": "r2r2 run", "format": 2}',
            "/manifest.json: unsupported format; expected 1, got 2",
        ),
    ],
)
def test_folder_without_valid_manifest_is_rejected(path, content, why):
    path.mkdir(parents=True)
    if content is not None:
        (path / "manifest.json").write_text(content)
    with pytest.raises(UserError) as error:
        open_run(path)
    assert str(error.value) == f"{path}{why}"


def test_missing_run_is_rejected(path):
    with pytest.raises(UserError, match=f"{path}: does not exist"):
        open_run(path)
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(UserError, match=": not a run folder"):
        open_run(path)
    with pytest.raises(UserError, match=": cannot read: "):
        open_run(path.parent / ("x" * 10_000))


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_unreadable_config_is_rejected(path, content):
    run = create_run(path, CONFIG, MEMBERS, overwrite=False)
    (path / "config.toml").unlink()
    assert run.config_text() == CONFIG
    write_manifest(path, MEMBERS, "running")  # as of a run from before there were copies
    if content is not None:
        (path / "config.toml").write_bytes(content)
    with pytest.raises(UserError, match=r"config.toml: cannot read: "):
        run.config_text()


class FullDisk:
    """Lets some calls succeed; then the disk is full."""

    def __init__(self, calls):
        self.left = calls

    def wrap(self, function):
        def call(*arguments, **options):
            if self.left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= 1
            return function(*arguments, **options)

        return call


@pytest.mark.parametrize("calls", range(6))  # a new run takes six, with a folder of each member
@pytest.mark.parametrize("overwrite", [False, True])
def test_full_disk_while_a_run_is_created_leaves_nothing(path, monkeypatch, calls, overwrite):
    """Neither half a run, nor a folder that a later run refuses."""
    path.parent.mkdir()
    if overwrite:
        finished(path, "other", ["old_s0"])
    before = tree(path.parent)
    disk = FullDisk(calls)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", disk.wrap(Path.mkdir))
        patch.setattr(subject, "atomic_write", disk.wrap(subject.atomic_write))
        with pytest.raises(UserError, match=f"{path}: cannot write: No space left on device"):
            create_run(path, CONFIG, MEMBERS, overwrite, {"jax": "0.10"})
    assert disk.left == 0
    remains = {**before} if overwrite and calls < 2 else {"one": None} if overwrite else {}
    assert tree(path.parent) == remains
    if overwrite and calls < 2:
        assert read_manifest(path).status == "finished"
        return
    create_run(path, "yet another", MEMBERS, overwrite=False)
    assert open_run(path).config_text() == "yet another"


def test_interrupted_deletion_can_be_continued_without_overwrite(path):
    finished(path, "other", ["old_s0"])
    write_manifest(path, (), "running")  # as create_run does before it deletes the run
    create_run(path, CONFIG, MEMBERS, overwrite=False)
    assert open_run(path).config_text() == CONFIG


def test_files_that_were_not_written_are_in_the_manifest(path):
    """A process that is killed between the manifest and these files loses nothing."""
    create_run(path, CONFIG, MEMBERS, False, {"jax": "0.10"})
    for name in ("config.toml", "versions.json"):
        (path / name).unlink()
    (path / MEMBERS[0]).rmdir()
    run = reopen_run(path, open_run(path).config_text(), {"step": 3})
    assert (path / "config.toml").read_bytes() == CONFIG.encode()
    versions = {"jax": "0.10", "resumed": [{"step": 3}]}
    assert json.loads((path / "versions.json").read_text()) == versions
    assert (path / MEMBERS[0]).is_dir()
    run.finish()
    assert read_manifest(path).copies["config.toml"] == CONFIG


def test_every_resume_is_recorded(path):
    create_run(path, CONFIG, MEMBERS, False, {"commit": "a"})
    for step in (10, 20):
        reopen_run(path, CONFIG, {"step": step, "commit": f"b{step}", "precision": "tf32"})
    versions = json.loads((path / "versions.json").read_text())
    assert versions == {
        "commit": "a",
        "resumed": [
            {"step": 10, "commit": "b10", "precision": "tf32"},
            {"step": 20, "commit": "b20", "precision": "tf32"},
        ],
    }
