"""The main process's side of worker processes."""

import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle

from r2r2.config.refusal import Refusal
from r2r2.envs.members import Spec
from r2r2.envs.slots import Slots, memory_size
from r2r2.envs.waiting import HINT, wait_until
from r2r2.envs.worker import Post

PATIENCE = 5.0  # seconds a worker has to close its environments
# One thread each: the workers share the cores already.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Trouble(NamedTuple):
    """What became of a slot that was at work."""

    slot: int
    story: str  # a traceback, or how the process ended


class Memory:
    """Memory that worker processes map too, and that has no name to be left behind."""

    def __init__(self, count: int, spec: Spec):
        self.count, self.spec = count, spec
        size = memory_size(count, spec)
        self.file = _nameless_file()
        os.ftruncate(self.file, size)
        self.map = mmap.mmap(self.file, size)

    def close(self) -> None:
        """Gives the descriptor back; the map lives as long as arrays look at it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class Worker:
    """A process that steps some slots.

    A fresh interpreter, never a fork: JAX's threads do not survive one. Nothing of the
    caller's script is run again in it, and it may hold what no pickle can name, such
    as a class from a notebook.
    """

    def __init__(self, post: Post, rows: Slots, memory: Memory):
        self._number, self._looking, self._rows = post.number, post.looking, rows
        self._slots = list(post.recipes)
        told = _pickled(post)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "r2r2.envs.worker"]
        descriptors = theirs.fileno(), memory.file
        with theirs:
            self._process = subprocess.Popen(
                [*command, *map(str, (os.getpid(), *descriptors))],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env=_surroundings(),
                process_group=0,  # Ctrl-C is for the main process
            )
        self._pipe = Connection(ours.detach())
        self._send(told)

    def nudge(self) -> None:
        """Wakes it if it sleeps, to look at its orders; `finish` must follow."""
        if self._rows.asleep[self._number]:
            self._send(HINT)

    def _watch(self) -> None:
        """While it is waited for: a fork of an environment may hold its pipe open."""
        if self._process.poll() is not None and not self._told():
            raise EOFError
        self.nudge()

    def finish(self) -> Trouble | None:
        """Waits until they are carried out; says what went wrong, if something did."""
        number = self._number
        awaited = self._rows.awaited[number : number + 1]
        try:
            story = wait_until(
                self._told, self._looking, self._pipe, awaited, self._watch
            )
            while self._rows.done[number] < 0 and story in (b"", HINT):
                story = self._pipe.recv_bytes()
        except (EOFError, OSError):
            return Trouble(self._slot_at_work(), self._end())
        return Trouble(*json.loads(story)) if story else None

    def _slot_at_work(self) -> int:
        """The slot it died at: the one it was at, if that had an order."""
        busy, order = int(self._rows.busy[self._number]), self._rows.order
        ordered = [slot for slot in self._slots if order[slot]]
        return busy if busy in ordered else ordered[0]

    def _told(self) -> bool:
        rows, number = self._rows, self._number
        return bool(abs(rows.done[number]) == rows.asked[number])

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # `finish` says how it died
            self._pipe.send_bytes(message)

    def _end(self) -> str:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "its worker process closed its pipe"
        if code < 0:
            name = signal.Signals(-code).name
            return f"its worker process was ended by signal {name}"
        return f"its worker process left with exit code {code}"

    def close(self) -> None:
        """Ends the process: it leaves when the pipe closes, or else is killed."""
        self._pipe.close()

    def join(self, until: float) -> None:
        """Waits until a closed worker is gone, and after `until` ends it."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, until - time.monotonic()))
        finally:
            self._process.kill()
            self._process.wait()


def _pickled(post: Post) -> bytes:
    try:
        return bytes(cloudpickle.dumps(post))
    except Exception as error:
        task = next(iter(post.recipes.values())).task
        raise Refusal(
            f"env is {task!r}, which cannot be sent to a worker process"
            f" ({type(error).__name__}: {error}); workers 0 steps it in this one"
        ) from error


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("r2r2")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _surroundings() -> dict[str, str]:
    """This process's environment and import path, with single-threaded libraries."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": path}
