"""The program of a worker: `python -m r2r2.envs.vector.worker_main PARENT PIPE MEMORY`.

It carries out the orders of its slots and leaves when the pipe closes, so that it never
outlives the run, however that ended.
"""

import mmap
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle

from r2r2.envs.spec import Spec
from r2r2.envs.vector.local_envs import LOAD, LocalEnvs
from r2r2.envs.vector.messages import NOTHING, packed, unpacked
from r2r2.envs.vector.shared_arrays import IDLE, Slots, memory_size, slots_over
from r2r2.envs.vector.spin_wait import HINT, heard, wait_until
from r2r2.envs.vector.step_types import EnvFactory

WATCH = 1.0  # seconds


class WorkerConfig(NamedTuple):
    """What a worker is told when it starts."""

    number: int
    factories: dict[int, EnvFactory]  # by slot
    slots: int  # of the whole pool
    spec: Spec
    looking: float  # seconds to look for orders before sleeping


def serve(pipe: Connection, memory_file: int) -> None:
    """Carries orders out until the pipe closes; what failed is told through it."""
    try:
        post: WorkerConfig = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    memory = mmap.mmap(memory_file, memory_size(post.slots, post.spec))
    rows = slots_over(memory, post.slots, post.spec)
    troupe, number, seen = LocalEnvs(post.factories), post.number, 0
    slots, asleep = list(post.factories), rows.asleep[number : number + 1]

    def told() -> bool:
        return bool(rows.asked[number] != seen)

    try:
        while True:
            message = wait_until(told, post.looking, pipe, asleep, nudge=lambda: None)
            seen += 1
            orders = {slot: int(rows.order[slot]) for slot in slots if rows.order[slot]}
            if LOAD in orders.values():
                message = heard(pipe, message)
            told_back = _carry_out(troupe, orders, rows, number, message)
            rows.done[number] = -seen if told_back else seen
            if told_back or rows.awaited[number]:
                pipe.send_bytes(told_back or HINT)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        troupe.close()


def _carry_out(
    troupe: LocalEnvs, orders: dict[int, int], rows: Slots, number: int, message: bytes
) -> bytes:
    """Nothing, or a parcel of failures and states; `message` is one of states."""
    states = unpacked(message).states if message else {}
    parcel = troupe.run(orders, rows, number, states)
    told = b"" if parcel is NOTHING else packed(parcel)
    rows.order[list(orders)] = 0
    rows.busy[number] = IDLE
    return told


def _leave_with(parent: int) -> None:
    """Ends the process when its parent is gone, though an environment may hang."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def main() -> None:
    """Starts from what the parent handed down: its id and two file descriptors."""
    # The parent closes the pipe when it leaves; before, it may want a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent, pipe, memory_file = map(int, sys.argv[1:])
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    serve(Connection(pipe), memory_file)


if __name__ == "__main__":
    main()
