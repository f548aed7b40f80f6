"""Several runs in one picture, the ones in training first where room is short."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from r2r2.use.terminal_curve import Size
from r2r2.use.watch_view import charts_of, curves_in, fitted, head_of, row_of
from r2r2.use.watched import GOING, Watched

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
