"""Where the time of a run goes, and what bounds its speed.

The loop of the main process is measured part by part. Meanwhile workers step
environments, and on an accelerator updates run beside both; their own seconds are
measured where they are spent, so that the parts may sum to more than the run's time.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

# Parts of the main process's loop.
UPDATES = "updates"  # waiting for updates, or making them
ENVIRONMENTS = "environments"  # waiting for steps of environments, or making them
ACTING = "acting"  # in lockstep; other agents act in their workers
TRANSFER = "transfer"  # transitions for the device, policies for the workers
EVALUATION = "evaluation"  # its start, its records, diagnoses
LOGGING = "logging"
CHECKPOINTS = "checkpoints"
REST = "rest"  # the loop itself
PARTS = (UPDATES, ENVIRONMENTS, ACTING, TRANSFER, EVALUATION, LOGGING, CHECKPOINTS, REST)


class TimeAccount:
    """Measures the seconds of a loop by part; a part inside another counts for itself only.

    Example:
        >>> times = TimeAccount(clock=iter([0.0, 1.0, 4.0, 5.0]).__next__)
        >>> with times.part("updates"):
        ...     pass
        >>> seconds = times.seconds()
        >>> seconds["updates"], seconds["rest"]
        (3.0, 2.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._current = REST
        self._since = clock()

    def part(self, name: str) -> "_Part":
        """Return a context in which time counts for a part."""
        return _Part(self, name)

    def switch(self, name: str) -> str:
        """Count time for a part from now on; return the part before."""
        before, now = self._current, self._clock()
        self._seconds[before] += now - self._since
        self._current, self._since = name, now
        return before

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part so far."""
        self.switch(self._current)
        return dict(self._seconds)


class _Part:
    def __init__(self, account: TimeAccount, name: str):
        self._account, self._name = account, name

    def __enter__(self) -> Self:
        self._before = self._account.switch(self._name)
        return self

    def __exit__(self, *raised: object) -> None:
        self._account.switch(self._before)


class BusySeconds(NamedTuple):
    """Seconds of work outside the main process's loop."""

    updates: float  # in which updates ran
    compiling: float  # in which updates waited for their program
    acting: NDArray[np.float64]  # [slots], in their workers
    physics: NDArray[np.float64]  # [slots]
    workers: NDArray[np.float64]  # [workers], acting and physics of the busiest first


class TimeSummary(NamedTuple):
    """Where the time of a run, or of a part of it, went."""

    wall: float  # seconds
    updates: float
    compiling: float
    physics: float  # of training, mean of the members
    acting: float  # the same
    evaluation: float  # physics and acting, mean of the members
    transfer: float
    waiting: float  # of the main process, for environments
    bound: str  # what limits the speed

    def fields(self) -> dict[str, float | str]:
        """Return the summary as fields of an event."""
        return {
            name: value if isinstance(value, str) else round(value, 3)
            for name, value in self._asdict().items()
        }


def summarize(parts: Mapping[str, float], busy: BusySeconds, members: int) -> TimeSummary:
    """Return where the time went, from the parts of the loop and the work beside it."""
    wall = sum(parts.values())
    updates = max(busy.updates, parts[UPDATES] - busy.compiling)
    training = slice(0, members)
    own = wall - parts[UPDATES] - parts[ENVIRONMENTS]
    workers = float(busy.workers.max(initial=0))
    shares = {
        "updates": updates,
        "environments": max(workers, parts[ENVIRONMENTS] if not workers else 0.0),
        "compiling": busy.compiling,
        "the main process": own,
    }
    return TimeSummary(
        wall=wall,
        updates=updates,
        compiling=busy.compiling,
        physics=float(busy.physics[training].sum() / members),
        acting=float(busy.acting[training].sum() / members) + parts[ACTING],
        evaluation=float((busy.physics[members:].sum() + busy.acting[members:].sum()) / members)
        + parts[EVALUATION],
        transfer=parts[TRANSFER],
        waiting=parts[ENVIRONMENTS],
        bound=max(shares, key=lambda name: shares[name]),
    )


SHOWN = ("updates", "physics", "acting", "evaluation", "transfer", "compiling", "waiting")


def describe_event(event: Mapping[str, object]) -> str:
    """Return a `time` event as one line: shares of the run's time, and what bounds it.

    Example:
        >>> describe_event({"wall": 10.0, "updates": 6.0, "physics": 3.0, "bound": "updates"})
        'updates 60%, physics 30%; bound by updates'
    """
    seconds = {name: event.get(name) for name in ("wall", *SHOWN)}
    numbers = {name: x for name, x in seconds.items() if isinstance(x, int | float)}
    wall = max(numbers.get("wall", 0.0), 1e-9)
    shares = {name: numbers.get(name, 0.0) / wall for name in SHOWN}
    text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
    return f"{text}; bound by {event.get('bound', 'unknown')}"
