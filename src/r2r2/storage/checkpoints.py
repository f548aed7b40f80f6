"""Run checkpoints on disk: complete or absent, and verified by checksums.

A checkpoint consists of three data files and a manifest, which is written last and
makes it valid. Replay is stored in segments, each written once: a checkpoint also
refers to the segments of earlier checkpoints that it still needs.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from r2r2.config.errors import UserError
from r2r2.storage.arrays import NumPyArray, write_arrays
from r2r2.storage.files import (
    FileEntry,
    StorageError,
    atomic_write,
    cannot_read,
    checksum,
    fsync_dir,
    is_count,
    open_regular,
    parse_entries,
    reason,
)

CHECKPOINT_DIR = "checkpoints"  # inside the run folder
CHECKPOINT_KIND = "r2r2 checkpoint"
CHECKPOINT_FORMAT = 1
MAX_NUMBER = 99_999_999  # file names have eight digits
MAX_MANIFEST_BYTES = 2**26

MANIFEST_SUFFIX = ".json"
ARRAYS, ENV_STATES, REPLAY_SEGMENT = ".npz", ".worlds.npz", ".replay.npz"

# A manifest starts with the checksum of everything that follows.
CHECKSUM_PREFIX = '{{"blake2b": "{}", '

Content = TypeVar("Content")


class DamagedCheckpointError(Exception):
    """A checkpoint cannot be used; the text names the file and says why."""


class CheckpointContent(NamedTuple):
    """The content of a new checkpoint, all of it on the host."""

    step: int  # the smallest decision step of all members
    metadata: Mapping[str, Any]  # JSON values
    arrays: Mapping[str, NumPyArray]  # the state of the training loop
    env_states: Mapping[str, NumPyArray]
    replay_segment: Mapping[str, NumPyArray]  # transitions since the last checkpoint
    earlier_segments: tuple[str, ...]  # names of those still needed, oldest first


class Checkpoint(NamedTuple):
    """A checkpoint on disk, as its manifest describes it."""

    folder: Path
    number: int
    step: int
    files: dict[str, FileEntry]  # sorted, so replay segments are oldest first
    metadata: dict[str, Any]

    @property
    def arrays(self) -> Path:
        """The state of the training loop."""
        return self.folder / file_name(self.number, ARRAYS)

    @property
    def env_states(self) -> Path:
        """The states of the environments."""
        return self.folder / file_name(self.number, ENV_STATES)

    @property
    def segments(self) -> tuple[Path, ...]:
        """The replay segments, oldest first; the last is its own."""
        names = [name for name in self.files if name.endswith(REPLAY_SEGMENT)]
        return tuple(self.folder / name for name in names)


def write_checkpoint(folder: Path, content: CheckpointContent, keep: int) -> Checkpoint:
    """Write a checkpoint, or none of its files, and then delete those that are not kept.

    The process may be killed at any time: earlier checkpoints stay valid, and the next
    call deletes the incomplete files. `keep` valid ones are kept, including this one.
    """
    try:
        folder.mkdir(exist_ok=True)
        checkpoint = _write(folder, content)
    except (OSError, DamagedCheckpointError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise StorageError(f"{folder}: cannot write: {why}; {_remaining(folder)}") from error
    with contextlib.suppress(OSError):  # the next call tries again
        delete_files(_expired_files(checkpoint, keep))
    return checkpoint


def latest_valid(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the latest intact checkpoint or None, and a sentence for every later, damaged one."""
    damaged: list[str] = []
    valid: Checkpoint | None = None
    for number in checkpoint_numbers(folder):
        try:
            valid = _read_valid(folder, number, file_digest)
            break
        except DamagedCheckpointError as error:
            damaged.append(f"{folder.parent}: checkpoint {number} is damaged ({error})")
    last = f"using the one of step {valid.step}" if valid else "there is no earlier one"
    ends = [*["the one before it is damaged, too"] * (len(damaged) - 1), last]
    return valid, [f"{start}; {end}" for start, end in zip(damaged, ends, strict=False)]


def read_latest(folder: Path, read: Callable[[Path], Content]) -> tuple[Checkpoint, Content] | None:
    """Return the latest checkpoint whose arrays can be read, and the content; None without any.

    `read` gets the path of the arrays, whose checksum is correct; other files are not looked at.
    Another process may write checkpoints meanwhile and delete those that are being read.
    """
    seen, problem = list[int](), ""
    while (numbers := checkpoint_numbers(folder)) != seen:
        seen, problem = numbers, ""
        for number in numbers:
            try:
                checkpoint = read_checkpoint(folder, number)
                name = checkpoint.arrays.name
                if file_digest(checkpoint.arrays) != checkpoint.files[name].blake2b:
                    raise DamagedCheckpointError(f"{name} has a wrong checksum")
                return checkpoint, read(checkpoint.arrays)
            except (DamagedCheckpointError, UserError) as error:
                problem = problem or str(error)
    if problem:
        raise UserError(f"{folder}: no checkpoint can be read: {problem}")
    return None


