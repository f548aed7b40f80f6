"""Carry out a plan: start fleets as slots become free, retry failures, set aside the rest."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple

from r2r2.config.errors import UserError
from r2r2.experiments.engine import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    LOCKED,
    TERMINATED,
    Engine,
    FleetEnd,
)
from r2r2.experiments.experiment import RunKey
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.sweep_folder import SweepFolder, finished_runs
from r2r2.storage.run_folder import is_locked

RETRIES = 2  # of a fleet that fails, in one call of `run_plan`
MAX_LOSSES = 100  # of machines, by one fleet in one call: it may be what breaks them
WAIT_SECONDS = 0.5  # between two looks at the engine
IN_USE = "another process is training this run"
NO_TIME = "it would not finish within the budget"
# Of the budget, by which a fleet may end late: processes take a moment to start and to be noticed.
BUDGET_SLACK = 0.05

FleetState = Literal["waiting", "running", "finished", "interrupted", "set aside", "postponed"]


@dataclasses.dataclass
class FleetStatus:
    """What became of a fleet so far."""

    fleet: PlannedFleet
    state: FleetState = "waiting"
    attempts: int = 0  # that counted, in this call
    started: float = 0.0  # seconds of `time.monotonic`, of the latest process; 0: none so far
    why: str = ""  # it failed the last time, or has to wait
    seconds: float = 0.0  # that its processes took, in this call
    losses: int = 0  # attempts that did not count


OnStatus = Callable[[Mapping[str, FleetStatus]], None]
OnFinished = Callable[[PlannedFleet], None]


class RunLimits(NamedTuple):
    """When fleets are given up."""

    retries: int = RETRIES
    budget: float = math.inf  # seconds


DEFAULT_LIMITS = RunLimits()


def run_plan(
    folder: SweepFolder,
    plan: Plan,
    engine: Engine,
    on_status: OnStatus = lambda _: None,
    on_finished: OnFinished = lambda _: None,
    limits: RunLimits = DEFAULT_LIMITS,
) -> dict[str, FleetStatus]:
    """Train every fleet of a plan that is not finished; return what became of each.

    A fleet that fails is started again `limits.retries` times, after the others that wait, and is
    then set aside. A fleet that another process is training waits for it. A fleet that would not
    finish within `limits.budget` seconds of this call, because others took longer than estimated,
    is postponed.

    `on_status` is called at least every `WAIT_SECONDS`, and `on_finished` with each fleet that has
    finished in this call. If one of them raises an exception, such as KeyboardInterrupt, running
    fleets write a checkpoint and end, and the exception is raised again.
    """
    statuses = {fleet.name: FleetStatus(fleet) for fleet in plan.fleets}
    deadline = time.monotonic() + limits.budget * (1 + BUDGET_SLACK)
    _skip_finished(folder, statuses)
    try:
        on_status(statuses)
        while _is_active(statuses):
            _postpone(folder, statuses, deadline)
            for status in _startable(folder, statuses, engine.free_slots()):
                _start(folder, engine, status, limits.retries)
            on_status(statuses)
            ends = engine.wait(WAIT_SECONDS)
            for end in ends:
                status = statuses[end.fleet]
                _record(folder, status, end, limits.retries)
                if status.state == "finished":
                    on_finished(status.fleet)
            if ends:
                on_status(statuses)  # a fleet that failed may start again at once
        on_status(statuses)
    except BaseException:
        _interrupt(folder, engine, statuses)
        raise
    finally:
        engine.close()
    return statuses


def is_finished(fleet: PlannedFleet, finished: Collection[tuple[RunKey, int]]) -> bool:
    """Return whether all runs of a fleet are among the finished ones, with as many steps."""
    return all((key, fleet.config.steps) in finished for key in fleet.keys)


def _skip_finished(folder: SweepFolder, statuses: Mapping[str, FleetStatus]) -> None:
    finished = finished_runs(folder.path / "runs")
    for status in statuses.values():
        if is_finished(status.fleet, finished):
            status.state = "finished"


def _is_active(statuses: Mapping[str, FleetStatus]) -> bool:
    return any(status.state in ("waiting", "running") for status in statuses.values())


def _postpone(folder: SweepFolder, statuses: Mapping[str, FleetStatus], deadline: float) -> None:
    """Postpone the fleets that are estimated to end after the deadline if they start now."""
    now = time.monotonic()
    for status in statuses.values():
        if status.state == "waiting" and now + status.fleet.seconds > deadline:
            status.state, status.why = "postponed", NO_TIME
            folder.append("postponed", status.fleet.name, why=NO_TIME)


def _startable(
    folder: SweepFolder, statuses: Mapping[str, FleetStatus], slots: int
) -> list[FleetStatus]:
    """Return the fleets to start now: those that failed before come last."""
    waiting = [status for status in statuses.values() if status.state == "waiting"]
    startable: list[FleetStatus] = []
    for status in sorted(waiting, key=lambda status: status.attempts):
        if len(startable) >= slots:
            break
        if _is_available(folder, status):
            startable.append(status)
    return startable


def _is_available(folder: SweepFolder, status: FleetStatus) -> bool:
    """Return whether a fleet can start; what another process was training may be finished now."""
    path = folder.run(status.fleet.name)
    if is_locked(path):
        status.why = IN_USE
    elif status.why == IN_USE:
        status.why = ""
        if is_finished(status.fleet, finished_runs(path)):
            status.state = "finished"
    return status.state == "waiting" and status.why != IN_USE


def _start(folder: SweepFolder, engine: Engine, status: FleetStatus, retries: int) -> None:
    attempt = status.attempts + 1
    folder.append("started", status.fleet.name, attempt=attempt)
    status.started = time.monotonic()
    try:
        engine.start(status.fleet, attempt)
        status.state = "running"
    except (OSError, UserError) as error:
        _record(folder, status, FleetEnd(status.fleet.name, FAILED, str(error)), retries)


def _record(folder: SweepFolder, status: FleetStatus, end: FleetEnd, retries: int) -> None:
    """Record the end of a fleet's process, and decide whether it starts again."""
    status.attempts += end.counts
    status.losses += not end.counts and end.code != LOCKED
    status.seconds += time.monotonic() - status.started
    status.why = IN_USE if end.code == LOCKED else end.why
    again = end.code == LOCKED or status.losses <= MAX_LOSSES
    if end.code == FINISHED:
        status.state = "finished"
    elif end.code in (INTERRUPTED, TERMINATED):
        status.state = "interrupted"
    elif again and (not end.counts or status.attempts <= retries):
        status.state = "waiting"
    else:
        status.state = "set aside"
    event = "failed" if status.state == "waiting" else status.state
    folder.append(event, status.fleet.name, code=end.code, attempt=status.attempts, why=end.why)


def _interrupt(folder: SweepFolder, engine: Engine, statuses: Mapping[str, FleetStatus]) -> None:
    """Let running fleets write a checkpoint, and record their ends as interruptions."""
    engine.interrupt()
    while any(status.state == "running" for status in statuses.values()):
        for end in engine.wait(WAIT_SECONDS):
            code = FINISHED if end.code == FINISHED else INTERRUPTED
            with contextlib.suppress(UserError):  # a full disk may be why this happens
                _record(folder, statuses[end.fleet], end._replace(code=code), retries=0)
