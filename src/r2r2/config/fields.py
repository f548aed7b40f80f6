"""Fields of a config, as the command line, TOML files and Python share them, by dotted name."""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from r2r2.config.errors import UserError, did_you_mean, invalid_value

T = TypeVar("T")
Config = TypeVar("Config")

MAX_INT = 2**31 - 1  # integers of the device
MAX_SIZE = 2**20  # of a layer or a batch, so that products of sizes fit into integers
MAX_FLOAT = 1e18  # the product of two fits into single precision
MAX_COUNT = 1000  # of a list given by its length


class Range(NamedTuple):
    """Allowed values of a field, as a phrase for messages and as a test."""

    description: str
    is_valid: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def at_least(least: int) -> Range:
    """Integers from `least` up to the largest one of the device."""
    return Range(f"an integer >= {least}", lambda x: least <= x <= MAX_INT)


def between(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, both allowed."""
    return Range(f"a number from {low:g} to {high:g}", lambda x: low <= x <= high)


def integer_between(low: int, high: int) -> Range:
    """Integers from `low` to `high`, both allowed."""
    return Range(f"an integer from {low} to {high}", lambda x: low <= x <= high)


def size(least: int) -> Range:
    """Numbers of features, units or transitions."""
    return integer_between(least, MAX_SIZE)


def fraction_below(high: float) -> Range:
    """Numbers from 0 to `high`, which is not allowed itself."""
    return Range(f"a number >= 0 and < {high:g}", lambda x: 0 <= x < high)


def one_of(*values: str) -> Range:
    """One of several strings."""
    return Range("one of " + ", ".join(values), lambda x: x in values, values)


FINITE = between(-MAX_FLOAT, MAX_FLOAT)
NON_NEGATIVE = between(0, MAX_FLOAT)
POSITIVE = Range(f"a number > 0 and <= {MAX_FLOAT:g}", lambda x: 0 < x <= MAX_FLOAT)
EPISODES = integer_between(1, 100_000)  # an evaluation allocates all of them at once
ANY = Range("any value", lambda _: True)


def option(default: T, text: str, allowed: Range = ANY) -> T:
    """Return a dataclass field with its help text and its allowed values."""
    return dataclasses.field(default=default, metadata={"help": text, "allowed": allowed})


KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple[int, ...]: "a count or a list of integers",
    tuple[str, ...]: "a name or a list of names",
}
TRUE, FALSE = ("true", "on", "yes"), ("false", "off", "no")


class FieldSpec(NamedTuple):
    """One field: its dotted name, type, current value, help and allowed values."""

    path: str
    kind: Any
    value: Any
    help: str
    allowed: Range


def flatten_config(config: Any, prefix: str = "") -> dict[str, FieldSpec]:
    """Return every field of a config, nested ones included, by dotted name."""
    kinds = typing.get_type_hints(type(config))
    table: dict[str, FieldSpec] = {}
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            table |= flatten_config(value, path + ".")
        else:
            text = field.metadata.get("help", "")
            allowed = field.metadata.get("allowed", ANY)
            table[path] = FieldSpec(path, kinds[field.name], value, text, allowed)
    return table


def replace_fields(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with fields replaced, given by dotted name and typed."""
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, _, rest = path.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            changes[head] = value
    for head, inner in nested.items():
        changes[head] = replace_fields(getattr(config, head), inner)
    return typing.cast(Config, dataclasses.replace(typing.cast(Any, config), **changes))


def find_field(table: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    """Return a field by its dotted name or by a unique suffix, such as `lambda-rr`."""
    path = name.replace("-", "_")
    if path in table:
        return table[path]
    matches = [other for other in table if other.endswith("." + path)]
    if len(matches) == 1:
        return table[matches[0]]
    if matches:
        raise UserError(f"{name}: ambiguous field; expected {' or '.join(matches)}")
    names = table if "." in path else [other.rpartition(".")[2] for other in table]
    near = did_you_mean(path, names, most=1)
    raise UserError(f"{name}: unknown field{near or '; see r2r2 train --help'}")


def parse_value(field: FieldSpec, value: Any) -> Any:
    """Return a value, given as text or as a TOML type, as the field's type."""
    try:
        typed = _convert(field.kind, value)
    except (TypeError, ValueError, OverflowError):
        typed = None
    if typed is not None and field.allowed.is_valid(typed):
        return typed
    expected = field.allowed.description
    if field.allowed is ANY:
        expected = KINDS[field.kind]
    elif field.kind is int and typed is not None and typed > MAX_INT:
        expected = f"an integer <= {MAX_INT}"
    raise invalid_value(field.path, expected, value)


def _convert(kind: Any, value: Any) -> Any:
    if kind == tuple[int, ...]:
        return _to_integers(value)
    if kind == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(_convert(str, part).strip() for part in parts)
    if kind is bool:
        text = str(value).lower()
        return text in TRUE if text in TRUE + FALSE else None
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    if kind is int and isinstance(value, float):
        raise TypeError
    return kind(value)


def _to_integers(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        parts = value.strip().removesuffix(",").split(",")
        value = [int(part) for part in parts] if "," in value else int(value)
    if isinstance(value, list | tuple):
        return tuple(_convert(int, item) for item in typing.cast(Any, value))
    count = _convert(int, value)
    if count > MAX_COUNT:
        raise ValueError
    return tuple(range(count))


class Interval(NamedTuple):
    """An interval of checkpoints in minutes or decision steps; with neither, never."""

    minutes: float | None = None
    steps: int | None = None


def parse_interval(text: str) -> Interval:
    """Return the interval that a text such as `0.5min`, `5000` or `never` describes."""
    interval = _parse_interval(text)
    if interval is None:
        raise invalid_value("checkpoint_every", INTERVAL.description, text)
    return interval


def _parse_interval(text: str) -> Interval | None:
    if text.strip() == "never":
        return Interval()
    # At most twelve digits, so that a float or an integer of the device can hold it.
    minutes = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?) ?min\s*", text)
    if minutes and POSITIVE.is_valid(float(minutes[1])):
        return Interval(minutes=float(minutes[1]))
    steps = re.fullmatch(r"\s*([0-9][0-9_]{0,11})(?: steps?)?\s*", text)
    if steps and 1 <= (count := int(steps[1].replace("_", ""))) <= MAX_INT:
        return Interval(steps=count)
    return None


INTERVAL = Range(
    "minutes (10min, 0.5min), decision steps (5000) or never",
    lambda text: _parse_interval(text) is not None,
)
