"""The table of evaluations: a long-format CSV file."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from r2r2.storage.files import LogFile, damaged_line, read_log, storage_errors


class Row(NamedTuple):
    """One measured value of one task and seed."""

    exp_name: str
    env_name: str
    seed: int
    metric: str
    env_step: int
    value: float


HEADER = ",".join(Row._fields)


def append_evaluations(path: Path, rows: Iterable[Row], log: LogFile | None = None) -> None:
    """Append rows to a table, or to its open log; it is created with a header if it is missing."""
    lines = [_format_row(row) for row in rows]
    with storage_errors(path), LogFile(path) if log is None else contextlib.nullcontext(log) as log:
        for line in lines if log.entry().bytes else [HEADER, *lines]:
            log.append(line)


def truncate_evaluations(path: Path, length: int) -> None:
    """Truncate a table to `length` bytes; delete it if that is 0."""
    if not length:
        path.unlink(missing_ok=True)
    elif path.exists():
        os.truncate(path, min(length, path.stat().st_size))


def read_evaluations(path: Path) -> list[Row]:
    """Return the rows of a table; an incomplete last line is ignored."""
    lines = read_log(path, parse_line) or [parse_line(path, 1, "")]
    return [row for row in lines if row is not None]


def parse_line(path: Path, number: int, line: str) -> Row | None:
    """Return a line of a table as a row; None for the header, which is the first."""
    if number > 1:
        return parse_row(path, number, line)
    if line != HEADER:
        raise damaged_line(path, 1, f"not the header '{HEADER}'")
    return None


def _format_row(row: Row) -> str:
    if any(end in name for name in (row[0], row[1], row[3]) for end in "\r\n"):
        raise ValueError(f"names must not contain line breaks: {row}")
    text = io.StringIO()
    # str() of a NumPy float32 has fewer digits than its value as a float.
    csv.writer(text, lineterminator="").writerow(row._replace(value=float(row.value)))
    return text.getvalue()


def parse_row(path: Path, number: int, line: str) -> Row:
    """Return one line of a table, other than the header, as a row."""
    try:
        (cells,) = csv.reader([line], strict=True)
        exp_name, env_name, seed, metric, env_step, value = cells
        row = Row(exp_name, env_name, int(seed), metric, int(env_step), float(value))
        if not (0 <= row.seed < 2**63 and 0 <= row.env_step < 2**63):
            raise ValueError("outside the range of 64-bit integers")
    except (csv.Error, ValueError) as error:
        raise damaged_line(path, number, f"expected {HEADER}") from error
    return row
