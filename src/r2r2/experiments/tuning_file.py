"""Tuning studies as TOML files: the fields of every trial, the search space and the settings."""

import contextlib
import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.fields import (
    DURATION,
    FieldSpec,
    Range,
    at_least,
    find_field,
    flatten_config,
    one_of,
    option,
    parse_value,
)
from r2r2.config.resolve import agent_name, default_config, resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import TomlValues, flatten_tables, read_toml, to_toml
from r2r2.envs.suites import find_suite
from r2r2.experiments.experiment import NAME
from r2r2.stats import paper

KEYS = ("title", "base", "space", "study", "scales")
RANGE_KEYS, CHOICES_KEY = ("low", "high", "step", "log"), "choices"
DMC_RETURN = 1000.0  # the largest return of a DMC task
# Fields that are the same in all trials of a study, since scores would not be comparable.
COMMON_FIELDS = (
    *("agent", "agent.name", "env", "seeds", "steps", "env_args", "action_repeat"),
    *("max_episode_steps", "eval_every", "eval_episodes", "eval_average", "stop_at_return"),
    *("random_only", "log_every", "env_timeout", "env_faults"),
)

Value = bool | int | float | str
Place = Callable[[str], str]  # from a dotted name to the place in the file


@dataclasses.dataclass(frozen=True)
class StudySettings:
    """How a study searches: the table [study]."""

    trials: int = option(50, "trials of the study", at_least(1))
    sampler: str = option("tpe", "how parameters are chosen", one_of("tpe", "random"))
    pruner: str = option("median", "how trials end early", one_of("median", "hyperband", "none"))
    objective: str = option("score", "what is maximised, of a curve", one_of("score", "last"))
    statistic: str = option("mean", "over seeds and tasks", one_of("mean", "iqm"))
    startup: int = option(10, "first trials: random parameters, no median pruning", at_least(1))
    seed: int = option(0, "of the sampler", at_least(0))
    budget: str = option("", "time after which no trial starts; empty: none", DURATION)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A field that a study varies: a range of numbers, or choices.

    Example:
        >>> Parameter("agent.batch_size", choices=(128, 256)).corners
        (128, 256)
    """

    path: str  # dotted name of the field
    low: float = math.nan
    high: float = math.nan
    step: float | None = None
    log: bool = False
    choices: tuple[Value, ...] = ()
    is_integer: bool = False

    @property
    def corners(self) -> tuple[Value, Value]:
        """The ends of the range, or the first and last choice."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    @property
    def name(self) -> str:
        """The last part of the field's name."""
        return self.path.rpartition(".")[2]


@dataclasses.dataclass(frozen=True)
class TuningStudy:
    """A search for the best values of some fields of a run.

    Example:
        >>> table = {"base": {"env": "Hopper-v5"}, "space": {"width": {"choices": [128, 256]}}}
        >>> parse_study("widths", table).config({"agent.width": 128}).agent.width
        128
    """

    name: str
    title: str
    base: Mapping[str, Any]  # fields of every trial
    space: tuple[Parameter, ...]
    settings: StudySettings
    scales: Mapping[str, tuple[float, float]]  # returns that become 0 and 1, by task

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """Return the config of a trial with these values of its parameters."""
        return resolve(self.base, values)

    def corners(self) -> list[RunConfig]:
        """Return the configs with the lowest and the highest value of every parameter."""
        return [self.config({x.path: x.corners[n] for x in self.space}) for n in (0, 1)]

    def definition(self) -> dict[str, Any]:
        """Return what must stay the same when a study continues, as JSON values."""
        settings = dataclasses.asdict(self.settings)
        del settings["trials"], settings["budget"]
        base = dict(flatten_tables(tomllib.loads(to_toml(self.corners()[0]))))
        for parameter in self.space:
            base.pop(parameter.path, None)
        space: dict[str, list[Any]] = {
            x.path: list(x.choices) or [x.low, x.high, x.step, x.log] for x in self.space
        }
        facts = {"space": space, "study": settings, "scales": dict(self.scales), "base": base}
        # Through JSON, so that it equals what is read from a file.
        return cast("dict[str, Any]", json.loads(json.dumps(facts, allow_nan=True)))


