"""Ctrl-C and SIGTERM: end a run after a checkpoint, or at once if repeated."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAIT = "r2r2: interrupted; writing a checkpoint (press Ctrl-C again to quit now)"
SHOW_CURSOR = b"\x1b[?25h\n"  # a live progress display hides it


class Terminated(KeyboardInterrupt):
    """SIGTERM: handled as an interruption, but with another exit code."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a call of `train` from Python: the run ends with a checkpoint."""


def exit_code(interruption: KeyboardInterrupt) -> int:
    """Return the exit code that shells use for a process ended by such a signal."""
    number = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + number


class SignalHandler:
    """Notes a signal during a loop, whose `check` raises it between two steps.

    Before the second check there is nothing to save, and a signal is raised where it arrives; so it
    is without `saves`, if no checkpoints are written. The first check also raises a signal that
    arrived earlier: Python drops exceptions raised during garbage collection, where JAX runs a
    callback. A second signal ends the process; or, if the `program` is not ours, is raised at once.
    """

    def __init__(self, saves: bool, program: bool):
        self._saves, self._program = saves, program
        self._noted: int | None = None
        self._checks = 0

    @property
    def signalled(self) -> bool:
        """Whether a signal has arrived; before, nothing that is raised comes from one."""
        return self._noted is not None

    def __call__(self, number: int, _: object) -> None:
        """Handle a signal."""
        if self.signalled and self._program:
            _exit_now(128 + number)
        defers = self._saves and self._checks >= 2 and not self.signalled
        self._noted = number
        if not defers:
            raise _interruption(number)
        try:
            print(WAIT, file=sys.stderr, flush=True)
        except RuntimeError:  # the signal arrived during a write to the same stream
            os.write(2, f"{WAIT}\n".encode())

    def check(self) -> None:
        """Raise a signal that has arrived; to be called before the loop and after its steps."""
        self._checks += 1
        if self._noted is not None:
            raise _interruption(self._noted) if self._program else Interrupted()


@contextlib.contextmanager
def interruptible(saves: bool = True, program: bool = True) -> Generator[Callable[[], None]]:
    """Handle signals around a loop; yield the check of a `SignalHandler`.

    A signal that the caller ignores (nohup, background jobs) stays ignored. If the `program` is not
    ours, only Ctrl-C is handled, and only if the program does not handle it.
    """
    handler = SignalHandler(saves, program)
    with _handling(handler, program):
        yield handler.check


@contextlib.contextmanager
def defer_signals() -> Generator[None]:
    """Raise signals that arrive meanwhile at the end."""
    noted: list[int] = []
    with _handling(lambda number, _: noted.append(number)):
        yield
    if noted:
        raise _interruption(noted[0])


@contextlib.contextmanager
def _handling(handler: Callable[[int, object], None], program: bool = True) -> Generator[None]:
    """Set a handler for signals and restore the old ones; only in the main thread."""
    old_handlers = {number: signal.getsignal(number) for number in SIGNALS}
    numbers = [n for n, old in old_handlers.items() if old is not signal.SIG_IGN]
    if not program:
        numbers = [n for n, old in old_handlers.items() if old is signal.default_int_handler]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            # None stands for a handler that was not set from Python.
            signal.signal(number, old or signal.SIG_DFL)


def _interruption(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def _exit_now(code: int) -> NoReturn:
    """End the process without cleaning up anything but the terminal."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the signal may have arrived in a write
            stream.flush()
    if os.isatty(1):
        os.write(1, SHOW_CURSOR)
    os._exit(code)
