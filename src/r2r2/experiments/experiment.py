"""Experiments as TOML files: grids of runs over agents, tasks, UTD, seeds and any other field."""

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import MAX_TOML_BYTES, TomlValues, flatten_tables, parse_toml, run_name
from r2r2.experiments.scaling import check_scale, scale_config
from r2r2.storage.files import cannot_read, read_regular

PRESETS = Path(__file__).parent / "presets"
# Of an experiment. Every cell takes milliseconds before anything starts.
MAX_CELLS, MAX_RUNS = 10_000, 100_000
KEYS = ("title", "reproduces", "base", "grids")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
LIST_FIELDS = ("env", "seeds")  # fields whose own values are lists

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
    grids: Sequence[Fields] = ()  # values of fields, each one value or a list of them
    file: str = dataclasses.field(default="", compare=False)  # for messages

    def __post_init__(self) -> None:
        """Check the types; `cells` checks the fields."""
        if not isinstance(self.name, str) or NAME.fullmatch(self.name) is None:
            expected = "a name of at most 61 letters, digits, '.', '_' and '-'"
            raise UserError(f"{self.file or 'name'}: expected {expected}, got {self.name!r:.80}")
        for key in ("title", "reproduces"):
            if not isinstance(value := getattr(self, key), str):
                raise invalid_value(f"{self.source}: {key}", "a text", value)
        if not isinstance(self.base, Mapping):
            raise UserError(f"{self.source}: expected a table [base], got {self.base!r:.40}")
        grids: Any = self.grids
        is_list = isinstance(grids, list | tuple)
        if not is_list or not grids or not all(isinstance(grid, Mapping) for grid in grids):
            got = f"{grids!r:.40}" if grids else "none"
            raise UserError(f"{self.source}: expected at least one table [[grids]], got {got}")

    @property
    def source(self) -> str:
        """The file of the experiment, or else its name."""
        return self.file or self.name

    def cells(self) -> list[RunConfig]:
        """Return the cells: configs with one task each, and all seeds of that combination.

        Raises:
            UserError: A grid is empty, a value is not allowed, or two runs have the same name.
        """
        _check_base(self.source, self.base)
        configs = [self._resolve(x) for x in _combinations(self.source, self.grids)]
        cells = [dataclasses.replace(x, env=(task,)) for x in configs for task in x.env]
        _check_names(self.source, cells)
        return cells

    def _resolve(self, combination: Fields) -> RunConfig:
        try:
            return resolve(self.base, combination)
        except UserError as error:
            raise _with_source(error, self.source) from None

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


def finalize_cells(experiment: Experiment, scale: float = 1.0) -> list[RunConfig]:
    """Return the cells of an experiment as they are trained: scaled, with automatic settings.

    Raises:
        UserError: The experiment or the scale is not valid, a task cannot be built, or two
            runs have the same name.

    Example:
        >>> grid = {"agent": ["td7", "simbav2"], "env": "Pendulum-v1", "steps": 60_000}
        >>> [cell.warmup for cell in finalize_cells(Experiment("pendulum", grids=(grid,)), 0.1)]
        [2500, 500]
    """
    # Imports JAX, which the planner and its callers do not need.
    from r2r2.training.run_config import finalize_config

    cells = experiment.cells()
    check_scale(scale, min(cell.steps for cell in cells))
    finalized: dict[int, RunConfig] = {}
    # By task, since only the spaces of the latest tasks are kept in memory.
    for index in sorted(range(len(cells)), key=lambda x: cells[x].env):
        try:
            finalized[index] = finalize_config(scale_config(cells[index], scale))
        except UserError as error:
            raise _with_source(error, experiment.source) from None
    cells = [finalized[index] for index in range(len(cells))]
    _check_names(experiment.source, cells)
    return cells


def _with_source(error: UserError, source: str) -> UserError:
    """Return an error with the file or the name of its experiment before it."""
    text = str(error)
    return error if text.startswith(f"{source}: ") else UserError(f"{source}: {text}")


def _check_base(source: str, base: Fields) -> None:
    """Check that the fields of all runs have one value each."""
    for field, value in flatten_tables(base).items():
        if isinstance(value, list | tuple) and _plain_name(field) not in LIST_FIELDS:
            raise UserError(
                f"{_place(source, base, field)}base field {field!r} is a list; expected one value, "
                f"got {value!r:.60}; several values belong to [[grids]]"
            )


def _place(source: str, fields: Fields, name: str) -> str:
    """Return where a field is, to put before a sentence."""
    return fields.place(name) if isinstance(fields, TomlValues) else f"{source}: "


def _plain_name(field: str) -> str:
    return field.replace("-", "_")


def _combinations(source: str, grids: Sequence[Fields]) -> Iterator[Fields]:
    """Return the products of the values of each grid, in the order of its fields."""
    choices = [
        {field: _choices(source, grid, field, x) for field, x in flatten_tables(grid).items()}
        for grid in grids
    ]
    count = sum(math.prod(map(len, of_grid.values())) for of_grid in choices)
    if count > MAX_CELLS:
        raise UserError(f"{source}: expected at most {MAX_CELLS} combinations, got {count}")
    for grid, of_grid in zip(grids, choices, strict=True):
        for values in itertools.product(*of_grid.values()):
            combination = dict(zip(of_grid, values, strict=True))
            if isinstance(grid, _LocatedFields):
                yield _LocatedFields(combination, grid.place)
            else:
                yield combination


