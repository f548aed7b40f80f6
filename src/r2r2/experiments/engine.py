"""Engines: what starts the processes of a sweep's fleets, and where."""

from typing import NamedTuple, Protocol

from r2r2.experiments.plan import PlannedFleet

# Exit codes of a fleet's process; others are failures, too.
FINISHED, FAILED, INTERRUPTED = 0, 1, 130
TERMINATED = 143  # by SIGTERM: interrupted as well
LOCKED = 75  # another process is training the run


class FleetEnd(NamedTuple):
    """The end of a fleet's process."""

    fleet: str
    code: int  # exit code; negative: killed by that signal
    why: str = ""  # one line for the user, if it failed
    counts: bool = True  # as an attempt of the fleet; False: the machine was lost, for example


class Engine(Protocol):
    """Starts fleets and says when they have ended.

    The runner calls all methods from one thread.
    """

    def free_slots(self) -> int:
        """Return how many more fleets can start now; may grow when machines join."""
        ...

    def start(self, fleet: PlannedFleet, attempt: int) -> None:
        """Start or resume a fleet; `attempt` counts from 1."""
        ...

    def wait(self, seconds: float) -> list[FleetEnd]:
        """Return the fleets that have ended, after at most so many seconds."""
        ...

    def interrupt(self) -> None:
        """Ask all running fleets to write a checkpoint and end; `wait` returns their ends."""
        ...

    def close(self) -> None:
        """Free everything; running fleets are killed."""
        ...
