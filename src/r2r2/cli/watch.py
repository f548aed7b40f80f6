"""`r2r2 watch`: running training at a terminal, curves included."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from r2r2.cli.argparser import ArgumentParser
from r2r2.cli.run_monitor import Watched
from r2r2.cli.signals import interruptible
from r2r2.cli.terminal_curve import Size
from r2r2.cli.watch_view import picture
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, POSITIVE, FieldSpec
from r2r2.storage.disk_usage import find_runs

DEFAULT = Path("runs")
RESCAN = 10.0  # seconds after which folders are searched for new runs
BLINK = 0.2  # seconds after which a terminal of another size is drawn anew, at most

SPECS = (
    FieldSpec("once", bool, False, "print the state once and exit", ANY),
    FieldSpec("every", float, 2.0, "refresh interval in seconds", POSITIVE),
)

DESCRIPTION = """\
Show running training in the terminal, by default all runs in 'runs': progress,
time to the end, speed, the last returns of the members, problems, and learning
curves. Folders are searched for runs, also for those that start later. Run
folders are only read, never written or locked.

Ctrl-C ends the display, and so does the end of the last run. Without a terminal
the state is printed once, as with --once.
"""

EXAMPLES = """\
  r2r2 watch
  r2r2 watch runs/hopper runs/dog
  r2r2 watch --once runs
"""


def make_parser(_: Sequence[str] = ()) -> ArgumentParser:
    """Return the parser of `r2r2 watch`."""
    usage = "[RUN or FOLDER]... [--once] [--every SECONDS]"
    parser = ArgumentParser("watch", usage, DESCRIPTION, EXAMPLES, positional=True)
    parser.add_fields({spec.path: spec for spec in SPECS})
    return parser


def run(argv: list[str]) -> int:
    """Run `r2r2 watch` and return its exit code."""
    given = make_parser().parse(argv)
    watch = Watch([Path(name) for name in given["arguments"]] or [DEFAULT])
    console = Console(highlight=False)
    watch.look()
    is_live = console.is_terminal and not console.is_dumb_terminal
    if given.get("once") or not is_live:
        watch.check()
        _print(console, watch)
    else:
        _follow(console, watch, given.get("every", 2.0))
    return 0


class Watch:
    """The runs in some folders; every look finds what is new in them.

    Args:
        named: runs, and folders with runs below them.

    Example:
        >>> watch = Watch([Path("runs/nothing")])
        >>> watch.look()
        >>> [run.state for run in watch.runs], watch.over
        (['not begun'], False)
    """

    def __init__(self, named: Sequence[Path]):
        self._named = tuple(named)
        self._found: dict[Path, Watched] = {}
        self._scanned = -RESCAN

    @property
    def runs(self) -> list[Watched]:
        """The runs, in the order in which they were named and then found."""
        return list(self._found.values())

    @property
    def over(self) -> bool:
        """Whether all of them are finished."""
        return all(run.state == "finished" for run in self.runs)

    def look(self) -> None:
        """Reads what is new; now and then folders are searched again."""
        now = time.monotonic()
        if now - self._scanned >= RESCAN:
            self._scan()
            self._scanned = now
        for run in self._found.values():
            run.look()

    def _scan(self) -> None:
        """A run that has disappeared stays, to say so; a folder goes for its runs."""
        before, self._found = self._found, {}
        for name in self._named:
            for path in find_runs(name) or [name]:
                key = path.absolute()
                self._found[key] = before.get(key) or Watched(path)
        self._found |= {key: run for key, run in before.items() if run.seen}

    def check(self) -> None:
        """Refuses to show nothing at all.

        Raises:
            UserError: None of what was named is a run, or holds one.
        """
        if not any(run.seen for run in self.runs):
            first = self.runs[0]
            raise UserError(first.trouble or f"run is '{first.path}', which is none")


def _print(console: Console, watch: Watch) -> None:
    room = Size(console.width, 0, console.options.ascii_only)
    for row in picture(watch.runs, time.time(), room):
        console.print(_uncut(row), soft_wrap=True)


def _follow(console: Console, watch: Watch, every: float) -> None:
    """Shows the runs until they are over or somebody has seen enough."""
    try:
        # SIGTERM ends it as well, and either leaves the terminal as it was.
        with (
            interruptible(saves=False),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                drawn = _show(live, watch)
                if watch.over:
                    break
                _wait(live, watch, every, drawn)
                watch.look()
    except KeyboardInterrupt as interruption:
        if type(interruption) is not KeyboardInterrupt:
            raise
    _print(console, watch)


def _show(live: Live, watch: Watch) -> ConsoleDimensions:
    """Draws the picture; gives the size of the terminal that it was drawn for."""
    size = live.console.size
    room = Size(size.width, size.height, live.console.options.ascii_only)
    rows = picture(watch.runs, time.time(), room)
    live.update(Group(*map(_uncut, rows)), refresh=True)
    return size


def _wait(live: Live, watch: Watch, seconds: float, drawn: ConsoleDimensions) -> None:
    """Waits for the next look; a terminal that is resized is drawn anew meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, BLINK))
        if live.console.size != drawn:
            drawn = _show(live, watch)


def _uncut(row: Text) -> Text:
    """A row of the right length already, which rich is to leave alone."""
    row.no_wrap, row.overflow = True, "crop"
    return row
