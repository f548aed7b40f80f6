"""The program of a worker: `python -m r2r2.envs.worker PARENT PIPE MEMORY`.

It carries out the orders of its slots and leaves when the pipe closes, so that it never
outlives the run, however that ended.
"""

import json
import mmap
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle

from r2r2.envs.failure import Raised
from r2r2.envs.members import Spec
from r2r2.envs.slots import Slots, memory_size, slots_over
from r2r2.envs.troupe import Recipe, Troupe
from r2r2.envs.waiting import HINT, wait_until

WATCH = 1.0  # seconds


class Post(NamedTuple):
    """What a worker is told when it starts."""

    number: int
    recipes: dict[int, Recipe]  # by slot
    slots: int  # of the whole pool
    spec: Spec
    looking: float  # seconds to look for orders before sleeping


def serve(pipe: Connection, memory_file: int) -> None:
    """Carries orders out until the pipe closes; what is raised goes into the pipe."""
    try:
        post: Post = cloudpickle.loads(pipe.recv_bytes())
    except EOFError:
        return
    memory = mmap.mmap(memory_file, memory_size(post.slots, post.spec))
    rows = slots_over(memory, post.slots, post.spec)
    troupe, number, seen = Troupe(post.recipes), post.number, 0
    asleep = rows.asleep[number : number + 1]

    def told() -> bool:
        return bool(rows.asked[number] != seen)

    try:
        while True:
            wait_until(told, post.looking, pipe, asleep, nudge=lambda: None)
            seen += 1
            story = _carry_out(troupe, list(post.recipes), rows, number)
            rows.done[number] = -seen if story else seen
            if story or rows.awaited[number]:
                pipe.send_bytes(story or HINT)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        troupe.close()


def _carry_out(troupe: Troupe, slots: list[int], rows: Slots, number: int) -> bytes:
    """Nothing, or the slot that raised with its traceback."""
    ordered = [slot for slot in slots if rows.order[slot]]
    try:
        troupe.run(ordered, rows, number)
    except Raised as raised:
        return json.dumps([raised.slot, raised.story]).encode()
    finally:
        rows.order[ordered] = 0
    return b""


def _leave_with(parent: int) -> None:
    """Ends the process when its parent is gone, though an environment may hang."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def main() -> None:
    """Starts from what the parent handed down: its id and two file descriptors."""
    # The parent closes the pipe when it is interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, pipe, memory_file = map(int, sys.argv[1:])
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    serve(Connection(pipe), memory_file)


if __name__ == "__main__":
    main()
