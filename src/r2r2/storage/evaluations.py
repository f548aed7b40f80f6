"""What evaluations measured, as a long CSV file that any tool can read."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from r2r2.storage.files import append_line, damaged, open_lines, read_lines, recording


class Row(NamedTuple):
    """One measured number: which run, task and seed, what, and when."""

    exp_name: str
    env_name: str
    seed: int
    metric: str
    env_step: int
    value: float


HEADER = ",".join(Row._fields)


def append_evaluations(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows to a CSV file, which is made with its header where it is missing.

    Example:
        >>> row = Row("demo", "Hopper-v5", 0, "return", 10_000, 312.5)
        >>> append_evaluations(Path("evaluations.csv"), [row])  # doctest: +SKIP
    """
    lines = [_line(row) for row in rows]
    with recording(path), open_lines(path) as file:
        if file.tell() == 0:
            append_line(file, HEADER)
        for line in lines:
            append_line(file, line)


def cut_evaluations(path: Path, length: int) -> None:
    """Takes back the rows beyond the first `length` bytes, or all of the file for 0."""
    if not path.exists():
        return
    if length:
        with path.open("r+b") as file:
            file.truncate(min(length, path.stat().st_size))
    else:
        path.unlink()


def read_evaluations(path: Path) -> list[Row]:
    """The rows of a CSV file, in its order; a torn last line is left out.

    Raises:
        UserError: The file cannot be read, or a line of it is damaged.
    """
    lines = read_lines(path)
    if lines[:1] != [HEADER]:
        raise damaged(path, 1, f"it is not the header '{HEADER}'")
    rows = enumerate(lines[1:], start=2)
    return [parse_row(path, number, line) for number, line in rows]


def _line(row: Row) -> str:
    if any(end in name for name in (row[0], row[1], row[3]) for end in "\r\n"):
        raise ValueError(f"a name with a line break cannot be recorded: {row}")
    text = io.StringIO()
    # NumPy's float32 prints fewer digits than it holds.
    plain = row._replace(value=float(row.value))
    csv.writer(text, lineterminator="").writerow(plain)
    return text.getvalue()


def parse_row(path: Path, number: int, line: str) -> Row:
    """One line of a table of evaluations, its header apart.

    Raises:
        UserError: It is damaged; the refusal names the file and the line's number.

    Example:
        >>> parse_row(Path("evaluations.csv"), 2, "td7,Hopper-v5,0,return,9,1.5").value
        1.5
    """
    try:
        (cells,) = csv.reader([line], strict=True)
        exp_name, env_name, seed, metric, env_step, value = cells
        row = Row(exp_name, env_name, int(seed), metric, int(env_step), float(value))
        if not (0 <= row.seed < 2**63 and 0 <= row.env_step < 2**63):
            raise ValueError("more than any tool takes for a whole number")
    except (csv.Error, ValueError) as error:
        raise damaged(path, number, f"it does not hold {HEADER}") from error
    return row
