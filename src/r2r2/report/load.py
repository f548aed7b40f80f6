"""Read the records of runs, and files of results, for a report."""

import csv
import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from r2r2.config.errors import UserError
from r2r2.config.fields import SCALE
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import unstated_precision
from r2r2.report.study import MemberData, RunData, RunTiming, Spectrum, make_series
from r2r2.stats.scores import METRIC, MemberKey, Method, Results, Shortfall, ShortfallKind
from r2r2.storage.evaluations import HEADER, Row, parse_line
from r2r2.storage.events import COMMON_FIELDS, parse_event
from r2r2.storage.files import (
    damaged_line,
    is_number,
    parse_count,
    parse_number,
    read_json_object,
    read_log,
    read_regular,
    reason,
)

PLOTTED_EVENTS = ("diagnostics", "value")  # their fields are numbers to plot
# Single precision ends far below; larger numbers only come from damaged files.
LARGEST_NUMBER = 1e100
STATUS_WORDS = {
    **{"failed": "failed", "running": "is running", "interrupted": "was interrupted"},
    "pruned": "was pruned",
}
STEP_FIELDS = ("env_step", "decision_step", "update_step")
RETURN_METRICS = (METRIC, "avg_return")
SHORT_COLUMNS = {"exp_name": "exp", "env_name": "env"}  # of some published files
LARGEST_FILE = 2**29  # bytes
INTEGER_LIMIT = 2**63  # of other tools that read the results


class Event(NamedTuple):
    """One event of a log, with the fields that a report uses."""

    kind: str
    time: float
    member: str | None
    env_step: int
    decision_step: int
    update_step: int
    numbers: Mapping[str, float] = {}
    singular_values: tuple[float, ...] = ()
    reason: str = ""


def load_evaluations(path: Path, damage: list[str] | None = None) -> list[Row]:
    """Return the evaluations of a run; empty before its first evaluation.

    A damaged line raises UserError, or is left out and its error added to `damage`.
    """
    lines = read_log(path, _parse_evaluation, damage) if path.exists() else []
    return [row for row in lines if row is not None]


def _parse_evaluation(path: Path, number: int, line: str) -> Row | None:
    if (row := parse_line(path, number, line)) is not None:
        _check_return(path, number, row.value)
    return row


def consistent_rows(
    path: Path, rows: Sequence[Row], members: Collection[MemberKey], damage: list[str]
) -> list[Row]:
    """Return the rows of members, one per step; other rows are damage."""
    points = {row[1:5]: row for row in reversed(rows) if row[1:3] in members}
    if len(points) < len(rows):
        damage.append(f"{path}: damaged; has rows of other members, or several of one step")
    return [*reversed(points.values())]


def load_versions(path: Path, damage: list[str] | None = None) -> dict[str, str]:
    """Return the contents of a run's `versions.json`; empty without the file.

    A run that was resumed with other versions has all of them, as in `0.10.1 or 0.10.2`. A damaged
    file raises UserError, or its error is added to `damage`.
    """
    versions = read_json_object(path) if path.exists() else {}
    if versions is None:
        error = UserError(f"{path}: damaged; expected a JSON object")
        if damage is None:
            raise error
        damage.append(str(error))
        return {}
    resumed = versions.pop("resumed", [])
    later = cast("list[dict[str, object]]", resumed) if isinstance(resumed, list) else []
    records = [versions, *(record for record in later if isinstance(record, dict))]
    return {
        name: " or ".join(dict.fromkeys(str(x[name]) for x in records if name in x))
        for name in versions
    }


def load_scale(path: Path, damage: list[str]) -> float:
    """Return the scale in a run's `versions.json`, by which a sweep shortened it; 1 without one.

    A value that is not a scale is added to `damage`.
    """
    versions = (read_json_object(path) if path.exists() else None) or {}
    scale = versions.get("scale", 1.0)
    if not is_number(scale) or not SCALE.is_valid(scale):
        damage.append(f"{path}: damaged; scale: expected {SCALE.description}, got {scale!r:.40}")
        return 1.0
    return float(scale)


def effective_precision(stated: str | None, versions: Mapping[str, str]) -> str:
    """Return the precision that a run's matrix products had.

    A CPU always computes in float32. A config from before the field `precision` existed does not
    state it: then JAX's matmul precision in `versions.json` decides, and its default was mixed.
    """
    if versions.get("platform") == "cpu":
        return "float32"
    return stated or unstated_precision(versions)


def load_events(path: Path, damage: list[str] | None = None) -> list[Event]:
    """Return the events of a run; empty before its first event.

    A damaged line raises UserError, or is left out and its error added to `damage`.
    """

    def parse(path: Path, number: int, line: str) -> Event:
        return _parse_event(path, number, parse_event(path, number, line))

    return read_log(path, parse, damage) if path.exists() else []


