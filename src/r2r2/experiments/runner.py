"""Carry out a plan: start fleets as slots become free, retry failures, set aside the rest."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Literal

from r2r2.experiments.engine import FINISHED, INTERRUPTED, Engine, FleetEnd
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.sweep_folder import SweepFolder

RETRIES = 2  # of a fleet that fails, in one call of `run_plan`
WAIT_SECONDS = 0.5  # between two looks at the engine

FleetState = Literal["waiting", "running", "finished", "interrupted", "set aside"]


@dataclasses.dataclass
class FleetStatus:
    """What became of a fleet so far."""

    fleet: PlannedFleet
    state: FleetState = "waiting"
    attempts: int = 0  # that counted
    started: float = 0.0  # seconds of `time.monotonic`, of the latest process
    why: str = ""  # it failed, the last time


OnStatus = Callable[[Mapping[str, FleetStatus]], None]


def run_plan(
    folder: SweepFolder,
    plan: Plan,
    engine: Engine,
    on_status: OnStatus = lambda _: None,
    retries: int = RETRIES,
) -> dict[str, FleetStatus]:
    """Train every fleet of a plan that is not finished; return what became of each.

    `on_status` is called at least every `WAIT_SECONDS`. If it raises KeyboardInterrupt, running
    fleets write a checkpoint and end, and the exception is raised again.
    """
    statuses = {fleet.name: FleetStatus(fleet) for fleet in plan.fleets}
    try:
        while _is_active(statuses):
            for status in _startable(statuses, engine.free_slots()):
                _start(folder, engine, status)
            on_status(statuses)
            for end in engine.wait(WAIT_SECONDS):
                _record(folder, statuses[end.fleet], end, retries)
        on_status(statuses)
    except KeyboardInterrupt:
        engine.interrupt()
        while any(status.state == "running" for status in statuses.values()):
            for end in engine.wait(WAIT_SECONDS):
                _record(folder, statuses[end.fleet], end, retries=0)
        raise
    finally:
        engine.close()
    return statuses


def _is_active(statuses: Mapping[str, FleetStatus]) -> bool:
    return any(status.state in ("waiting", "running") for status in statuses.values())


def _startable(statuses: Mapping[str, FleetStatus], slots: int) -> list[FleetStatus]:
    waiting = [status for status in statuses.values() if status.state == "waiting"]
    return waiting[: max(slots, 0)]


def _start(folder: SweepFolder, engine: Engine, status: FleetStatus) -> None:
    attempt = status.attempts + 1
    folder.append("started", status.fleet.name, attempt=attempt)
    engine.start(status.fleet, attempt)
    status.state, status.started = "running", time.monotonic()


def _record(folder: SweepFolder, status: FleetStatus, end: FleetEnd, retries: int) -> None:
    """Record the end of a fleet's process, and decide whether it starts again."""
    status.attempts += end.counts
    status.why = end.why
    if end.code == FINISHED:
        status.state = "finished"
    elif end.code == INTERRUPTED:
        status.state = "interrupted"
    elif not end.counts or status.attempts <= retries:
        status.state = "waiting"
    else:
        status.state = "set aside"
    event = "failed" if status.state == "waiting" else status.state
    folder.append(event, status.fleet.name, code=end.code, why=end.why)
