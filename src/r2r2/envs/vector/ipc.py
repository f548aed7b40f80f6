"""Communication between the main process and its workers.

Commands, actions and observations are rows of arrays in shared memory, so that nothing
is pickled or sent in a normal step. Each worker also has a pipe. It carries bytes that
wake a sleeping process, rare messages (errors and states of environments), and it
closes when the other side is gone.

A process waits for the other by polling the shared memory for a short time, and then
sleeps at the pipe. Polling occupies a core but reacts within microseconds; waking up
takes up to a hundred, on a virtual machine twice as long. Each step of a fleet waits twice.
How long to poll depends on the cores and on what is waited for (`default_spin`): a worker in
lockstep with an accelerator gets its next command when the device is done, after milliseconds.

A process must see the other's data once it sees the counter that announces them. x86 shows
the writes of a process in their order, so plain reads of the counter suffice there. Other
processors (ARM) may show the counter first. There (`BY_PIPE`) every request and every reply
ends with a byte through the pipe, and the waiting process reads shared memory only after
it has received that byte: the kernel passes it on under a lock, so that everything written
before it was sent is visible after it is received.
"""

import io
import json
import math
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.spec import Spec
from r2r2.envs.vector.step_types import SavedState

NO_COMMAND, RESET, STEP, SAVE, LOAD, TRY, PLAY, REPORT = range(8)
IDLE = -1  # instead of the slot that a worker works on

SPIN_SECONDS = 2e-3
# The same if the next command comes after a call of the device. Few calls take longer, and to
# those a wake-up adds little. It also bounds how long the workers of a paused run occupy cores.
DEVICE_SPIN_SECONDS = 2e-2
MAIN_CORES = 2  # left by workers that poll: one for the main process, which polls too, one spare
DEVICE_CORES = 4  # the same beside a device, whose runtime has threads of its own
BY_PIPE = -1.0  # instead of seconds to poll: announce everything through the pipe
POLL_INTERVAL = 0.05  # seconds; a wake-up is missed if both sides check at once
WAKE = b"!"
HEADER = "header"  # names of state arrays all contain a slash


class SharedArrays(NamedTuple):
    """Arrays in shared memory, with a row for each of N slots."""

    action: NDArray[np.float64]  # [N, action], in [-1, 1]
    seed: NDArray[np.int64]  # [N], of the episode to start if the current one ends
    next_obs: NDArray[np.float64]  # [N, obs], as in StepResult
    obs: NDArray[np.float64]  # [N, obs], as in StepResult
    reward: NDArray[np.float64]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    command: NDArray[np.uint8]  # [N]
    # One entry per worker, at the beginning of [N]:
    current_slot: NDArray[np.int64]  # which slot is to blame if the worker is lost
    requested: NDArray[np.int64]  # number of requests to the worker
    completed: NDArray[np.int64]  # number of the last one done; < 0: a message follows
    worker_sleeps: NDArray[np.bool_]  # the worker waits at the pipe
    main_sleeps: NDArray[np.bool_]  # the main process waits at the pipe
    # To poll before sleeping, or BY_PIPE; the main process polls for SPIN_SECONDS at most.
    spin_seconds: NDArray[np.float64]


DTYPES: dict[str, type] = {
    **dict.fromkeys(("action", "next_obs", "obs", "reward", "spin_seconds"), np.float64),
    **dict.fromkeys(("seed", "current_slot", "requested", "completed"), np.int64),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
    **dict.fromkeys(("worker_sleeps", "main_sleeps"), np.bool_),
    "command": np.uint8,
}


def _layout(count: int, spec: Spec) -> tuple[dict[str, tuple[tuple[int, ...], int]], int]:
    """Return the shape and offset of each array for `count` slots, and the total size.

    Each array begins at a cache line, so that processes do not share one.
    """
    obs, action = (spec.obs_dim,), (spec.action_dim,)
    rows = {"action": action, "next_obs": obs, "obs": obs}
    layout, end = {}, 0
    for name, dtype in DTYPES.items():
        shape = (count, *rows.get(name, ()))
        layout[name] = shape, end
        end += math.ceil(math.prod(shape) * np.dtype(dtype).itemsize / 64) * 64
    return layout, end