def _choices(source: str, grid: Fields, field: str, value: Any) -> Sequence[Any]:
    """Return the values of a field; a list of seeds is one value, since it belongs to a cell."""
    if _plain_name(field) == "seeds" or not isinstance(value, list | tuple):
        return [value]
    values = cast("Sequence[Any]", value)
    if not values:
        where = _place(source, grid, field)
        raise UserError(f"{where}grid field {field!r} is empty; expected at least one value")
    return values


def _check_names(source: str, cells: Sequence[RunConfig]) -> None:
    """Check that no two runs have the same name: they would share one folder."""
    count = sum(len(cell.seeds) for cell in cells)
    if count > MAX_RUNS:
        raise UserError(f"{source}: expected at most {MAX_RUNS} runs, got {count}")
    seen: dict[RunKey, RunConfig] = {}
    for cell in cells:
        for key in run_keys(cell):
            other = seen.setdefault(key, cell)
            if other is not cell:
                raise _same_name(source, key, cell, other)


def _same_name(source: str, key: RunKey, cell: RunConfig, other: RunConfig) -> UserError:
    steps, expected = "", "each run once"
    if other.steps != cell.steps:
        steps = f", with {other.steps} and {cell.steps} steps"
        expected = "runs that differ in more than steps"
    return UserError(
        f"{source}: two runs have the name {key.config} and the seed {key.seed}: the grids contain "
        f"{cell.agent.name} on {key.task} at UTD {cell.utd} twice{steps}; expected {expected}"
    )


class _LocatedFields(TomlValues):
    """Fields of a table in an experiment's file, which know their lines."""

    def __init__(self, fields: Fields, place: Callable[[str], str]):
        dict.__init__(self, fields)
        self._place_of = place

    def place(self, name: str) -> str:
        """Return the file and the line of a field, as far as known."""
        return self._place_of(name)


class _Lines:
    """The lines of the keys in an experiment's file, as far as they can be found."""

    def __init__(self, text: str, file: str):
        self._file = file
        self._numbers: dict[tuple[int, str], int] = {}  # by grid, or -1, and dotted key
        table, grid = "", -1
        for number, line in enumerate(text.split("\n"), start=1):
            line = re.sub(r"[\s\"']", "", line)
            if header := re.match(r"\[\[?((?:base|grids)[^\[\]=,]*)\]", line):
                table, grid = f"{header[1]}.", grid + line.startswith("[[grids]]")
                key = header[1]
            else:
                key = table + line.partition("=")[0] if "=" in line else ""
            index = grid if key.startswith("grids") else -1
            self._numbers.setdefault((index, key), number)

    def place(self, key: str, grid: int = -1) -> str:
        """Return the file and the line of a key or of the table around it."""
        while key:
            if number := self._numbers.get((grid, key)):
                return f"{self._file}: line {number}: "
            key = key.rpartition(".")[0]
        return f"{self._file}: "

    def locate(self, fields: Any, table: str, grid: int = -1) -> Any:
        """Return the fields of a table with their lines; anything else as it is."""
        if not isinstance(fields, dict):
            return fields
        return _LocatedFields(
            cast("dict[str, Any]", fields), lambda name: self.place(f"{table}.{name}", grid)
        )


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
    return _parse_experiment(path, table, _Lines(text, str(path)))


def _parse_experiment(path: Path, table: Mapping[str, Any], lines: _Lines) -> Experiment:
    for key in table:
        if key not in KEYS:
            near = did_you_mean(key, KEYS, most=1)
            expected = f"one of {', '.join(KEYS)}"
            raise UserError(f"{lines.place(key)}unknown key {key!r}; expected {expected}{near}")
    grids = table.get("grids", ())
    if isinstance(grids, list):
        grids = [lines.locate(grid, "grids", index) for index, grid in enumerate(grids)]
    texts = {key: table.get(key, "") for key in ("title", "reproduces")}
    base = lines.locate(table.get("base", {}), "base")
    return Experiment(path.stem, **texts, base=base, grids=grids, file=str(path))


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
        return _find_file(Path(name))
    files = [f"{name}.toml"] if NAME.fullmatch(name) and Path(f"{name}.toml").is_file() else []
    near = did_you_mean(name, files or preset_names(), most=1)
    expected = f"a file NAME.toml or one of {', '.join(preset_names())}"
    raise UserError(f"unknown experiment {name!r:.80}; expected {expected}{near}")


def _find_file(path: Path) -> Experiment:
    experiment = read_experiment(path)
    if experiment.name in preset_names() and path.resolve().parent != PRESETS.resolve():
        expected = f"another file name, since {experiment.name!r} is a preset"
        raise UserError(f"{path}: expected {expected}")  # sweeps store plans by this name
    return experiment
