"""Configs as TOML, and the names of runs that follow from a config."""

import contextlib
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

from r2r2.config.errors import UserError
from r2r2.config.fields import NO_ARGS, JsonObject, JsonProblem, flatten_config, parse_json_object

# The time of tomllib is quadratic in the length of a file and in the dots of a key.
MAX_TOML_BYTES = 2**17  # bytes
MAX_DOTS = 100  # per line

# Fields that change a result only if an environment fails, and the places of data that a run
# starts from, which are identified by their checksums.
NON_RESULT_FIELDS = ("env_timeout", "env_faults", "prefill", "init_from")
CHECKSUM_SUFFIX = "_sha256"

# Fields that change what is logged, but not what is trained.
LOG_FIELDS = ("log_every", "diagnostics.probe_batch", "diagnostics.probe_rows")

# Fields that older runs lack; with these values they do not change a run's name.
ADDED_FIELDS = {
    "precision": "tf32",
    "compute.fast": True,
    "random_only": False,
    "overlap_acting": False,
    "diagnostics.probe_batch": 4096,
    "diagnostics.probe_rows": 40_960,
    "max_episode_steps": 0,
    "env_args": NO_ARGS,
    "stop_at_return": math.inf,
    "prefill_sha256": "",
    "prefill_only_updates": 0,
    "mix": 0.0,
    "init_from_sha256": "",
    "agent.representation.extra": "",
    "agent.representation.lambda_extra": 1.0,
}
# Fields whose value is a table, which is not one of further fields.
TABLE_FIELDS = ("env_args",)
# Precision of runs from before the field existed, by JAX's setting in `versions.json`.
_PRECISIONS = {"float32": "float32", "highest": "float32", "tensorfloat32": "tf32"}


def unstated_precision(versions: Mapping[str, object]) -> str:
    """Return the precision of a GPU run whose config lacks the field `precision`."""
    return _PRECISIONS.get(str(versions.get("matmul_precision")), "mixed")


def safe_name(name: str) -> str:
    """Return a name of a task or an agent as a part of a file name."""
    return name.replace(":", ".").replace("/", ".").replace("\\", ".")


class TomlValues(dict[str, Any]):
    """Values of TOML text by dotted name, and where they are in it."""

    def __init__(self, text: str, file: str = ""):
        super().__init__(flatten_tables(tomllib.loads(text)))
        self._text, self._file = text, file

    def place(self, name: str) -> str:
        """Return the file and the line of a value, as far as known, to put before a sentence."""
        place, table = f"{self._file}: " if self._file else "", ""
        for number, line in enumerate(self._text.split("\n"), start=1):
            line = re.sub(r"[\s\"']", "", line)
            if header := re.match(r"\[([^\[\]]+)\]", line):
                table = f"{header[1]}."
                if table == f"{name}.":
                    return f"{place}line {number}: "
            elif f"{name}.".startswith(f"{table}{line.partition('=')[0]}."):
                return f"{place}line {number}: "
        return place


def read_toml(path: Path) -> TomlValues:
    """Return the values of a TOML file by dotted name."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOML_BYTES + 1)
        if len(content) > MAX_TOML_BYTES:
            raise ValueError(f"longer than {MAX_TOML_BYTES} bytes")
        return parse_toml(content.decode(), str(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot read: {reason}") from None


def parse_toml(text: str, file: str = "") -> TomlValues:
    """Return the values of TOML text by dotted name; errors in them name `file`, if given."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS} dots in line {number}")
    return TomlValues(text, file)


def flatten_tables(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted name."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if f"{prefix}{key}".replace("-", "_") in TABLE_FIELDS:
            values[prefix + key] = _canonical(value)
        elif isinstance(value, dict):
            values |= flatten_tables(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def _canonical(value: Any) -> Any:
    """Return a table as a `JsonObject`; other values, and invalid ones, as they are."""
    with contextlib.suppress(JsonProblem):
        return parse_json_object(value)
    return value


def to_toml(config: Any) -> str:
    """Return a config as TOML, from which `resolve` restores it."""
    tables: dict[str, list[str]] = {"": []}
    for path, field in flatten_config(config).items():
        table, _, key = path.rpartition(".")
        if isinstance(field.value, JsonObject) and (lines := _table_lines(field.value)):
            tables[path] = [f"\n[{path}]", *lines]
            continue
        tables.setdefault(table, [f"\n[{table}]"]).append(f"{key} = {_toml_value(field.value)}")
    return "\n".join(chain(*(tables[table] for table in sorted(tables)))) + "\n"


def _table_lines(value: JsonObject) -> list[str]:
    """Return a JSON object as lines of a TOML table; none if it must be written as text."""
    if _has_null(values := value.to_dict()):  # TOML has none
        return []
    lines = [f"{_toml_key(name)} = {_toml_value(item)}" for name, item in values.items()]
    return lines if all(line.count(".") <= MAX_DOTS for line in lines) else []


def _has_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else cast(Any, value)
        return any(map(_has_null, items))
    return value is None


def _toml_value(value: Any) -> str:
    if isinstance(value, JsonObject):
        return "{}" if value == NO_ARGS else _toml_value(str(value)).replace(".", "\\u002e")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml_value, cast(Iterable[Any], value))) + "]"
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(x)}" for key, x in items) + "}"
    if value == math.inf:
        return "inf"
    # Strings, booleans and numbers of JSON are also those of TOML, except for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml_value(key)


def run_name(config: Any) -> str:
    """Return the default name of a run folder: agent, tasks, UTD and a digest."""
    tasks = [safe_name(task) for task in config.env]
    shown = "+".join(tasks) if len(tasks) < 4 else f"{tasks[0]}+{len(tasks) - 1}more"
    agent = safe_name(config.agent.name)
    return f"{agent}_{shown}_utd{config.utd}_{digest(config)}"


def digest(config: Any) -> str:
    """Return an eight-digit hexadecimal hash of all fields that distinguish experiments."""
    ignored = ("seeds", "steps", *NON_RESULT_FIELDS)
    identity = {
        path: field.value
        for path, field in flatten_config(config).items()
        if path not in ignored and ADDED_FIELDS.get(path) != field.value
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def experiment_name(config: Any, default: Any) -> str:
    """Return the name of a curve in a CSV, such as `td7_warmup=5_utd20`."""
    ignored = ["env", "seeds", "steps", "utd", "agent.name", *LOG_FIELDS, *NON_RESULT_FIELDS]
    changed = [
        f"_{path.rpartition('.')[2].removesuffix(CHECKSUM_SUFFIX)}={brief_value(path, value)}"
        for path, value in changed_fields(config, default).items()
        if path not in ignored
    ]
    return f"{safe_name(config.agent.name)}{''.join(changed)}_utd{config.utd}"


def brief_value(path: str, value: object) -> str:
    """Return the value of a field for people: the first digits of a checksum are enough."""
    return str(value)[:8] if path.endswith(CHECKSUM_SUFFIX) else str(value)


def changed_fields(config: Any, default: Any) -> dict[str, Any]:
    """Return the fields of a config that differ from those of a default config."""
    defaults = flatten_config(default)
    return {
        path: field.value
        for path, field in flatten_config(config).items()
        if field.value != defaults[path].value
    }
