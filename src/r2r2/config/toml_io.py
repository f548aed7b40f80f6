"""A config as text: TOML in and out, and the names a run goes by."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config

# tomllib takes the square of a file's length, and of the dots in a key, at worst.
LONGEST = 2**17  # bytes
MOST_DOTS = 100  # in a line

# What decides a result only where an environment fails.
NON_RESULT_FIELDS = ("env_timeout", "env_faults")


# Fields that older runs lack: at these values they do not change a run's name.
ADDED_FIELDS = {"precision": "mixed", "compute.fast": True}


def safe_name(task: str) -> str:
    """A task's id with what a file name cannot hold replaced by a dot.

    Example:
        >>> safe_name("my.package:Arm-v0")
        'my.package.Arm-v0'
    """
    return task.replace(":", ".").replace("/", ".").replace("\\", ".")


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file by dotted name; tables are joined to their keys."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} bytes")
        return parse_toml(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"config is {str(path)!r}, which cannot be read: {reason}"
        ) from (None)


def parse_toml(text: str) -> dict[str, Any]:
    """The values of TOML text by dotted name.

    Example:
        >>> parse_toml('utd = 20' + chr(10) + '[agent]' + chr(10) + 'width = 64')
        {'utd': 20, 'agent.width': 64}
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"more than {MOST_DOTS} dots in line {number}")
    return _flat(tomllib.loads(text))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def to_toml(config: Any) -> str:
    """A config as TOML that `read_toml` and `resolve` bring back unchanged."""
    lines, table = [], ""
    for path, leaf in sorted(flatten_config(config).items(), key=_tables_last):
        head, _, key = path.rpartition(".")
        if head != table:
            table = head
            lines.append(f"\n[{table}]")
        lines.append(f"{key} = {_toml_value(leaf.value)}")
    return "\n".join(lines) + "\n"


def _tables_last(item: tuple[str, object]) -> str:
    return item[0].rpartition(".")[0]


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON's strings, truth values and numbers are TOML's as well.
    return json.dumps(value, ensure_ascii=False)


def run_name(config: Any) -> str:
    """The default folder's name: agent, tasks, UTD, and a digest of the rest."""
    tasks = [safe_name(task) for task in config.env]
    shown = "+".join(tasks) if len(tasks) < 4 else f"{tasks[0]}+{len(tasks) - 1}more"
    agent = safe_name(config.agent.name)
    return f"{agent}_{shown}_utd{config.utd}_{digest(config)}"


def digest(config: Any) -> str:
    """Eight hex digits of the config without its seeds, steps and guards."""
    values = {path: leaf.value for path, leaf in flatten_config(config).items()}
    identity = {
        path: value
        for path, value in values.items()
        if path not in ("seeds", "steps", *NON_RESULT_FIELDS)
        and (path not in ADDED_FIELDS or value != ADDED_FIELDS[path])
    }
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def experiment_name(config: Any, default: Any) -> str:
    """Agent, the fields changed from their defaults, UTD: a curve's name in a CSV.

    Example:
        >>> from r2r2.config.run import RunConfig
        >>> experiment_name(RunConfig(utd=20, warmup=5), RunConfig())
        'td7_warmup=5_utd20'
    """
    named = (
        "env",
        "seeds",
        "steps",
        "utd",
        "agent.name",
        "log_every",
        *NON_RESULT_FIELDS,
    )
    changed = [
        f"_{path.rpartition('.')[2]}={value}"
        for path, value in changed_fields(config, default).items()
        if path not in named
    ]
    agent = safe_name(config.agent.name)
    return f"{agent}{''.join(changed)}_utd{config.utd}"


def changed_fields(config: Any, default: Any) -> dict[str, Any]:
    """The fields of a config that differ from a default's, by dotted name."""
    plain = flatten_config(default)
    found = flatten_config(config).items()
    return {path: leaf.value for path, leaf in found if leaf.value != plain[path].value}
