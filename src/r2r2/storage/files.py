"""A folder of results that is there whole or not at all."""

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from r2r2.config.errors import UserError


class StorageError(Exception):
    """What a run has to write, or to delete, could not be; its text is a sentence.

    Unlike a `UserError` it is not about what was asked for: the disk is full, say.

    Example:
        >>> str(StorageError("'runs' cannot be written: No space left on device"))
        "'runs' cannot be written: No space left on device"
    """


def reason(error: OSError) -> str:
    """Why the operating system could not do something, without the file's name.

    Example:
        >>> reason(OSError(28, "No space left on device", "runs/x/events.jsonl"))
        'No space left on device'
    """
    return error.strerror or str(error) or type(error).__name__


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A name to write to, which becomes `path` when all of it has been written.

    After an error, or an interruption, the old file stands as it was.
    """
    # In the same folder, because a replacement is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def atomic_write(path: Path, data: bytes | str) -> None:
    """Writes a file so that a reader, or a crash, sees the old or the new one whole.

    Text is written as UTF-8.

    Raises:
        OSError: The disk is full, or the folder is missing or not writable.
    """
    content = data.encode() if isinstance(data, str) else data
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Waits until a file is on the disk as it is."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk, as `fsync` does for content.

    Without it a power cut may keep a file that was renamed last and lose those that
    came before.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_plain(path: Path) -> io.BufferedReader:
    """Opens an ordinary file to read it.

    A link could lead out of a run's folder, and a pipe would be waited for for ever:
    neither is opened.

    Raises:
        OSError: It is missing, a link, or anything else that is not a file.
    """
    return open(_plain(path, os.O_RDONLY), "rb")


def _plain(path: Path, flags: int) -> int:
    """The number under which an ordinary file is opened."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    safely = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    number = os.open(path, flags | safely, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return number


def read_plain(path: Path, most: int = 2**26) -> bytes:
    """The content of an ordinary file that has no reason to be long.

    Raises:
        OSError: As `open_plain`, or it is longer than `most` bytes.
    """
    with open_plain(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes", str(path))
    return content


def open_lines(path: Path) -> BinaryIO:
    """Opens a file to append whole lines to it.

    A last line without its end, as a killed run leaves it, is cut off: the next line
    would otherwise be glued to it.

    Raises:
        OSError: It cannot be opened, or is a link or anything else that is not a file.
    """
    file = open(_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
    return file


def append_line(file: BinaryIO, line: str) -> None:
    """Appends one line in one piece and hands it to the operating system."""
    file.write(f"{line}\n".encode())
    file.flush()


@contextlib.contextmanager
def recording(path: Path) -> Generator[None]:
    """Turns what the system says against writing into a sentence.

    Raises:
        StorageError: It said something.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"'{path}' cannot be written: {reason(error)}; the last checkpoint is "
            "intact, and the same command goes on from it"
        ) from error


def read_lines(path: Path) -> list[str]:
    """The whole lines of a file, without their ends.

    A last line without its end is what a killed run leaves behind; it is left out.

    Raises:
        UserError: The file cannot be read, or a line is not UTF-8.
    """
    try:
        with open_plain(path) as file:
            whole = file.read().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {reason(error)}") from error
    lines: list[str] = []
    for number, line in enumerate(whole, start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise damaged(path, number, "it is not UTF-8") from error
    return lines


def damaged(path: Path, number: int, why: str) -> UserError:
    """The refusal of one line of a file; lines count from 1.

    Example:
        >>> str(damaged(Path("events.jsonl"), 3, "it is not JSON"))
        "line 3 of 'events.jsonl' is damaged: it is not JSON"
    """
    return UserError(f"line {number} of '{path}' is damaged: {why}")


NAME = "report.json"
KIND = "r2r2 report"


def check_vacant(path: Path, names: Collection[str]) -> None:
    """Refuses a place where a report would delete, or mix with, what is not one.

    Args:
        path: where it is to be.
        names: of all that a report consists of.

    Raises:
        UserError: Something else is there, or a report with other things in it.

    Example:
        >>> check_vacant(Path("no/such/folder"), ["index.html"])
    """
    try:
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_dir() or path.is_symlink():
            raise UserError(f"out is '{path}', which is no folder; give another name")
        found = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise _unwritable(path, error) from error
    if found and not _is_report(path):
        raise UserError(
            f"out is '{path}', which is not empty and not a report, so it is not "
            "replaced; give another folder with --out"
        )
    if others := [name for name in found if name not in (*names, NAME)]:
        raise UserError(
            f"out is '{path}', a report with {others[0]!r} in it besides, which would "
            "be lost; move that, or give another folder with --out"
        )


@contextlib.contextmanager
def replacing_folder(
    path: Path, facts: Mapping[str, object], names: Collection[str]
) -> Generator[Path]:
    """A new folder to write to, which takes the place of `path` when all is written.

    After an error, or an interruption, what was there stands as it was.

    Args:
        path: a place that `check_vacant` has let pass.
        facts: kept in the folder's `report.json`, by which it is known as a report.
        names: of all that a report consists of.

    Raises:
        UserError: Nothing can be written there, or something else is there meanwhile.
    """
    whole = path.absolute()
    mark = secrets.token_hex(4)
    # Beside it, because a folder is renamed within one file system only.
    new, old = (whole.with_name(f".{whole.name}.{mark}.{x}") for x in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        text = json.dumps({"kind": KIND, **facts}, indent=2) + "\n"
        atomic_write(new / NAME, text)
        check_vacant(path, names)
        _swap(whole, new, old)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(path: Path, new: Path, old: Path) -> None:
    """Puts `new` in the place of `path`, which is deleted only once `new` is there."""
    try:
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _is_report(path: Path) -> bool:
    try:
        content: object = json.loads(read_plain(path / NAME))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    return cast("dict[str, object]", content).get("kind") == KIND


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"out is '{path}', which cannot be written: {reason(error)}")
