"""A nested config as a flat table of named, typed fields, and back.

The command line and TOML files both go through here, so a name, a type and a range
mean the same in both, and a refusal reads the same.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from r2r2.config.errors import UserError, did_you_mean

T = TypeVar("T")

LARGEST = 2**31 - 1
WIDEST = 2**20  # of a layer or a batch: products of a few such fit into integers
HUGE = 1e18  # the product of two fits into single precision


class Range(NamedTuple):
    """What a field allows, as a phrase for people and as a test."""

    description: str
    is_valid: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def at_least(least: int) -> Range:
    """Whole numbers from `least` on, as far as the device's integers go."""
    words = f"a whole number from {least} to {LARGEST}"
    return Range(words, lambda x: least <= x <= LARGEST)


def between(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, both allowed."""
    return Range(f"a number from {low:g} to {high:g}", lambda x: low <= x <= high)


def between_whole(low: int, high: int) -> Range:
    """Whole numbers from `low` to `high`, both allowed."""
    words = f"a whole number from {low} to {high}"
    return Range(words, lambda x: low <= x <= high)


def size(least: int) -> Range:
    """How many features, units or transitions there may be."""
    return between_whole(least, WIDEST)


def fraction_below(high: float) -> Range:
    """Numbers from 0 on that stay below `high`."""
    return Range(f"a number from 0 to below {high:g}", lambda x: 0 <= x < high)


def one_of(*values: str) -> Range:
    """One of a few words."""
    return Range("one of " + ", ".join(values), lambda x: x in values, values)


FINITE = between(-HUGE, HUGE)
NON_NEGATIVE = between(0, HUGE)
POSITIVE = Range(f"a number above 0, up to {HUGE:g}", lambda x: 0 < x <= HUGE)
# All of an evaluation's episodes are laid out before the first.
EPISODES = between_whole(1, 100_000)
ANY = Range("any value", lambda _: True)


def option(default: T, text: str, allowed: Range = ANY) -> T:
    """A dataclass field that carries its help and what it allows.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Example:
        ...     utd: int = option(1, "updates per decision step", at_least(1))
        >>> Example().utd
        1
    """
    return dataclasses.field(
        default=default, metadata={"help": text, "allowed": allowed}
    )


Config = TypeVar("Config")

# A longer list is a slip, and a count is written out before anyone could refuse it.
LONGEST = 1000

KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    tuple[int, ...]: "a count or a list of whole numbers",
    tuple[str, ...]: "a name or a list of names",
}


TRUTH_VALUES = {
    **dict.fromkeys(("true", "on", "yes"), True),
    **dict.fromkeys(("false", "off", "no"), False),
}


class FieldSpec(NamedTuple):
    """One field: its dotted name, type, present value, help and range."""

    path: str
    kind: Any
    value: Any
    help: str
    allowed: Range


def flatten_config(config: Any, prefix: str = "") -> dict[str, FieldSpec]:
    """Every field of a config and of the configs inside it, by dotted name.

    Example:
        >>> from r2r2.config.run import RunConfig
        >>> flatten_config(RunConfig())["agent.width"].value
        256
    """
    kinds = typing.get_type_hints(type(config))
    found: dict[str, FieldSpec] = {}
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= flatten_config(value, path + ".")
        else:
            text = field.metadata.get("help", "")
            allowed = field.metadata.get("allowed", ANY)
            found[path] = FieldSpec(path, kinds[field.name], value, text, allowed)
    return found


def replace_fields(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with the named fields replaced; values are typed already."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, _, rest = path.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, part in inner.items():
        own[head] = replace_fields(getattr(config, head), part)
    return typing.cast(Config, dataclasses.replace(typing.cast(Any, config), **own))


def find_field(table: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    """The field of that name; an inner field may be named by its end if it is unique.

    Example:
        >>> from r2r2.config.run import RunConfig
        >>> find_field(flatten_config(RunConfig()), "lambda-rr").path
        'agent.representation.lambda_rr'
    """
    wanted = name.replace("-", "_")
    if wanted in table:
        return table[wanted]
    ends = [path for path in table if path.endswith("." + wanted)]
    if len(ends) == 1:
        return table[ends[0]]
    if ends:
        raise UserError(
            f"{name!r} could be any of {', '.join(ends)}; write one of these"
        )
    near = did_you_mean(_end(wanted), [_end(path) for path in table])
    raise UserError(f"{name!r} is not a field{near or '; see --help'}")


def _end(path: str) -> str:
    return path.rpartition(".")[2]


def parse_value(leaf: FieldSpec, value: Any) -> Any:
    """A value from the command line (text) or from TOML, as the field's type."""
    try:
        typed = _typed(leaf.kind, value)
    except (TypeError, ValueError, OverflowError):
        raise _invalid(leaf, value) from None
    if not leaf.allowed.is_valid(typed):
        raise _invalid(leaf, value)
    return typed


def _invalid(leaf: FieldSpec, value: Any) -> UserError:
    anything = leaf.allowed is ANY
    expected = KINDS[leaf.kind] if anything else leaf.allowed.description
    return UserError(f"{leaf.path} is {value!r}; allowed is {expected}")


def _typed(kind: Any, value: Any) -> Any:
    if kind == tuple[int, ...]:
        return _whole_numbers(value)
    if kind == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(_typed(str, part).strip() for part in parts)
    if kind is bool:
        return _truth(value)
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    if kind is int and isinstance(value, float):
        raise TypeError
    return kind(value)


def _truth(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in TRUTH_VALUES:
        return TRUTH_VALUES[value.lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole_numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        parts = value.strip().removesuffix(",").split(",")
        value = [int(part) for part in parts] if "," in value else int(value)
    if isinstance(value, list | tuple):
        return tuple(_typed(int, item) for item in typing.cast(Any, value))
    count = _typed(int, value)
    if count > LONGEST:
        raise ValueError
    return tuple(range(count))
