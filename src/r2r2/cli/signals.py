"""Ctrl-C and SIGTERM: exit after a checkpoint, or at once if repeated."""

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


def exit_code(interruption: KeyboardInterrupt) -> int:
    """Return the exit code that shells use for a process ended by such a signal."""
    number = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + number


@contextlib.contextmanager
def interruptible(saves: bool = True) -> Generator[Callable[[], None]]:
    """Handle signals around a loop; yield a function to call before it and after steps.

    Before the second call there is nothing to save, and a signal is raised where it arrives. After
    it, a signal is only noted, and the next call raises it between two steps, where a checkpoint
    can be written. The first call also raises a signal that arrived earlier: Python drops
    exceptions raised during garbage collection, where JAX runs a callback. A signal that the caller
    ignores (nohup, background jobs) stays ignored.

    Without `saves`, no checkpoints are written and signals are always raised at once.
    """
    noted: int | None = None
    checks = 0

    def handle(number: int, _: object) -> None:
        nonlocal noted
        if noted is not None:
            _exit_now(128 + number)
        noted = number
        if checks < 2 or not saves:
            raise _interruption(number)
        try:
            print(WAIT, file=sys.stderr, flush=True)
        except RuntimeError:  # the signal arrived during a write to the same stream
            os.write(2, f"{WAIT}\n".encode())

    def check() -> None:
        nonlocal checks
        checks += 1
        if noted is not None:
            raise _interruption(noted)

    with _handling(handle):
        yield check


@contextlib.contextmanager
def defer_signals() -> Generator[None]:
    """Raise signals that arrive meanwhile at the end; only in the main thread."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handling(lambda number, _: noted.append(number)):
        yield
    if noted:
        raise _interruption(noted[0])


@contextlib.contextmanager
def _handling(handler: Callable[[int, object], None]) -> Generator[None]:
    """Set a handler for all signals that are not ignored, and restore the old ones."""
    active = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in active}
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
