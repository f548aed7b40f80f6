"""The main process's handle of a worker process."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection

import cloudpickle

from r2r2.config.errors import UserError
from r2r2.envs.vector import ipc
from r2r2.envs.vector.trial import locate
from r2r2.envs.vector.worker_main import WorkerConfig

CLOSE_SECONDS = 5.0  # for a worker to close its environments
DUMP_SECONDS = 0.2  # for a worker that hangs to write its stack
START_SECONDS = 300.0  # for a new worker to begin its first command
MAX_WAKES = 20  # per slot; they must fit into a pipe that nobody reads
# One thread each, because the workers already share the cores.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NotPicklable(UserError):
    """A builder cannot be sent to a worker process."""


class WorkerLost(Exception):
    """A worker died or hung at `slot`; the environments of all `slots` are lost."""

    def __init__(self, slot: int, detail: str, slots: list[int]):
        super().__init__(slot, detail)
        self.slot, self.detail, self.slots = slot, detail, slots


class WorkerProcess:
    """A process that steps some slots.

    It is a new interpreter, not a fork, since JAX's threads do not survive a fork. The
    caller's script is not imported in it. Builders are sent with cloudpickle, which
    supports classes that are defined in a script or a notebook.

    `arrays` are those of the whole pool, and `files` the descriptors of their memory and
    of the streams' memory. The worker may work on one slot for `timeout` seconds without
    finishing a step; `rows_made` counts the steps of slots that play.
    """

    def __init__(
        self,
        config: WorkerConfig,
        arrays: ipc.SharedArrays,
        files: tuple[int, int],
        timeout: float,
        rows_made: Callable[[], int] = lambda: 0,
    ):
        self._number = config.number
        self._by_pipe = bool(arrays.spin_seconds[config.number] == ipc.BY_PIPE)
        self.slots = list(config.factories)
        self._tasks = ", ".join(dict.fromkeys(repr(x.task) for x in config.factories.values()))
        self._arrays, self._files, self._timeout = arrays, files, timeout
        self._rows_made, self._awaited = rows_made, self._is_done
        self._first_message = _pickle(config)
        self._start()

    def _start(self) -> None:
        arrays, number = self._arrays, self._number
        arrays.command[self.slots] = ipc.NO_COMMAND
        arrays.requested[number] = arrays.completed[number] = 0
        arrays.worker_sleeps[number] = arrays.main_sleeps[number] = False
        arrays.current_slot[number] = ipc.IDLE
        self._last_progress = ipc.IDLE, 0
        self._stalled_polls = 0  # since the worker's last progress
        ours, theirs = socket.socketpair()
        # A stopped process neither reads nor writes, so no operation may block forever.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(START_SECONDS), 0))
        command = [sys.executable, "-m", "r2r2.envs.vector.worker_main"]
        self._log = ipc.create_file()
        descriptors = theirs.fileno(), *self._files, self._log
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [*command, *map(str, (os.getpid(), *descriptors))],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": path},
                process_group=0,  # Ctrl-C goes to the main process only
            )
        self._pipe = Connection(ours.detach())
        self.send(self._first_message)

    @property
    def pid(self) -> int:
        """The id of the current process; it changes with `restart`."""
        return self._process.pid

    def begin(self) -> None:
        """Have the worker run its commands; `finish` must follow."""
        self._stalled_polls, self._awaited = 0, self._is_done
        self.wake()

    def wake(self) -> None:
        """Wake the worker if it sleeps."""
        if self._by_pipe or self._arrays.worker_sleeps[self._number]:
            self.send(ipc.WAKE)

    def poll(self) -> None:
        """Check for progress, in polls and not seconds: the machine may be suspended."""
        progress = int(self._arrays.current_slot[self._number]), self._rows_made()
        stalled = progress == self._last_progress
        self._stalled_polls = self._stalled_polls + 1 if stalled else 0
        self._last_progress = progress
        if not self._by_pipe and self._stalled_polls < MAX_WAKES and not self._awaited():
            self.wake()

    def finish(self, poll_all: Callable[[], None]) -> ipc.Message:
        """Return errors and states after all commands; `poll_all` polls all awaited workers."""
        with self._raising_lost():
            received = self._wait(poll_all)
            self._stalled_polls = 0
            if self._arrays.completed[self._number] > 0:
                return ipc.EMPTY
            return ipc.recv_message(self._pipe, received)

    def expect(self, is_done: Callable[[], bool]) -> None:
        """Expect something of a worker that plays; `wait` must follow."""
        self._awaited, self._stalled_polls = is_done, 0

    def wait(self, poll_all: Callable[[], None]) -> ipc.Message:
        """Wait for what is expected; there is no message."""
        with self._raising_lost():
            self._wait(poll_all)
        return ipc.EMPTY

    def check(self, is_done: Callable[[], bool]) -> None:
        """Poll a worker that plays and is not waited for; raise if it is lost."""
        self._awaited = is_done
        with self._raising_lost():
            self.poll()
            self._check_alive()

    def _wait(self, poll_all: Callable[[], None]) -> bytes:
        def on_poll() -> None:
            poll_all()
            self._check_alive()

        # No longer: up to Python 3.11, other threads have to wait meanwhile.
        seconds = min(float(self._arrays.spin_seconds[self._number]), ipc.SPIN_SECONDS)
        sleeps = self._arrays.main_sleeps[self._number : self._number + 1]
        return ipc.wait_until(self._awaited, seconds, self._pipe, sleeps, on_poll)

    @contextlib.contextmanager
    def _raising_lost(self) -> Generator[None]:
        try:
            yield
        except TimeoutError as error:
            self._dump_stack()
            raise self._lost(str(error)) from None
        except (EOFError, OSError):
            raise self._lost(self._exit_reason()) from None

    def _check_alive(self) -> None:
        """Raise if the process hangs, or is dead while a child keeps its pipe open."""
        if self._awaited():
            return
        if self._process.poll() is not None:
            raise EOFError
        started = self._last_progress[0] != ipc.IDLE or self._arrays.completed[self._number]
        limit = self._timeout if started else max(START_SECONDS, self._timeout)
        if self._stalled_polls * ipc.POLL_INTERVAL > limit:
            problem = "no response" if started else "worker process did not start"
            raise TimeoutError(f"{problem} within {limit:g} seconds; process killed")

    def _lost(self, detail: str) -> WorkerLost:
        """Return the error; the slot that the worker works on is to blame."""
        current = int(self._arrays.current_slot[self._number])
        active = [slot for slot in self.slots if self._arrays.command[slot]]
        slot = current if current in self.slots else next(iter(active), self.slots[0])
        call, place = self._last_call()
        return WorkerLost(slot, f"{call}{detail}{place}", self.slots)

    def _dump_stack(self) -> None:
        """Have a worker that hangs write its stack to the log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        time.sleep(DUMP_SECONDS)

    def _last_call(self) -> tuple[str, str]:
        """Return what the log says: the method under trial, and the place in the user's code."""
        log = os.pread(self._log, 2**20, 0).decode(errors="replace")
        calls = re.findall(r"^(\w+)$", log, re.MULTILINE)
        stack = log.rpartition("(most recent call first)")[2]
        frames = re.findall(r'^  File "(.+)", line (\d+) in', stack, re.MULTILINE)
        return f"{calls[-1]}: " if calls else "", locate(reversed(frames))

    def _is_done(self) -> bool:
        done = abs(self._arrays.completed[self._number])
        return bool(done == self._arrays.requested[self._number])

    def send(self, content: bytes) -> None:
        """Send bytes to the worker, such as the message that its commands need."""
        try:
            self._pipe.send_bytes(content)
        except BlockingIOError:
            self._kill()  # a partial message cannot be continued
        except ConnectionError:
            pass  # `finish` reports the reason

    def _exit_reason(self) -> str:
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "worker process closed its pipe"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"worker process killed by signal {names.get(-code, str(-code))}"
        return f"worker process exited with code {code}"

    def restart(self) -> None:
        """Kill the process and its children, and start another one."""
        self.close()
        self._kill()
        os.close(self._log)
        self._start()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Close the pipe, which makes the process exit."""
        self._pipe.close()

    def join(self, deadline: float) -> None:
        """Wait until a closed worker has exited, and kill it after the deadline."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if self._arrays.completed[self._number]:  # otherwise it has just been started
                self._dump_stack()
                problem = f"not closed within {CLOSE_SECONDS:g} seconds; process killed"
                warnings.warn(f"env {self._tasks}: {problem}{self._last_call()[1]}", stacklevel=2)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._log)


def _pickle(config: WorkerConfig) -> bytes:
    try:
        return bytes(cloudpickle.dumps(config))
    except Exception as error:
        task = next(iter(config.factories.values())).task
        raise NotPicklable(
            f"env {task!r}: cannot be sent to a worker process"
            f" ({type(error).__name__}: {error}); workers=0 runs it in the main process"
        ) from error