def removable_files(folder: Path) -> list[Path]:
    """Return the files that the latest valid checkpoint does not need, if it exists."""
    latest, _ = latest_valid(folder)
    return _unneeded_files([latest]) if latest else []


def checkpoint_files(folder: Path) -> list[Path]:
    """Return all files of checkpoints in a folder, including incomplete ones."""
    temporary = re.compile(r"\.[0-9]{8}\.json\.[0-9a-f]{8}\.tmp")
    return [
        folder / name
        for name in sorted(os.listdir(folder))
        if checkpoint_number(name) is not None or temporary.fullmatch(name)
    ]


def checkpoint_numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints that have a manifest, latest first."""
    try:
        names = [path.name for path in checkpoint_files(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(folder, error) from error
    manifests = [name for name in names if name.endswith(MANIFEST_SUFFIX)]
    return sorted((checkpoint_number(name) or 0 for name in manifests), reverse=True)


def delete_files(paths: Iterable[Path]) -> None:
    """Delete files, manifests first: none may be left whose files are missing."""
    paths = list(paths)
    for manifests in (True, False):
        group = [p for p in paths if (p.suffix == MANIFEST_SUFFIX) is manifests]
        for path in group:
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            for folder in {path.parent for path in group}:
                fsync_dir(folder)


def _expired_files(latest: Checkpoint, keep: int) -> list[Path]:
    """Return the files that none of the latest `keep` valid checkpoints needs."""
    retained = [latest]
    for number in checkpoint_numbers(latest.folder):
        if len(retained) < keep and number < latest.number:
            with contextlib.suppress(DamagedCheckpointError):
                retained.append(_read_valid(latest.folder, number, _cached_digest))
    return _unneeded_files(retained)


def _unneeded_files(retained: Sequence[Checkpoint]) -> list[Path]:
    needed = {name for checkpoint in retained for name in checkpoint.files}
    needed |= {file_name(x.number, MANIFEST_SUFFIX) for x in retained}
    return [path for path in checkpoint_files(retained[0].folder) if path.name not in needed]


def _cached_digest(path: Path) -> str:
    """Return the checksum of a file, computed once as long as the file is unchanged."""
    with _read_errors(path.name):
        status = path.lstat()
    return _digest_of_state(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _digest_of_state(path: Path, _: tuple[int, ...]) -> str:
    return file_digest(path)


class _HashingFile(io.RawIOBase):
    """A binary file that counts and hashes what is written to it."""

    def __init__(self, file: BinaryIO):
        self._file, self.bytes, self.hash = file, 0, checksum()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.bytes += len(data)
        return self._file.write(data)


def _write(folder: Path, content: CheckpointContent) -> Checkpoint:
    """Write the data files and then the manifest; on failure delete all of them."""
    used = [checkpoint_number(path.name) or 0 for path in checkpoint_files(folder)]
    number = max(used, default=0) + 1
    if number > MAX_NUMBER:
        raise DamagedCheckpointError(f"there is no number after {MAX_NUMBER}")
    data = {
        ARRAYS: content.arrays,
        ENV_STATES: content.env_states,
        REPLAY_SEGMENT: content.replay_segment,
    }
    paths = {x: folder / file_name(number, x) for x in (MANIFEST_SUFFIX, *data)}
    try:
        entries = _segment_entries(folder, content.earlier_segments)
        for suffix, arrays in data.items():
            entries[paths[suffix].name] = _write_arrays(paths[suffix], arrays)
        files = dict(sorted(entries.items()))
        checkpoint = Checkpoint(folder, number, content.step, files, dict(content.metadata))
        text = serialize_manifest(checkpoint)
        # The files must be on disk before the manifest that names them.
        fsync_dir(folder)
        atomic_write(paths[MANIFEST_SUFFIX], text)
        fsync_dir(folder)
    except BaseException:
        delete_files(paths.values())
        raise
    return checkpoint


def _write_arrays(path: Path, arrays: Mapping[str, NumPyArray]) -> FileEntry:
    with path.open("xb") as file:
        hashing = _HashingFile(file)
        write_arrays(hashing, arrays.items())
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(hashing.bytes, hashing.hash.hexdigest())


def _segment_entries(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Return the entries of earlier segments from their manifests, sizes checked."""
    known: dict[str, FileEntry] = {}
    for number in reversed(checkpoint_numbers(folder)):
        with contextlib.suppress(DamagedCheckpointError):
            known |= read_checkpoint(folder, number).files
    for name in names:
        if name not in known or not name.endswith(REPLAY_SEGMENT):
            raise DamagedCheckpointError(f"{name} does not belong to any checkpoint")
    entries = {name: known[name] for name in names}
    check_sizes(folder, entries)
    return entries


