"""Several runs in one picture, the ones in training first where room is short."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from r2r2.cli.main import one_line, program_name
from r2r2.cli.progress import clock, spread
from r2r2.cli.run_monitor import GOING, State, Watched
from r2r2.cli.terminal_curve import Size, draw_in_text
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.report.learning_curve import METRIC, Curve, learning_curves

WIDEST = 100  # columns of a curve: a wider one says no more
SENTENCE = 3  # rows of a sentence at most
WATCH_VIEW_MOST = 6  # sentences of a run at most
QUIET = 60.0  # seconds without news that are worth a word

STYLES: dict[State, str] = {
    "not begun": "dim",
    "starting": "cyan",
    "warm-up": "cyan",
    "training": "bold green",
    "interrupted": "yellow",
    "finished": "bold",
    "lost": "red",
}


def fitted(text: str, room: Size) -> str:
    """A text, whoever wrote it, as one row that does no harm at a terminal.

    Example:
        >>> fitted("[red]" + chr(27) + "[2J", Size(20, 1)), fitted("a" * 9, Size(5, 1))
        ('[red]<0x1b>[2J', 'aaaa…')
    """
    plain = _plain(text, room)
    return plain if cell_len(plain) <= room.width else _ended(plain, room)


def _plain(text: str, room: Size) -> str:
    plain = one_line(text)
    if not room.ascii_only:
        return plain
    return plain.encode("ascii", "backslashreplace").decode()


def _dots(room: Size) -> str:
    """What stands for something that is left out."""
    return "..." if room.ascii_only else "…"


def _ended(plain: str, room: Size) -> str:
    """The beginning of a text that goes on."""
    most = max(room.width - len(_dots(room)), 0)
    return set_cell_size(plain, min(most, cell_len(plain))).rstrip() + _dots(room)


def _end_of(path: str, room: Size) -> str:
    """A path, of which the end says more than the beginning, as an indented row."""
    plain, most = _plain(path, room), room.width - 2
    if cell_len(plain) <= most:
        return plain
    while cell_len(plain) > max(most - len(_dots(room)), 0):
        plain = plain[1:]
    return _dots(room) + plain


def folded(text: str, room: Size) -> list[str]:
    """A sentence in rows, between words where that is possible; too long, it is cut.

    Example:
        >>> folded("one two three", Size(8, 1))
        ['one two', 'three']
    """
    rows = [""]
    for word in _plain(text, room).split(" "):
        if rows[-1] and cell_len(rows[-1]) + 1 + cell_len(word) > room.width:
            rows.append("")
        rows[-1] += f" {word}" if rows[-1] else word
    kept = [fitted(row, room) for row in rows[:SENTENCE]]
    return kept if len(kept) == len(rows) else [*kept[:-1], _ended(kept[-1], room)]


def row_of(run: Watched, now: float, room: Size) -> Text:
    """A run in one row: its state, how far it is, the last returns, and its name.

    Example:
        >>> from pathlib import Path
        >>> print(row_of(Watched(Path("runs/walker")), 0.0, Size(40, 1)))
        not begun   runs/walker
    """
    far = f" {_percent(run):>4} {_when(run, now):12}" if run.digest.begun else ""
    known = [value for _, value in _latest(run).values()]
    returns = f" {np.mean(known):.1f}" if known else ""
    text = Text(fitted(f"{run.state:11}{far}{returns} {run.path}", room))
    text.stylize(STYLES[run.state], 0, len(run.state))
    return text


def head_of(run: Watched, now: float, room: Size) -> list[Text]:
    """A run in a few rows: what it is, how far, how fast, how well, what is wrong."""
    rows = [Text(row) for row in folded(f"{run.state}  {_what(run)}", room)]
    rows[0].stylize(STYLES[run.state], 0, len(run.state))
    if run.seen:
        rows.append(Text(f"  {_end_of(str(run.path), room)}", "dim"))
    if run.digest.begun and run.config is not None:
        rows.append(_bar(run, now, room))
        rows.append(Text(fitted(f"  {_speed(run, now)}", room)))
        rows += [Text(fitted(f"  {line}", room)) for line in _returns(run, room)]
    inner = room._replace(width=room.width - 2)
    for sentence, style in _sentences(run):
        rows += [Text(f"  {row}", style) for row in folded(sentence, inner)]
    return rows


def curves_in(run: Watched) -> list[Curve]:
    """A curve for every task that has a point of all members which were not stopped."""
    names = _names(run)
    stopped = {name for name, m in run.digest.members.items() if m.stopped is not None}
    left_out = stopped if len(stopped) < len(run.digest.members) else set[str]()
    kept = [
        row
        for row in run.rows
        if math.isfinite(row.value)
        and names.get((row.env_name, row.seed), "") not in left_out
    ]
    return [curve for curve in learning_curves(kept) if len(curve.steps)]


def charts_of(run: Watched, room: Size) -> list[Text]:
    """The curves of a run, each of the room's height with its title."""
    rows: list[Text] = []
    inner = Size(min(room.width, WIDEST) - 2, room.height - 1, room.ascii_only)
    last = run.config.steps * run.config.action_repeat if run.config is not None else 0
    for curve in curves_in(run):
        count = len(curve.seeds)
        over = f"mean and range of {count} seeds" if count > 1 else "one seed"
        rows.append(Text(fitted(f"  {curve.name}: {over}", room), "dim"))
        drawn = draw_in_text(curve, last, inner)
        rows += [Text.assemble("  ", row) for row in drawn]
    return rows


