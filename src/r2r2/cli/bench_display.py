"""The progress display and the result tables of `r2r2 bench`."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.table import Column, Table

from r2r2.bench.end_to_end import EndToEnd
from r2r2.bench.updates import CallTiming, Overhead, Roofline, Stage, TimingStats, UpdateTiming
from r2r2.progress import format_duration, format_eta
from r2r2.training.time_account import PARTS

RANGE = "(lowest to highest)"


class StageEta:
    """Estimates the time left from earlier stages of each kind; a lower bound while one is new."""

    def __init__(self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._left = Counter(stage.kind for stage in stages)
        self._durations: dict[str, list[float]] = {}
        self._current: tuple[str, float] | None = None

    def start(self, stage: Stage) -> str:
        """Record that a stage starts and return the time left as text."""
        now = self._clock()
        if self._current is not None:
            kind, since = self._current
            self._durations.setdefault(kind, []).append(now - since)
            self._left[kind] -= 1
        self._current = stage.kind, now
        left = {kind: n for kind, n in self._left.items() if n > 0}
        known = [kind for kind in left if kind in self._durations]
        seconds = sum(left[kind] * fmean(self._durations[kind]) for kind in known)
        if len(known) == len(left):
            return format_eta(seconds)
        return f"ETA > {format_duration(seconds)}" if round(seconds) else "ETA -"


class BenchProgress:
    """Shows the progress of a benchmark; without a terminal, one line for each kind of stage."""

    def __init__(self, console: Console, stages: Sequence[Stage]):
        self._console, self._kind = console, ""
        self._eta = StageEta(stages)
        self._bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            "{task.fields[eta]}",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=len(stages), eta="")
        self._started = 0

    def __call__(self, stage: Stage) -> None:
        """Show that a stage starts."""
        eta = self._eta.start(stage)
        self._bar.update(self._task, completed=self._started, description=stage.text, eta=eta)
        self._started += 1
        if not self._console.is_terminal and stage.kind != self._kind:
            self._console.print(f"  {stage.text}", highlight=False, soft_wrap=True)
        self._kind = stage.kind

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


class Measurements(NamedTuple):
    """Everything that was measured."""

    ceiling: Roofline
    updates: list[UpdateTiming]
    overheads: list[Overhead]
    short_calls: list[CallTiming]
    end_to_end: list[EndToEnd]


def print_results(console: Console, results: Measurements, launches: bool) -> None:
    """Print all results as tables; `launches` says whether the device has kernels."""

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    roofline, timings, overheads, calls, trainings = results
    size = f"{roofline.matrix} x {roofline.matrix}"
    line(
        f"device peak: {_format_stats(roofline.tflops)} TFLOP/s in a matrix product of {size} at "
        f"the default precision, {_format_stats(roofline.gb_per_s)} GB/s memory traffic"
    )
    line(f"\n[bold]updates, median {RANGE}[/]")
    console.print(_fleet_table(timings, UPDATES))
    if not launches:
        line("  kernels: computations fused by XLA; a CPU launches none")
    if calls:
        line(f"\n[bold]updates in calls as short as training makes them, median {RANGE}[/]")
        console.print(_calls_table(calls))
        line("  us/agent-update; a burst of TD7 is made in long calls, a step in lockstep in one")
        if any(call.is_step for call in calls):
            line("  lockstep: the call also stores a transition, acts and reads the actions")
    line("\n[bold]arithmetic and memory[/]")
    console.print(_fleet_table(timings, ARITHMETIC))
    line("  GFLOP: per agent-update; fleet: total; replay: per member")
    if overheads:
        line(f"\n[bold]cost of R2R2 over its base agent, median {RANGE}[/]")
        console.print(_fleet_table(overheads, OVERHEAD))
    if trainings:
        task, utd = trainings[0].task, trainings[0].utd
        line(f"\n[bold]end to end on {task}, UTD {utd}[/]")
        console.print(_fleet_table(trainings, TRAINING))
        line("\n[bold]share of that time[/]")
        console.print(_shares_table(trainings))


def _format_stats(stats: TimingStats) -> str:
    """Return the numbers with three significant digits, or without decimals."""
    median, lowest, highest = (f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in stats[:3])
    return f"{median} ({lowest} to {highest})"


# The columns of the tables, each with the text of its cells.
Columns = dict[str, Callable[[Any], str]]
UPDATES: Columns = {
    "us/agent-update": lambda x: _format_stats(x.us_per_agent_update),
    "compile s": lambda x: f"{x.compile_s:.1f}",
    "kernels": lambda x: "-" if (n := x.kernels_per_update) is None else f"{n:,.0f}",
}
ARITHMETIC: Columns = {
    "GFLOP": lambda x: f"{x.flops_per_update / 1e9:.3g}",
    "TFLOP/s": lambda x: f"{x.tflops:.3g}",
    "of peak": lambda x: f"{100 * x.share_of_ceiling:.1f} %",
    "fleet GB": lambda x: f"{x.fleet_bytes / 1e9:.3g}",
    "replay GB": lambda x: f"{x.replay_bytes_per_member / 1e9:.3g}",
}
OVERHEAD: Columns = {
    "us/agent-update": lambda x: _format_stats(x.us_per_agent_update),
    "%": lambda x: _format_stats(x.percent),
}
TRAINING: Columns = {
    "decision steps/s": lambda x: f"{x.decision_steps_per_s:,.0f}",
    "updates/s": lambda x: f"{x.updates_per_s:,.0f}",
    "seconds timed": lambda x: f"{x.seconds:.1f}",
}


def _fleet_table(fleets: Iterable[Any], columns: Columns) -> Table:
    numbers = [Column(name, justify="right") for name in ("members", *columns)]
    table = Table(Column("agent", no_wrap=True), *numbers, box=SIMPLE_HEAD)
    for fleet in fleets:
        table.add_row(fleet.agent, str(fleet.members), *[cell(fleet) for cell in columns.values()])
    return table


def _calls_table(calls: Sequence[CallTiming]) -> Table:
    numbers = [Column(name, justify="right") for name in ("members", "UTD", "updates", "us")]
    table = Table(Column("agent", no_wrap=True), *numbers, "call", box=SIMPLE_HEAD)
    for call in calls:
        counts = map(str, (call.members, call.utd, call.updates))
        kind = "lockstep" if call.is_step else "updates"
        table.add_row(call.agent, *counts, _format_stats(call.us_per_agent_update), kind)
    return table


def _shares_table(trainings: Sequence[EndToEnd]) -> Table:
    table = Table("part", *[Column(x.agent, justify="right") for x in trainings], box=SIMPLE_HEAD)
    for part in PARTS:
        table.add_row(part, *(f"{100 * x.shares[part]:.1f} %" for x in trainings))
    return table
