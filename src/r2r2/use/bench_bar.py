"""The bar of `r2r2 bench`: what it is at, and when it will be done."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from r2r2.run.bench import Stage
from r2r2.use.bar import clock


class Forecast:
    """When a list of stages is done, from how long those of each kind have taken.

    Compiling takes minutes and a repeat a moment: a bar that only counts would promise
    anything. Of a kind that has not been seen nothing is known, and that is said.

    Example:
        >>> seconds = iter([0.0, 2.0, 3.0])
        >>> plan = [Stage("compile", ""), Stage("time", ""), Stage("time", "")]
        >>> forecast = Forecast(plan, now=lambda: next(seconds))
        >>> [forecast.next(stage) for stage in plan]
        ['ETA -', 'ETA -', 'ETA 0:01']
    """

    def __init__(
        self, stages: Sequence[Stage], now: Callable[[], float] = time.monotonic
    ):
        self._now = now
        self._left = Counter(stage.kind for stage in stages)
        self._taken: dict[str, list[float]] = {}
        self._running: tuple[str, float] | None = None

    def next(self, stage: Stage) -> str:
        """Takes in that a stage begins; says how long all take from here on."""
        now = self._now()
        if self._running is not None:
            kind, since = self._running
            self._taken.setdefault(kind, []).append(now - since)
            self._left[kind] -= 1
        self._running = stage.kind, now
        left = {kind: n for kind, n in self._left.items() if n > 0}
        known = {kind: self._taken[kind] for kind in left if kind in self._taken}
        seconds = sum(left[k] * sum(x) / len(x) for k, x in known.items())
        if len(known) == len(left):
            return f"ETA {clock(seconds)}"
        return f"ETA more than {clock(seconds)}" if round(seconds) else "ETA -"


class BenchBar:
    """Shows a benchmark as it goes; gone when it is over.

    Without a terminal it is a plain line for each kind of stage.
    """

    def __init__(self, console: Console, stages: Sequence[Stage]):
        self._console, self._kind = console, ""
        self._forecast = Forecast(stages)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=len(stages), eta="")
        self._begun = 0

    def __call__(self, stage: Stage) -> None:
        """Takes in that a stage begins."""
        eta = self._forecast.next(stage)
        done, what = self._begun, stage.what
        self._bar.update(self._task, completed=done, description=what, eta=eta)
        self._begun += 1
        if not self._console.is_terminal and stage.kind != self._kind:
            self._console.print(f"  {stage.what}", highlight=False, soft_wrap=True)
        self._kind = stage.kind

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()
