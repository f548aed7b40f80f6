"""Ctrl-C and SIGTERM while training: after a checkpoint, or at once if asked twice."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from typing import NoReturn

HEARD = (signal.SIGINT, signal.SIGTERM)
WAIT = "r2r2: interrupted: a checkpoint is being written; once more leaves at once"
SHOW_CURSOR = b"\x1b[?25h\n"  # a live bar hides it, and on a line of its own


class Terminated(KeyboardInterrupt):
    """SIGTERM: an interruption in all but the exit code."""


def exit_code(interruption: KeyboardInterrupt) -> int:
    """What a shell says of a process that such a signal ended.

    Example:
        >>> exit_code(KeyboardInterrupt()), exit_code(Terminated())
        (130, 143)
    """
    number = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + number


@contextlib.contextmanager
def interruptible(saves: bool = True) -> Generator[Callable[[], None]]:
    """Gives a check, to be called before the loop and after each of its turns.

    Until its second call there is nothing to save, and a signal is raised where it
    falls. From then on it is only noted, and the check raises it between two turns,
    where a checkpoint can be taken. It raises one from before as well: Python drops
    what falls into a garbage collection, and JAX has something to do at every one.

    A signal that the caller has ignored, as nohup and a shell's background jobs do,
    stays so.

    Args:
        saves: whether there are checkpoints; if not, no signal waits for one.
    """
    ear = _Ear(saves)
    heard = [n for n in HEARD if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ear.hear) for number in heard}
    try:
        yield ear.check
    finally:
        for number, handler in before.items():
            # None stands for one that was not set from Python, and cannot be.
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """Signals that come meanwhile are raised at the end; other threads hear none."""
    noted: list[int] = []
    here = threading.current_thread() is threading.main_thread()
    heard = [n for n in HEARD if here and signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, lambda n, _: noted.append(n)) for n in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if noted:
        raise _interruption(noted[0])


class _Ear:
    """Which signal came first, and whether the loop has begun."""

    def __init__(self, saves: bool):
        self._noted: int | None = None
        self._saves, self._checks = saves, 0

    def hear(self, number: int, _: object) -> None:
        """The handler of all signals; the second one leaves from here."""
        if self._noted is not None:
            _leave(128 + number)
        self._noted = number
        if self._checks < 2 or not self._saves:
            raise _interruption(number)
        _announce()

    def check(self) -> None:
        """Raises what was noted."""
        self._checks += 1
        if self._noted is not None:
            raise _interruption(self._noted)


def _interruption(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def _announce() -> None:
    """One line, above a live bar where there is one."""
    try:
        print(WAIT, file=sys.stderr, flush=True)
    except RuntimeError:  # the signal fell into a write to the same stream
        os.write(2, f"{WAIT}\n".encode())


def _leave(code: int) -> NoReturn:
    """Ends the process; nothing is put in order but what a person sees."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be what the signal fell into
            stream.flush()
    if os.isatty(1):
        os.write(1, SHOW_CURSOR)
    os._exit(code)
