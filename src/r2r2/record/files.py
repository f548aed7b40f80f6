"""Files that are never seen half written, and logs that grow by whole lines."""

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from r2r2.config.refusal import Refusal


class RecordFailure(Exception):
    """What a run has to write, or to delete, could not be; its text is a sentence.

    Unlike a `Refusal` it is not about what was asked for: the disk is full, say.

    Example:
        >>> str(RecordFailure("'runs' cannot be written: No space left on device"))
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


def write_whole(path: Path, data: bytes | str) -> None:
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
        RecordFailure: It said something.
    """
    try:
        yield
    except OSError as error:
        raise RecordFailure(
            f"'{path}' cannot be written: {reason(error)}; the last checkpoint is "
            "intact, and the same command goes on from it"
        ) from error


def read_lines(path: Path) -> list[str]:
    """The whole lines of a file, without their ends.

    A last line without its end is what a killed run leaves behind; it is left out.

    Raises:
        Refusal: The file cannot be read, or a line is not UTF-8.
    """
    try:
        with open_plain(path) as file:
            whole = file.read().split(b"\n")[:-1]
    except OSError as error:
        raise Refusal(f"'{path}' cannot be read: {reason(error)}") from error
    lines: list[str] = []
    for number, line in enumerate(whole, start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise damaged(path, number, "it is not UTF-8") from error
    return lines


def damaged(path: Path, number: int, why: str) -> Refusal:
    """The refusal of one line of a file; lines count from 1.

    Example:
        >>> str(damaged(Path("events.jsonl"), 3, "it is not JSON"))
        "line 3 of 'events.jsonl' is damaged: it is not JSON"
    """
    return Refusal(f"line {number} of '{path}' is damaged: {why}")
