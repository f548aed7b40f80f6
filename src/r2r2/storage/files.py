"""Atomic writes, and reads that do not trust the file."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeGuard, TypeVar, cast

from r2r2.config.errors import UserError

MAX_INT = 2**62  # every integer of a run lies below; its double does not overflow
T = TypeVar("T")

checksum = partial(hashlib.blake2b, digest_size=32)


class StorageError(Exception):
    """A file of a run cannot be written or deleted, for example because the disk is full."""


def cache_folder() -> Path:
    """Return the folder of the user's cache, in which compiled programs are kept, too.

    Example:
        >>> cache_folder().name
        'r2r2'
    """
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "r2r2"


def reason(error: OSError) -> str:
    """Return the operating system's message without the file name."""
    return error.strerror or str(error) or type(error).__name__


def cannot_read(path: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"{path}: cannot read: {reason(error)}")


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be written."""
    return UserError(f"{path}: cannot write: {reason(error)}")


# Writing


@contextlib.contextmanager
def atomic_replace(path: Path) -> Generator[Path]:
    """Yield a temporary path, renamed to `path` on success; else the old file is unchanged."""
    # In the same folder, because a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def atomic_open(path: Path) -> Generator[BinaryIO]:
    """Yield a new binary file that replaces `path`, synced to disk, on success."""
    with atomic_replace(path) as temporary, temporary.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file (text as UTF-8); readers see the old or the new content, even after a crash."""
    with atomic_open(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def fsync_dir(path: Path) -> None:
    """Flush the names in a folder to disk, so that a power failure keeps the order of renames."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(path: Path) -> Generator[None]:
    """Convert an OSError of the block into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write: {reason(error)}; the same command resumes the run from its "
            "last checkpoint, if there is one"
        ) from error


# Reading


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, but no link out of the run and no pipe, which may block."""
    return open(_open_descriptor(path, os.O_RDONLY), "rb")


def _open_descriptor(path: Path, flags: int) -> int:
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a symbolic link", str(path))
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def check_link(path: Path) -> None:
    """Check that a link leads to a folder of this user, and that nobody else can redirect it."""
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
        link, around, status = path.lstat(), path.parent.stat(), target.stat()
    except (OSError, RuntimeError) as error:  # or a loop of links
        raise UserError(f"{path}: is a symbolic link to nothing; expected a folder") from error
    user, sticky = os.geteuid(), around.st_mode & stat.S_ISVTX
    problems = {
        "that belongs to another user": link.st_uid not in (user, 0),
        "in a folder that all users can write": around.st_mode & stat.S_IWOTH and not sticky,
        "to a file; only folders may be linked": not stat.S_ISDIR(status.st_mode),
        f"to '{target}', which belongs to another user": status.st_uid != user,
        f"to '{target}', which all users can write": status.st_mode & stat.S_IWOTH,
    }
    for problem in (why for why, unsafe in problems.items() if unsafe):
        raise UserError(f"{path}: is a symbolic link {problem}")


def read_regular(path: Path, max_bytes: int = 2**26) -> bytes:
    """Return the content of a regular file of limited size."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"is longer than {max_bytes} bytes", str(path))
    return content


# Checksums, which tell whether a file still is as it was written


class FileEntry(NamedTuple):
    """The length and checksum of a file as it was written."""

    bytes: int
    blake2b: str


def file_entry(path: Path, length: int | None = None) -> FileEntry:
    """Return the length and checksum of a file, or of at most its first `length` bytes."""
    with open_regular(path) as file:
        part = file if length is None else io.BytesIO(file.read(length))
        digest = hashlib.file_digest(part, checksum).hexdigest()
        return FileEntry(file.tell(), digest)


def parse_entries(value: object) -> dict[str, FileEntry] | None:
    """Return entries by file name from JSON, or None if it is something else."""
    if not isinstance(value, dict):
        return None
    entries: dict[str, FileEntry] = {}
    for name, item in cast("dict[str, object]", value).items():
        fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        inside = re.fullmatch(r"([\w.+-]+/)?[\w.+-]+", name) and ".." not in name.split("/")
        if not inside or fields.keys() != {*FileEntry._fields}:
            return None
        entries[name] = entry = FileEntry(**cast("dict[str, Any]", fields))
        if not is_count(entry.bytes, 2**63) or not isinstance(entry.blake2b, str):
            return None
    return entries


# Logs: files of lines that are only appended to


