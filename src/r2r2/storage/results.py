"""The folder of results: curves, diagnostics and settings of many runs as plain CSV files.

    results.json       kind, format and the checksums of the files
    README.md          what the folder contains, for people
    runs.csv           one line per run: settings, speed, device, commit, versions
    members.csv        one line per task and seed of a run: steps, score, final return
    evaluations.csv    every evaluation of every seed
    diagnostics.csv    every diagnostic number of every seed
    spectra.csv        singular values of the representation, of some evaluations
    configs/RUN.toml   the resolved config of each run
    policies/NAME/     policies that run with NumPy alone; only if they were asked for

The same tables give the same bytes. Nothing in these files is ever executed by reading them.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.config.errors import UserError
from r2r2.storage.files import (
    FileEntry,
    atomic_write,
    checksum,
    damaged_line,
    output_entries,
    parse_entries,
    read_json_object,
    read_regular,
    reason,
)

RESULTS_FILE, README_FILE = "results.json", "README.md"
RESULTS_KIND, RESULTS_FORMAT = "r2r2 results", 1
CONFIG_DIR, POLICY_DIR = "configs", "policies"
MAX_BYTES = 2**29  # of one file
TableRow = dict[str, Any]
CELL_LIMIT = 2**20  # characters in one field of a table, for long spectra


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**63:
        raise ValueError("not a 64-bit integer >= 0")
    return number


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("not 0 or 1")
    return text == "1"


def _floats(text: str) -> list[float]:
    return [float(item) for item in text.split()]


class Kind(NamedTuple):
    """How a column is read, and what it contains, for messages."""

    parse: Callable[[str], Any]
    expected: str


TEXT = Kind(str, "a text")
COUNT = Kind(_count, "an integer >= 0")
NUMBER = Kind(float, "a number")
FLAG = Kind(_flag, "0 or 1")
NUMBERS = Kind(_floats, "numbers separated by spaces")
MAYBE_NUMBER = Kind(lambda text: float(text) if text else None, "a number or nothing")

_CURVE = {
    **{"exp_name": TEXT, "env_name": TEXT, "seed": COUNT, "metric": TEXT, "env_step": COUNT},
    "value": NUMBER,
}
_PLACE = {"agent": TEXT, "utd": COUNT, "run": TEXT}
SPEEDS = ("wall_clock_s", "updates_per_s", "decisions_per_s")
# The columns of each table. `runs` has more, one for each entry of `versions.json`.
TABLES: dict[str, dict[str, Kind]] = {
    "runs": {
        **{"run": TEXT, "agent": TEXT, "utd": COUNT, "tasks": TEXT, "seeds": TEXT, "status": TEXT},
        **{"precision": TEXT, "scale": NUMBER, "steps": COUNT, "action_repeat": COUNT},
        **{"members": COUNT, "decisions": COUNT, "updates": COUNT},
        **dict.fromkeys(SPEEDS, MAYBE_NUMBER),
    },
    "members": {
        **{"run": TEXT, "cell": TEXT, "exp_name": TEXT, "agent": TEXT, "utd": COUNT},
        **{"env_name": TEXT, "seed": COUNT, "env_steps": COUNT, "decision_steps": COUNT},
        **{"updates": COUNT, "evaluations": COUNT, "score": NUMBER, "final_return": NUMBER},
        **{"ended_early": FLAG, "stopped": TEXT},
    },
    "evaluations": {**_CURVE, "decision_step": COUNT, **_PLACE},
    "diagnostics": {**_CURVE, "decision_step": COUNT, "update_step": COUNT, **_PLACE},
    "spectra": {
        **{"exp_name": TEXT, "env_name": TEXT, "seed": COUNT, "env_step": COUNT},
        **{"decision_step": COUNT, "update_step": COUNT, **_PLACE, "singular_values": NUMBERS},
    },
}
NAMES = (RESULTS_FILE, README_FILE, CONFIG_DIR, POLICY_DIR, *(f"{name}.csv" for name in TABLES))

README = """\
# Results

Learning curves, diagnostics and settings of runs, collected by `r2r2 collect`. Do not edit: the
files have checksums in `results.json`.

| file | one line for each |
|---|---|
| `evaluations.csv` | evaluation of a seed: the mean return of its episodes |
| `diagnostics.csv` | diagnostic number of a seed: effective rank, redundancy, value bias, ... |
| `spectra.csv` | spectrum of the representation of a seed: singular values, largest first |
| `members.csv` | task and seed of a run: steps, score, final return |
| `runs.csv` | run: settings, wall-clock seconds, device, commit and versions |

A score is the mean of a seed's last 10 evaluations, a final return its last one.
`configs/RUN.toml` is the resolved config of a run. `exp_name` is the agent with the settings that
differ from its defaults, and its UTD; `env_step` counts environment steps, with action repeat, and
`decision_step` counts actions.

```python
import pandas, r2r2

curves = pandas.read_csv("results/evaluations.csv")
results = r2r2.load_results("results")  # needs no pandas; checks the files
```