def read_members(
    names: Sequence[str], keys: Sequence[MemberKey], events: Iterable[Event]
) -> tuple[MemberData, ...]:
    """Return the members with these folders and keys from all events of a run."""
    by_name: dict[str | None, list[Event]] = {}
    for event in events:
        by_name.setdefault(event.member, []).append(event)
    pairs = zip(names, keys, strict=True)
    return tuple(_make_member(name, *key, by_name.get(name, [])) for name, key in pairs)


def compute_timing(events: Sequence[Event]) -> RunTiming | None:
    """Return the duration and speed of a run; None without events of members.

    Rates start at the first event at which every member that was ever updated has updates, so that
    no member's updates before the start are counted.
    """
    of_members = [event for event in events if event.member is not None]
    if not of_members:
        return None
    pending = {event.member for event in of_members if event.update_step}
    decisions: Counter[str | None] = Counter()
    updates: Counter[str | None] = Counter()
    start = (math.inf, 0, 0)
    for event in of_members:
        # An evaluation is logged at its end with the counts of its start.
        member = event.member
        decisions[member] = max(decisions[member], event.decision_step)
        updates[member] = max(updates[member], event.update_step)
        if event.update_step and member in pending:
            pending.remove(member)
            start = event.time, decisions.total(), updates.total()
    counts = len(decisions), decisions.total(), updates.total()
    seconds, elapsed = events[-1].time, events[-1].time - start[0]
    rates = [math.nan, math.nan]
    if elapsed > 0:
        rates = [(counts[n] - start[n]) / elapsed or math.nan for n in (2, 1)]
    return RunTiming(seconds, *counts, *rates)


def ended_early(events: Iterable[Event]) -> bool:
    """Return whether a finished run ended before its last step, as its config asked for."""
    ends = [x.kind for x in events if x.member is None and x.kind in ("end", "resumed")]
    return ends[-1:] == ["end"]


def early_ends(config: RunConfig, members: Sequence[MemberData]) -> Mapping[MemberKey, Shortfall]:
    """Return the members of a run that ended early because they reached `stop_at_return`."""
    steps = config.steps * config.action_repeat
    return {
        (x.task, x.seed): Shortfall(ShortfallKind.ENDED_EARLY, x.env_steps, steps, x.seed)
        for x in members
        if not x.stopped
    }