def load_tuning_study(source: "str | Path | TuningStudy | Mapping[str, Any]") -> TuningStudy:
    """Return the study in a TOML file or in a table of the same form.

    Raises:
        UserError: The file cannot be read, or is not a study.
    """
    if isinstance(source, TuningStudy):
        return source
    if isinstance(source, Mapping):
        return parse_study("study", source)
    if not isinstance(source, str | Path):
        raise invalid_value("study", "a path or a table", source)
    path = Path(source)
    values = read_toml(path)
    return parse_study(path.stem, tomllib.loads(path.read_text()), values, str(path))


def parse_study(
    name: str, table: Mapping[str, Any], values: TomlValues | None = None, source: str = "study"
) -> TuningStudy:
    """Return the study that a table describes; `values` know the lines of the file `source`."""
    if NAME.fullmatch(name) is None:
        expected = "a file name of at most 61 letters, digits, '.', '_' and '-'"
        raise UserError(f"{source}: expected {expected}, got {name!r}")
    _check_keys(table, KEYS, f"{source}: ")
    tables = {key: _table(table, key, source) for key in KEYS[1:]}
    title = table.get("title", "")
    if not isinstance(title, str):
        raise UserError(f"{source}: title: expected a text, got {title!r}")

    def place(path: str) -> str:
        return values.place(path) if values is not None else f"{source}: "

    settings = _settings(tables["study"], place)
    with _located(f"{source}: [base] "):
        fields = flatten_config(default_config(agent_name(tables["base"])))
        del fields["agent.name"]
        given = {_find(fields, name) for name in flatten_tables(tables["base"])}
    space = _space(tables["space"], fields, given, place)
    if not space:
        expected = "at least one field such as width = {choices = [128, 256]}"
        raise UserError(f"{source}: [space] is empty; expected {expected}")
    study = TuningStudy(name, title, tables["base"], space, settings, {})
    with _located(f"{source}: "):
        tasks = study.corners()[0].env
    scales = _scales(tables["scales"], tasks, place)
    return dataclasses.replace(study, scales=scales)