`r2r2 report results` compares them with each other and with the paper.
"""


class ResultTables(NamedTuple):
    """The content of a folder of results."""

    runs: list[TableRow]
    members: list[TableRow]
    evaluations: list[TableRow]
    diagnostics: list[TableRow]
    spectra: list[TableRow]
    configs: dict[str, str]  # TOML texts by run


def is_results(path: Path) -> bool:
    """Return whether a folder says that it contains results."""
    return (read_json_object(path / RESULTS_FILE) or {}).get("kind") == RESULTS_KIND


def check_results_dir(path: Path) -> None:
    """Check that a folder is missing, empty, or contains results and nothing else."""
    entries = output_entries(path)
    if entries and not is_results(path):
        raise UserError(f"{path}: not empty and not a folder of results; choose another --out")
    if others := [name for name in entries if name not in NAMES]:
        raise UserError(
            f"{path}: also contains {others[0]!r}, which would be deleted; move that file or "
            "choose another --out"
        )


def write_results(folder: Path, tables: ResultTables) -> None:
    """Write all files but the policies into a new folder."""
    files = {f"{name}.csv": _to_csv(name, getattr(tables, name)) for name in TABLES}
    files |= {f"{CONFIG_DIR}/{run}.toml": text for run, text in tables.configs.items()}
    files[README_FILE] = README
    (folder / CONFIG_DIR).mkdir()
    entries: dict[str, Mapping[str, object]] = {}
    for name, text in sorted(files.items()):
        atomic_write(folder / name, text)
        data = text.encode()
        entries[name] = FileEntry(len(data), checksum(data).hexdigest())._asdict()
    record = {"kind": RESULTS_KIND, "format": RESULTS_FORMAT, "files": entries}
    atomic_write(folder / RESULTS_FILE, json.dumps(record, indent=2) + "\n")


def _to_csv(name: str, rows: Sequence[TableRow]) -> str:
    columns = [*dict.fromkeys([*TABLES[name], *(key for row in rows for key in row)])]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_to_text(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _to_text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(repr, value))
    if isinstance(value, bool):
        return str(int(value))
    # Line breaks, for example of a reason, would end the line of a simple reader.
    return "" if value is None else re.sub(r"[\r\n]+", " ", str(value))


def read_results_folder(path: Path) -> ResultTables:
    """Read a folder of results completely, and check its files.

    Raises:
        UserError: The folder is not one of results, or one of its files is damaged.
    """
    entries = _read_entries(path)
    read = partial(_read_file, path, entries)
    tables = {name: _parse(path / f"{name}.csv", name, read(f"{name}.csv")) for name in TABLES}
    configs: dict[str, str] = {}
    for row in tables["runs"]:
        file = f"{CONFIG_DIR}/{row['run']}.toml"
        configs[row["run"]] = read(file)
    _check_places(path, tables, configs)
    return ResultTables(**tables, configs=configs)


def _read_entries(path: Path) -> dict[str, FileEntry]:
    if not path.is_dir():
        what = "not a folder" if path.exists() else "does not exist"
        raise UserError(f"{path}: {what}; expected a folder of results")
    file = path / RESULTS_FILE
    if not file.exists():
        raise UserError(f"{path}: not a folder of results; it has no {RESULTS_FILE}")
    record = read_json_object(file) or {}
    entries = parse_entries(record.get("files"))
    if record.get("kind") != RESULTS_KIND or entries is None:
        raise UserError(f"{file}: damaged or not of results")
    if (number := record.get("format")) != RESULTS_FORMAT:
        raise UserError(
            f"{file}: unsupported format; expected {RESULTS_FORMAT}, got {number!r:.20}"
        )
    return entries


def _read_file(path: Path, entries: Mapping[str, FileEntry], name: str) -> str:
    file = path / name
    if name not in entries:
        raise UserError(f"{file}: not listed in {RESULTS_FILE}")
    try:
        content = read_regular(file, MAX_BYTES)
    except OSError as error:
        raise UserError(f"{file}: cannot read: {reason(error)}") from None
    if (len(content), checksum(content).hexdigest()) != entries[name]:
        raise UserError(f"{file}: damaged; not as 'r2r2 collect' wrote it")
    return content.decode()


def _parse(path: Path, name: str, text: str) -> list[TableRow]:
    kinds, rows = TABLES[name], list[TableRow]()
    csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        if missing := [column for column in kinds if column not in (reader.fieldnames or ())]:
            raise damaged_line(path, 1, f"no column {missing[0]!r}")
        for line in reader:
            if None in line or None in line.values():
                raise damaged_line(path, reader.line_num, "a wrong number of columns")
            rows.append(_parse_row(path, reader.line_num, line, kinds))
    except csv.Error as error:
        raise damaged_line(path, reader.line_num + 1, str(error)) from None
    return rows


def _parse_row(
    path: Path, number: int, line: Mapping[str, str], kinds: Mapping[str, Kind]
) -> TableRow:
    row: TableRow = {}
    for column, text in line.items():
        kind = kinds.get(column, TEXT)
        try:
            row[column] = kind.parse(text)
        except ValueError:
            why = f"{column}: expected {kind.expected}, got {text!r:.40}"
            raise damaged_line(path, number, why) from None
    return row


def _check_places(
    path: Path, tables: Mapping[str, Iterable[TableRow]], configs: Mapping[str, str]
) -> None:
    """Check that every row belongs to a run that is there."""
    for name, rows in tables.items():
        if lost := [row["run"] for row in rows if row["run"] not in configs]:
            raise UserError(f"{path / name}.csv: damaged; has rows of the unknown run {lost[0]!r}")
