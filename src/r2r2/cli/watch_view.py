"""The text view of `r2r2 watch`: rows for each run, and learning curves."""

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from r2r2.cli.main import one_line, program_name
from r2r2.cli.run_monitor import ACTIVE_STATES, ENDED_STATES, RunMonitor, State
from r2r2.envs.spec import Member
from r2r2.progress import format_duration, format_eta, format_returns
from r2r2.report.charts import Curve, learning_curves
from r2r2.stats.scores import METRIC

MAX_WIDTH = 100  # columns of a curve or a bar
MAX_MESSAGE_ROWS = 3
MAX_MESSAGES = 6  # per run
IDLE_SECONDS = 60.0  # without new events, before that is shown
MIN_CURVE, USUAL_CURVE, MAX_CURVE = 7, 11, 16  # rows, with the title
UNLIMITED = 2**30  # rows

STYLES: dict[State, str] = {
    "not started": "dim",
    "starting": "cyan",
    "warm-up": "cyan",
    "training": "bold green",
    "interrupted": "yellow",
    "finished": "bold",
    "failed": "bold red",
    "pruned": "yellow",
    "unavailable": "red",
}


class Size(NamedTuple):
    """The space for a text, in characters, and whether only ASCII can be shown."""

    width: int
    height: int
    ascii_only: bool = False


