"""Logs of finished runs that end too early, as after a copy that was not whole."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.report.labels import UNKNOWN
from r2r2.report.study import MemberData, RunData, Spectrum, Timing, series_of
from r2r2.stats.scores import METRIC, Method, Results
from r2r2.storage.evaluations import HEADER, Row, read_evaluations
from r2r2.storage.events import COMMON_FIELDS, read_events
from r2r2.storage.files import (
    damaged_line,
    parse_count,
    parse_number,
    read_json_object,
    read_regular,
    reason,
)

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
        UserError: The table is damaged.
    """
    found = read_evaluations(path) if path.exists() else []
    for number, row in enumerate(found, start=2):
        if not is_sane(row.value):
            raise damaged_line(path, number, f"{row.value} is beyond any return")
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
        UserError: The file is damaged.
    """
    if not path.exists():
        return {}
    versions = read_json_object(path)
    if versions is None:
        raise UserError(f"{path}: damaged; expected a JSON object")
    return {name: str(version) for name, version in versions.items()}


def events_of(path: Path) -> list[Event]:
    """The events of a run, none where it has none yet.

    Raises:
        UserError: The log is damaged.
    """
    found = read_events(path) if path.exists() else []
    return [_event(path, number, one) for number, one in enumerate(found, start=1)]


def read_members(
    names: Sequence[str], which: Sequence[tuple[str, int]], events: Iterable[Event]
) -> tuple[MemberData, ...]:
    """What a run's events say of its members.

    Args:
        names: of their folders.
        which: their tasks and seeds.
        events: of the whole run.

    Example:
        >>> read_members(["Hopper-v5_s0"], [("Hopper-v5", 0)], [])[0].env_steps
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
        env_step, decision_step, update_step = (parse_count(x, given[x]) for x in STEPS)
        member = given["member"]
        if not isinstance(member, str | None):
            raise TypeError("a member has a name")
        own = {k: x for k, x in given.items() if k not in COMMON_FIELDS}
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
        raise damaged_line(path, number, why) from error


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
    """Return a field of an event as a float; booleans count as 0 and 1."""
    number = float(value) if isinstance(value, bool) else parse_number("value", value)
    if not is_sane(number):
        raise ValueError("too large")
    return number


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("it is no list")
    return tuple(_number(one) for one in cast("list[object]", value))


# The names that returns go by.
RETURNS = (METRIC, "avg_return")
LONGEST = 2**29  # bytes; a longer file has more than returns in it
MOST = 2**63  # what other tools take for a whole number


def file_runs(path: Path, shown: str) -> list[RunData]:
    """The methods of a file, each as a run.

    A name that ends in `_utd` and a number is an agent at that UTD, as in the files
    that runs write; the rest of the settings is not known.

    Args:
        path: the file; its columns may be in any order, and others beside them.
        shown: what it is called in the report.

    Raises:
        UserError: It cannot be read, or holds no returns.
    """
    by_name: dict[str, list[Row]] = {}
    for row in read_results(path):
        if row.metric in RETURNS:
            by_name.setdefault(row.exp_name, []).append(row._replace(metric=METRIC))
    if not by_name:
        raise UserError(
            f"'{path}' holds no returns; allowed is a metric {' or '.join(RETURNS)}"
        )
    return [
        RunData(f"{shown}: {name}", str(path), "file", Results(_method(name, shown), x))
        for name, x in by_name.items()
    ]


def read_results(path: Path) -> list[Row]:
    """The rows of a file that any program may have written; every line counts.

    Raises:
        UserError: It cannot be read, or a line of it cannot be used.
    """
    try:
        text = read_regular(path, LONGEST).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' cannot be read: it is not UTF-8") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Row] = []
    try:
        if missing := set(Row._fields) - set(reader.fieldnames or ()):
            why = f"it has no column {min(missing)!r} of '{HEADER}'"
            raise damaged_line(path, 1, why)
        found += [_row(path, reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise damaged_line(path, reader.line_num + 1, str(error)) from error
    return found


def _row(path: Path, number: int, line: Mapping[str, str | None]) -> Row:
    name, task, metric = (str(line[x]) for x in ("exp_name", "env_name", "metric"))
    try:
        seed, step = (int(line[x] or "") for x in ("seed", "env_step"))
        value = float(line["value"] or "")
    except ValueError as error:
        raise damaged_line(path, number, f"{error}") from error
    if not is_sane(value):
        raise damaged_line(path, number, f"{value} is beyond any return")
    if not (0 <= seed < MOST and 0 <= step < MOST):
        raise damaged_line(path, number, "seed and env_step are counts from 0 on")
    return Row(name, task, seed, metric, step, value)


def _method(name: str, shown: str) -> Method:
    """A method of a file, which is never taken for a run's own."""
    unknown = (f"from {shown}{UNKNOWN}",)
    known = re.fullmatch(r"(.+)_utd([1-9][0-9]{0,8})", name, flags=re.DOTALL)
    if known:
        return Method(known[1], int(known[2]), unknown)
    return Method(name, None, unknown)


Which = tuple[str, int]  # a task and a seed


def cut_logs(
    config: RunConfig, rows: Sequence[Row], members: Sequence[MemberData]
) -> Mapping[Which, str]:
    """What the logs of a finished run's members lack, by task and seed.

    Every evaluation is in the log, so a member that was not stopped has an event at the
    last step that one was due at, and none was evaluated after its last event.

    Example:
        >>> config = RunConfig(steps=1500, eval_every=500, action_repeat=1)
        >>> member = MemberData("a_s0", "a", 0, 900, 0, {}, (), (), "")
        >>> cut_logs(config, [], [member])
        {('a', 0): 'a log that ends at environment step 900 of 1,500'}
        >>> cut_logs(config, [], [member._replace(stopped="a loss was not finite")])
        {}
    """
    gap = max(1, config.eval_every // config.eval_average)
    due = config.steps // gap * gap * config.action_repeat
    evaluated: dict[Which, int] = {}
    for row in rows:
        which = row.env_name, row.seed
        evaluated[which] = max(row.env_step, evaluated.get(which, 0))
    found: dict[Which, str] = {}
    for member in members:
        which = member.task, member.seed
        least = max(0 if member.stopped else due, evaluated.get(which, 0))
        if member.env_steps < least:
            whole = config.steps * config.action_repeat
            ends = f"environment step {member.env_steps:,} of {whole:,}"
            found[which] = f"a log that ends at {ends}"
    return found
