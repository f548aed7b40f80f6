"""The disk space that runs take, and how to free it."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.storage.checkpoints import CHECKPOINT_DIR, checkpoint_files, delete_files, removable_files
from r2r2.storage.files import StorageError, reason
from r2r2.storage.run_folder import (
    BEST_WEIGHTS_FILE,
    CONFIG_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    STOPPED_WEIGHTS_FILE,
    WEIGHTS_FILE,
    RunManifest,
    delete_contents,
    is_locked,
    lock_run,
    read_manifest,
)

WEIGHTS_FILES = (WEIGHTS_FILE, BEST_WEIGHTS_FILE, STOPPED_WEIGHTS_FILE)


class RunUsage(NamedTuple):
    """A run and the size of its files in bytes."""

    run: Path
    manifest: RunManifest
    locked: bool  # a process is training it
    checkpoints: int
    weights: int
    others: int
    modified: float  # last change of a file, seconds since 1970

    @property
    def total(self) -> int:
        """The size of all files in bytes."""
        return self.checkpoints + self.weights + self.others


def find_runs(folder: Path, damaged: bool = False) -> list[Path]:
    """Return the runs below a folder, or the folder itself if it is a run; ignore links.

    `damaged` includes folders with the files of a run whose manifest is damaged or missing.
    """
    runs: list[Path] = []
    for current, subfolders, files in os.walk(folder):
        like_run = damaged and CONFIG_FILE in files and {MANIFEST_FILE, EVENTS_FILE} & {*files}
        if like_run or read_manifest(Path(current)):
            runs.append(Path(current))
            subfolders.clear()
    return sorted(runs)


def run_usage(run: Path) -> RunUsage:
    """Return the disk usage of a run; symbolic links are not followed."""
    manifest = read_manifest(run)
    if manifest is None:
        raise UserError(f"{run}: not a run folder")
    sizes = {"checkpoints": 0, "weights": 0, "others": 0}
    modified = 0.0
    for folder, subfolders, files in os.walk(run):
        in_checkpoints = Path(folder).is_relative_to(run / CHECKPOINT_DIR)
        links = [name for name in subfolders if Path(folder, name).is_symlink()]
        for name in (*links, *files):
            kind = "weights" if name in WEIGHTS_FILES else "others"
            with contextlib.suppress(OSError):  # deleted in the meantime
                status = Path(folder, name).lstat()
                sizes["checkpoints" if in_checkpoints else kind] += status.st_size
                modified = max(modified, status.st_mtime)
    return RunUsage(run, manifest, is_locked(run), **sizes, modified=modified)


def removable_checkpoints(usage: RunUsage) -> list[Path]:
    """Return the files of checkpoints that a run does not need.

    These are all files of a finished run, and those that the latest valid checkpoint of
    an unfinished or failed run does not need. A run that is being trained or that another version
    of r2r2 wrote needs all of them.
    """
    folder = usage.run / CHECKPOINT_DIR
    if usage.locked or folder.is_symlink() or not folder.is_dir():
        return []
    if usage.manifest.status == "finished":
        return checkpoint_files(folder)
    return [] if usage.manifest.status == "unknown" else removable_files(folder)


def total_bytes(paths: Iterable[Path]) -> int:
    """Return the size of files in bytes."""
    return sum(path.lstat().st_size for path in paths)


def delete_checkpoints(usage: RunUsage, files: Iterable[Path]) -> None:
    """Delete what `removable_checkpoints` returned; the run must be unused since."""
    files = list(files)
    with _lock_unchanged(usage):
        delete_files(files)
        with contextlib.suppress(OSError):  # it contains other files
            (usage.run / CHECKPOINT_DIR).rmdir()
    if remaining := [path for path in files if os.path.lexists(path)]:
        raise StorageError(f"{remaining[0]}: cannot delete")


def delete_run(usage: RunUsage) -> None:
    """Delete a run, which must be unused since; links are deleted, not followed."""
    try:
        with _lock_unchanged(usage):
            delete_contents(usage.run)
            # Last, so that after an interruption the rest is still known as a run.
            (usage.run / MANIFEST_FILE).unlink()
        usage.run.rmdir()
    except (OSError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else "nested too deeply"
        raise StorageError(f"{usage.run}: cannot delete: {why}") from error


@contextlib.contextmanager
def _lock_unchanged(usage: RunUsage) -> Iterator[None]:
    """Lock a run; raise UserError if it is in use or its manifest has changed."""
    with lock_run(usage.run):
        if read_manifest(usage.run) != usage.manifest:
            raise UserError(f"{usage.run}: the run has changed in the meantime")
        yield
