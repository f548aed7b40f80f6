"""The live view of training: how far, how well, how fast, and in how much memory."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from r2r2.training import loop as train


class Pace:
    """When a run will be done, from the speed of steps that were trained on.

    Warm-up makes no updates and is many times faster, and the first updates wait for
    the compiler: neither says anything about the rest, so until steps have been
    followed by updates there is no estimate.

    Args:
        steps: decision steps of the whole run.
        made: updates made before, in a run that is continued.
    """

    def __init__(self, steps: int, made: float = 0.0):
        self._steps, self._made = steps, made
        self._start: tuple[float, float] | None = None

    def remaining(self, decisions: float, updates: float, now: float) -> float | None:
        """Seconds still to go, or None while nothing can be said."""
        if self._start is None and updates > self._made:
            self._start = (decisions, now)
        if self._start is None or decisions <= self._start[0]:
            return None
        rate = (now - self._start[1]) / (decisions - self._start[0])
        return rate * (self._steps - decisions)


class Mark(NamedTuple):
    """How far the whole fleet was at a time."""

    now: float
    decisions: float
    updates: float

    def speed_since(self, before: "Mark") -> str:
        """Steps and updates per second of the whole fleet, if a second has passed."""
        seconds = self.now - before.now
        if seconds < 1:
            return "-"
        steps = (self.decisions - before.decisions) / seconds
        updates = (self.updates - before.updates) / seconds
        return f"{_rate(steps)} steps/s, {_rate(updates)} updates/s"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


PROC = Path("/proc")


def resident(proc: Path = PROC) -> int | None:
    """Resident bytes of this process and all below it; None where Linux is not there.

    Pages that processes share count for each of them.
    """
    found = [_pages(proc, pid) for pid in (os.getpid(), *_below(proc, os.getpid()))]
    return sum(found) * os.sysconf("SC_PAGE_SIZE") or None


def on_device() -> int | None:
    """Bytes in use on the accelerator that trains; None on a CPU."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use")


def _below(proc: Path, pid: int) -> Iterator[int]:
    """Children, and theirs: a fork server stands between a pool and its workers."""
    for thread in (proc / str(pid) / "task").glob("*"):
        for child in map(int, _words(thread / "children")):
            yield child
            yield from _below(proc, child)


def _pages(proc: Path, pid: int) -> int:
    _, pages, *_ = (*_words(proc / str(pid) / "statm"), "0", "0")
    return int(pages)


def _words(path: Path) -> list[str]:
    """A file of numbers; none of a process that has ended meanwhile."""
    try:
        return path.read_text().split()
    except OSError:
        return []


REDRAW = 0.2  # seconds between redraws, at least
WINDOW = 30.0  # seconds over which speed is measured: bursts and steps alternate
WEIGH = 2.0  # seconds between measurements of memory
LINE = 60.0  # seconds between lines where there is no terminal to redraw
OVER = ("done", "stopped")  # the stages in which the whole run is summed up


class Bar:
    """Shows a run as it goes; use it as a context and as the run's watcher.

    Nothing is shown before the first call: a run that is refused has no bar. Where the
    output is no terminal there are plain lines, one a minute and one per evaluation.

    Args:
        steps: decision steps of every member.
        tasks: the members' tasks, whose returns are not to be mixed.
        console: where to show it.
        opening: what to say first.
    """

    def __init__(
        self, steps: int, tasks: Sequence[str], console: Console, opening: str = ""
    ):
        self._console, self._steps, self._opening = console, steps, opening
        self._tasks = np.array(tasks)
        self._live = Live(console=console, auto_refresh=False)
        self._pace = Pace(steps)
        self._marks: deque[Mark] = deque()  # the oldest is where the window begins
        self._first: Mark | None = None
        self._calls = 0
        self._latest: train.Progress | None = None
        self._shown = self._weighed = -np.inf
        self._held: list[str] = []  # said before the opening, to be shown below it
        self._stage, self._at, self._when, self._memory = "warm-up", 0, "ETA -", ""
        self._point, self._returns = 0, np.full(len(tasks), np.nan)

    def __call__(self, progress: train.Progress) -> None:
        """Takes in one turn of the loop; redraws a few times a second at most."""
        now = time.monotonic()
        self._latest, self._calls = progress, self._calls + 1
        if self._calls == 1:
            self._begin(now, progress)
            self._open(now)
        elif self._calls == 2 and progress.decisions.max() > 1:
            self._begin(now, progress)  # it goes on from a checkpoint
            self._point, self._returns = progress.point, progress.returns
        if progress.point != self._point:
            self._point, self._returns = progress.point, progress.returns
            self._say_point()
        if now - self._shown < (REDRAW if self._console.is_terminal else LINE):
            return
        self._shown = now
        self._take(_mark(now, progress), progress)
        self._weigh(now)
        self._draw()

    def _begin(self, now: float, progress: train.Progress) -> None:
        """Speed is measured from here on."""
        self._first = _mark(now, progress)
        self._marks = deque([self._first])
        self._pace = Pace(self._steps, float(progress.updates.min()))

    def _open(self, now: float) -> None:
        shown = self._console.is_terminal
        self._console.print(self._opening, soft_wrap=not shown)
        self._release()
        if shown:
            self._live.start()
        else:
            self._shown = now  # at the start a line would say nothing

    def _take(self, mark: Mark, progress: train.Progress) -> None:
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].now <= mark.now - WINDOW:
            self._marks.popleft()
        # Nobody waits for members that were stopped, unless there are no others.
        going = ~progress.stopped | progress.stopped.all()
        decisions = float(progress.decisions[going].mean())
        self._stage = "training" if progress.warm[going].all() else "warm-up"
        self._at = int(decisions)
        updates = float(progress.updates[going].min())
        left = self._pace.remaining(decisions, updates, mark.now)
        self._when = "ETA -" if left is None else f"ETA {clock(left)}"

    def _draw(self) -> None:
        if self._console.is_terminal:
            self._live.update(self._view(), refresh=True)
        else:
            self.say(f"  {self._stage} {self._far()}, {self._speed()}")

    def _weigh(self, now: float) -> None:
        if now - self._weighed < WEIGH:
            return
        self._weighed = now
        found = {"memory": resident(), "device": on_device()}
        parts = [f"{name} {_size(x)}" for name, x in found.items() if x is not None]
        self._memory = ", ".join(["", *parts])

    def _view(self) -> Group:
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(width=8)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(self._stage, ProgressBar(self._steps, self._at), self._far())
        which = "average" if self._stage in OVER else "speed"
        lines = [*self._spreads(), *self._warnings(), f"{which:8} {self._speed()}"]
        cut = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(bar, *cut)

    def _far(self) -> str:
        share = 100 * self._at // self._steps
        return f"{self._at:,}/{self._steps:,} {share}% {self._when}"

    def _speed(self) -> str:
        """Speed over the window, which is the whole run at its end, and memory."""
        return self._marks[-1].speed_since(self._marks[0]) + self._memory

    def _spreads(self) -> Iterator[str]:
        """A line of returns for every task, once there are some."""
        if not self._point or self._stage in OVER:
            return
        when = f" at step {self._point:,}"
        names = dict.fromkeys(self._tasks)
        if len(names) == 1:
            yield f"return   {spread(self._returns)}{when}"
            return
        yield f"return  {when}"
        width = max(map(len, names))
        for name in names:
            own = spread(self._returns[self._tasks == name])
            yield f"  {name:{width}} {own}"

    def _warnings(self) -> Iterator[str]:
        """A line that stays for as long as a representation is collapsed."""
        many = len(self._latest.collapsed) if self._latest else 0
        if many:
            yield f"warning  collapsed representations: {many} of {len(self._tasks)}"

    def _say_point(self) -> None:
        names = list(dict.fromkeys(self._tasks))
        for name in names:
            own = spread(self._returns[self._tasks == name])
            whose = f"{name}: " if len(names) > 1 else ""
            self.say(f"  decision step {self._point:>9,}  {whose}return {own}")

    def say(self, line: str) -> None:
        """Shows a line above the bar and below the opening, for which it waits."""
        if self._first is None:
            self._held.append(line)
        else:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _release(self) -> None:
        for line in self._held:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._first is None or self._latest is None:
            self._release()
            return
        if error is None:
            now = time.monotonic()
            self._take(_mark(now, self._latest), self._latest)
            self._marks = deque([self._first, self._marks[-1]])
            if self._latest.stopped.all():
                self._stage = "stopped"
            else:
                self._stage, self._at = "done", self._steps
            self._when = f"in {clock(now - self._first.now)}"
            self._draw()
        self._live.stop()


def _mark(now: float, progress: train.Progress) -> Mark:
    return Mark(now, float(progress.decisions.sum()), float(progress.updates.sum()))


def spread(returns: NDArray[np.float64]) -> str:
    """The mean return, with the lowest and highest where there are several.

    Example:
        >>> spread(np.array([100.0, 300.0]))
        '200.0 (100.0 to 300.0 over 2)'
    """
    known = returns[~np.isnan(returns)]
    if not len(known):
        return "-"
    if len(known) == 1:
        return f"{known[0]:.1f}"
    return (
        f"{known.mean():.1f} ({known.min():.1f} to {known.max():.1f} over {len(known)})"
    )


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> clock(3661.4), clock(75)
        ('1:01:01', '1:15')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
