"""The event log of a run: writing it, reading it, and following it while it grows."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Self, cast

import numpy as np

from r2r2.storage.files import (
    LogFile,
    cannot_read,
    damaged_line,
    open_regular,
    read_log,
    storage_errors,
)

FieldValue = str | bool | int | float | np.generic | list[float] | None

COMMON_FIELDS = ("event", "time", "member", "env_step", "decision_step", "update_step")


class StepCounts(NamedTuple):
    """The progress of a run or of one of its members."""

    env_step: int = 0
    decision_step: int = 0
    update_step: int = 0


class EarlyEnd(NamedTuple):
    """The end of a run before its last step, as its config asked for."""

    step: int  # decision steps that every member has made
    why: str


class LogPosition(NamedTuple):
    """A position in an event log, to which it can be truncated."""

    length: int  # bytes
    seconds: float  # of training so far, without interruptions


class EventLog:
    """Appends events to a file, each as one line of JSON.

    An event holds `event`, `time` (seconds of training so far), `member` (null for the
    run as a whole), `env_step`, `decision_step`, `update_step` and its own fields.
    A float that is not finite is written as the string "nan", "inf" or "-inf", because
    JSON has no such numbers; `float()` reads both. A field may be a list of floats.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        with storage_errors(path):
            self.file = LogFile(path)
        self._path, self._clock = path, clock
        self._start = clock()

    def write(
        self,
        event: str,
        steps: StepCounts,
        member: str | None = None,
        fields: Mapping[str, FieldValue] | None = None,
    ) -> dict[str, object]:
        """Append one event, flush it to the operating system, and return it as plain values."""
        fields = fields or {}
        if reserved := [name for name in COMMON_FIELDS if name in fields]:
            raise ValueError(f"{reserved[0]!r} is a reserved field of an event")
        record = {"event": event, "time": self._clock() - self._start, "member": member}
        record |= steps._asdict() | dict(fields)
        plain = {name: _plain_value(value) for name, value in record.items()}
        values = {name: _json_value(value) for name, value in plain.items()}
        with storage_errors(self._path):
            self.file.append(json.dumps(values, allow_nan=False))
        return plain

    def position(self) -> LogPosition:
        """Flush the log to disk and return its end."""
        self.file.sync()
        return LogPosition(self.file.entry().bytes, self._clock() - self._start)

    def truncate(self, position: LogPosition) -> None:
        """Delete the events after a position, whose steps are repeated on resume."""
        self.file.truncate(position.length)
        self._start = self._clock() - position.seconds

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `write` has reported a full disk already
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _plain_value(value: object) -> object:
    return cast("object", value.item()) if isinstance(value, np.generic) else value


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_json_value(_plain_value(item)) for item in cast("list[object]", value)]
    return value


def read_events(path: Path) -> list[dict[str, object]]:
    """Return the events of a log, oldest first; an incomplete last line is ignored."""
    return read_log(path, parse_event)


def early_end(events: Iterable[Mapping[str, object]]) -> EarlyEnd | None:
    """Return the early end of a run that has ended, from its events; None if it had none."""
    end = None
    for event in events:
        step = event["decision_step"]
        if event["event"] == "end" and event["member"] is None and isinstance(step, int):
            end = EarlyEnd(step, str(event.get("why", "")))
        elif event["event"] == "resumed":
            end = None
    return end


def parse_event(path: Path, number: int, line: str) -> dict[str, object]:
    """Return the fields of one line of a log."""
    try:
        event: object = json.loads(line, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise damaged_line(path, number, "not valid JSON") from error
    if not isinstance(event, dict):
        raise damaged_line(path, number, "not a JSON object")
    fields = cast("dict[str, object]", event)
    if missing := [name for name in COMMON_FIELDS if name not in fields]:
        raise damaged_line(path, number, f"missing field {missing[0]!r}")
    return fields


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


CHUNK_BYTES = 2**20  # read at a time
CONTEXT_BYTES = 256  # compared to recognize a log that was truncated and rewritten
MAX_LINE_BYTES = 2**24  # longer than any event


class TailUpdate(NamedTuple):
    """New lines of a log; `restarted` means that everything read before is void."""

    restarted: bool
    lines: list[tuple[int, str]]  # line numbers, from 1, and text
    error: str | None  # about the first line that cannot be read


class LogTail:
    """Follows a log that another process writes; every read returns the new lines.

    An incomplete line waits for the next read. A resumed run truncates its log and
    writes other lines in their place: the last bytes read are compared, and if they
    have changed the log is read from the start.
    """

    def __init__(self, path: Path):
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self._offset, self._number, self._context = 0, 0, b""

    def read(self) -> TailUpdate:
        """Return the complete lines since the last call; a missing log is empty."""
        try:
            return self._read()
        except FileNotFoundError:
            restarted = self._offset > 0
            self._reset()
            return TailUpdate(restarted, [], None)
        except OSError as error:
            raise cannot_read(self._path, error) from error

    def _read(self) -> TailUpdate:
        lines: list[tuple[int, str]] = []
        error: str | None = None
        with open_regular(self._path) as file:
            file.seek(self._offset - len(self._context))
            restarted = file.read(len(self._context)) != self._context
            if restarted:
                self._reset()
                file.seek(0)
            for line in self._complete_lines(iter(lambda: file.read(CHUNK_BYTES), b"")):
                try:
                    lines.append((self._number, line.decode()))
                except UnicodeDecodeError:
                    error = error or self._damaged("not valid UTF-8")
            if file.tell() - self._offset > MAX_LINE_BYTES:
                error = error or self._damaged("the following line has no end")
        return TailUpdate(restarted, lines, error)

    def _damaged(self, why: str) -> str:
        return str(damaged_line(self._path, self._number, why))

    def _complete_lines(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the complete lines and move past each of them."""
        rest = b""
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._number += 1
                self._offset += len(line) + 1
                self._context = (self._context + line + b"\n")[-CONTEXT_BYTES:]
                yield line
            if len(rest) > MAX_LINE_BYTES:
                return
