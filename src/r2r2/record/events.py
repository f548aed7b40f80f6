"""What happened in a run, one JSON line per event."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Self, cast

import numpy as np

from r2r2.record.files import append_line, damaged, open_lines, read_lines, recording

Value = str | bool | int | float | np.generic | list[float] | None

FIXED = ("event", "time", "member", "env_step", "decision_step", "update_step")


class Steps(NamedTuple):
    """How far a run, or one of its members, has come."""

    env_step: int = 0
    decision_step: int = 0
    update_step: int = 0


class Mark(NamedTuple):
    """A place in a log."""

    length: int  # bytes
    seconds: float  # since the run began, without the time that it stood still


class EventLog:
    """Appends events to a file, each as one whole line.

    An event holds `event`, `time` (seconds of the run so far), `member` (null: the
    whole run), `env_step`, `decision_step`, `update_step` and fields of its own.
    JSON has no numbers for them, so a float that is not finite is written as the
    string "nan", "inf" or "-inf"; `float()` reads numbers and these alike. A field may
    be a list of floats too.

    Example:
        with EventLog(folder.events) as log:
            log.write("episode", Steps(1000, 1000, 0), "Hopper-v5_s0", {"return": 12.5})
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self._path, self._file = path, open_lines(path)
        self._clock = clock
        self._start = clock()

    def write(
        self,
        event: str,
        steps: Steps,
        member: str | None = None,
        fields: Mapping[str, Value] | None = None,
    ) -> None:
        """Appends one event; on return the operating system has it.

        Raises:
            RecordFailure: The disk is full, say.
        """
        own = dict(fields or {})
        if taken := [name for name in FIXED if name in own]:
            raise ValueError(f"a field of an event cannot be called {taken[0]!r}")
        seconds = self._clock() - self._start
        line = {"event": event, "time": seconds, "member": member}
        line |= steps._asdict() | own
        plain = {name: _plain(value) for name, value in line.items()}
        with recording(self._path):
            append_line(self._file, json.dumps(plain, allow_nan=False))

    def mark(self) -> Mark:
        """Where the log stands; what is before it is on the disk."""
        os.fsync(self._file.fileno())
        return Mark(self._file.tell(), self._clock() - self._start)

    def cut(self, mark: Mark) -> None:
        """Goes back to where it stood: later events were of steps made again."""
        self._file.truncate(mark.length)
        self._file.seek(0, os.SEEK_END)
        self._start = self._clock() - mark.seconds

    def close(self) -> None:
        """Closes the file; nothing can be written after it."""
        with contextlib.suppress(OSError):  # what a full disk left was told already
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def read_events(path: Path) -> list[dict[str, object]]:
    """The events of a log, oldest first; a torn last line is left out.

    Raises:
        Refusal: The file cannot be read, or a line of it is damaged.
    """
    lines = enumerate(read_lines(path), start=1)
    return [parse_event(path, number, line) for number, line in lines]


def parse_event(path: Path, number: int, line: str) -> dict[str, object]:
    """One line of a log, by the names of its fields.

    Raises:
        Refusal: It is damaged; the refusal names the file and the line's number.

    Example:
        >>> steps = '"env_step": 4, "decision_step": 2, "update_step": 0'
        >>> line = '{"event": "end", "time": 1.5, "member": null, ' + steps + "}"
        >>> parse_event(Path("events.jsonl"), 1, line)["env_step"]
        4
    """
    try:
        event: object = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise damaged(path, number, "it is not JSON") from error
    if not isinstance(event, dict):
        raise damaged(path, number, "it is not a JSON object")
    fields = cast("dict[str, object]", event)
    if missing := [name for name in FIXED if name not in fields]:
        raise damaged(path, number, f"it has no {missing[0]!r}")
    return fields


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return _plain(cast("object", value.item()))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[object]", value)]
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
