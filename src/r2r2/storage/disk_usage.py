"""What runs take on the disk, and how some of it is freed."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.storage import lock, manifest
from r2r2.storage.checkpoints import FOLDER, delete_files, files_of, superfluous
from r2r2.storage.files import StorageError, reason


class Usage(NamedTuple):
    """One run, and the bytes of what is in its folder."""

    run: Path
    manifest: manifest.Manifest
    held: bool  # a process trains it right now
    checkpoints: int
    weights: int
    others: int
    changed: float  # when a file of it last was, in seconds since 1970

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.checkpoints + self.weights + self.others


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder and in the folders in it, or the folder if it is a run.

    Links are not followed: they could lead anywhere.
    """
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if manifest.read_manifest(here):
            found.append(here)
            continue
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            inner = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            waiting += [here / name for name in inner]
    return sorted(found)


def usage_of(run: Path) -> Usage:
    """What a run takes; a link counts as itself.

    Raises:
        UserError: It is no run any more.
    """
    known = manifest.read_manifest(run)
    if known is None:
        raise UserError(f"run is '{run}', which is not the folder of a run")
    sizes = {"checkpoints": 0, "weights": 0, "others": 0}
    changed = 0.0
    inside = str(run / FOLDER) + os.sep
    for entry in _files(run):
        with contextlib.suppress(OSError):  # what is gone meanwhile takes nothing
            found = entry.stat(follow_symlinks=False)
            own = "weights" if entry.name == "weights.npz" else "others"
            kind = FOLDER if entry.path.startswith(inside) else own
            sizes[kind] += found.st_size
            changed = max(changed, found.st_mtime)
    return Usage(run, known, lock.is_held(run), **sizes, changed=changed)


def spare_checkpoints(usage: Usage) -> list[Path]:
    """The files of checkpoints that a run can do without.

    Of a finished run these are all; of an unfinished one those that the newest good
    one does not need, for which its files are read. Of a run that is being trained, or
    is of another version, it is none.
    """
    folder = usage.run / FOLDER
    if usage.held or folder.is_symlink() or not folder.is_dir():
        return []
    if usage.manifest.status == "finished":
        return files_of(folder)
    return superfluous(folder) if usage.manifest.status == "running" else []


def bytes_of(paths: Iterable[Path]) -> int:
    """How much files take together."""
    return sum(path.lstat().st_size for path in paths)


def free_checkpoints(usage: Usage, files: Iterable[Path]) -> None:
    """Deletes what `spare_checkpoints` gave.

    Raises:
        UserError: The run is in use, or another than it was.
        StorageError: A file cannot be deleted.
    """
    doomed = list(files)
    with _untouched(usage):
        delete_files(doomed)
        with contextlib.suppress(OSError):  # it holds others too
            (usage.run / FOLDER).rmdir()
    if left := [path for path in doomed if os.path.lexists(path)]:
        raise StorageError(f"'{left[0]}' cannot be deleted")


def delete_run(usage: Usage) -> None:
    """Deletes a run and all that is in its folder; links are deleted, not followed.

    Raises:
        UserError: The run is in use, or another than it was.
        StorageError: Something in it cannot be deleted.
    """
    kept = (manifest.NAME, lock.NAME)
    try:
        with _untouched(usage):
            for name in sorted(set(os.listdir(usage.run)) - set(kept)):
                _delete(usage.run / name)
            # The last: what an interruption leaves can be recognised as a run.
            (usage.run / manifest.NAME).unlink()
        usage.run.rmdir()
    except (OSError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is too deep"
        raise StorageError(f"'{usage.run}' cannot be deleted: {why}") from error


@contextlib.contextmanager
def _untouched(usage: Usage) -> Iterator[None]:
    """Holds a run, which nobody may have gone on with since it was looked at."""
    with lock.hold(usage.run):
        if manifest.read_manifest(usage.run) != usage.manifest:
            raise UserError(f"run is '{usage.run}', which has changed meanwhile")
        yield


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder that is not a folder itself."""
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry
