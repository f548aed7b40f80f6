"""Progress of a training run: the live display, speed, time left and memory."""

import importlib
import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from r2r2.compute.devices import training_device
from r2r2.training.loop import Progress

REDRAW_SECONDS = 0.2
SPEED_SECONDS = 30.0  # long, because bursts of updates and steps alternate
MEMORY_SECONDS = 2.0  # between measurements
LOG_SECONDS = 60.0  # between lines if the output is not a terminal


class EtaEstimator:
    """Estimates the time left of a run from the speed of its training steps.

    Warm-up makes no updates and is much faster, and the first updates wait for the
    compiler, so there is no estimate before steps have followed the first updates.
    `earlier_updates` were made before a resume.
    """

    def __init__(self, steps: int, earlier_updates: float = 0.0):
        self._steps, self._earlier_updates = steps, earlier_updates
        self._start: tuple[float, float] | None = None

    def remaining(self, decisions: float, updates: float, now: float) -> float | None:
        """Return the seconds left, or None if there is no estimate yet."""
        if self._start is None and updates > self._earlier_updates:
            self._start = (decisions, now)
        if self._start is None or decisions <= self._start[0]:
            return None
        rate = (now - self._start[1]) / (decisions - self._start[0])
        return rate * (self._steps - decisions)


class Sample(NamedTuple):
    """The steps and updates of the whole fleet at one time."""

    seconds: float
    decisions: float
    updates: float


