"""Waiting for another process to write a number: looking for a while, then asleep.

To look again and again costs a core and answers within microseconds; to sleep at a pipe
costs nothing, but waking takes up to a hundred. A step of a fleet has two such waits.
"""

import platform
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

LOOK = 2e-3  # seconds
SLEEP = 0.05  # seconds: a hint is missed where two processes look past each other
HINT = b"!"


def spin_seconds(workers: int, cores: int) -> float:
    """Seconds to look before sleeping: none unless everybody has a core for it.

    Nor on machines that may show one process's writes to another out of order, as
    x86 does not.

    Example:
        >>> spin_seconds(workers=2, cores=2)
        0.0
    """
    ordered = platform.machine().lower() in ("x86_64", "amd64")
    return LOOK if ordered and workers + 2 <= cores else 0.0


def wait_until(
    told: Callable[[], bool],
    looking: float,
    pipe: Connection,
    asleep: NDArray[np.bool_],
    nudge: Callable[[], None],
) -> bytes:
    """Returns when `told` does, with what else than hints came through the pipe.

    Args:
        told: whether the other side has written what is waited for.
        looking: seconds to look before sleeping.
        pipe: where the other side sends a hint while `asleep` is set.
        asleep: that flag, [1].
        nudge: called after every sleep that brought no hint.

    Raises:
        EOFError: The other side is gone.
    """
    until = time.perf_counter() + looking
    while time.perf_counter() < until:
        if told():
            return b""
    message = b""
    asleep[:] = True
    while not told():
        if not pipe.poll(SLEEP):
            nudge()
        elif (heard := pipe.recv_bytes()) != HINT:
            message = heard
    asleep[:] = False
    return message


def heard(pipe: Connection, message: bytes) -> bytes:
    """A message that is known to come, unless `wait_until` has met it already."""
    while message in (b"", HINT):
        message = pipe.recv_bytes()
    return message
