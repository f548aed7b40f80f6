import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.experiments import run_copy
from r2r2.experiments.run_copy import RunCopy, list_files, take_snapshot
from r2r2.storage.checkpoints import CheckpointContent, latest_valid, write_checkpoint
from r2r2.storage.files import StorageError, file_entry
from r2r2.storage.run_folder import create_run, is_locked, lock_run, open_run, write_manifest


def add_checkpoint(run, step):
    """Write a checkpoint that needs the replay segments of the earlier ones."""
    earlier, _ = latest_valid(run / "checkpoints")
    needed = tuple(path.name for path in earlier.segments) if earlier else ()
    arrays = {"x": np.full(50, step)}
    content = CheckpointContent(step, {}, arrays, arrays, arrays, needed)
    write_checkpoint(run / "checkpoints", content, keep=2)
    with (run / "events.jsonl").open("a") as log:
        log.write(f"step {step}\n")


@pytest.fixture
def run(tmp_path):
    """A run on another machine, with two checkpoints."""
    folder = create_run(tmp_path / "node" / "run", "steps = 1\n", ["m_s0"], overwrite=False).path
    add_checkpoint(folder, 1)
    add_checkpoint(folder, 2)
    return folder


@pytest.fixture
def copy(tmp_path):
    copy = RunCopy(tmp_path / "runs" / "run", tmp_path / "incoming" / "run")
    copy.open()
    yield copy
    copy.close()


def transfer(run, copy, tmp_path):
    """Copy a snapshot in parts of 100 bytes; return the names of the files that were sent."""
    snapshot = take_snapshot(run, tmp_path / "snapshot")
    missing = copy.missing(snapshot)
    for name in missing:
        data = (tmp_path / "snapshot" / name).read_bytes()
        for start in range(0, max(len(data), 1), 100):
            copy.receive(name, data[start : start + 100], start)
    copy.publish(snapshot)
    return missing


def same_step(run, step):
    checkpoint, damage = latest_valid(run / "checkpoints")
    assert damage == []
    assert checkpoint.step == step
    return open_run(run)


def test_a_snapshot_has_the_newest_checkpoint_and_the_logs(run, tmp_path):
    (run / ".events.jsonl.0123abcd.tmp").write_text("incomplete")
    with lock_run(run):
        snapshot = take_snapshot(run, tmp_path / "snapshot")
    assert snapshot == list_files(tmp_path / "snapshot")
    names = {name.removeprefix("checkpoints/") for name in snapshot}
    assert {"00000002.json", "00000002.npz", "00000001.replay.npz", "events.jsonl"} <= names
    assert not {"00000001.json", "00000001.npz", "lock"} & names
    assert not any(name.endswith(".tmp") for name in names)


def test_a_snapshot_does_not_change_when_the_run_goes_on(run, tmp_path):
    snapshot = take_snapshot(run, tmp_path / "snapshot")
    for step in (3, 4, 5):
        add_checkpoint(run, step)
    assert snapshot == list_files(tmp_path / "snapshot")


def test_a_snapshot_while_checkpoints_are_deleted(run, tmp_path, monkeypatch):
    link, calls = os.link, []

    def link_once(source, target):
        if not calls:  # the process writes two others meanwhile
            calls.append(source)
            shutil.rmtree(run / "checkpoints")
            add_checkpoint(run, 3)
        link(source, target)

    monkeypatch.setattr(os, "link", link_once)
    take_snapshot(run, tmp_path / "snapshot")
    monkeypatch.undo()
    same_step(tmp_path / "snapshot", 3)


def test_snapshots_arrive_as_they_were(run, copy, tmp_path):
    transfer(run, copy, tmp_path)
    target = tmp_path / "runs" / "run"
    same_step(target, 2)
    assert is_locked(target)
    add_checkpoint(run, 3)
    sent = transfer(run, copy, tmp_path)
    same_step(target, 3)
    assert list_files(target) == list_files(tmp_path / "snapshot")
    assert sorted(name for name in sent if "replay" in name) == ["checkpoints/00000003.replay.npz"]
    assert transfer(run, copy, tmp_path) == []
    copy.close()
    assert not is_locked(target)
    assert not (tmp_path / "incoming" / "run").exists()


def test_deleted_files_are_deleted(run, copy, tmp_path):
    (run / "m_s0" / "stopped.json").write_text("{}")
    transfer(run, copy, tmp_path)
    (run / "m_s0" / "stopped.json").unlink()
    transfer(run, copy, tmp_path)
    assert not (tmp_path / "runs" / "run" / "m_s0" / "stopped.json").exists()


def test_a_finished_run_arrives_as_finished(run, copy, tmp_path):
    write_manifest(run, ["m_s0"], "finished")
    transfer(run, copy, tmp_path)
    assert '"finished"' in (tmp_path / "runs" / "run" / "manifest.json").read_text()


@pytest.mark.parametrize("before", [0, 1])
def test_the_run_can_be_resumed_whenever_a_publication_ends(
    run, copy, tmp_path, before, monkeypatch
):
    if before:
        transfer(run, copy, tmp_path)
        add_checkpoint(run, 3)
        write_manifest(run, ["m_s0"], "finished")
    target, replace, moved = tmp_path / "runs" / "run", Path.replace, []

    def checked_replace(self, other):
        if target.exists():
            same_step(target, 3 if "checkpoints/00000003.json" in moved else 2)
        moved.append(Path(other).relative_to(target).as_posix() if before else str(other))
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", checked_replace)
    transfer(run, copy, tmp_path)
    assert moved[-1].endswith("manifest.json")
    same_step(target, 3 if before else 2)


def test_a_file_that_was_changed_on_the_way_is_not_published(run, copy, tmp_path):
    snapshot = take_snapshot(run, tmp_path / "snapshot")
    for name in snapshot:
        copy.receive(name, b"something else", 0)
    with pytest.raises(StorageError, match="was not received as it was sent"):
        copy.publish(snapshot)
    assert not (tmp_path / "runs" / "run").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a/b/c", ".hidden", ""])
def test_names_outside_of_the_run_are_rejected(copy, name):
    with pytest.raises(StorageError, match="not the name"):
        copy.receive(name, b"", 0)


def test_a_run_that_is_being_trained_is_not_copied(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_copy, "LOCK_SECONDS", 0.1)
    copy = RunCopy(run, tmp_path / "incoming" / "run")
    with lock_run(run), pytest.raises(UserError, match="in use"):
        copy.open()


def test_a_run_that_exists_already_is_listed(run, tmp_path):
    copy = RunCopy(run, tmp_path / "incoming" / "run")
    copy.open()
    assert copy.files["events.jsonl"] == file_entry(run / "events.jsonl")
    assert "lock" not in copy.files
    copy.close()