def _remaining(folder: Path) -> str:
    """Say which checkpoint is left after a failure, without reading all of its data."""
    with contextlib.suppress(UserError):
        for number in checkpoint_numbers(folder):
            with contextlib.suppress(DamagedCheckpointError):
                checkpoint = read_checkpoint(folder, number)
                check_sizes(folder, checkpoint.files)
                return f"the checkpoint of step {checkpoint.step} is intact"
    return "there is no earlier checkpoint"


def file_name(number: int, suffix: str) -> str:
    """Return the name of one of a checkpoint's files."""
    return f"{number:08}{suffix}"


def checkpoint_number(name: str) -> int | None:
    """Return the number of the checkpoint that a file belongs to, or None."""
    match = re.fullmatch(r"([0-9]{8})\.(json|[a-z.]*npz)", name)
    return int(match[1]) if match else None


def serialize_manifest(checkpoint: Checkpoint) -> str:
    """Return the text of a checkpoint's manifest."""
    fields = {
        "kind": CHECKPOINT_KIND,
        "format": CHECKPOINT_FORMAT,
        "number": checkpoint.number,
        "step": checkpoint.step,
        "files": {name: entry._asdict() for name, entry in checkpoint.files.items()},
        "notes": checkpoint.metadata,
    }
    rest = json.dumps(fields)[1:] + "\n"
    if len(rest) > MAX_MANIFEST_BYTES:
        raise ValueError(f"checkpoint metadata too long: {len(rest)} bytes")
    return CHECKSUM_PREFIX.format(checksum(rest.encode()).hexdigest()) + rest


def read_checkpoint(folder: Path, number: int) -> Checkpoint:
    """Return a checkpoint from its manifest, which is verified; its files are not."""
    name = file_name(number, MANIFEST_SUFFIX)
    with _read_errors(name), open_regular(folder / name) as file:
        content = file.read(MAX_MANIFEST_BYTES + len(CHECKSUM_PREFIX) + 65)
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{name} is not valid JSON") from error
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if fields.get("kind") != CHECKPOINT_KIND:
        raise DamagedCheckpointError(f"{name} is not the manifest of a checkpoint")
    if fields.get("format") != CHECKPOINT_FORMAT:
        got = f"format {fields.get('format')!r:.20}"
        raise DamagedCheckpointError(f"{name} has {got}, expected {CHECKPOINT_FORMAT}")
    prefix = CHECKSUM_PREFIX.format(fields.get("blake2b")).encode(errors="replace")
    digest = checksum(content[len(prefix) :]).hexdigest()
    if content[: len(prefix)] != CHECKSUM_PREFIX.format(digest).encode():
        raise DamagedCheckpointError(f"{name} has a wrong checksum")
    if not _is_manifest(fields, number):
        raise DamagedCheckpointError(f"{name} has invalid fields")
    files = {file: FileEntry(**entry) for file, entry in fields["files"].items()}
    return Checkpoint(folder, number, fields["step"], files, fields["notes"])


def check_sizes(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Check that every file exists and has its length."""
    for name, entry in files.items():
        with _read_errors(name), open_regular(folder / name) as file:
            length = file.seek(0, os.SEEK_END)
        if length != entry.bytes:
            raise DamagedCheckpointError(f"{name} has {length} bytes, expected {entry.bytes}")


def file_digest(path: Path) -> str:
    """Return the checksum of a file."""
    with _read_errors(path.name), open_regular(path) as file:
        return hashlib.file_digest(file, checksum).hexdigest()


def _read_valid(folder: Path, number: int, digest: Callable[[Path], str]) -> Checkpoint:
    """Return a checkpoint whose files must all be intact."""
    checkpoint = read_checkpoint(folder, number)
    check_sizes(folder, checkpoint.files)
    for name, entry in checkpoint.files.items():
        if digest(folder / name) != entry.blake2b:
            raise DamagedCheckpointError(f"{name} has a wrong checksum")
    return checkpoint


def _is_manifest(fields: Mapping[str, Any], number: int) -> bool:
    """Return whether a manifest names its own files, segments, and nothing else."""
    entries = parse_entries(fields.get("files"))
    if entries is None or not isinstance(fields.get("notes"), dict):
        return False
    own_files = [file_name(number, suffix) for suffix in (ARRAYS, ENV_STATES)]
    segments = [name for name in entries if name not in own_files]
    return (
        fields.get("number") == number
        and is_count(fields.get("step"), 2**63)
        and all(name in entries for name in own_files)
        and all(re.fullmatch(r"[0-9]{8}\.replay\.npz", name) for name in segments)
        and segments == sorted(segments)
        and segments[-1:] == [file_name(number, REPLAY_SEGMENT)]
    )


@contextlib.contextmanager
def _read_errors(name: str) -> Generator[None]:
    """Convert an OSError of reading a file into a DamagedCheckpointError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{name} is missing") from error
    except OSError as error:
        raise DamagedCheckpointError(f"cannot read {name}: {reason(error)}") from error