class SpeedWindow:
    """The speed of a fleet over the last `seconds`."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.samples: deque[Sample] = deque()  # the first is at the window's start

    def add(self, sample: Sample) -> None:
        """Add the latest sample and drop those before the window."""
        self.samples.append(sample)
        start = sample.seconds - self._seconds
        while len(self.samples) > 2 and self.samples[1].seconds <= start:
            self.samples.popleft()

    def restart(self, *samples: Sample) -> None:
        """Replace the samples of the window."""
        self.samples = deque(samples)

    def __str__(self) -> str:
        if not self.samples or self.samples[-1].seconds - self.samples[0].seconds < 1:
            return "-"
        seconds, *counts = np.subtract(self.samples[-1], self.samples[0])
        rates = [count / seconds for count in counts]
        steps, updates = (f"{x:,.0f}" if x >= 10 else f"{x:.1f}" for x in rates)
        return f"{steps} steps/s, {updates} updates/s"


class NotebookView:
    """Shows a renderable in the output of a notebook cell, and replaces it at every update."""

    def __init__(self, width: int = 80):
        self._width = width
        self._handle: Any = None

    def start(self) -> None:
        """Do nothing: the first update creates the output."""

    def update(self, view: RenderableType, refresh: bool = True) -> None:
        """Show a renderable in place of the last one."""
        del refresh
        text = io.StringIO()
        Console(emoji=False, file=text, width=self._width, force_jupyter=False).print(view)
        content = {"text/plain": text.getvalue()}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def stop(self) -> None:
        """Leave the last view where it is."""


class TrainingDisplay:
    """Shows the progress of a run; a context manager and an `on_progress` callback.

    Nothing is shown before the first call, so a run that is rejected has no display.
    If the output is neither a terminal nor a notebook, it prints one line per minute and per
    evaluation.
    `tasks` has the task of each member; `memory` returns the bytes in use by name.
    """

    def __init__(
        self,
        steps: int,
        tasks: Sequence[str],
        console: Console,
        opening: str = "",
        clock: Callable[[], float] = time.monotonic,
        memory: "Callable[[], Mapping[str, int | None]] | None" = None,
    ):
        self._console, self._steps, self._opening = console, steps, opening
        self.interrupted = False  # set it if the run ends before its last step
        self._clock, self._measure_memory = clock, memory or memory_usage
        self._tasks = np.array(tasks)
        live = NotebookView() if console.is_jupyter else Live(console=console, auto_refresh=False)
        self._live: NotebookView | Live = live
        self._is_live = console.is_terminal or console.is_jupyter
        self._eta, self._speed = EtaEstimator(steps), SpeedWindow(SPEED_SECONDS)
        self._first: Sample | None = None
        self._latest: Progress | None = None
        self._calls = 0
        self._drawn = self._measured = -np.inf  # times
        self._pending: list[str] = []  # messages to print below the opening
        self._stage, self._step, self._time, self._memory = "warm-up", 0, "ETA -", ""
        self._point, self._returns = 0, np.full(len(tasks), np.nan)
        self._offline: tuple[int, int] | None = None  # updates before the first step: done, all

    def __call__(self, progress: Progress) -> None:
        """Record the progress; redraw a few times per second at most."""
        now = self._clock()
        self._latest, self._calls = progress, self._calls + 1
        if self._calls == 1:
            self._start_speed(now, progress)
            self._open(now)
        elif self._calls == 2 and progress.decisions.max() > 1:  # a resumed run
            self._start_speed(now, progress)
            self._point, self._returns = progress.point, progress.returns
        if progress.point != self._point:
            self._point, self._returns = progress.point, progress.returns
            self._print_evaluation()
        interval = REDRAW_SECONDS if self._is_live else LOG_SECONDS
        if now - self._drawn >= interval:
            self._drawn = now
            self._update(now, progress)
            if now - self._measured >= MEMORY_SECONDS:
                self._measured = now
                usage = self._measure_memory().items()
                parts = [f", {name} {x / 1e9:.1f} GB" for name, x in usage if x is not None]
                self._memory = "".join(parts)
            self._draw()

    def say(self, line: str) -> None:
        """Print a line above the bar; before the opening it is held back."""
        if self._first is None:
            self._pending.append(line)
        else:
            self._print(line)

    def view(self) -> Group:
        """Return what a terminal shows: the bar, returns, warnings and the speed."""
        left, right = Column(width=8), Column(justify="right", no_wrap=True)
        bar = Table.grid(left, Column(ratio=1), right, expand=True, padding=(0, 1))
        done, total = self._offline or (self._step, self._steps)
        bar.add_row(self._stage, ProgressBar(total, done), self._position())
        ended = self._stage in ("done", "failed", "stopped")
        lines = [] if ended or not self._point else self._return_lines()
        if self._latest and (count := len(self._latest.collapsed)):
            total = len(self._tasks)
            lines.append(f"warning  collapsed representations: {count} of {total}")
        label = "average" if ended else "speed"
        lines.append(f"{label:8} {self._speed}{self._memory}")
        return Group(bar, *(Text(x, no_wrap=True, overflow="ellipsis") for x in lines))

    def _start_speed(self, now: float, progress: Progress) -> None:
        self._first = _sample(now, progress)
        self._speed.restart(self._first)
        self._eta = EtaEstimator(self._steps, float(progress.updates.min()))

    def _open(self, now: float) -> None:
        self._print_opening()
        self._print(*self._pending)
        if self._is_live:
            self._live.start()
        else:
            self._drawn = now  # there is nothing to report yet

    def _print_opening(self) -> None:
        """Print the opening; on a terminal, wrapped lines keep their indentation."""
        for line in self._opening.split("\n"):
            text = line.lstrip()
            indented = Padding(text, (0, 0, 0, len(line) - len(text)), expand=False)
            shown = indented if self._is_live else line
            self._console.print(shown, highlight=False, soft_wrap=not self._is_live)

    def _update(self, now: float, progress: Progress) -> None:
        self._speed.add(_sample(now, progress))
        # The run does not wait for stopped members, unless all of them are.
        active = ~progress.stopped | progress.stopped.all()
        decisions = float(progress.decisions[active].mean())
        self._stage = "training" if progress.warm[active].all() else "warm-up"
        self._step = int(decisions)
        updates = float(progress.updates[active].min())
        if progress.offline:  # before the first step, whose speed is not known yet
            self._stage = "offline"
            self._eta = EtaEstimator(self._steps, progress.offline)
        self._offline = (int(updates), progress.offline) if progress.offline else None
        self._time = format_eta(self._eta.remaining(decisions, updates, now))

    def _draw(self) -> None:
        if self._is_live:
            self._live.update(self.view(), refresh=True)
        else:
            speed = f"{self._speed}{self._memory}"
            self._print(f"  {self._stage} {self._position()}, {speed}")

    def _position(self) -> str:
        if self._offline:
            done, total = self._offline
            return f"{done:,}/{total:,} updates on recorded data {100 * done // total}%"
        percent = 100 * self._step // self._steps
        return f"{self._step:,}/{self._steps:,} {percent}% {self._time}"

    def _task_returns(self) -> dict[str, str]:
        tasks = dict.fromkeys(self._tasks)
        return {x: format_returns(self._returns[self._tasks == x]) for x in tasks}

    def _return_lines(self) -> list[str]:
        returns = self._task_returns()
        if len(returns) == 1:
            return [f"return   {x} at step {self._point:,}" for x in returns.values()]
        width = max(map(len, returns))
        lines = [f"  {task:{width}} {text}" for task, text in returns.items()]
        return [f"return   at step {self._point:,}", *lines]

    def _print_evaluation(self) -> None:
        returns = self._task_returns()
        for task, text in returns.items():
            label = f"{task}: " if len(returns) > 1 else ""
            self._print(f"  decision step {self._point:>9,}  {label}return {text}")

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._first is None or self._latest is None:
            self._print(*self._pending)
            return
        failed = bool(self._latest.stopped.all())  # training then raises an error
        if error is None or failed:
            now = self._clock()
            self._update(now, self._latest)
            self._speed.restart(self._first, self._speed.samples[-1])
            self._stage = "failed" if failed else "stopped" if self.interrupted else "done"
            if not (failed or self.interrupted or self._latest.ended_early):
                self._step = self._steps  # beside an accelerator, reports may end earlier
            self._time = f"in {format_duration(now - self._first.seconds)}"
            self._draw()
        self._live.stop()


def _sample(now: float, progress: Progress) -> Sample:
    return Sample(now, float(progress.decisions.sum()), float(progress.updates.sum()))


def format_returns(returns: NDArray[np.float64]) -> str:
    """Return the mean return, with the range if there are several seeds."""
    known = returns[~np.isnan(returns)]
    if not len(known):
        return "-"
    if len(known) == 1:
        return f"{known[0]:.1f}"
    low, mean, high = (f"{x:.1f}" for x in (known.min(), known.mean(), known.max()))
    return f"{mean} ({low} to {high}, {len(known)} seeds)"


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, as in 1:01:01 or 1:15."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_eta(seconds: float | None) -> str:
    """Return the time left; None is unknown."""
    return "ETA -" if seconds is None else f"ETA {format_duration(seconds)}"


# Memory


def memory_usage() -> dict[str, int | None]:
    """Return the bytes in use on the host and on the accelerator; None if unknown."""
    stats = training_device().memory_stats() or {}
    return {"memory": resident_bytes(), "device": stats.get("bytes_in_use")}


def resident_bytes(proc: Path = Path("/proc")) -> int | None:
    """Return the resident bytes of this process and its descendants; None if not on Linux."""
    pids = (os.getpid(), *_descendants(proc, os.getpid()))
    sizes = [_read_words(proc / str(pid) / "statm") for pid in pids]
    return sum(int(words[1]) for words in sizes if words) * os.sysconf("SC_PAGE_SIZE") or None


def _descendants(proc: Path, pid: int) -> Iterator[int]:
    """Yield all of them: workers are children of a fork server."""
    for thread in (proc / str(pid) / "task").glob("*"):
        for child in map(int, _read_words(thread / "children")):
            yield child
            yield from _descendants(proc, child)


def _read_words(path: Path) -> list[str]:
    """Return the words of a file, or none if its process has ended."""
    try:
        return path.read_text().split()
    except OSError:
        return []
