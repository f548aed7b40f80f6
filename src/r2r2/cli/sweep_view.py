"""The text view of a sweep: what runs, waits, has failed, and the time left."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.text import Text

from r2r2.cli.run_monitor import RunMonitor
from r2r2.cli.watch_view import Size, fit_row
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.runner import FleetState, FleetStatus
from r2r2.experiments.sweep_folder import SweepFolder, sweep_names
from r2r2.progress import format_duration
from r2r2.storage.files import is_number
from r2r2.storage.run_folder import is_file_locked, is_locked, read_manifest

UPDATE_WORK = 10.0  # time of an update, in decision steps of warm-up: only for rough estimates
ORDER: tuple[FleetState, ...] = (
    "running",
    "set aside",
    "interrupted",
    "waiting",
    "postponed",
    "finished",
)
STYLES: dict[FleetState, str] = {
    "running": "bold green",
    "set aside": "bold red",
    "interrupted": "yellow",
    "waiting": "dim",
    "postponed": "dim",
    "finished": "bold",
}
# The state of a fleet after an event in the log of its sweep.
EVENT_STATES: dict[str, FleetState] = {
    "finished": "finished",
    "failed": "waiting",
    "set aside": "set aside",
    "interrupted": "interrupted",
    "postponed": "postponed",
}


class FleetRow(NamedTuple):
    """One fleet of a sweep as it is shown."""

    fleet: PlannedFleet
    state: FleetState
    why: str = ""
    attempts: int = 0  # that failed
    seconds: float = 0.0  # of its processes in this call, so far


def rows_of(statuses: Mapping[str, FleetStatus]) -> list[FleetRow]:
    """Return the fleets of a sweep that this process carries out."""
    rows: list[FleetRow] = []
    for status in statuses.values():
        running = status.state == "running"
        seconds = status.seconds + (time.monotonic() - status.started if running else 0.0)
        failed = status.attempts - (status.state == "finished" and status.attempts > 0)
        rows.append(FleetRow(status.fleet, status.state, status.why, failed, seconds))
    return rows


class SweepView:
    """Shows the fleets of a sweep; reads the run folders of those that are running."""

    def __init__(self, folder: SweepFolder):
        self._folder = folder
        self._monitors: dict[str, RunMonitor] = {}

    def refresh(self, rows: Iterable[FleetRow]) -> None:
        """Read what is new in the folders of running fleets."""
        for row in rows:
            if row.state == "running":
                self._monitor(row).refresh()

    def _monitor(self, row: FleetRow) -> RunMonitor:
        path = self._folder.run(row.fleet.name)
        return self._monitors.setdefault(row.fleet.name, RunMonitor(path))

    def render(self, rows: Sequence[FleetRow], now: float, size: Size) -> list[Text]:
        """Return a title and a row for each fleet; a height of 0 is unlimited."""
        ordered = sorted(rows, key=lambda row: ORDER.index(row.state))
        shown = ordered[: max(size.height - 2, 0)] if size.height else ordered
        shown = ordered if len(ordered) == len(shown) + 1 else shown
        texts = [Text(fit_row(self._title(rows, now), size), "bold")]
        for row in shown:
            text = Text(fit_row(f"  {row.state:11} {self._describe(row, now)}", size))
            text.stylize(STYLES[row.state], 2, 2 + len(row.state))
            texts.append(text)
        if len(shown) < len(ordered):
            counts = Counter(row.state for row in ordered[len(shown) :])
            more = ", ".join(f"{count} {state}" for state, count in counts.items())
            texts.append(Text(fit_row(f"  and {more}", size), "dim"))
        return texts

    def _title(self, rows: Sequence[FleetRow], now: float) -> str:
        counts = Counter(row.state for row in rows)
        states = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
        text = f"sweep {self._folder.name}: {len(rows)} fleet{'s' * (len(rows) != 1)}: {states}"
        if counts["running"]:
            left = self.eta(rows, now)
            text += f"; {'estimating' if left is None else f'about {format_duration(left)}'} left"
            text = text.replace("estimating left", "estimating the time left")
        return text

    def _describe(self, row: FleetRow, now: float) -> str:
        """Return what a fleet is doing, or why it is not, and its name."""
        parts = [row.fleet.name]
        if row.state == "running":
            monitor = self._monitor(row)
            parts = [*_progress(monitor, now), row.fleet.name]
        elif row.state == "finished":
            parts = [f"in {format_duration(row.seconds)}" if row.seconds else "earlier", *parts]
        if row.attempts and row.state in ("running", "waiting"):
            parts.append(f"attempt {row.attempts + 1}")
        return ", ".join(parts) + (f": {row.why}" if row.why and row.state != "finished" else "")

    def eta(self, rows: Sequence[FleetRow], now: float) -> float | None:
        """Return the seconds left of the whole sweep; None while nothing is known."""
        known = {row.fleet.name: self._total(row, now) for row in rows}
        rates = [
            (row.fleet.config.agent.name, total / _work(row.fleet.config))
            for row in rows
            if not math.isnan(total := known[row.fleet.name])
        ]
        left: list[float] = []
        for row in rows:
            if row.state not in ("running", "waiting"):
                continue
            total = known[row.fleet.name]
            if math.isnan(total):
                total = _rate(rates, row.fleet.config) * _work(row.fleet.config)
            # A fleet that takes longer than estimated may take any time.
            overdue = row.state == "running" and total <= row.seconds
            left.append(math.nan if overdue else max(total - row.seconds, 0.0))
        slots = max(sum(row.state == "running" for row in rows), 1)
        if any(map(math.isnan, left)):
            return None
        return max([sum(left) / slots, *left], default=0.0)

    def _total(self, row: FleetRow, now: float) -> float:
        """Return the seconds that a fleet takes in all; NaN if unknown."""
        if row.state == "finished" and row.seconds:
            return row.seconds
        if row.state == "running" and (left := self._monitor(row).eta(now)) is not None:
            return row.seconds + left
        return row.fleet.seconds


def _work(config: RunConfig) -> float:
    """Return a number that the time of similar fleets is roughly proportional to."""
    updates = config.utd * max(config.steps - config.warmup, 0) * (not config.random_only)
    return len(config.env) * len(config.seeds) * (config.steps + UPDATE_WORK * updates)


def _rate(rates: Sequence[tuple[str, float]], config: RunConfig) -> float:
    """Return the seconds per work of fleets with the same agent, or else of all; NaN if none."""
    same = [rate for name, rate in rates if name == config.agent.name]
    values = same or [rate for _, rate in rates]
    return float(np.mean(values)) if values else math.nan


def _progress(monitor: RunMonitor, now: float) -> list[str]:
    """Return the phase, progress, time left and speed of a running fleet."""
    summary = monitor.summary
    if monitor.state in ("warm-up", "training") and summary.started:
        percent = f"{min(int(100 * summary.decisions / summary.steps), 100)}%"
        updates = sum(member.updates for member in summary.members.values())
        phase = "warming up" if monitor.state == "warm-up" else "training"
        if phase == "training" and not updates:
            return [percent, "compiling"]
        left = monitor.eta(now)
        times = [] if left is None else [f"{format_duration(left)} left"]
        speed = [] if str(summary.speed) == "-" else [str(summary.speed)]
        return [percent, phase, *times, *speed]
    return ["starting"]


# Sweeps of other processes


class SweepWatcher:
    """Follows a sweep by its files, whichever process carries it out; nothing is written."""

    def __init__(self, folder: SweepFolder):
        self.folder, self._view = folder, SweepView(folder)
        self._plan: Plan | None = None
        self._changed = -1.0  # time of the plan's last change
        self.rows: list[FleetRow] = []
        self.error = ""

    def refresh(self) -> None:
        """Read what is new."""
        try:
            changed = self.folder.plan_file.stat().st_mtime
            if changed != self._changed:
                self._plan, self._changed = self.folder.plan(), changed
        except (OSError, UserError) as error:
            self.error = str(error)
            return
        self.error = ""
        self.rows = fleet_rows(self.folder, self._plan) if self._plan else []
        self._view.refresh(self.rows)

    def render(self, now: float, size: Size) -> list[Text]:
        """Return the rows that show the sweep."""
        if self.error:
            return [Text(fit_row(f"sweep {self.folder.name}: {self.error}", size), "red")]
        return self._view.render(self.rows, now, size)


def find_sweeps(paths: Iterable[Path]) -> list[SweepFolder]:
    """Return the sweeps whose folders are among the paths."""
    return [SweepFolder(path, name) for path in paths for name in sweep_names(path)]


def fleet_rows(folder: SweepFolder, plan: Plan) -> list[FleetRow]:
    """Return the state of the fleets of a sweep according to its files."""
    log = folder.read_events()
    events = {str(event.get("fleet")): event for event in log}
    starts = {str(x.get("fleet")): x.get("time") for x in log if x.get("event") == "started"}
    is_running = is_file_locked(folder.lock)
    now, rows = time.time(), list[FleetRow]()
    for fleet in plan.fleets:
        event = events.get(fleet.name, {})
        kind, ended, began = event.get("event"), event.get("time"), starts.get(fleet.name)
        state = EVENT_STATES.get(str(kind), "waiting")
        if kind == "started":
            state = "running" if is_running else "interrupted"
        manifest = read_manifest(folder.run(fleet.name))
        if is_locked(folder.run(fleet.name)):  # perhaps by a job of a cluster
            state = "running"
        elif manifest is not None and manifest.status == "finished" and state != "set aside":
            state = "finished"
        end = now if kind == "started" else ended
        seconds = 0.0
        is_timed = (state, kind) in (("running", "started"), ("finished", "finished"))
        if is_timed and is_number(began) and is_number(end):
            seconds = max(end - began, 0.0)
        why = str(event.get("why", "")) if state != "running" else ""
        rows.append(FleetRow(fleet, state, why, 0, seconds))
    return rows
