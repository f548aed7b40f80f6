"""What is new in a log that another process writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from r2r2.config.refusal import Refusal
from r2r2.record.files import damaged, open_plain, reason

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
            Refusal: It is there and cannot be read.
        """
        try:
            return self._news()
        except FileNotFoundError:
            anew = self._place > 0
            self._begin()
            return News(anew, [], None)
        except OSError as error:
            why = reason(error)
            raise Refusal(f"'{self._path}' cannot be read: {why}") from error

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
