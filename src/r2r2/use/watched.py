"""A run's folder, looked at from outside while something trains into it."""

import os
import time
from pathlib import Path
from typing import Literal

from r2r2.config.refusal import Refusal
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.text import parse_toml
from r2r2.record.evaluations import HEADER, Row, parse_row
from r2r2.record.events import parse_event
from r2r2.record.files import damaged
from r2r2.record.folder import RunFolder, open_run
from r2r2.record.lock import holding_pid
from r2r2.record.manifest import NAME, read_manifest
from r2r2.record.tail import News, Tail
from r2r2.use.watch_digest import Digest

FRESH = 120.0  # seconds: what changed since then may be trained on another machine

State = Literal[
    "not begun", "starting", "warm-up", "training", "interrupted", "finished", "lost"
]
GOING: tuple[State, ...] = ("starting", "warm-up", "training")


class Watched:
    """One run, of which every look reads what is new; nothing in it is ever written.

    Whether it is being trained is told by the process whose number is in its lock,
    which is read and not taken. Of a run on another machine it is told by the log: it
    has news.

    Args:
        path: the run's folder, which need not be there.

    Example:
        >>> run = Watched(Path("runs/nothing"))
        >>> run.look()
        >>> run.state, run.trouble
        ('not begun', "run is 'runs/nothing', which does not exist yet")
    """

    def __init__(self, path: Path):
        self.path = path
        self.state: State = "not begun"
        self.config: RunConfig | None = None
        self.trouble: str | None = None  # the first thing that cannot be read
        self.changed: float | None = None  # when the log last was, seconds since 1970
        self.seen = False  # whether a run was there
        self._begin("", ())

    def _begin(self, text: str, members: tuple[str, ...]) -> None:
        """Forgets all that was read; it is read again."""
        steps = self.config.steps if self.config is not None else 1
        self._text, self.digest = text, Digest(members, steps)
        self.rows: list[Row] = []
        folder = RunFolder(self.path, members)
        self._events, self._table = Tail(folder.events), Tail(folder.evaluations)
        self._spoilt: dict[Path, str] = {}  # the first damage of each file

    def look(self) -> None:
        """Reads what is new."""
        try:
            folder = open_run(self.path)
            self.seen = True
            self._read_config(folder)
            self._read_events(folder)
            self._read_table(folder)
            self.changed = folder.events.stat().st_mtime if self.digest.begun else None
        except (OSError, Refusal) as error:
            self._lose(error)
        else:
            self.trouble = next(iter(self._spoilt.values()), None)
            self.state = self._state()

    def _lose(self, error: Exception) -> None:
        """A folder that is not there yet is waited for; one that was there is lost."""
        there = os.path.lexists(self.path)
        empty = self.path.is_dir() and not os.path.lexists(self.path / NAME)
        self.state = "not begun" if not self.seen and (empty or not there) else "lost"
        self.trouble = str(error)
        if not there:
            verb = "is not there any more" if self.seen else "does not exist yet"
            self.trouble = f"run is '{self.path}', which {verb}"
        elif self.state == "not begun":
            self.trouble = f"run is '{self.path}', which holds no run yet"

    def _read_config(self, folder: RunFolder) -> None:
        """Begins anew where the config, or the members, are other ones than before."""
        text = folder.config_text()
        if text == self._text and folder.members == tuple(self.digest.members):
            return
        try:
            self.config = resolve(parse_toml(text))
        except ValueError as error:
            why = f"has a config.toml that cannot be read: {error}"
            raise Refusal(f"run is '{self.path}', which {why}") from error
        self._begin(text, folder.members)

    def _read_events(self, folder: RunFolder) -> None:
        news = self._news(self._events, folder.events)
        if news.anew:
            steps = self.config.steps if self.config is not None else 1
            self.digest = Digest(folder.members, steps)
        for number, line in news.lines:
            try:
                self.digest.take(parse_event(folder.events, number, line))
            except Refusal as refusal:
                self._spoil(folder.events, refusal)
            except ValueError as error:
                odd = damaged(folder.events, number, str(error))
                self._spoil(folder.events, odd)
        if news.lines:
            self.digest.estimate()

    def _read_table(self, folder: RunFolder) -> None:
        news = self._news(self._table, folder.evaluations)
        if news.anew:
            self.rows = []
        for number, line in news.lines:
            try:
                if number > 1:
                    self.rows.append(parse_row(folder.evaluations, number, line))
                elif line != HEADER:
                    raise damaged(folder.evaluations, 1, f"it is not '{HEADER}'")
            except Refusal as refusal:
                self._spoil(folder.evaluations, refusal)

    def _news(self, tail: Tail, path: Path) -> News:
        """What is new in a file; damage of one that is another now is forgotten."""
        news = tail.look()
        if news.anew:
            self._spoilt.pop(path, None)
        if news.trouble is not None:
            self._spoilt.setdefault(path, news.trouble)
        return news

    def _spoil(self, path: Path, refusal: Refusal) -> None:
        """The first damage of a file is told, and the line passed over."""
        self._spoilt.setdefault(path, str(refusal))

    def _state(self) -> State:
        found = read_manifest(self.path)
        if found is not None and found.status == "finished":
            return "finished"
        if not self._trained():
            return "interrupted" if self.digest.begun else "not begun"
        if not self.digest.begun or self.config is None:
            return "starting"
        warm = self.digest.decisions >= self.config.warmup
        return "training" if warm else "warm-up"

    def _trained(self) -> bool:
        """Whether a process trains it now, as far as can be told from outside."""
        pid = holding_pid(self.path)
        if pid is None:
            return False
        return _is_running(pid) or self.quiet(time.time()) < FRESH

    def quiet(self, now: float) -> float:
        """Seconds since the log last changed; infinite where nothing is in it."""
        return float("inf") if self.changed is None else max(now - self.changed, 0.0)

    def eta(self, now: float) -> float | None:
        """Seconds still to go; None where nothing can be said, as when it is overdue.

        The estimate is as old as the log's last line, so that age is taken off.
        """
        left = self.digest.remaining
        if self.state != "training" or left is None:
            return None
        left -= self.quiet(now)
        return left if left > 0 else None


def _is_running(pid: int) -> bool:
    """Whether there is a process of that number on this machine."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
