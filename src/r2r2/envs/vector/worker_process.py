"""The main process's side of worker processes."""

import contextlib
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import cloudpickle

from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.envs.vector.messages import NOTHING, Parcel, packed, unpacked
from r2r2.envs.vector.shared_arrays import IDLE, Slots, memory_size
from r2r2.envs.vector.spin_wait import HINT, SLEEP, heard, wait_until
from r2r2.envs.vector.worker_main import WorkerConfig

CLOSING = 5.0  # seconds a worker has to close its environments
STARTING = 300.0  # seconds a fresh one has until it takes its first order
NUDGES = 20  # hints for one slot, at most: so many fit into a pipe nobody reads
# One thread each: the workers share the cores already.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Lost(Exception):
    """A worker process died or hung; all its environments are lost."""

    def __init__(self, slot: int, story: str, slots: list[int]):
        super().__init__(slot, story)
        self.slot, self.story = slot, story  # the slot that it was at
        self.slots = slots  # all of its


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

    Args:
        post: what it is told.
        rows: of the whole pool.
        memory: under the rows.
        patience: seconds that it may be at one slot.
    """

    def __init__(
        self, post: WorkerConfig, rows: Slots, memory: Memory, patience: float
    ):
        self._number, self._looking, self._rows = post.number, post.looking, rows
        self.slots = list(post.factories)
        self._memory, self._patience = memory, patience
        self._told_first = _pickled(post)
        self._start()

    def _start(self) -> None:
        rows, number = self._rows, self._number
        rows.order[self.slots] = rows.asked[number] = rows.done[number] = 0
        rows.asleep[number] = rows.awaited[number] = False
        rows.busy[number] = self._seen_at = IDLE
        self._still = 0  # glances since it moved to another slot
        ours, theirs = socket.socketpair()
        # A process that is stopped neither reads nor writes: nothing takes for ever.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            limit = struct.pack("ll", int(STARTING), 0)
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        command = [sys.executable, "-m", "r2r2.envs.vector.worker_main"]
        descriptors = theirs.fileno(), self._memory.file
        with theirs:
            self._process = subprocess.Popen(
                [*command, *map(str, (os.getpid(), *descriptors))],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env=_surroundings(),
                process_group=0,  # Ctrl-C is for the main process
            )
        self._pipe = Connection(ours.detach())
        self._send(self._told_first)

    def ask(self) -> None:
        """Has it look at its orders; `finish` must follow."""
        self._still, self._seen_at = 0, IDLE
        self.nudge()

    def nudge(self) -> None:
        """Wakes it if it sleeps."""
        if self._rows.asleep[self._number]:
            self._send(HINT)

    def hand(self, parcel: Parcel) -> None:
        """Gives it what its next orders need."""
        self._send(packed(parcel))

    def glance(self) -> None:
        """Notes whether it moves on, every `SLEEP` seconds while some are waited for.

        Glances are counted, not seconds: a machine may halt both sides for hours.
        """
        at = int(self._rows.busy[self._number])
        self._still = self._still + 1 if at == self._seen_at else 0
        self._seen_at = at
        if self._still < NUDGES and not self._told():
            self.nudge()

    def finish(self, glance: Callable[[], None]) -> Parcel:
        """Waits until its orders are carried out; gives what went wrong, and states.

        Args:
            glance: looks at every worker that is waited for.

        Raises:
            Lost: It died or hung.
        """

        def watch() -> None:
            glance()
            self._check()

        number = self._number
        awaited = self._rows.awaited[number : number + 1]
        try:
            message = wait_until(self._told, self._looking, self._pipe, awaited, watch)
            if self._rows.done[number] > 0:
                return NOTHING
            return unpacked(heard(self._pipe, message))
        except TimeoutError as hung:
            raise self._loss(str(hung)) from None
        except (EOFError, OSError):
            raise self._loss(self._end()) from None

    def _check(self) -> None:
        """A fork of an environment may hold its pipe open: it may be gone unheard."""
        if self._told():
            return
        if self._process.poll() is not None:
            raise EOFError
        begun = self._seen_at != IDLE or self._rows.done[self._number]
        limit = self._patience if begun else max(STARTING, self._patience)
        if self._still * SLEEP > limit:
            said = "it took longer than" if begun else "its worker did not start within"
            raise TimeoutError(f"{said} {limit:g} seconds, and the process was ended")

    def _loss(self, story: str) -> Lost:
        """It is told of the slot it was at, if that had an order."""
        busy, order = int(self._rows.busy[self._number]), self._rows.order
        ordered = [slot for slot in self.slots if order[slot]]
        slot = busy if busy in ordered else next(iter(ordered), self.slots[0])
        return Lost(slot, story, self.slots)

    def _told(self) -> bool:
        rows, number = self._rows, self._number
        return bool(abs(rows.done[number]) == rows.asked[number])

    def _send(self, message: bytes) -> None:
        try:
            self._pipe.send_bytes(message)
        except BlockingIOError:
            self._kill()  # half a message is no message
        except ConnectionError:
            pass  # `finish` says how it died

    def _end(self) -> str:
        try:
            code = self._process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            return "its worker process closed its pipe"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            name = names.get(-code, str(-code))
            return f"its worker process was ended by signal {name}"
        return f"its worker process left with exit code {code}"

    def replace(self) -> None:
        """Ends the process, with what its environments started; another takes over."""
        self.close()
        self._kill()
        self._start()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

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


def _pickled(post: WorkerConfig) -> bytes:
    try:
        return bytes(cloudpickle.dumps(post))
    except Exception as error:
        task = next(iter(post.factories.values())).task
        raise UserError(
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