@contextlib.contextmanager
def _located(place: str) -> Iterator[None]:
    """Put a place before the sentences of errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}{error}") from None


def _find(fields: Mapping[str, FieldSpec], name: str) -> str:
    return name if name in ("agent", "agent.name") else find_field(fields, name).path


def _check_keys(table: Mapping[str, Any], keys: Iterable[str], place: str) -> None:
    keys = tuple(keys)
    for key in table:
        if key not in keys:
            near = did_you_mean(key, keys, most=1)
            raise UserError(f"{place}unknown key {key!r}; expected {', '.join(keys)}{near}")


def _table(table: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(f"{source}: expected a table [{key}], got {value!r:.40}")
    return cast("Mapping[str, Any]", value)


def _settings(table: Mapping[str, Any], place: Place) -> StudySettings:
    specs = flatten_config(StudySettings())
    for key in table:
        _check_keys({key: None}, specs, f"{place(f'study.{key}')}[study] ")
    values: dict[str, Any] = {}
    for key, value in table.items():
        with _located(f"{place(f'study.{key}')}study."):
            values[key] = parse_value(specs[key], value)
    return StudySettings(**values)


def _space(
    table: Mapping[str, Any], fields: Mapping[str, FieldSpec], base: set[str], place: Place
) -> tuple[Parameter, ...]:
    """Return the parameters of a search space, in the order of the file."""
    parameters: dict[str, Parameter] = {}
    for name, entry in _entries(table):
        where = place(f"space.{name}")
        with _located(f"{where}space."):
            if _find(fields, name) in COMMON_FIELDS:
                raise UserError("is the same in all trials; expected it in [base]", name)
            field = find_field(fields, name)
            if field.path in base:
                raise UserError("is also in [base]; expected it in one of them", name)
            if field.path in parameters:
                raise UserError(f"is given twice, as {field.path!r} as well", name)
            parameters[field.path] = _parameter(name, field, entry)
    return tuple(parameters.values())


def _entries(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested tables by dotted name."""
    for key, value in table.items():
        inner = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
        if inner and all(isinstance(x, Mapping) for x in inner.values()):
            yield from _entries(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _parameter(name: str, field: FieldSpec, entry: Any) -> Parameter:
    numeric = field.kind in (int, float)
    if not numeric and field.kind not in (bool, str):
        raise UserError("cannot be tuned; expected a number, a name, or true or false", name)
    if not isinstance(entry, Mapping) or not entry:
        forms = "{choices = [...]}"
        expected = f"{{low = ..., high = ...}} or {forms}" if numeric else forms
        raise invalid_value(name, expected, entry)
    table = cast("Mapping[str, Any]", entry)
    keys = (CHOICES_KEY,) if CHOICES_KEY in table or not numeric else RANGE_KEYS
    _check_keys(table, keys if CHOICES_KEY in table else (*keys, CHOICES_KEY), f"{name}: ")
    if CHOICES_KEY in table:
        return Parameter(field.path, choices=_choices(name, field, table[CHOICES_KEY]))
    return _range(name, field, table)


def _choices(name: str, field: FieldSpec, choices: Any) -> tuple[Value, ...]:
    if not isinstance(choices, list | tuple):
        raise invalid_value(f"{name}.choices", "a list", choices)
    typed = [
        parse_value(field._replace(path=f"{name}.choices"), x) for x in cast("list[Any]", choices)
    ]
    if len(set(typed)) != len(typed) or len(typed) < 2:
        raise invalid_value(f"{name}.choices", "at least two different values", choices)
    return tuple(typed)


def _range(name: str, field: FieldSpec, table: Mapping[str, Any]) -> Parameter:
    for key in ("low", "high"):
        if key not in table:
            raise UserError(f"{key} is missing; expected both low and high", name)
    low, high = (parse_value(field._replace(path=f"{name}.{x}"), table[x]) for x in ("low", "high"))
    if not low < high:
        raise UserError(f"expected low < high, got low = {low} and high = {high}", name)
    if not isinstance(log := table.get("log", False), bool):
        raise invalid_value(f"{name}.log", "true or false", log)
    if log and low <= 0:
        raise invalid_value(f"{name}.low", "a number > 0 with log = true", low)
    step = table.get("step")
    if step is not None:
        step = _step(name, field, step, (low, high), log)
    return Parameter(field.path, low, high, step, log, is_integer=field.kind is int)


def _step(name: str, field: FieldSpec, step: Any, ends: tuple[float, float], log: bool) -> float:
    if log:
        raise UserError("step is not allowed with log = true; expected one of them", name)
    allowed = Range("a number > 0", lambda x: 0 < x < math.inf)
    step = parse_value(FieldSpec(f"{name}.step", field.kind, None, "", allowed), step)
    count = (ends[1] - ends[0]) / step
    if abs(count - round(count)) > 1e-9 or round(count) < 1:
        expected = f"a step that divides {ends[1]} - {ends[0]}"
        raise invalid_value(f"{name}.step", expected, step)
    return cast(float, step)


# Scales of returns


def _scales(
    table: Mapping[str, Any], tasks: tuple[str, ...], place: Place
) -> dict[str, tuple[float, float]]:
    """Return the scale of every task; of a single task, only one that is given."""
    scales: dict[str, tuple[float, float]] = {}
    for task, entry in table.items():
        where = place(f"scales.{task}")
        if task not in tasks:
            near = did_you_mean(task, tasks, most=1)
            raise UserError(f"{where}scales: expected a task of env, got {task!r}{near}")
        scales[task] = _scale(f"{where}scales.{task}", entry)
    for task in tasks if len(tasks) > 1 else ():
        if task not in scales:
            scales[task] = _known_scale(task, place("base.env"))
    return {task: scales[task] for task in tasks if task in scales}


def _scale(where: str, entry: Any) -> tuple[float, float]:
    """Return the returns that become 0 and 1."""
    values = cast("list[Any]", entry) if isinstance(entry, list | tuple) else []
    numbers = [x for x in values if type(x) in (int, float) and math.isfinite(x)]
    if len(values) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        expected = "two returns [a, b] with a < b, which become 0 and 1"
        raise UserError(f"{where}: expected {expected}, got {entry!r}")
    return float(numbers[0]), float(numbers[1])


def _known_scale(task: str, where: str) -> tuple[float, float]:
    """Return the scale of a known task: 0 and 1000 on DMC, or 0 and the paper's TD7 at UTD 1."""
    key = paper.CellKey(task, "td7", 1)
    with _located(where):
        if find_suite(task) == "dmc":
            return 0.0, DMC_RETURN
    if key in paper.raw_scores():
        return 0.0, paper.raw_scores()[key].mean
    raise UserError(
        f"{where}several tasks need a common scale, and that of {task!r} is not known; expected "
        f'its returns that become 0 and 1, as in [scales] "{task}" = [0, 100]'
    )
