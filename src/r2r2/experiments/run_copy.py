"""Copies of a run folder from and to a machine that does not see the folder of the sweep.

A snapshot is what would be left if the run's process were killed at that moment: its newest
checkpoint, which is complete, and its other files at least as new. So a run resumes from a
snapshot as from a run folder. Checkpoint files never change, and are sent once.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from r2r2.storage.checkpoints import (
    CHECKPOINT_DIR,
    MANIFEST_SUFFIX,
    Checkpoint,
    DamagedCheckpointError,
    checkpoint_files,
    checkpoint_numbers,
    delete_files,
    file_name,
    read_checkpoint,
)
from r2r2.storage.files import FileEntry, StorageError, file_entry, parse_entries
from r2r2.storage.run_folder import LOCK_FILE, MANIFEST_FILE, lock_run

FileList = dict[str, FileEntry]  # by path relative to the run folder
LOCK_SECONDS = 60.0  # for the process of a lost machine to end
FILE_PREFIX = "file@"  # of received files, so that no folder looks like a run


def take_snapshot(run: Path, target: Path) -> FileList:
    """Put a snapshot of a run, in which a process may be training, into a new folder.

    Files of the checkpoint are hard links, since they never change; others are copies.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # First, because it marks a finished run: what is copied after it is complete then.
    names = [MANIFEST_FILE] if (run / MANIFEST_FILE).exists() else []
    _copy_files(run, target, names)
    snapshot = _link_checkpoint(run, target)
    others = [name for name in _file_names(run) if not _in_checkpoints(name)]
    _copy_files(run, target, [name for name in others if name != MANIFEST_FILE])
    for name in [name for name in _file_names(target) if name not in snapshot]:
        snapshot[name] = file_entry(target / name)
    return snapshot


def list_files(run: Path) -> FileList:
    """Return the files of a run in which no process is training."""
    return {name: file_entry(run / name) for name in _file_names(run)}


def _file_names(run: Path) -> list[str]:
    """Return the names of a run's files, without its lock and incomplete files."""
    paths = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = [path.relative_to(run).as_posix() for path in paths]
    return [name for name in names if name != LOCK_FILE and _is_valid_name(name)]


def _is_valid_name(name: str) -> bool:
    """Return whether a name is one of a run folder's complete files."""
    entry = FileEntry(0, "")._asdict()
    is_temporary = name.rpartition("/")[2].startswith(".")
    return not is_temporary and parse_entries({name: entry}) is not None


def _in_checkpoints(name: str) -> bool:
    return name.startswith(f"{CHECKPOINT_DIR}/")


def _copy_files(run: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            shutil.copyfile(run / name, target / name)


def _link_checkpoint(run: Path, target: Path) -> FileList:
    """Link the files of the newest checkpoint; return them, without its manifest."""
    folder, seen = run / CHECKPOINT_DIR, list[int]()
    # While one is read, the process may write a newer one and delete the older ones.
    while (numbers := checkpoint_numbers(folder)) != seen:
        seen = numbers
        for number in numbers:
            with contextlib.suppress(DamagedCheckpointError, FileNotFoundError):
                return _link_files(read_checkpoint(folder, number), target / CHECKPOINT_DIR)
    return {}


def _link_files(checkpoint: Checkpoint, target: Path) -> FileList:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in (*checkpoint.files, file_name(checkpoint.number, MANIFEST_SUFFIX)):
        os.link(checkpoint.folder / name, target / name)
    return {f"{CHECKPOINT_DIR}/{name}": entry for name, entry in checkpoint.files.items()}


class RunCopy:
    """The run folder of a fleet that trains on a machine which does not see this folder.

    The folder is locked meanwhile. It changes only when all files of a snapshot have arrived.
    """

    def __init__(self, run: Path, incoming: Path):
        self._run, self._incoming = run, incoming
        self._lock = contextlib.ExitStack()
        self.files: FileList = {}  # that the other machine has as well

    def open(self) -> None:
        """Lock the run, if it exists already, and list its files."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)
        if self._run.exists():
            self._lock.enter_context(lock_run(self._run, LOCK_SECONDS))
            self.files = list_files(self._run)

    def path(self, name: str) -> Path:
        """Return the path of a file in the run folder."""
        return self._run / name

    def missing(self, snapshot: FileList) -> list[str]:
        """Return the files of a snapshot that differ from those in the folder."""
        return [name for name, entry in snapshot.items() if self.files.get(name) != entry]

    def receive(self, name: str, data: bytes, start: int) -> None:
        """Write a part of a file; parts come in order."""
        if not _is_valid_name(name):
            raise StorageError(f"{name!r} is not the name of a run's file")
        with self._received(name).open("ab" if start else "wb") as file:
            file.write(data)

    def _received(self, name: str) -> Path:
        return self._incoming / (FILE_PREFIX + name.replace("/", "@"))

    def publish(self, snapshot: FileList) -> None:
        """Replace the content of the run folder by a snapshot whose missing files have arrived.

        The run can be resumed at any moment meanwhile: manifests change after what they name.
        """
        missing = self.missing(snapshot)
        for name in missing:
            if file_entry(self._received(name)) != snapshot[name]:
                raise StorageError(f"{self._run / name}: was not received as it was sent")
        is_new = not self._run.exists()
        target = self._incoming / "new" if is_new else self._run
        for name in sorted(missing, key=_publication_order):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            self._received(name).replace(target / name)
        if is_new and missing:
            self._run.parent.mkdir(parents=True, exist_ok=True)
            target.rename(self._run)
            self._lock.enter_context(lock_run(self._run))
        self._delete_others(snapshot)
        self.files = dict(snapshot)

    def _delete_others(self, snapshot: Mapping[str, FileEntry]) -> None:
        """Delete what the other machine has deleted, and checkpoints that are not needed now."""
        for name in self.files.keys() - snapshot.keys():
            if not _in_checkpoints(name):
                (self._run / name).unlink(missing_ok=True)
        if any(map(_in_checkpoints, snapshot)):
            files = checkpoint_files(self._run / CHECKPOINT_DIR)
            names = {path: f"{CHECKPOINT_DIR}/{path.name}" for path in files}
            delete_files(path for path, name in names.items() if name not in snapshot)

    def close(self) -> None:
        """Unlock the run and delete what arrived of an incomplete snapshot."""
        self._lock.close()
        shutil.rmtree(self._incoming, ignore_errors=True)


def _publication_order(name: str) -> tuple[bool, bool, str]:
    is_checkpoint = _in_checkpoints(name) and name.endswith(MANIFEST_SUFFIX)
    return name == MANIFEST_FILE, is_checkpoint, name