def map_arrays(file: int, count: int, spec: Spec) -> SharedArrays:
    """Map the memory behind a file descriptor; it is freed with the arrays."""
    layout, size = _layout(count, spec)
    memory = mmap.mmap(file, size)
    arrays: dict[str, Any] = {
        name: np.ndarray(shape, DTYPES[name], memory, offset)
        for name, (shape, offset) in layout.items()
    }
    return SharedArrays(**arrays)


def create_memory(count: int, spec: Spec) -> int:
    """Return the descriptor of new shared memory."""
    file = create_file()
    os.ftruncate(file, _layout(count, spec)[1])
    return file


def create_file() -> int:
    """Return the descriptor of a new file without a name in the file system."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("r2r2")
    with tempfile.TemporaryFile() as temporary:
        return os.dup(temporary.fileno())


class Message(NamedTuple):
    """Errors and states of environments, by slot."""

    errors: Mapping[int, str] = {}
    states: Mapping[int, SavedState] = {}


EMPTY = Message()


def encode(message: Message) -> bytes:
    """Encode a message without pickle."""
    header = json.dumps([list(message.errors.items()), list(message.states)])
    arrays = {HEADER: np.frombuffer(header.encode(), np.uint8)}
    for slot, state in message.states.items():
        arrays |= {f"{slot}/{name}": array for name, array in state.items()}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode(content: bytes) -> Message:
    """Decode a message."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        errors, slots = json.loads(arrays[HEADER].tobytes())
        states: dict[int, SavedState] = {slot: {} for slot in slots}
        for key in arrays.files:
            slot, slash, name = key.partition("/")
            if slash:
                states[int(slot)][name] = arrays[key]
    return Message(dict(errors), states)


def default_spin(workers: int, cores: int, beside_device: bool = False) -> float:
    """Return the seconds for which `workers` poll before sleeping; 0 unless there are enough cores.

    It is longer if they wait for calls of a device that leave the cores free. On a processor that
    may show writes in another order, it is `BY_PIPE`.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return BY_PIPE
    if beside_device and workers + DEVICE_CORES <= cores:
        return DEVICE_SPIN_SECONDS
    return SPIN_SECONDS if workers + MAIN_CORES <= cores else 0.0


def wait_until(
    is_done: Callable[[], bool],
    spin_seconds: float,
    pipe: Connection,
    sleeps: NDArray[np.bool_],
    on_poll: Callable[[], None] = lambda: None,
) -> bytes:
    """Wait until `is_done` and return the message that arrived meanwhile, if any.

    It polls for `spin_seconds`, yielding its core to any process that waits for one, and then
    sleeps at the pipe, where the other side sends `WAKE` while `sleeps`, a flag in shared memory,
    is set. `on_poll` is called after every `POLL_INTERVAL` without a wake-up. EOFError means that
    the other side is gone.

    With `BY_PIPE` the other side always sends one `WAKE`, last. `is_done` is not asked
    before it is received, since nothing orders earlier reads of shared memory.
    """
    deadline = time.perf_counter() + spin_seconds
    while time.perf_counter() < deadline:
        if is_done():
            return b""
        os.sched_yield()
    message, announced = b"", spin_seconds != BY_PIPE
    sleeps[:] = True
    while not (announced and is_done()):
        if not pipe.poll(POLL_INTERVAL):
            on_poll()
        elif (received := pipe.recv_bytes()) == WAKE:
            announced = True
        else:
            message = received
    sleeps[:] = False
    return message


def recv_message(pipe: Connection, message: bytes) -> Message:
    """Return the expected message, `message` itself if `wait_until` received it."""
    while message in (b"", WAKE):
        message = pipe.recv_bytes()
    return decode(message)
