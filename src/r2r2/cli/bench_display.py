"""What `r2r2 bench` found, as tables for a terminal."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from r2r2.bench.end_to_end import PARTS, REST, EndToEnd
from r2r2.bench.roofline import Ceiling
from r2r2.bench.timing_stats import Spread
from r2r2.bench.updates import Overhead, Stage, Timing
from r2r2.cli.progress import clock


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


SPREAD = "(lowest to highest)"
NO_LAUNCHES = "  kernels: computations that XLA has fused; a CPU launches none"


class Titled(NamedTuple):
    """A table, with what is said above and below it."""

    title: str
    table: Table
    remark: str = ""


def show(
    console: Console,
    ceiling: Ceiling,
    timings: Sequence[Timing],
    overheads: Sequence[Overhead],
    trained: Sequence[EndToEnd],
    launches: bool,
) -> None:
    """Prints everything; an empty table is left out."""
    console.print(_said(ceiling), highlight=False, soft_wrap=True)
    tables = [updates_table(timings, launches), effort_table(timings)]
    if overheads:
        tables.append(overheads_table(overheads))
    if trained:
        tables += [trained_table(trained), shares_table(trained)]
    for title, table, remark in tables:
        # Not the table's own, which it would wrap to its width.
        console.print(f"\n[bold]{title}[/]", highlight=False, soft_wrap=True)
        console.print(table)
        if remark:
            console.print(remark, highlight=False, soft_wrap=True)


def _said(ceiling: Ceiling) -> str:
    size = f"{ceiling.matrix} x {ceiling.matrix}"
    return (
        f"ceiling: {_spread(ceiling.tflops)} TFLOP/s in a product of {size} matrices "
        f"at the default precision, {_spread(ceiling.gb_per_s)} GB/s read and written"
    )


def updates_table(timings: Sequence[Timing], launches: bool) -> Titled:
    """How long updates take, a line per fleet.

    Args:
        timings: the fleets.
        launches: whether kernels are launched, as on a GPU.
    """
    columns = "us/agent-update", "compile s", "kernels"
    table = _table(columns)
    for x in timings:
        kernels = x.kernels_per_update
        shown = "-" if kernels is None else f"{kernels:,.0f}"
        cells = _spread(x.us_per_agent_update), f"{x.compile_s:.1f}", shown
        table.add_row(x.agent, str(x.members), *cells)
    title = f"updates, median {SPREAD}"
    return Titled(title, table, "" if launches else NO_LAUNCHES)


def effort_table(timings: Sequence[Timing]) -> Titled:
    """What updates make of the device, a line per fleet."""
    columns = "GFLOP", "TFLOP/s", "of ceiling", "fleet GB", "replay GB"
    table = _table(columns)
    for x in timings:
        table.add_row(
            x.agent,
            str(x.members),
            f"{x.flops_per_update / 1e9:.3g}",
            f"{x.tflops:.3g}",
            f"{100 * x.share_of_ceiling:.1f} %",
            f"{x.fleet_bytes / 1e9:.3g}",
            f"{x.replay_bytes_per_member / 1e9:.3g}",
        )
    remark = "  GFLOP: of an agent-update; fleet: all of it; replay: one member's"
    return Titled("arithmetic and memory", table, remark)


def overheads_table(overheads: Sequence[Overhead]) -> Titled:
    """What R2R2 adds, a line per fleet."""
    columns = "us/agent-update", "%"
    table = _table(columns)
    for x in overheads:
        more = _spread(x.us_per_agent_update), _spread(x.percent)
        table.add_row(x.agent, str(x.members), *more)
    title = f"R2R2 over its base in the same repeats, median {SPREAD}"
    return Titled(title, table)


def trained_table(trained: Sequence[EndToEnd]) -> Titled:
    """How fast fleets are trained, a line each."""
    first = trained[0]
    columns = "decision steps/s", "updates/s", "seconds timed"
    table = _table(columns)
    for x in trained:
        speed = f"{x.decision_steps_per_s:,.0f}", f"{x.updates_per_s:,.0f}"
        table.add_row(x.agent, str(x.members), *speed, f"{x.seconds:.1f}")
    return Titled(f"end to end on {first.task}, UTD {first.utd}", table)


def shares_table(trained: Sequence[EndToEnd]) -> Titled:
    """What the time of a training goes on, a column per fleet."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("part")
    for x in trained:
        table.add_column(x.agent, justify="right")
    for part in (*PARTS, REST):
        table.add_row(part, *(f"{100 * x.shares[part]:.1f} %" for x in trained))
    return Titled("shares of that time", table)


def _table(columns: Sequence[str]) -> Table:
    """A table with a line per fleet."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("agent", no_wrap=True)
    for name in ("members", *columns):
        table.add_column(name, justify="right")
    return table


def _spread(spread: Spread) -> str:
    return f"{_shown(spread[0])} ({_shown(spread[1])} to {_shown(spread[2])})"


def _shown(value: float) -> str:
    """A number as short as it says something.

    Example:
        >>> _shown(12345.6), _shown(26.31), _shown(0.06413)
        ('12,346', '26.3', '0.0641')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
