"""What is new in a log that another process writes."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Self, cast

import numpy as np

from r2r2.config.errors import UserError
from r2r2.storage.files import (
    append_line,
    damaged,
    open_lines,
    open_plain,
    read_lines,
    reason,
    recording,
)

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
            StorageError: The disk is full, say.
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
        UserError: The file cannot be read, or a line of it is damaged.
    """
    lines = enumerate(read_lines(path), start=1)
    return [parse_event(path, number, line) for number, line in lines]


def parse_event(path: Path, number: int, line: str) -> dict[str, object]:
    """One line of a log, by the names of its fields.

    Raises:
        UserError: It is damaged; the refusal names the file and the line's number.

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


CHUNK = 2**20  # bytes read at a time
SEAM = 256  # bytes before the place reached, by which a log is known again
LONGEST = 2**24  # bytes: no event is as long; without a line's end it is no log


class News(NamedTuple):
    """What a look at a log found.

    `anew` is true where the log is another than before, or was cut back: what had been
    read of it no longer holds, and `lines` begin at its first.
    """

    anew: bool
    lines: list[tuple[int, str]]  # each with its number, from 1
    trouble: str | None  # a sentence about the first line that cannot be read


class Tail:
    """Reads a log little by little: every look gives the whole lines since the last.

    A line of which the end is missing is still being written and waits for the next
    look. A run that goes on cuts its log back and writes other lines in their place:
    the last bytes that were read are compared, and if they are not there any more all
    is read again. The file is opened for reading, for the time of a look.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder, "events.jsonl")
        ...     tail = Tail(log)
        ...     _ = log.write_text("one" + chr(10) + "tw")
        ...     first = tail.look().lines
        ...     _ = log.write_text("one" + chr(10) + "two" + chr(10))
        ...     first, tail.look().lines
        ([(1, 'one')], [(2, 'two')])
    """

    def __init__(self, path: Path):
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._place, self._number, self._seam = 0, 0, b""

    def look(self) -> News:
        """The whole lines that are new.

        A log that is not there, or not yet, is an empty one.

        Raises:
            UserError: It is there and cannot be read.
        """
        try:
            return self._news()
        except FileNotFoundError:
            anew = self._place > 0
            self._begin()
            return News(anew, [], None)
        except OSError as error:
            why = reason(error)
            raise UserError(f"'{self._path}' cannot be read: {why}") from error

    def _news(self) -> News:
        lines: list[tuple[int, str]] = []
        trouble: str | None = None
        with open_plain(self._path) as file:
            file.seek(self._place - len(self._seam))
            anew = file.read(len(self._seam)) != self._seam
            if anew:
                self._begin()
                file.seek(0)
            for line in self._whole(iter(lambda: file.read(CHUNK), b"")):
                try:
                    lines.append((self._number, line.decode()))
                except UnicodeDecodeError:
                    trouble = trouble or self._damaged("it is not UTF-8")
            if file.tell() - self._place > LONGEST:
                trouble = trouble or self._damaged("the line after it has no end")
        return News(anew, lines, trouble)

    def _damaged(self, why: str) -> str:
        return str(damaged(self._path, self._number, why))

    def _whole(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The whole lines, while it goes over them; the rest is for the next time."""
        rest = b""
        for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                self._number += 1
                self._place += len(line) + 1
                self._seam = (self._seam + line + b"\n")[-SEAM:]
                yield line
            if len(rest) > LONGEST:
                return
