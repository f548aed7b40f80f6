"""Results of any program, from a file in the long CSV format."""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

from r2r2.config.refusal import Refusal
from r2r2.record.evaluations import HEADER, Row
from r2r2.record.files import damaged, read_plain, reason
from r2r2.report.labels import UNKNOWN
from r2r2.report.reading import is_sane
from r2r2.report.scores import METRIC, Method, Results
from r2r2.report.study import RunData

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
        Refusal: It cannot be read, or holds no returns.
    """
    by_name: dict[str, list[Row]] = {}
    for row in read_results(path):
        if row.metric in RETURNS:
            by_name.setdefault(row.exp_name, []).append(row._replace(metric=METRIC))
    if not by_name:
        raise Refusal(
            f"'{path}' holds no returns; allowed is a metric {' or '.join(RETURNS)}"
        )
    return [
        RunData(f"{shown}: {name}", str(path), "file", Results(_method(name, shown), x))
        for name, x in by_name.items()
    ]


def read_results(path: Path) -> list[Row]:
    """The rows of a file that any program may have written; every line counts.

    Raises:
        Refusal: It cannot be read, or a line of it cannot be used.
    """
    try:
        text = read_plain(path, LONGEST).decode("utf-8-sig")
    except OSError as error:
        raise Refusal(f"'{path}' cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise Refusal(f"'{path}' cannot be read: it is not UTF-8") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Row] = []
    try:
        if missing := set(Row._fields) - set(reader.fieldnames or ()):
            why = f"it has no column {min(missing)!r} of '{HEADER}'"
            raise damaged(path, 1, why)
        found += [_row(path, reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise damaged(path, reader.line_num + 1, str(error)) from error
    return found


def _row(path: Path, number: int, line: Mapping[str, str | None]) -> Row:
    name, task, metric = (str(line[x]) for x in ("exp_name", "env_name", "metric"))
    try:
        seed, step = (int(line[x] or "") for x in ("seed", "env_step"))
        value = float(line["value"] or "")
    except ValueError as error:
        raise damaged(path, number, f"{error}") from error
    if not is_sane(value):
        raise damaged(path, number, f"{value} is beyond any return")
    if not (0 <= seed < MOST and 0 <= step < MOST):
        raise damaged(path, number, "seed and env_step are counts from 0 on")
    return Row(name, task, seed, metric, step, value)


def _method(name: str, shown: str) -> Method:
    """A method of a file, which is never taken for a run's own."""
    unknown = (f"from {shown}{UNKNOWN}",)
    known = re.fullmatch(r"(.+)_utd([1-9][0-9]{0,8})", name, flags=re.DOTALL)
    if known:
        return Method(known[1], int(known[2]), unknown)
    return Method(name, None, unknown)