class LogFile:
    """A log open for appending; knows the checksum of its content, and a compressed copy of it.

    An incomplete last line, left by a killed process, is cut off.
    """

    def __init__(self, path: Path):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = open(_open_descriptor(path, flags), "a+b")
        self._file.seek(0)
        self.truncate(self._file.read().rfind(b"\n") + 1)

    def append(self, line: str) -> None:
        """Append one line with a single write and flush it to the operating system."""
        data = f"{line}\n".encode()
        self._file.write(data)
        self._file.flush()
        self._record(data)

    def truncate(self, length: int) -> None:
        """Delete everything after a length in bytes."""
        self._file.truncate(length)
        self._file.seek(0)
        self._hash, self._length = checksum(), 0
        self._compressor, self._compressed = zlib.compressobj(), bytearray()
        self._record(self._file.read())

    def _record(self, data: bytes) -> None:
        self._length += len(data)
        self._hash.update(data)
        self._compressed += self._compressor.compress(data)

    def entry(self) -> "FileEntry":
        """Return the length and checksum of what was written."""
        return FileEntry(self._length, self._hash.hexdigest())

    def compressed(self) -> bytes:
        """Return what was written, compressed by zlib."""
        return bytes(self._compressed) + self._compressor.copy().flush()

    def sync(self) -> None:
        """Flush the content to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def read_log(
    path: Path, parse: Callable[[Path, int, str], T], damage: list[str] | None = None
) -> list[T]:
    """Return the parsed lines of a log; an incomplete last line is ignored.

    A damaged line raises UserError, or is left out and its error added to `damage`.
    """
    try:
        with open_regular(path) as file:
            complete = file.read().split(b"\n")[:-1]
    except OSError as error:
        raise cannot_read(path, error) from error
    parsed: list[T] = []
    for number, line in enumerate(complete, start=1):
        try:
            parsed.append(parse(path, number, _decode(path, number, line)))
        except UserError as error:
            if damage is None:
                raise
            damage.append(str(error))
    return parsed


def _decode(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise damaged_line(path, number, "not valid UTF-8") from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a log; an incomplete last line is ignored."""
    return read_log(path, lambda _, __, line: line)


def damaged_line(path: Path, number: int, why: str) -> UserError:
    """Return the error for one line of a log; lines count from 1."""
    return UserError(f"{path}: line {number} is damaged: {why}")


# JSON written by anyone


def read_json_object(path: Path) -> dict[str, object] | None:
    """Return the JSON object in a file, or None if it cannot be read as one."""
    try:
        content: object = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, object]", content) if isinstance(content, dict) else None


def is_count(value: object, limit: int = MAX_INT) -> TypeGuard[int]:
    """Return whether a JSON value is an integer in [0, limit); booleans are not."""
    return type(value) is int and 0 <= value < limit


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON value is a float or an integer that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < MAX_INT)


def parse_count(name: str, value: object) -> int:
    """Return a JSON field as a count."""
    if not is_count(value):
        raise ValueError(f"{name}: expected an integer >= 0, got {value!r:.40}")
    return value


def parse_number(name: str, value: object) -> float:
    """Return a JSON field as a float; events write non-finite numbers as strings."""
    if is_number(value) or value in ("nan", "inf", "-inf"):
        return float(cast(float, value))
    raise ValueError(f"{name}: expected a number, got {value!r:.40}")


# Folders that are replaced as a whole: reports and exports

REPORT_FILE = "report.json"
REPORT_KIND = "r2r2 report"
DEFAULT_PAGE = "report"  # the command that wrote a folder whose report.json names none


def output_entries(path: Path) -> list[str]:
    """Return the names in a folder that is to be replaced; none, if it is missing."""
    try:
        if not path.exists() and not path.is_symlink():
            return []
        if not path.is_dir() or path.is_symlink():
            raise UserError(f"{path}: not a folder; choose another --out")
        return sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise cannot_write(path, error) from error


def check_report_dir(path: Path, names: Collection[str], page: object = DEFAULT_PAGE) -> None:
    """Check that a folder is missing, empty or an earlier report with no entries but `names`.

    The earlier report must be of the same command, `page`.
    """
    entries = output_entries(path)
    report = read_json_object(path / REPORT_FILE) or {}
    if entries and report.get("kind") != REPORT_KIND:
        raise UserError(f"{path}: not empty and not a report; choose another --out")
    if entries and (found := report.get("page", DEFAULT_PAGE)) != page:
        raise UserError(
            f"{path}: contains the page of 'r2r2 {found}', which would be replaced; "
            "choose another --out"
        )
    if others := [name for name in entries if name not in (*names, REPORT_FILE)]:
        raise UserError(
            f"{path}: this report also contains {others[0]!r}, which would be deleted; "
            "move that file or choose another --out"
        )


@contextlib.contextmanager
def atomic_dir(path: Path, facts: Mapping[str, object], names: Collection[str]) -> Generator[Path]:
    """Yield a new folder that replaces the report at `path`, described by `facts`, on success.

    `facts["page"]` names the command that writes it, if it is not `r2r2 report`.
    """
    page = facts.get("page", DEFAULT_PAGE)
    with replace_dir(path, partial(check_report_dir, path, names, page)) as new:
        yield new
        text = json.dumps({"kind": REPORT_KIND, **facts}, indent=2) + "\n"
        atomic_write(new / REPORT_FILE, text)


@contextlib.contextmanager
def replace_dir(path: Path, check: Callable[[], None]) -> Generator[Path]:
    """Yield a new folder that replaces the folder at `path` on success, after a last `check`."""
    target, token = path.absolute(), secrets.token_hex(4)
    # Next to the target, because a folder is renamed within one file system only.
    new = target.with_name(f".{target.name}.{token}.new")
    old = target.with_name(f".{target.name}.{token}.old")
    try:
        new.mkdir(parents=True)
        yield new
        check()
        _swap(target, new, old)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(path: Path, new: Path, old: Path) -> None:
    """Replace `path` by `new`; delete the old folder only once `new` is in place."""
    try:
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)
