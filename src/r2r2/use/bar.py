"""The progress bar of training, and what is said when it is done."""

import time
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from r2r2.run import train


class Pace:
    """When a run will be done, from the speed of steps that were trained on.

    Warm-up makes no updates and is many times faster, and the first updates wait for
    the compiler: neither says anything about the rest, so until steps have been
    followed by updates there is no estimate.
    """

    def __init__(self, steps: int):
        self._steps = steps
        self._start: tuple[float, float] | None = None
        self._trained = 0.0

    def remaining(self, decisions: float, updates: float, now: float) -> float | None:
        """Seconds still to go, or None while nothing can be said."""
        if updates > self._trained:
            self._trained = updates
            if self._start is None:
                self._start = (decisions, now)
        if self._start is None or decisions <= self._start[0]:
            return None
        rate = (now - self._start[1]) / (decisions - self._start[0])
        return rate * (self._steps - decisions)


class Bar:
    """Shows a run as it goes; use it as a context and as the run's watcher.

    Nothing is shown before the first call: a run that is refused has no bar.
    """

    def __init__(self, steps: int, console: Console, opening: str = ""):
        self._console, self._steps, self._opening = console, steps, opening
        self._started = False
        self._pace = Pace(steps)
        self._shown = -np.inf
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}"),
            TextColumn("return {task.fields[score]}"),
            console=console,
        )
        self._task: TaskID = self._bar.add_task(
            "warm-up", total=steps, eta="", score="-"
        )
        self._point, self._score = 0, "-"

    def __call__(self, progress: train.Progress) -> None:
        """Takes in one turn of the loop; redraws a few times a second at most."""
        if not self._started:
            self._start()
        if progress.point != self._point:
            self._point, self._score = progress.point, spread(progress.returns)
            line = f"  decision step {progress.point:>9,}  return {self._score}"
            self._console.print(line, highlight=False)
        now = time.monotonic()
        if now - self._shown < 0.2:
            return
        self._shown = now
        decisions = float(progress.decisions.mean())
        left = self._pace.remaining(decisions, float(progress.updates.min()), now)
        self._bar.update(
            self._task,
            completed=int(decisions),
            description="training" if progress.warm.all() else "warm-up",
            eta="ETA -" if left is None else f"ETA {_clock(left)}",
            score=self._score,
        )

    def _start(self) -> None:
        self._started = True
        self._console.print(self._opening, soft_wrap=True)
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self._started:
            return
        if error is None:
            self._bar.update(
                self._task,
                completed=self._steps,
                description="done",
                eta="",
                score=self._score,
            )
        self._bar.stop()


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


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