def _what(run: Watched) -> str:
    if run.config is None:
        return "" if run.seen else str(run.path)
    seeds = ",".join(map(str, run.config.seeds))
    tasks = ", ".join(run.config.env)
    return f"{run.config.agent.name} on {tasks}, UTD {run.config.utd}, seeds {seeds}"


def _percent(run: Watched) -> str:
    steps = run.config.steps if run.config is not None else 1
    return f"{min(int(100 * run.digest.decisions / steps), 100)}%"


def _when(run: Watched, now: float) -> str:
    """When it will be done, or how long it took."""
    if run.state not in GOING:
        return f"in {clock(run.digest.seconds)}"
    left = run.eta(now)
    return "ETA -" if left is None else f"ETA {clock(left)}"


def _bar(run: Watched, now: float, room: Size) -> Text:
    steps = run.config.steps if run.config is not None else 1
    far = f"{run.digest.decisions:,.0f}/{steps:,} {_percent(run)} {_when(run, now)}"
    whole = min(max(room.width - len(far) - 3, 0), WIDEST)
    done = min(int(whole * run.digest.decisions / steps), whole)
    full, rest = "#." if room.ascii_only else "█░"
    text = Text.assemble("  ", (full * done, "green"), (rest * (whole - done), "dim"))
    return text.append(fitted(f" {far}", room._replace(width=room.width - whole - 2)))


def _speed(run: Watched, now: float) -> str:
    said = f"speed {run.digest.speed}"
    if times := run.digest.resumed:
        said += f", resumed {'once' if times == 1 else f'{times} times'}"
    if run.state in GOING and QUIET <= run.quiet(now) < math.inf:
        said += f", quiet for {clock(run.quiet(now))}"
    return said


def _names(run: Watched) -> dict[tuple[str, int], str]:
    """The members' names, by task and seed."""
    config = run.config or RunConfig()
    pairs = [Member(task, seed) for task in config.env for seed in config.seeds]
    return {(member.task, member.seed): member.name for member in pairs}


def _latest(run: Watched) -> dict[tuple[str, int], tuple[int, float]]:
    """The newest step and return of every member that has one, by task and seed."""
    rows = [row for row in run.rows if row.metric == METRIC]
    return {(row.env_name, row.seed): (row.env_step, row.value) for row in rows}


def _returns(run: Watched, room: Size) -> Iterator[str]:
    """For every task the returns of late: all members' in a row, and each one's."""
    latest = _latest(run)
    tasks = dict.fromkeys(task for task, _ in latest)
    for task in tasks:
        own = {seed: found for (name, seed), found in latest.items() if name == task}
        values = np.array([value for _, value in own.values()])
        whose = f"{task}: " if len(tasks) > 1 else ""
        step = max(step for step, _ in own.values())
        yield f"{whose}return {spread(values)} at env step {step:,}"
        if len(own) > 1:
            each = [f"s{seed} {value:.1f}" for seed, (_, value) in sorted(own.items())]
            inner = room._replace(width=room.width - 2)
            yield from folded(", ".join(each), inner)


