"""Runs, read into what a study is made of.

What a config means is settled elsewhere: here are a run's own records only.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from r2r2.config.refusal import Refusal
from r2r2.record.evaluations import Row, read_evaluations
from r2r2.record.events import FIXED, read_events
from r2r2.record.files import damaged, read_plain
from r2r2.report.study import MemberData, Spectrum, Timing, series_of

# Events whose fields are numbers to be drawn against steps.
DRAWN = ("diagnostics", "value")
LARGEST = 1e100
STEPS = ("env_step", "decision_step", "update_step")


class Event(NamedTuple):
    """One event of a log, as far as a report looks at it."""

    kind: str
    time: float
    member: str | None
    env_step: int
    decision_step: int
    update_step: int
    numbers: Mapping[str, float] = {}
    values: tuple[float, ...] = ()  # singular ones
    why: str = ""


def rows_of(path: Path) -> list[Row]:
    """The evaluations of a run; none where it was not evaluated yet.

    Raises:
        Refusal: The table is damaged.
    """
    found = read_evaluations(path) if path.exists() else []
    for number, row in enumerate(found, start=2):
        if not is_sane(row.value):
            raise damaged(path, number, f"{row.value} is beyond any return")
    return found


def is_sane(value: float) -> bool:
    """Whether a number can be one of a run: single precision ends far below the limit.

    Larger ones only come from damage, and have neither a mean nor a place in a figure.

    Example:
        >>> is_sane(-1e38), is_sane(float("nan")), is_sane(1e300)
        (True, True, False)
    """
    return not math.isfinite(value) or abs(value) < LARGEST


def versions_of(path: Path) -> dict[str, str]:
    """What a run was made with; nothing where that was not written down.

    Raises:
        Refusal: The file is damaged.
    """
    if not path.exists():
        return {}
    try:
        found: object = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError) as error:
        raise Refusal(f"'{path}' cannot be read as JSON") from error
    if not isinstance(found, dict):
        raise Refusal(f"'{path}' does not hold versions by name")
    return {str(k): str(x) for k, x in cast("dict[object, object]", found).items()}


def events_of(path: Path) -> list[Event]:
    """The events of a run, none where it has none yet.

    Raises:
        Refusal: The log is damaged.
    """
    found = read_events(path) if path.exists() else []
    return [_event(path, number, one) for number, one in enumerate(found, start=1)]


def members_of(
    names: Sequence[str], which: Sequence[tuple[str, int]], events: Iterable[Event]
) -> tuple[MemberData, ...]:
    """What a run's events say of its members.

    Args:
        names: of their folders.
        which: their tasks and seeds.
        events: of the whole run.

    Example:
        >>> members_of(["Hopper-v5_s0"], [("Hopper-v5", 0)], [])[0].env_steps
        0
    """
    own: dict[str, list[Event]] = {name: [] for name in names}
    for event in events:
        if event.member in own:
            own[event.member].append(event)
    return tuple(
        _member(name, *one, own[name]) for name, one in zip(names, which, strict=True)
    )


def timing_of(events: Sequence[Event]) -> Timing | None:
    """How long a run took; None where nothing was written down yet.

    Rates are taken from the first event at which every member that was ever updated has
    updates, because the counts of the others would be missing in what came before.

    Example:
        >>> log = [("a", 5.0, 100, 0), ("a", 9.0, 110, 20), ("a", 19.0, 210, 220)]
        >>> events = [Event("losses", t, m, d, d, u) for m, t, d, u in log]
        >>> found = timing_of(events)
        >>> found.updates_per_second, found.seconds_per_step, found.seconds
        (20.0, 0.1, 19.0)
    """
    own = [event for event in events if event.member is not None]
    if not own:
        return None
    counts: dict[str | None, tuple[int, int]] = {}
    waited_for = {event.member for event in own if event.update_step}
    first: tuple[float, int, int] | None = None
    for event in own:
        # What an evaluation found is written at its end, with the counts of its start.
        decisions, updates = counts.get(event.member, (0, 0))
        decisions = max(decisions, event.decision_step)
        updates = max(updates, event.update_step)
        counts[event.member] = decisions, updates
        if updates and event.member in waited_for:
            waited_for.remove(event.member)
            first = None if waited_for else (event.time, *_sums(counts))
    seconds, (decisions, updates) = events[-1].time, _sums(counts)
    rates = [math.nan, math.nan]
    if first is not None and seconds > first[0]:
        passed = seconds - first[0]
        rates = [(updates - first[2]) / passed, (decisions - first[1]) / passed]
    rates = [rate if rate > 0 else math.nan for rate in rates]
    return Timing(seconds, len(counts), decisions, updates, rates[0], rates[1])


def _event(path: Path, number: int, given: Mapping[str, object]) -> Event:
    """An event whose fields are what they must be."""
    kind = given["event"]
    try:
        env_step, decision_step, update_step = (_whole(given[x]) for x in STEPS)
        member = given["member"]
        if not isinstance(member, str | None):
            raise TypeError("a member has a name")
        own = {k: x for k, x in given.items() if k not in FIXED}
        return Event(
            str(kind),
            _number(given["time"]),
            member,
            env_step,
            decision_step,
            update_step,
            {k: _number(x) for k, x in own.items()} if kind in DRAWN else {},
            _numbers(own["singular_values"]) if kind == "spectrum" else (),
            str(own["why"]) if kind == "stopped" else "",
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        why = f"it does not hold what an event {kind!r} holds"
        raise damaged(path, number, why) from error


def _member(name: str, task: str, seed: int, events: Sequence[Event]) -> MemberData:
    drawn: dict[str, dict[int, float]] = {}
    for event in events:
        for field, value in event.numbers.items():
            drawn.setdefault(field, {})[event.env_step] = value
    last = max([event.decision_step for event in events], default=0)
    stops = [e.why for e in events if e.kind == "stopped" and e.decision_step == last]
    return MemberData(
        name,
        task,
        seed,
        max([event.env_step for event in events], default=0),
        max([event.update_step for event in events], default=0),
        {field: series_of(points) for field, points in drawn.items()},
        tuple(Spectrum(e.env_step, np.array(e.values)) for e in events if e.values),
        tuple(event.env_step for event in events if event.kind == "collapse"),
        stops[-1] if stops else "",
    )


def _sums(counts: Mapping[str | None, tuple[int, int]]) -> tuple[int, int]:
    """Decision steps and updates of all members."""
    decisions, updates = zip(*counts.values(), strict=True)
    return sum(decisions), sum(updates)


def _number(value: object) -> float:
    """A number of a log, which writes those that are not finite as words."""
    if not isinstance(value, int | float | str):
        raise TypeError("it is no number")
    number = float(value)
    if not is_sane(number):
        raise ValueError("it is too large")
    return number


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("it is no list")
    return tuple(_number(one) for one in cast("list[object]", value))


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("it is no count")
    return value