def render_runs(runs: Sequence[RunMonitor], now: float, size: Size) -> list[Text]:
    """Return rows that show all runs; those in training get more. A height of 0 is unlimited."""
    counts = Counter(run.state for run in runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    title = f"{len(runs)} run{'s' * (len(runs) > 1)}: {states}"
    if not any(run.seen for run in runs):
        title = "waiting for a run to begin; Ctrl-C ends the display"
    rows = [Text(fit_row(title, size), "dim")]
    ranks = [(run.state not in ACTIVE_STATES) + (run.state in ENDED_STATES) for run in runs]
    order = sorted(range(len(runs)), key=ranks.__getitem__)
    spare = size.height - 1 - len(runs) if size.height else UNLIMITED
    if spare < 0:
        shown = sorted(order[: max(size.height - 2, 0)])
        rows += [_short_row(runs[n], now, size) for n in shown]
        more = f"and {len(runs) - len(shown)} more that do not fit"
        return [*rows, Text(fit_row(more, size), "dim")]
    blocks: dict[int, list[Text]] = {}
    for n in order:
        block = _run_rows(runs[n], now, size)
        extra = len(block) - (len(runs) == 1)
        if extra <= spare:
            blocks[n], spare = block, spare - extra
    _add_curves(runs, blocks, size._replace(height=spare))
    for n, run in enumerate(runs):
        if n in blocks and len(rows) > 1:
            rows.append(Text(""))
        rows += blocks.get(n) or [_short_row(run, now, size)]
    return rows


def _add_curves(runs: Sequence[RunMonitor], blocks: dict[int, list[Text]], size: Size) -> None:
    """Add curves of equal height to as many of the blocks as fit."""
    curves = {n: drawn for n in blocks if (drawn := _finite_curves(runs[n]))}
    while curves and size.height < MIN_CURVE * sum(map(len, curves.values())):
        curves.popitem()
    height = size.height // max(sum(map(len, curves.values())), 1)
    limit = MAX_CURVE if size.height < UNLIMITED // 2 else USUAL_CURVE
    for n, drawn in curves.items():
        config = runs[n].config
        last = config.steps * config.action_repeat if config is not None else 0
        for curve in drawn:
            blocks[n] += _curve_rows(curve, last, size._replace(height=min(height, limit)))


# Text that fits


def fit_row(text: str, size: Size) -> str:
    """Return any text as one row without control characters, cut to the width."""
    text = _printable(text, size)
    return text if cell_len(text) <= size.width else _ellipsize(text, size)


def wrap_text(text: str, size: Size) -> list[str]:
    """Wrap a message between words, into a limited number of rows."""
    rows = [""]
    for word in _printable(text, size).split(" "):
        if rows[-1] and cell_len(rows[-1]) + 1 + cell_len(word) > size.width:
            rows.append("")
        rows[-1] += f" {word}" if rows[-1] else word
    shown = [fit_row(row, size) for row in rows[:MAX_MESSAGE_ROWS]]
    if len(shown) < len(rows):
        shown[-1] = _ellipsize(shown[-1], size)
    return shown


def _printable(text: str, size: Size) -> str:
    text = one_line(text)
    return text.encode("ascii", "backslashreplace").decode() if size.ascii_only else text


def _ellipsize(text: str, size: Size) -> str:
    dots = "..." if size.ascii_only else "…"
    width = max(size.width - len(dots), 0)
    return set_cell_size(text, min(width, cell_len(text))).rstrip() + dots


# One run


def _short_row(run: RunMonitor, now: float, size: Size) -> Text:
    progress = f" {_percent(run):>3}% {_time(run, now):12}" if run.summary.started else ""
    latest = [value for _, value in _latest_returns(run).values()]
    returns = f" {np.mean(latest):.1f}" if latest else ""
    text = Text(fit_row(f"{run.state:11}{progress}{returns} {run.path}", size))
    text.stylize(STYLES[run.state], 0, len(run.state))
    return text


def _run_rows(run: RunMonitor, now: float, size: Size) -> list[Text]:
    """Return rows with config, progress, speed, returns and problems of a run."""
    rows = [Text(row) for row in wrap_text(f"{run.state}  {_title(run)}", size)]
    rows[0].stylize(STYLES[run.state], 0, len(run.state))
    indented = size._replace(width=size.width - 2)
    if run.seen:
        # A path is cut at its start.
        path = fit_row(_printable(str(run.path), size)[::-1], indented)[::-1]
        rows.append(Text(f"  {path}", "dim"))
    if run.summary.started and run.config is not None:
        rows.append(_progress_bar(run, now, size))
        lines = [_speed(run, now), *_time_rows(run, indented), *_returns(run, indented)]
        rows += [Text(fit_row(f"  {line}", size)) for line in lines]
    for message, style in _messages(run):
        rows += [Text(f"  {row}", style) for row in wrap_text(message, indented)]
    return rows


def _time_rows(run: RunMonitor, size: Size) -> list[str]:
    """Return where the time went; what bounds the run comes last and must not be cut off."""
    if not run.summary.time:
        return []
    first, *others = wrap_text(run.summary.time, size._replace(width=size.width - len("time ")))
    return [f"time {first}", *(f"     {row}" for row in others)]


def _title(run: RunMonitor) -> str:
    if run.config is None:
        return "" if run.seen else str(run.path)
    seeds = ",".join(map(str, run.config.seeds))
    tasks = ", ".join(run.config.env)
    return f"{run.config.agent.name} on {tasks}, UTD {run.config.utd}, seeds {seeds}"


def _percent(run: RunMonitor) -> int:
    return min(int(100 * run.summary.decisions / run.summary.steps), 100)


def _time(run: RunMonitor, now: float) -> str:
    """Return the time left, or the time taken if the run is not in training."""
    if run.state not in ACTIVE_STATES:
        return f"in {format_duration(run.summary.seconds)}"
    return format_eta(run.eta(now))


def _progress_bar(run: RunMonitor, now: float, size: Size) -> Text:
    counts = f"{run.summary.decisions:,.0f}/{run.summary.steps:,}"
    position = f"{counts} {_percent(run)}% {_time(run, now)}"
    width = min(max(size.width - len(position) - 3, 0), MAX_WIDTH)
    done = min(int(width * run.summary.decisions / run.summary.steps), width)
    full, empty = "#." if size.ascii_only else "█░"
    text = Text.assemble("  ", (full * done, "green"), (empty * (width - done), "dim"))
    return text.append(fit_row(f" {position}", size._replace(width=size.width - width - 2)))


def _speed(run: RunMonitor, now: float) -> str:
    text = f"speed {run.summary.speed}"
    if times := run.summary.resumed:
        text += f", resumed {'once' if times == 1 else f'{times} times'}"
    idle = run.idle_seconds(now)
    if run.state in ACTIVE_STATES and IDLE_SECONDS <= idle < math.inf:
        text += f", idle for {format_duration(idle)}"
    return text


def _latest_returns(run: RunMonitor) -> dict[tuple[str, int], tuple[int, float]]:
    """Return the latest step and return of every member, by task and seed."""
    rows = [row for row in run.rows if row.metric == METRIC]
    return {(row.env_name, row.seed): (row.env_step, row.value) for row in rows}


def _returns(run: RunMonitor, size: Size) -> Iterator[str]:
    """Yield for every task the latest mean return, and the return of each seed."""
    latest = _latest_returns(run)
    tasks = dict.fromkeys(task for task, _ in latest)
    for task in tasks:
        seeds = {seed: point for (name, seed), point in latest.items() if name == task}
        values = np.array([value for _, value in seeds.values()])
        label = f"{task}: " if len(tasks) > 1 else ""
        step = max(step for step, _ in seeds.values())
        yield f"{label}return {format_returns(values)} at env step {step:,}"
        if len(seeds) > 1:
            each = (f"s{seed} {x:.1f}" for seed, (_, x) in sorted(seeds.items()))
            yield from wrap_text(", ".join(each), size)


def _messages(run: RunMonitor) -> Iterator[tuple[str, str]]:
    """Yield the problems of a run, each with its style."""
    if run.error is not None:
        yield run.error, "dim" if run.state == "not started" else "red"
    members = run.summary.members.items()
    messages = [text for name, member in members for text in member.messages(name)]
    yield from ((message, "yellow") for message in messages[:MAX_MESSAGES])
    if messages[MAX_MESSAGES:]:
        yield f"and {len(messages[MAX_MESSAGES:])} more messages", "yellow"
    command = f"{program_name()} train --resume {shlex.quote(str(run.path))}"
    if run.state == "interrupted":
        yield f"resume with: {command}", "dim"
    elif run.state == "failed":
        yield f"run again with: {command} --retry-failed", "dim"


# Learning curves

Floats = np.ndarray[Any, np.dtype[np.float64]]
Dots = np.ndarray[Any, np.dtype[np.bool_]]

# A braille character has two columns of four dots; the bit of each.
BRAILLE = 0x2800
BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# The dots of a character that show the range, few enough that the line stands out.
RANGE_DOTS = np.array([[1, 0], [0, 0], [0, 1], [0, 0]], dtype=bool)

# The axis with a label, without one, the corner, the horizontal axis.
FRAMES = {False: ("┤", "│", "└", "─"), True: ("|", "|", "|", "-")}
MEAN_STYLE, RANGE_STYLE = "bold cyan", "cyan"
LARGEST = 1e300  # the difference of two larger numbers may overflow


def _finite_curves(run: RunMonitor) -> list[Curve]:
    """Return a curve for every task, without stopped members unless all were stopped."""
    members = run.summary.members
    stopped = {name for name, member in members.items() if member.stopped is not None}
    hidden = stopped if len(stopped) < len(members) else set[str]()
    finite = [row for row in run.rows if math.isfinite(row.value)]
    rows = [row for row in finite if Member(row.env_name, row.seed).name not in hidden]
    return [curve for curve in learning_curves(rows) if len(curve.steps)]


def _curve_rows(curve: Curve, last_step: float, size: Size) -> list[Text]:
    """Return a curve with a title."""
    count = len(curve.seeds)
    what = f"mean and range of {count} seeds" if count > 1 else "one seed"
    title = Text(fit_row(f"  {curve.name}: {what}", size), "dim")
    inner = Size(min(size.width, MAX_WIDTH) - 2, size.height - 1, size.ascii_only)
    return [title, *(Text.assemble("  ", row) for row in render_curve(curve, last_step, inner))]


def render_curve(curve: Curve, last_step: float, size: Size) -> list[Text]:
    """Return a finite curve with axes as text: the mean is a line ('*'), the range dots ('.')."""
    returns = np.clip(curve.returns, -LARGEST, LARGEST)
    rows = max(size.height - 2, 1)
    labels = _axis_labels(*_value_range(returns), rows)
    margin = max(map(len, labels))
    columns = max(size.width - margin - 1, 4)
    end = max(last_step, float(curve.steps[-1]), 1.0)
    height, width = (1, 1) if size.ascii_only else BITS.shape
    line, band = _rasterize(curve.steps / end, returns, (rows * height, columns * width))
    labeled, plain, corner, floor = FRAMES[size.ascii_only]
    texts: list[Text] = []
    for row, label in enumerate(labels):
        part = slice(row * height, (row + 1) * height)
        texts.append(Text(f"{label:>{margin}}{labeled if label else plain}"))
        _append_cells(texts[-1], line[part], band[part], size.ascii_only)
    unit = " env steps" if columns > 21 else ""
    last = f"{short_number(end)}{unit}"
    texts.append(Text(" " * margin + corner + floor * columns))
    texts.append(Text(" " * (margin + 1) + f"0{last:>{columns - 1}}"))
    return texts


def short_number(value: float) -> str:
    """Return a number in few characters.

    Example:
        >>> [short_number(x) for x in (0.0, -12.345, 9876.0, 150_000.0, 2.5e6, 1e12)]
        ['0', '-12.3', '9876', '150k', '2.5M', '1e+12']
    """
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.2g}"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}" if size >= 1e3 else f"{value:.3g}"


