"""Experiments as TOML files: grids of runs over agents, tasks, UTD, seeds and any other field."""

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import MAX_TOML_BYTES, parse_toml, run_name
from r2r2.storage.files import cannot_read, read_regular

PRESETS = Path(__file__).parent / "presets"
MAX_RUNS = 100_000  # of an experiment
KEYS = ("title", "reproduces", "minutes", "base", "grids")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A set of runs: the products of one or more grids.

    Example:
        >>> grid = {"agent": ["td7", "td7+r2r2"], "env": ["Hopper-v5"], "utd": [1, 20], "seeds": 5}
        >>> experiment = Experiment("hopper", base={"steps": 50_000}, grids=(grid,))
        >>> len(experiment.cells()), experiment.run_count
        (4, 20)
    """

    name: str
    title: str = ""
    reproduces: str = ""  # the part of the paper that it repeats
    base: Fields = dataclasses.field(default_factory=dict)  # fields of every run
    grids: tuple[Fields, ...] = ()  # values of fields, each one value or a list of them

    def cells(self) -> list[RunConfig]:
        """Return the cells: configs with one task each, and all seeds of that combination.

        Raises:
            UserError: A grid is empty, a value is not allowed, or two runs have the same name.
        """
        if not self.grids:
            raise UserError(f"{self.name}: expected at least one table [[grids]], got none")
        cells = [
            resolve(self.base, combination)
            for grid in self.grids
            for combination in _combinations(self.name, grid)
        ]
        cells = [dataclasses.replace(cell, env=(task,)) for cell in cells for task in cell.env]
        _check_names(self.name, cells)
        return cells

    @property
    def run_count(self) -> int:
        """The number of runs: seeds of all cells."""
        return sum(len(cell.seeds) for cell in self.cells())


class RunKey(NamedTuple):
    """What identifies one run of an experiment; a fleet trains several."""

    config: str  # name of the config, see `run_name`
    task: str
    seed: int


def run_keys(config: RunConfig) -> list[RunKey]:
    """Return the keys of a config's runs: all seeds of each task."""
    names = {task: run_name(dataclasses.replace(config, env=(task,))) for task in config.env}
    return [RunKey(names[task], task, seed) for task in config.env for seed in config.seeds]


def _combinations(name: str, grid: Fields) -> list[dict[str, Any]]:
    """Return the product of the values of a grid, in the order of its fields."""
    choices = {field: _choices(name, field, value) for field, value in grid.items()}
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > MAX_RUNS:
        raise UserError(f"{name}: expected at most {MAX_RUNS} combinations in a grid, got {count}")
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def _choices(name: str, field: str, value: Any) -> Sequence[Any]:
    """Return the values of a field; a list of seeds is one value, since it belongs to a cell."""
    if field.replace("-", "_") == "seeds" or not isinstance(value, list | tuple):
        return [value]
    values = cast("Sequence[Any]", value)
    if not values:
        raise UserError(f"{name}: grid field {field!r} is empty; expected at least one value")
    return values


def _check_names(name: str, cells: Sequence[RunConfig]) -> None:
    """Check that no two runs have the same name: they would share one folder."""
    seen: dict[RunKey, RunConfig] = {}
    for cell in cells:
        for key in run_keys(cell):
            if key in seen:
                other = seen[key]
                text = (
                    "twice"
                    if other.steps == cell.steps
                    else (f"with {other.steps} and with {cell.steps} steps")
                )
                raise UserError(
                    f"{name}: two runs have the name {key.config}, seed {key.seed}: the grids "
                    f"contain {cell.agent.name} on {key.task} at UTD {cell.utd} {text}; expected "
                    "runs that differ in a field other than steps"
                )
            seen[key] = cell


def read_experiment(path: Path) -> Experiment:
    """Return the experiment in a TOML file, named after the file.

    Raises:
        UserError: The file cannot be read, or is not an experiment.
    """
    try:
        text = read_regular(path, MAX_TOML_BYTES).decode()
        parse_toml(text)  # rejects text that takes too long to parse
        table = tomllib.loads(text)
    except OSError as error:
        raise cannot_read(path, error) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot read: {error}") from None
    return parse_experiment(path.stem, table, str(path))


def parse_experiment(name: str, table: Mapping[str, Any], source: str) -> Experiment:
    """Return the experiment that a TOML table describes; errors name `source`."""
    if NAME.fullmatch(name) is None:
        expected = "a file name of at most 61 letters, digits, '.', '_' and '-'"
        raise UserError(f"{source}: expected {expected}, got {name!r}")
    for key in table:
        if key not in KEYS:
            near = did_you_mean(key, KEYS, most=1)
            expected = f"one of {', '.join(KEYS)}"
            raise UserError(f"{source}: unknown key {key!r}; expected {expected}{near}")
    base, grids = table.get("base", {}), table.get("grids", [])
    if not isinstance(base, dict):
        raise UserError(f"{source}: expected a table [base], got {base!r:.40}")
    is_tables = isinstance(grids, list) and all(isinstance(x, dict) for x in cast(Any, grids))
    if not is_tables or not grids:
        raise UserError(f"{source}: expected at least one table [[grids]], got {grids!r:.40}")
    texts = {key: table.get(key, "") for key in ("title", "reproduces")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise invalid_value(f"{source}: {key}", "a text", value)
    flat = tuple(_flatten(grid) for grid in cast("list[dict[str, Any]]", grids))
    return Experiment(name, **texts, base=cast(Fields, base), grids=flat)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted name; a table of `env_args` is a value."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and prefix + key not in ("env_args", "env-args"):
            values |= _flatten(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def preset_names() -> list[str]:
    """Return the names of the experiments that come with r2r2.

    Example:
        >>> "smoke" in preset_names()
        True
    """
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def find_experiment(name: str) -> Experiment:
    """Return a preset by its name, or the experiment in a TOML file by its path.

    Raises:
        UserError: There is neither, or the file is not an experiment.

    Example:
        >>> find_experiment("smoke").run_count
        24
    """
    if name in preset_names():
        return read_experiment(PRESETS / f"{name}.toml")
    if name.endswith(".toml") or "/" in name:
        return read_experiment(Path(name))
    near = did_you_mean(name, preset_names(), most=1)
    expected = f"a file NAME.toml or one of {', '.join(preset_names())}"
    raise UserError(f"unknown experiment {name!r}; expected {expected}{near}")
