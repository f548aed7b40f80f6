"""One process trains into a folder at a time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from r2r2.config.errors import UserError
from r2r2.storage.files import open_plain, reason

NAME = "lock"
PATIENCE = 0.5  # seconds: who only looks holds the lock for a moment too


@contextlib.contextmanager
def hold(run: Path) -> Generator[None]:
    """Within it, no other process may train into a run's folder, nor clean it.

    The system lets go of the lock of a process that dies, however it does.

    Raises:
        UserError: Another process has it, or nothing can be written there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     with hold(Path(run)):
        ...         during = is_held(Path(run))
        ...     during, is_held(Path(run))
        (True, False)
    """
    try:
        number = _lock(run)
    except OSError as error:
        raise UserError(
            f"run is '{run}', which cannot be written: {reason(error)}"
        ) from error
    try:
        with contextlib.suppress(OSError):  # a full disk can be locked all the same
            os.ftruncate(number, 0)
            os.write(number, str(os.getpid()).encode())
        yield
    finally:
        # First the name: who opens it from now on makes a new one.
        with contextlib.suppress(OSError):
            (run / NAME).unlink()
        os.close(number)


def is_held(run: Path) -> bool:
    """Whether a process trains into a run's folder right now."""
    try:
        with open_plain(run / NAME) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_free(run: Path) -> None:
    """Refuses a run that is being trained.

    Raises:
        UserError: A process trains into its folder.
    """
    if is_held(run):
        raise _in_use(run)


def holder(run: Path) -> str:
    """Who holds a run, in words; it has written its number into the lock."""
    pid = holding_pid(run)
    if pid is None:
        return "another process"
    mine = pid == os.getpid()
    return "this process" if mine else f"another process (pid {pid})"


def holding_pid(run: Path) -> int | None:
    """The number in a run's lock, of who took it last; None where there is none.

    It is read and not locked: who looks all the time is in nobody's way.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     with hold(Path(run)):
        ...         during = holding_pid(Path(run))
        ...     during == os.getpid(), holding_pid(Path(run))
        (True, None)
    """
    try:
        with open_plain(run / NAME) as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None


def _lock(run: Path) -> int:
    """Opens and locks the file; gives its number.

    Raises:
        UserError: Another process has it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    end = time.monotonic() + PATIENCE
    while True:
        number = os.open(run / NAME, flags, 0o644)
        if _taken(number, run / NAME):
            return number
        os.close(number)
        if time.monotonic() > end:
            raise _in_use(run)
        time.sleep(0.02)


def _taken(number: int, path: Path) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: the run goes on unguarded
    try:
        # The last holder may have taken the name away meanwhile.
        return os.path.samestat(os.fstat(number), path.lstat())
    except FileNotFoundError:
        return False


def _in_use(run: Path) -> UserError:
    return UserError(f"run is '{run}', which {holder(run)} is training")
