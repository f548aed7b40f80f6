"""What `r2r2 bench` found, as tables for a terminal."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from r2r2.run.bench import Overhead, Timing
from r2r2.run.ceiling import Ceiling
from r2r2.run.end_to_end import PARTS, REST, EndToEnd
from r2r2.run.spread import Spread

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