def truncated_logs(
    config: RunConfig, rows: Sequence[Row], members: Sequence[MemberData], early: bool = False
) -> Mapping[MemberKey, Shortfall]:
    """Return the members of a finished run whose logs end too early, as in partial copies.

    Every evaluation is logged, so a member that was not stopped has an event at the step of its
    last scheduled evaluation, unless the run ended `early`, and no evaluation after its last event.
    """
    interval = max(1, config.eval_every // config.eval_average)
    scheduled = 0 if early else config.steps // interval * interval * config.action_repeat
    evaluated: dict[MemberKey, int] = {}
    for row in rows:
        key = row.env_name, row.seed
        evaluated[key] = max(row.env_step, evaluated.get(key, 0))
    shortfalls: dict[MemberKey, Shortfall] = {}
    for member in members:
        key = member.task, member.seed
        last = max(0 if member.stopped else scheduled, evaluated.get(key, 0))
        if member.env_steps < last:
            extent = member.env_steps, config.steps * config.action_repeat
            shortfalls[key] = Shortfall(ShortfallKind.TRUNCATED_LOG, *extent, member.seed)
    return shortfalls


def member_marks(
    status: str, members: Sequence[MemberData], truncated: Mapping[MemberKey, Shortfall]
) -> dict[MemberKey, tuple[Shortfall, ...]]:
    """Return what a reader must know of how each member was run, where there is anything."""
    marks: dict[MemberKey, tuple[Shortfall, ...]] = {}
    for member in members:
        key, seed = (member.task, member.seed), member.seed
        shortfalls = [truncated[key]] if key in truncated else []
        if status in STATUS_WORDS:
            shortfalls.append(Shortfall(ShortfallKind.STATUS, STATUS_WORDS[status], seed=seed))
        if member.stopped:
            stop = ShortfallKind.STOPPED, member.stopped, member.env_steps
            shortfalls.append(Shortfall(*stop, seed=seed))
        if member.env_steps and not member.updates:
            shortfalls.append(Shortfall(ShortfallKind.NO_UPDATES, seed=seed))
        if shortfalls:
            marks[key] = tuple(shortfalls)
    return marks


def load_results_file(path: Path, name: str) -> list[RunData]:
    """Return the methods of a file of results, each as a run.

    An `exp_name` that ends in `_utd` and a number is an agent at that UTD, as in files of runs;
    other settings are unknown. The methods belong to the file `name`, so no run has the same ones.
    """
    by_name: dict[str, list[Row]] = {}
    for row in read_results(path):
        if row.metric in RETURN_METRICS:
            by_name.setdefault(row.exp_name, []).append(row._replace(metric=METRIC))
    if not by_name:
        metrics = " or ".join(RETURN_METRICS)
        raise UserError(f"{path}: has no returns; expected rows with the metric {metrics}")
    runs: list[RunData] = []
    for exp_name, rows in by_name.items():
        match = re.fullmatch(r"(.+)_utd([1-9][0-9]{0,8})", exp_name, flags=re.DOTALL)
        agent, utd = (match[1], int(match[2])) if match else (exp_name, None)
        results = Results(Method(agent, utd, file=name), rows)
        runs.append(RunData(f"{name}: {exp_name}", str(path), "file", results))
    return runs


def read_results(path: Path) -> list[Row]:
    """Return the rows of a file that any program may have written."""
    try:
        content = read_regular(path, LARGEST_FILE)
        content = _decompress(path, content) if path.suffix == ".gz" else content
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot read: not valid UTF-8") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = _find_columns(path, reader.fieldnames or ())
        return [_parse_row(path, reader.line_num, line, columns) for line in reader]
    except csv.Error as error:
        raise damaged_line(path, reader.line_num + 1, str(error)) from error


def _decompress(path: Path, content: bytes) -> bytes:
    """Return the content of a gzip file of limited size."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot read: not a valid gzip file") from error
    if len(text) > LARGEST_FILE:
        raise UserError(f"{path}: cannot read: longer than {LARGEST_FILE} bytes")
    return text


def _find_columns(path: Path, header: Collection[str]) -> dict[str, str]:
    """Return the column in a file of each field of a row; 'metric' only if there is such a one."""
    columns = {x: x if x in header else SHORT_COLUMNS.get(x, x) for x in Row._fields}
    wide = [metric for metric in RETURN_METRICS if metric in header]
    if wide and not {"metric", "value"} & {*header}:
        columns["value"] = wide[0]
        del columns["metric"]
    if missing := {x for x, column in columns.items() if column not in header}:
        raise damaged_line(path, 1, f"no column {min(missing)!r} of '{HEADER}'")
    return columns


def _parse_row(
    path: Path, number: int, line: Mapping[str, str | None], columns: Mapping[str, str]
) -> Row:
    name, task = (str(line[columns[x]]) for x in ("exp_name", "env_name"))
    metric = str(line[columns["metric"]]) if "metric" in columns else METRIC
    try:
        seed, step = (int(line[columns[x]] or "") for x in ("seed", "env_step"))
        value = float(line[columns["value"]] or "")
    except ValueError as error:
        raise damaged_line(path, number, f"{error}") from error
    _check_return(path, number, value)
    if not (0 <= seed < INTEGER_LIMIT and 0 <= step < INTEGER_LIMIT):
        raise damaged_line(path, number, "expected integers >= 0 for seed and env_step")
    return Row(name, task, seed, metric, step, value)


def _check_return(path: Path, number: int, value: float) -> None:
    if LARGEST_NUMBER <= abs(value) < math.inf:
        raise damaged_line(path, number, f"{value} is too large for a return")


def _parse_event(path: Path, number: int, fields: Mapping[str, object]) -> Event:
    kind = fields["event"]
    try:
        env_step, decision_step, update_step = (parse_count(x, fields[x]) for x in STEP_FIELDS)
        member = fields["member"]
        if not isinstance(member, str | None):
            raise TypeError("a member must be a string")
        extra = {k: x for k, x in fields.items() if k not in COMMON_FIELDS}
        return Event(
            str(kind),
            _number(fields["time"]),
            member,
            env_step,
            decision_step,
            update_step,
            {k: _number(x) for k, x in extra.items()} if kind in PLOTTED_EVENTS else {},
            _numbers(extra["singular_values"]) if kind == "spectrum" else (),
            str(extra["why"]) if kind == "stopped" else "",
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise damaged_line(path, number, f"invalid fields of event {kind!r}") from error


def _make_member(name: str, task: str, seed: int, events: Sequence[Event]) -> MemberData:
    points: dict[str, dict[int, float]] = {}
    for event in events:
        for field, value in event.numbers.items():
            points.setdefault(field, {})[event.env_step] = value
    end = max([event.decision_step for event in events], default=0)
    stops = [e.reason for e in events if (e.kind, e.decision_step) == ("stopped", end)]
    with_spectrum = (event for event in events if event.singular_values)
    spectra = tuple(Spectrum(e.env_step, np.array(e.singular_values)) for e in with_spectrum)
    return MemberData(
        name,
        task,
        seed,
        max([event.env_step for event in events], default=0),
        max([event.update_step for event in events], default=0),
        {field: make_series(by_step) for field, by_step in points.items()},
        spectra,
        tuple(event.env_step for event in events if event.kind == "collapse"),
        stops[-1] if stops else "",
    )


def _number(value: object) -> float:
    """Return a field of an event as a float; booleans count as 0 and 1."""
    number = float(value) if isinstance(value, bool) else parse_number("value", value)
    if LARGEST_NUMBER <= abs(number) < math.inf:
        raise ValueError("too large")
    return number


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return tuple(_number(item) for item in cast("list[object]", value))
