"""A run's folder, looked at from outside while something trains into it."""

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from r2r2.cli.progress import Mark, Pace
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.storage.evaluations import HEADER, Row, parse_row
from r2r2.storage.events import LogTail, TailUpdate, parse_event
from r2r2.storage.files import MAX_INT, damaged_line, parse_count, parse_number
from r2r2.storage.run_folder import (
    MANIFEST_FILE,
    RunFolder,
    lock_pid,
    open_run,
    read_manifest,
)

WINDOW = 60.0  # seconds of the run over which speed is measured
FAULTS = ("episode_dropped", "evaluation_repeated")


@dataclasses.dataclass
class MemberNews:
    """How far one member is, and what befell it."""

    decisions: int = 0
    updates: int = 0
    stopped: str | None = None  # why
    failures: int = 0  # of its environment
    failure: str = ""  # the last of them
    collapse: str | None = None  # its representation's, at the last evaluation

    def sentences(self, name: str) -> Iterator[str]:
        """What somebody should know of it.

        Example:
            >>> print(*MemberNews(failures=2, failure="no power").sentences("arm_s0"))
            the environment of arm_s0 failed 2 times: no power
        """
        if self.stopped is not None:
            yield f"{name} was stopped at step {self.decisions:,}: {self.stopped}"
        elif self.failures:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            yield f"the environment of {name} failed {times}: {self.failure}"
        if self.collapse is not None:
            what = f"the representation of {name} has collapsed"
            yield f"warning: {what} {self.collapse}"


class Digest:
    """A run as its events tell it, from the first to the newest.

    An event that is not what a run writes raises ValueError and changes nothing.

    Args:
        members: the run's, by name.
        steps: decision steps of every member.

    Example:
        >>> digest = Digest(["Hopper-v5_s0"], 1000)
        >>> event = {"event": "losses", "member": "Hopper-v5_s0", "time": 9.0}
        >>> digest.take(event | {"decision_step": 100, "update_step": 40})
        >>> digest.decisions, digest.members["Hopper-v5_s0"].updates
        (100.0, 40)
    """

    def __init__(self, members: Sequence[str], steps: int):
        self.members = {name: MemberNews() for name in members}
        self.seconds = 0.0
        self.resumed = 0  # how often
        self.remaining: float | None = None  # seconds, as of the newest event
        self._steps, self._pace = steps, Pace(steps)
        self._sums = [0, 0]  # decision steps and updates of the whole fleet
        self._marks: deque[Mark] = deque()

    @property
    def begun(self) -> bool:
        """Whether anything has happened."""
        return bool(self._marks)

    @property
    def going(self) -> list[MemberNews]:
        """The members that were not stopped, or all if there are no others."""
        whole = list(self.members.values())
        return [member for member in whole if member.stopped is None] or whole

    @property
    def decisions(self) -> float:
        """Decision steps, on average over the members that go on."""
        return sum(m.decisions for m in self.going) / max(len(self.going), 1)

    @property
    def speed(self) -> str:
        """Steps and updates per second of the whole fleet, of late."""
        return self._marks[-1].speed_since(self._marks[0]) if self._marks else "-"

    def take(self, event: Mapping[str, object]) -> None:
        """Takes in the next event.

        Raises:
            ValueError: It is none that a run writes; the text says why.
        """
        name, seconds = event["member"], _seconds(event)
        decisions = _whole(event, "decision_step")
        updates = _whole(event, "update_step")
        if event["event"] == "resumed":
            self.resumed += 1
            self._pace, self.remaining = Pace(self._steps, updates), None
            self._marks.clear()
        if name is None:
            self.seconds = max(self.seconds, seconds)
            return
        member = self.members.get(name) if isinstance(name, str) else None
        if member is None:
            raise ValueError("its member is none of the run's")
        if told := TOLD.get(str(event["event"])):
            told(member, event)
        # What an evaluation found is written at its end, with the counts of its start.
        decisions = max(decisions, member.decisions)
        updates = max(updates, member.updates)
        self._sums[0] += decisions - member.decisions
        self._sums[1] += updates - member.updates
        member.decisions, member.updates = decisions, updates
        self.seconds = max(self.seconds, seconds)
        self._mark(Mark(self.seconds, *self._sums))

    def _mark(self, mark: Mark) -> None:
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].now <= mark.now - WINDOW:
            self._marks.popleft()
        if self.remaining is None:
            self.estimate()

    def estimate(self) -> None:
        """Works out anew how long it will take; nothing can be said before training."""
        least = min((m.updates for m in self.going), default=0)
        left = self._pace.remaining(self.decisions, least, self.seconds)
        self.remaining = None if left is None else max(left, 0.0)


