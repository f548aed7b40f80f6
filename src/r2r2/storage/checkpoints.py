"""Checkpoints of a run on disk: whole or not there, and known to be as written.

A checkpoint exists once its manifest does, which is written last. Replay is written in
segments, each once: a checkpoint names those of earlier ones that it still needs.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from r2r2.config.errors import UserError
from r2r2.storage.arrays import NumPyArray, write_arrays
from r2r2.storage.checkpoint_manifest import (
    ARRAYS,
    LAST,
    MANIFEST,
    SEGMENT,
    WORLDS,
    CheckpointManifest,
    Damage,
    Entry,
    check_files,
    check_sizes,
    checksum,
    digest_of,
    name_of,
    number_of,
    read_inventory,
    to_text,
)
from r2r2.storage.files import StorageError, atomic_write, reason, sync_folder


def files_of(folder: Path) -> list[Path]:
    """Every file of a checkpoint in a folder, also of one that was never finished."""
    torn = re.compile(r"\.[0-9]{8}\.json\.[0-9a-f]{8}\.tmp")
    found = sorted(os.listdir(folder))
    ours = [n for n in found if number_of(n) is not None or torn.fullmatch(n)]
    return [folder / name for name in ours]


def numbers_of(folder: Path) -> list[int]:
    """The numbers of the checkpoints that have a manifest, the newest first."""
    try:
        names = [path.name for path in files_of(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"'{folder}' cannot be read: {reason(error)}") from error
    manifests = [name for name in names if name.endswith(MANIFEST)]
    return sorted((number_of(name) or 0 for name in manifests), reverse=True)


def good_one(
    folder: Path, number: int, digest: Callable[[Path], str]
) -> CheckpointManifest:
    """A checkpoint's manifest, its files checked by a digest as `check_files` takes it.

    Raises:
        Damage: It cannot be used.
    """
    inventory = read_inventory(folder, number)
    check_files(folder, inventory, digest)
    return inventory


def past_keeping(folder: Path, newest: CheckpointManifest, keep: int) -> list[Path]:
    """The files that none of the newest good checkpoints needs."""
    kept = [newest]
    for number in numbers_of(folder):
        if len(kept) < keep and number < newest.number:
            with contextlib.suppress(Damage):
                kept.append(good_one(folder, number, _digest_of))
    return others(folder, kept)


def others(folder: Path, kept: Iterable[CheckpointManifest]) -> list[Path]:
    """The files that none of these checkpoints needs."""
    needed = {name for inventory in kept for name in inventory.files}
    needed |= {name_of(inventory.number, MANIFEST) for inventory in kept}
    return [path for path in files_of(folder) if path.name not in needed]


def delete_files(paths: Iterable[Path]) -> None:
    """Deletes files of checkpoints as far as it can, manifests before what they name.

    So none is left whose files are gone, even should the power fail meanwhile.
    """
    found = list(paths)
    manifests = [path for path in found if path.suffix == MANIFEST]
    for group in (manifests, [path for path in found if path.suffix != MANIFEST]):
        for path in group:
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            for folder in {path.parent for path in group}:
                sync_folder(folder)


def _digest_of(path: Path) -> str:
    """A checksum that is taken once of a file that stays as it is."""
    try:
        now = path.lstat()
    except OSError as error:
        raise Damage(f"{path.name} cannot be read: {reason(error)}") from error
    return _remembered(path, (now.st_ino, now.st_size, now.st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _remembered(path: Path, _: tuple[int, ...]) -> str:
    return digest_of(path)


FOLDER = "checkpoints"  # inside the run's
NONE = "there is none before it"


class Content(NamedTuple):
    """What a checkpoint holds, all of it on the host."""

    step: int  # the least decision step of a member
    notes: Mapping[str, Any]  # what JSON can hold
    arrays: Mapping[str, NumPyArray]  # of the loop
    worlds: Mapping[str, NumPyArray]  # states of environments
    segment: Mapping[str, NumPyArray]  # what is new in the replay
    needs: tuple[str, ...]  # names of earlier segments that still matter, oldest first


class Checkpoint(NamedTuple):
    """A checkpoint on disk; `read_arrays` reads its files."""

    number: int
    step: int
    notes: dict[str, Any]
    arrays: Path
    worlds: Path
    segments: tuple[Path, ...]  # oldest first; the last is its own


def write_checkpoint(folder: Path, content: Content, keep: int) -> Checkpoint:
    """Writes a checkpoint beside the earlier ones, then deletes those past keeping.

    It may be killed at any moment: the earlier ones are then as good as before, and
    the next call removes what was left half written.

    Args:
        folder: Where the checkpoints of one run are; made where it is missing.
        content: The new one.
        keep: How many good ones stay, with this one.

    Raises:
        StorageError: The disk is full, say; nothing of the new one is left.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from r2r2.storage.arrays import read_arrays
        >>> content = Content(8, {}, {"key": np.arange(2)}, {}, {}, needs=())
        >>> with tempfile.TemporaryDirectory() as run:
        ...     written = write_checkpoint(Path(run) / FOLDER, content, keep=2)
        ...     found, damaged = newest_good(Path(run) / FOLDER)
        ...     read_arrays(found.arrays)
        {'key': array([0, 1])}
        >>> found == written, damaged
        (True, [])
    """
    try:
        folder.mkdir(exist_ok=True)
        inventory = _write(folder, content)
    except (OSError, Damage) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise StorageError(
            f"'{folder}' cannot be written: {why}; {_intact(folder)}"
        ) from error
    with contextlib.suppress(OSError):  # the next call tries again
        delete_files(past_keeping(folder, inventory, keep))
    return _checkpoint(folder, inventory)


def newest_good(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose files are all as they were written, or None.

    With it comes a sentence about every newer one, which was found damaged.

    Raises:
        UserError: The folder is there and cannot be read.
    """
    passed: list[str] = []
    good: CheckpointManifest | None = None
    for number in numbers_of(folder):
        try:
            good = good_one(folder, number, digest_of)
            break
        except Damage as damage:
            passed.append(
                f"checkpoint {number} in '{folder.parent}' is damaged ({damage})"
            )
    last = f"the one before it, of step {good.step}, is used" if good else NONE
    ends = [*["the one before it is damaged too"] * (len(passed) - 1), last]
    said = [f"{start}; {end}" for start, end in zip(passed, ends, strict=False)]
    return _checkpoint(folder, good) if good else None, said


