"""The program of a worker process: `python -m r2r2.envs.worker PIPE MEMORY`.

It steps its environments when told to and leaves when the pipe closes, so that it never
outlives the run, however that ended.
"""

import json
import mmap
import signal
import sys
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np

from r2r2.envs.failure import Raised
from r2r2.envs.slots import Slots, memory_size, slots_over
from r2r2.envs.troupe import Troupe


def serve(pipe: Connection, memory_file: int) -> None:
    """Answers every order: nothing if it was carried out, else what was raised."""
    worker, recipes, count, spec = cloudpickle.loads(pipe.recv_bytes())
    memory = mmap.mmap(memory_file, memory_size(count, spec))
    rows = slots_over(memory, count, spec)
    troupe = Troupe(recipes)
    try:
        while True:
            order = pipe.recv_bytes()
            pipe.send_bytes(_answer(troupe, order, rows, worker))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        troupe.close()


def _answer(troupe: Troupe, order: bytes, rows: Slots, worker: int) -> bytes:
    slots = np.frombuffer(order, np.uint32, offset=4).tolist()
    try:
        troupe.run(order[:1], slots, rows, worker)
    except Raised as raised:
        return json.dumps([raised.slot, raised.story]).encode()
    return b""


def main() -> None:
    """Starts from the two file descriptors that the parent handed down."""
    # The parent closes the pipe when it is interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe, memory_file = map(int, sys.argv[1:])
    serve(Connection(pipe), memory_file)


if __name__ == "__main__":
    main()