def _seconds(event: Mapping[str, object]) -> float:
    seconds = parse_number("time", event.get("time"))
    if not 0 <= seconds < MAX_INT:
        raise ValueError(f"time: expected a number >= 0, got {seconds!r}")
    return seconds


def _whole(event: Mapping[str, object], name: str) -> int:
    return parse_count(name, event.get(name))


def _stopped(member: MemberNews, event: Mapping[str, object]) -> None:
    member.stopped = str(event.get("why"))


def _failed(member: MemberNews, event: Mapping[str, object]) -> None:
    member.failures = _whole(event, "failures")
    member.failure = str(event.get("why"))


def _diagnosed(member: MemberNews, event: Mapping[str, object]) -> None:
    """A representation that is sound again is no longer warned of."""
    if event.get("collapsed") is False:
        member.collapse = None


def _collapsed(member: MemberNews, event: Mapping[str, object]) -> None:
    rank, dead = event.get("effective_rank"), event.get("dead")
    shown = f"{rank:.1f}" if isinstance(rank, float) else str(rank)
    where = f"at step {_whole(event, 'decision_step'):,}"
    member.collapse = f"{where}: effective rank {shown}, {dead} dead coordinates"


TOLD: dict[str, Callable[[MemberNews, Mapping[str, object]], None]] = {
    "stopped": _stopped,
    "diagnostics": _diagnosed,
    "collapse": _collapsed,
    **dict.fromkeys(FAULTS, _failed),
}


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
        self._events, self._table = LogTail(folder.events), LogTail(folder.evaluations)
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
        except (OSError, UserError) as error:
            self._lose(error)
        else:
            self.trouble = next(iter(self._spoilt.values()), None)
            self.state = self._state()

    def _lose(self, error: Exception) -> None:
        """A folder that is not there yet is waited for; one that was there is lost."""
        there = os.path.lexists(self.path)
        empty = self.path.is_dir() and not os.path.lexists(self.path / MANIFEST_FILE)
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
            self.config = resolve_toml(text)
        except ValueError as error:
            why = f"has a config.toml that cannot be read: {error}"
            raise UserError(f"run is '{self.path}', which {why}") from error
        self._begin(text, folder.members)

    def _read_events(self, folder: RunFolder) -> None:
        news = self._news(self._events, folder.events)
        if news.restarted:
            steps = self.config.steps if self.config is not None else 1
            self.digest = Digest(folder.members, steps)
        for number, line in news.lines:
            try:
                self.digest.take(parse_event(folder.events, number, line))
            except UserError as refusal:
                self._spoil(folder.events, refusal)
            except ValueError as error:
                odd = damaged_line(folder.events, number, str(error))
                self._spoil(folder.events, odd)
        if news.lines:
            self.digest.estimate()

    def _read_table(self, folder: RunFolder) -> None:
        news = self._news(self._table, folder.evaluations)
        if news.restarted:
            self.rows = []
        for number, line in news.lines:
            try:
                if number > 1:
                    self.rows.append(parse_row(folder.evaluations, number, line))
                elif line != HEADER:
                    raise damaged_line(folder.evaluations, 1, f"it is not '{HEADER}'")
            except UserError as refusal:
                self._spoil(folder.evaluations, refusal)

    def _news(self, tail: LogTail, path: Path) -> TailUpdate:
        """What is new in a file; damage of one that is another now is forgotten."""
        news = tail.read()
        if news.restarted:
            self._spoilt.pop(path, None)
        if news.error is not None:
            self._spoilt.setdefault(path, news.error)
        return news

    def _spoil(self, path: Path, refusal: UserError) -> None:
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
        pid = lock_pid(self.path)
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
