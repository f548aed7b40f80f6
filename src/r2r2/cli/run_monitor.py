"""The state of a run, followed from outside by reading its folder."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.progress import EtaEstimator, Sample, SpeedWindow
from r2r2.storage.evaluations import Row, parse_line
from r2r2.storage.events import LogTail, TailUpdate, parse_event
from r2r2.storage.files import MAX_INT, damaged_line, parse_count, parse_number
from r2r2.storage.integrity import find_damage
from r2r2.storage.run_folder import (
    MANIFEST_FILE,
    PRUNED_FILE,
    RunFolder,
    lock_pid,
    open_run,
    read_manifest,
)
from r2r2.training.time_account import describe_event

SPEED_SECONDS = 60.0
RECENT_SECONDS = 120.0  # a log that changed since may be written on another machine

Event = Mapping[str, object]
Active = Literal["starting", "warm-up", "training"]
Ended = Literal["finished", "failed", "pruned"]
State = Active | Ended | Literal["not started", "interrupted", "unavailable"]
ACTIVE_STATES: tuple[State, ...] = ("starting", "warm-up", "training")
ENDED_STATES: tuple[State, ...] = ("finished", "failed", "pruned")


def _count(event: Event, name: str) -> int:
    return parse_count(name, event.get(name))


@dataclasses.dataclass
class MemberStatus:
    """The progress of one member and its problems."""

    decisions: int = 0
    updates: int = 0
    stopped: str | None = None  # the reason
    failures: int = 0  # of its environment
    last_failure: str = ""
    collapse: str | None = None  # of its representation, at the last evaluation

    def add(self, event: Event, decisions: int, updates: int) -> None:
        """Add the next event of the member."""
        match event["event"]:
            case "stopped":
                self.stopped = str(event.get("why"))
            case "episode_dropped" | "evaluation_repeated":
                self.failures = _count(event, "failures")
                self.last_failure = str(event.get("why"))
            case "diagnostics" if event.get("collapsed") is False:
                self.collapse = None
            case "collapse":
                rank, dead = event.get("effective_rank"), event.get("dead")
                shown = f"{rank:.1f}" if isinstance(rank, float) else str(rank)
                text = f"effective rank {shown}, {dead} dead coordinates"
                self.collapse = f"at step {decisions:,}: {text}"
            case _:
                pass
        # The results of an evaluation are logged at its end with the counts of its
        # start, so counts may go back.
        self.decisions = max(decisions, self.decisions)
        self.updates = max(updates, self.updates)

    def messages(self, name: str) -> Iterator[str]:
        """Yield the problems of the member."""
        if self.stopped is not None:
            yield f"{name}: stopped at step {self.decisions:,}: {self.stopped}"
        elif self.failures:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            yield f"{name}: environment failed {times}: {self.last_failure}"
        if self.collapse is not None:
            yield f"warning: {name}: representation collapsed {self.collapse}"


class EventSummary:
    """The state of a run according to its events."""

    def __init__(self, members: Sequence[str], steps: int):
        self.members = {name: MemberStatus() for name in members}
        self.seconds = 0.0
        self.resumed = 0  # number of times
        self.time = ""  # where it went, according to the latest event
        self.remaining: float | None = None  # seconds, as of the latest event
        self.speed = SpeedWindow(SPEED_SECONDS)  # of the whole fleet
        self.steps, self._eta = steps, EtaEstimator(steps)

    @property
    def started(self) -> bool:
        """Whether there are events of members."""
        return bool(self.speed.samples)

    @property
    def active_members(self) -> list[MemberStatus]:
        """The members that were not stopped, or all members if all were."""
        members = list(self.members.values())
        return [member for member in members if member.stopped is None] or members

    @property
    def decisions(self) -> float:
        """The mean decision steps of the active members."""
        active = self.active_members
        return sum(member.decisions for member in active) / max(len(active), 1)

    def add(self, event: Event) -> None:
        """Add the next event; if it is invalid, raise ValueError and change nothing."""
        name, seconds = event["member"], parse_number("time", event.get("time"))
        if not 0 <= seconds < MAX_INT:
            raise ValueError(f"time: expected a number >= 0, got {seconds!r}")
        decisions, updates = (_count(event, "decision_step"), _count(event, "update_step"))
        if event["event"] == "resumed":
            self.resumed += 1
            self._eta, self.remaining = EtaEstimator(self.steps, updates), None
            self.speed.restart()
        if event["event"] == "time":
            self.time = describe_event(event)
        if name is None:
            self.seconds = max(self.seconds, seconds)
            return
        member = self.members.get(name) if isinstance(name, str) else None
        if member is None:
            raise ValueError("member: not a member of the run")
        member.add(event, decisions, updates)
        self.seconds = max(self.seconds, seconds)
        members = self.members.values()
        totals = sum(x.decisions for x in members), sum(x.updates for x in members)
        self.speed.add(Sample(self.seconds, *totals))
        if self.remaining is None:
            self.update_eta()

    def update_eta(self) -> None:
        """Estimate the time left from the latest events."""
        updates = min((member.updates for member in self.active_members), default=0)
        left = self._eta.remaining(self.decisions, updates, self.seconds)
        self.remaining = None if left is None else max(left, 0.0)


class RunMonitor:
    """Follows one run; every `refresh` reads what is new, and nothing is written.

    A run is in training if the process whose pid is in its lock file is alive, or, for
    a run on another machine, if its log changed recently. The lock is not taken.
    """

    def __init__(self, path: Path):
        self.path = path
        self.state: State = "not started"
        self.config: RunConfig | None = None
        self.error: str | None = None  # the first problem with its files
        self.modified: float | None = None  # of the log, seconds since 1970
        self.seen = False  # whether the run has existed
        self._reset("", (), 1)

    def _reset(self, config_text: str, members: tuple[str, ...], steps: int) -> None:
        """Start to read the run from the beginning."""
        self._config_text, self.summary = config_text, EventSummary(members, steps)
        self.rows: list[Row] = []
        folder = RunFolder(self.path, members)
        self._events = LogTail(folder.events)
        self._evaluations = LogTail(folder.evaluations)
        self._damage: dict[Path, str] = {}  # the first error of each file

    def refresh(self) -> None:
        """Read what is new."""
        try:
            folder = open_run(self.path)
            self.seen = True
            self._read_config(folder)
            self._read_events(folder.events)
            self._read_evaluations(folder.evaluations)
            self.modified = folder.events.stat().st_mtime if self.summary.started else None
        except (OSError, UserError) as error:
            self._set_unavailable(error)
        else:
            before, self.state = self.state, self._current_state()
            if self.state != before and self.state in ("finished", "interrupted"):
                changed = {file: f"{file}: {why}" for file, why in find_damage(self.path).items()}
                self._damage = changed | self._damage
            self.error = next(iter(self._damage.values()), None)

    def _set_unavailable(self, error: Exception) -> None:
        """Wait for a run that does not exist yet; report one that is gone."""
        exists = os.path.lexists(self.path)
        empty = self.path.is_dir() and not os.path.lexists(self.path / MANIFEST_FILE)
        waiting = not self.seen and (empty or not exists)
        self.state = "not started" if waiting else "unavailable"
        self.error = str(error)
        if not exists:
            problem = "no longer exists" if self.seen else "does not exist yet"
            self.error = f"{self.path}: {problem}"
        elif waiting:
            self.error = f"{self.path}: contains no run yet"

    def _read_config(self, folder: RunFolder) -> None:
        """Start from the beginning if the config or the members have changed."""
        text = folder.config_text()
        if text == self._config_text and folder.members == tuple(self.summary.members):
            return
        try:
            self.config = resolve_toml(text)
        except ValueError as error:
            raise UserError(f"{self.path / 'config.toml'}: {error}") from error
        self._reset(text, folder.members, self.config.steps)

    def _read_events(self, path: Path) -> None:
        update = self._events.read()
        if update.restarted:
            self.summary = EventSummary(tuple(self.summary.members), self.summary.steps)
        self._add_lines(path, update, self._add_event)
        if update.lines:
            self.summary.update_eta()

    def _read_evaluations(self, path: Path) -> None:
        update = self._evaluations.read()
        if update.restarted:
            self.rows = []
        self._add_lines(path, update, self._add_row)

    def _add_lines(
        self, path: Path, update: TailUpdate, add: Callable[[Path, int, str], None]
    ) -> None:
        if update.restarted:
            self._damage.pop(path, None)
        if update.error is not None:
            self._damage.setdefault(path, update.error)
        for number, line in update.lines:
            try:
                add(path, number, line)
            except UserError as error:
                self._damage.setdefault(path, str(error))

    def _add_event(self, path: Path, number: int, line: str) -> None:
        event = parse_event(path, number, line)
        try:
            self.summary.add(event)
        except ValueError as error:
            raise damaged_line(path, number, str(error)) from error

    def _add_row(self, path: Path, number: int, line: str) -> None:
        if (row := parse_line(path, number, line)) is not None:
            self.rows.append(row)

    def _current_state(self) -> State:
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.status in ("finished", "failed"):
            return manifest.status
        if (self.path / PRUNED_FILE).exists():
            return "pruned"
        pid = lock_pid(self.path)
        recent = self.idle_seconds(time.time()) < RECENT_SECONDS
        if pid is None or not (_is_alive(pid) or recent):
            return "interrupted" if self.summary.started else "not started"
        if not self.summary.started or self.config is None:
            return "starting"
        warm = self.summary.decisions >= self.config.warmup and not self.config.random_only
        return "training" if warm else "warm-up"

    def idle_seconds(self, now: float) -> float:
        """Return the seconds since the log changed; infinite if it is empty."""
        return float("inf") if self.modified is None else max(now - self.modified, 0.0)

    def eta(self, now: float) -> float | None:
        """Return the seconds left, or None if unknown or overdue."""
        left = self.summary.remaining
        if self.state != "training" or left is None:
            return None
        left -= self.idle_seconds(now)  # the estimate is as old as the log
        return left if left > 0 else None


def _is_alive(pid: int) -> bool:
    """Return whether a process with this pid exists on this machine."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