def _value_range(returns: Floats) -> tuple[float, float]:
    low, high = float(returns.min()), float(returns.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) / 10 or 1.0
    return low - margin, high + margin


def _axis_labels(low: float, high: float, rows: int) -> list[str]:
    """Return labels for the top, the bottom and, if possible, the middle row."""
    labels = [""] * rows
    if rows >= 3 and rows % 2:
        labels[rows // 2] = short_number(low / 2 + high / 2)
    labels[-1] = short_number(low)
    labels[0] = short_number(high)
    return labels


def _rasterize(places: Floats, returns: Floats, grid: tuple[int, int]) -> tuple[Dots, Dots]:
    """Return the dots of the mean and range of returns [seeds, steps]; row 0 is the highest."""
    rows, columns = grid
    low, high = _value_range(returns)
    first, last = (round(float(place) * (columns - 1)) for place in places[[0, -1]])
    span = range(first, last + 1)
    levels = (returns - low) / (high - low)
    # The exact ends rather than those of their columns, so that no value is missed.
    inside = [column / max(columns - 1, 1) for column in span[1:-1]]
    across = np.array([places[0], *inside, places[-1]][-len(span) :])
    mean, lowest, highest = (
        np.rint((1 - np.interp(across, places, level)) * (rows - 1)).astype(int).tolist()
        for level in (levels.mean(0), levels.min(0), levels.max(0))
    )
    line, band = np.zeros(grid, dtype=bool), np.zeros(grid, dtype=bool)
    before = mean[0]
    for column, now, bottom, top in zip(span, mean, lowest, highest, strict=True):
        # Starts next to the previous row, so that a steep line has no gaps.
        near = before + (now > before) - (now < before)
        line[min(near, now) : max(near, now) + 1, column] = True
        band[top : bottom + 1, column] = True
        before = now
    return line, band


def _append_cells(text: Text, line: Dots, band: Dots, ascii_only: bool) -> None:
    """Append one row of characters, grouped by style."""
    width = 1 if ascii_only else BITS.shape[1]
    cells: list[tuple[str, str]] = []
    for left in range(0, line.shape[1], width):
        on_line, in_band = line[:, left : left + width], band[:, left : left + width]
        style = MEAN_STYLE if on_line.any() else RANGE_STYLE
        if ascii_only:
            cells.append(("*" if on_line.any() else "." if in_band.any() else " ", style))
        else:
            dots = BITS * (on_line | (in_band & RANGE_DOTS))
            cells.append((chr(BRAILLE + int(dots.sum())) if dots.any() else " ", style))
    for style, group in itertools.groupby(cells, lambda cell: cell[1]):
        text.append("".join(character for character, _ in group), style)
    text.rstrip()
