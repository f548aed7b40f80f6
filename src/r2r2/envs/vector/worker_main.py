"""Worker program: `python -m r2r2.envs.vector.worker_main PARENT PIPE MEMORY`.

It runs the commands of its slots and exits when the pipe closes, so that it never
outlives the run.
"""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle

from r2r2.envs.spec import Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.local_envs import LocalEnvs
from r2r2.envs.vector.step_types import EnvFactory

PARENT_CHECK_SECONDS = 1.0


class WorkerConfig(NamedTuple):
    """The first message to a worker."""

    number: int
    factories: dict[int, EnvFactory]  # by slot
    slots: int  # of the whole pool
    spec: Spec
    spin_seconds: float  # time to poll for commands before sleeping


def serve(pipe: Connection, memory_file: int) -> None:
    """Run commands until the pipe closes."""
    try:
        config: WorkerConfig = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    arrays = ipc.map_arrays(memory_file, config.slots, config.spec)
    envs, number, seen = LocalEnvs(config.factories), config.number, 0
    slots, pending = list(config.factories), arrays.command
    sleeps = arrays.worker_sleeps[number : number + 1]

    def is_done() -> bool:
        return bool(arrays.requested[number] != seen)

    try:
        while True:
            received = ipc.wait_until(is_done, config.spin_seconds, pipe, sleeps)
            seen += 1
            commands = {slot: int(pending[slot]) for slot in slots if pending[slot]}
            loads = ipc.LOAD in commands.values()
            states = ipc.recv_message(pipe, received).states if loads else {}
            message = envs.run(commands, arrays, number, states)
            reply = b"" if message is ipc.EMPTY else ipc.encode(message)
            pending[list(commands)] = ipc.NO_COMMAND
            arrays.current_slot[number] = ipc.IDLE
            arrays.completed[number] = -seen if reply else seen
            if reply or arrays.main_sleeps[number]:
                pipe.send_bytes(reply or ipc.WAKE)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        envs.close()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent is gone, even if an environment hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def main() -> None:
    """Start with the parent's process id and two inherited file descriptors."""
    # The parent handles these signals; it may still need the states for a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent, pipe, memory_file = map(int, sys.argv[1:])
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    serve(Connection(pipe), memory_file)


if __name__ == "__main__":
    main()