def superfluous(folder: Path) -> list[Path]:
    """The files that the newest good checkpoint does without; none if there is none."""
    newest, _ = newest_good(folder)
    if newest is None:
        return []
    return others(folder, [read_inventory(folder, newest.number)])


class _Hashing:
    """A file of which the length and the checksum are known once it is written."""

    def __init__(self, file: BinaryIO):
        self._file, self._bytes, self._hash = file, 0, checksum()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def entry(self) -> Entry:
        return Entry(self._bytes, self._hash.hexdigest())


def _write(folder: Path, content: Content) -> CheckpointManifest:
    """Writes the three files and the manifest, or leaves nothing."""
    taken = [number_of(path.name) or 0 for path in files_of(folder)]
    number = max(taken, default=0) + 1
    if number > LAST:
        raise Damage(f"no number is left after {LAST}")
    parts = {ARRAYS: content.arrays, WORLDS: content.worlds, SEGMENT: content.segment}
    own = {what: folder / name_of(number, what) for what in (MANIFEST, *parts)}
    try:
        needed = _needed(folder, content.needs)
        mine = {own[what].name: _file(own[what], x) for what, x in parts.items()}
        files = dict(sorted((needed | mine).items()))
        found = CheckpointManifest(number, content.step, files, dict(content.notes))
        text = to_text(found)
        # Before the manifest may exist, what it names has to.
        sync_folder(folder)
        atomic_write(own[MANIFEST], text)
        sync_folder(folder)
    except BaseException:
        delete_files(own.values())
        raise
    return found


def _file(path: Path, arrays: Mapping[str, NumPyArray]) -> Entry:
    with path.open("xb") as file:
        hashing = _Hashing(file)
        write_arrays(hashing, arrays.items())
        file.flush()
        os.fsync(file.fileno())
    return hashing.entry()


def _needed(folder: Path, names: Iterable[str]) -> dict[str, Entry]:
    """Earlier segments as the manifests know them; they are not read again."""
    known: dict[str, Entry] = {}
    for number in reversed(numbers_of(folder)):
        with contextlib.suppress(Damage):
            known |= read_inventory(folder, number).files
    for name in names:
        if name not in known or not name.endswith(SEGMENT):
            raise Damage(f"it needs {name}, which no checkpoint there holds")
    found = {name: known[name] for name in names}
    check_sizes(folder, CheckpointManifest(0, 0, found, {}))
    return found


def _intact(folder: Path) -> str:
    """What is left after a failure, without reading all of it."""
    with contextlib.suppress(UserError):
        for number in numbers_of(folder):
            with contextlib.suppress(Damage):
                inventory = read_inventory(folder, number)
                check_sizes(folder, inventory)
                return f"the checkpoint of step {inventory.step} is intact"
    return "there is no earlier checkpoint"


def _checkpoint(folder: Path, inventory: CheckpointManifest) -> Checkpoint:
    number, step, _, notes = inventory
    arrays, worlds = (folder / name_of(number, what) for what in (ARRAYS, WORLDS))
    segments = tuple(folder / name for name in inventory.segments)
    return Checkpoint(number, step, notes, arrays, worlds, segments)
