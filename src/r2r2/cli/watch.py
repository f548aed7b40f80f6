"""`r2r2 watch`: show running training in a terminal."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from r2r2.cli.argparser import ArgumentParser, field_table
from r2r2.cli.run_monitor import ENDED_STATES, RunMonitor
from r2r2.cli.sweep_view import SweepWatcher, find_sweeps
from r2r2.cli.watch_view import Size, render_runs
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, POSITIVE
from r2r2.storage.disk_usage import find_runs
from r2r2.training.signals import interruptible

RESCAN_SECONDS = 10.0  # between searches for new runs
RESIZE_SECONDS = 0.2  # between checks of the terminal size

PARSER = ArgumentParser(
    "watch",
    "[RUN or FOLDER]... [--once] [--every SECONDS]",
    """\
Show running training in the terminal, by default all runs in 'runs': progress,
time left, speed, latest returns, problems and learning curves. Folders are
searched for runs, including runs that start later; a folder may be empty or not
exist yet. Of a folder of 'r2r2 sweep', the state of its sweeps is shown, too,
with fleets that wait or were set aside. Folders are only read, never written or
locked.

Ctrl-C ends the display. It also ends when the last run has finished, if every
path is a run; a folder of runs may get another one. Without a terminal the
state is printed once, as with --once.
""",
    """\
  r2r2 watch
  r2r2 watch runs/hopper runs/dog
  r2r2 watch --once runs
""",
    field_table(
        ("once", bool, False, "print the state once and exit", ANY),
        ("every", float, 2.0, "refresh interval in seconds", POSITIVE),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 watch` and return its exit code."""
    given = PARSER.parse(argv)
    watcher = RunWatcher([Path(name) for name in given["arguments"]] or [Path("runs")])
    console = Console(emoji=False, highlight=False)
    watcher.refresh()
    is_live = console.is_terminal and not console.is_dumb_terminal
    if given.get("once") or not is_live:
        if not any(run.seen for run in watcher.runs) and not watcher.sweeps:
            first = watcher.runs[0]
            raise UserError(first.error or f"{first.path}: not a run folder")
        console.print(_render(console, watcher), soft_wrap=True)
    else:
        _follow(console, watcher, given.get("every", 2.0))
    return 0


class RunWatcher:
    """The runs in some folders."""

    def __init__(self, paths: Sequence[Path], rescan_seconds: float = RESCAN_SECONDS):
        self._paths, self._rescan_seconds = tuple(paths), rescan_seconds
        self._monitors: dict[Path, RunMonitor] = {}
        self._sweeps: dict[Path, SweepWatcher] = {}
        self._scanned = -float("inf")

    @property
    def runs(self) -> list[RunMonitor]:
        """The runs, in the order of the paths."""
        return list(self._monitors.values())

    @property
    def sweeps(self) -> list[SweepWatcher]:
        """The sweeps whose folders are among the paths."""
        return list(self._sweeps.values())

    @property
    def finished(self) -> bool:
        """Whether every path is a run that has ended; other runs may begin in a folder."""
        monitors = [self._monitors.get(path.absolute()) for path in self._paths]
        return all(run is not None and run.state in ENDED_STATES for run in monitors)

    def refresh(self) -> None:
        """Read what is new, and search the folders from time to time."""
        now = time.monotonic()
        waiting = not any(run.seen for run in self.runs)
        if waiting or now - self._scanned >= self._rescan_seconds:
            self._scan()
            self._scanned = now
        for run in self.runs:
            run.refresh()
        for sweep in self.sweeps:
            sweep.refresh()

    def _scan(self) -> None:
        """Find runs; one that has disappeared is kept, so that this is shown."""
        before, self._monitors = self._monitors, {}
        for folder in self._paths:
            for path in find_runs(folder) or [folder]:
                key = path.absolute()
                self._monitors[key] = before.get(key) or RunMonitor(path)
        self._monitors |= {key: run for key, run in before.items() if run.seen}
        for sweep in find_sweeps(self._paths):
            self._sweeps.setdefault(sweep.plan_file, SweepWatcher(sweep))


def _render(console: Console, watcher: RunWatcher, height: int = 0) -> Text:
    """Return the view of the runs, whose rows have the right length already."""
    size, rows = Size(console.width, height, console.options.ascii_only), list[Text]()
    for sweep in watcher.sweeps:
        limit = max(height // (len(watcher.sweeps) + 1), 1)
        rows += [*sweep.render(time.time(), size._replace(height=limit if height else 0)), Text("")]
    if height:
        size = size._replace(height=max(height - len(rows), 1))
    rows += render_runs(watcher.runs, time.time(), size)
    return Text("\n", no_wrap=True, overflow="crop").join(rows)


def _follow(console: Console, watcher: RunWatcher, interval: float) -> None:
    """Show the runs until the last has finished or the user interrupts."""
    try:
        with (
            interruptible(saves=False),  # SIGTERM, too, must restore the terminal
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            due, drawn = time.monotonic() + interval, None
            while True:
                if console.size != drawn:
                    drawn = console.size
                    live.update(_render(console, watcher, drawn.height), refresh=True)
                if watcher.finished:
                    break
                time.sleep(min(max(due - time.monotonic(), 0), RESIZE_SECONDS))
                if time.monotonic() >= due:
                    watcher.refresh()
                    due, drawn = time.monotonic() + interval, None
    except KeyboardInterrupt as interruption:
        if type(interruption) is not KeyboardInterrupt:
            raise
    console.print(_render(console, watcher), soft_wrap=True)