def _sentences(run: Watched) -> Iterator[tuple[str, str]]:
    """What somebody should know, each sentence with its style."""
    if run.trouble is not None:
        yield run.trouble, "dim" if run.state == "not begun" else "red"
    news = run.digest.members.items()
    said = [sentence for name, member in news for sentence in member.sentences(name)]
    yield from ((sentence, "yellow") for sentence in said[:WATCH_VIEW_MOST])
    if said[WATCH_VIEW_MOST:]:
        yield f"and {len(said[WATCH_VIEW_MOST:])} more such sentences", "yellow"
    if run.state == "interrupted":
        again = shlex.quote(str(run.path))
        yield f"go on with: {program_name()} train --resume {again}", "dim"


LEAST, USUAL, MOST = 7, 11, 16  # rows of a curve with its title


def picture(runs: Sequence[Watched], now: float, room: Size) -> list[Text]:
    """All runs, in rows that are no wider than the room and no more than it is high.

    Every run has a row of its own at least, if there are as many rows; then those that
    matter most have more of them, and what is left is for curves.

    Args:
        runs: in the order in which they are shown.
        now: seconds since 1970.
        room: a height of 0 is as high as it takes.

    Example:
        >>> from pathlib import Path
        >>> run = Watched(Path("runs/nothing"))
        >>> run.look()
        >>> for row in picture([run], 0.0, Size(60, 0)):
        ...     print(row.plain)
        1 run: 1 not begun
        not begun  runs/nothing
          run is 'runs/nothing', which does not exist yet
    """
    rows = [Text(fitted(summary(runs), room), "dim")]
    order = sorted(range(len(runs)), key=lambda n: (_rank(runs[n]), n))
    spare = room.height - 1 - len(runs) if room.height else 2**30
    if spare < 0:
        kept = sorted(order[: max(room.height - 2, 0)])
        rows += [row_of(runs[n], now, room) for n in kept]
        more = f"and {len(runs) - len(kept)} more, for which there is no room"
        return [*rows, Text(fitted(more, room), "dim")]
    blocks: dict[int, list[Text]] = {}
    for n in order:
        head = head_of(runs[n], now, room)
        gap = len(head) - (len(runs) == 1)
        if gap <= spare:
            blocks[n], spare = head, spare - gap
    shown = [n for n in order if n in blocks]
    _add_charts(runs, shown, blocks, room._replace(height=spare))
    for n, run in enumerate(runs):
        if n in blocks and len(rows) > 1:
            rows.append(Text(""))
        rows += blocks.get(n) or [row_of(run, now, room)]
    return rows


def summary(runs: Sequence[Watched]) -> str:
    """How many runs there are, and how many in which state.

    Example:
        >>> summary([])
        'no runs'
    """
    if not runs:
        return "no runs"
    counts = Counter(run.state for run in runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{len(runs)} run{'s' * (len(runs) > 1)}: {states}"


def _rank(run: Watched) -> int:
    """Runs in training first, those with nothing more to say last."""
    return 0 if run.state in GOING else 2 if run.state == "finished" else 1


def _add_charts(
    runs: Sequence[Watched],
    shown: Sequence[int],
    blocks: dict[int, list[Text]],
    room: Size,
) -> None:
    """Adds curves to as many runs as there is room for, all of one height."""
    counts = {n: len(curves_in(runs[n])) for n in shown}
    drawn = [n for n in shown if counts[n]]
    while drawn and room.height // sum(counts[n] for n in drawn) < LEAST:
        drawn.pop()
    if not drawn:
        return
    height = room.height // sum(counts[n] for n in drawn)
    height = min(height, MOST if room.height < 2**20 else USUAL)
    for n in drawn:
        blocks[n] = blocks[n] + charts_of(runs[n], room._replace(height=height))
