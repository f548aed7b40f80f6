"""A nested config as a flat table of named, typed fields, and back.

The command line and TOML files both go through here, so a name, a type and a range
mean the same in both, and a refusal reads the same.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from r2r2.config.options import ANY, Range
from r2r2.config.refusal import Refusal, did_you_mean

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


class Leaf(NamedTuple):
    """One field: its dotted name, type, present value, help and range."""

    path: str
    kind: Any
    value: Any
    text: str
    allowed: Range


def leaves(config: Any, prefix: str = "") -> dict[str, Leaf]:
    """Every field of a config and of the configs inside it, by dotted name.

    Example:
        >>> from r2r2.config.run import RunConfig
        >>> leaves(RunConfig())["agent.width"].value
        256
    """
    kinds = typing.get_type_hints(type(config))
    found: dict[str, Leaf] = {}
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= leaves(value, path + ".")
        else:
            text = field.metadata.get("help", "")
            allowed = field.metadata.get("allowed", ANY)
            found[path] = Leaf(path, kinds[field.name], value, text, allowed)
    return found


def replace_leaves(config: Config, values: Mapping[str, Any]) -> Config:
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
        own[head] = replace_leaves(getattr(config, head), part)
    return typing.cast(Config, dataclasses.replace(typing.cast(Any, config), **own))


def find_leaf(table: Mapping[str, Leaf], name: str) -> Leaf:
    """The field of that name; an inner field may be named by its end if it is unique.

    Example:
        >>> from r2r2.config.run import RunConfig
        >>> find_leaf(leaves(RunConfig()), "lambda-rr").path
        'agent.representation.lambda_rr'
    """
    wanted = name.replace("-", "_")
    if wanted in table:
        return table[wanted]
    ends = [path for path in table if path.endswith("." + wanted)]
    if len(ends) == 1:
        return table[ends[0]]
    if ends:
        raise Refusal(f"{name!r} could be any of {', '.join(ends)}; write one of these")
    near = did_you_mean(_end(wanted), [_end(path) for path in table])
    raise Refusal(f"{name!r} is not a field{near or '; see --help'}")


def _end(path: str) -> str:
    return path.rpartition(".")[2]


def parse(leaf: Leaf, value: Any) -> Any:
    """A value from the command line (text) or from TOML, as the field's type."""
    try:
        typed = _typed(leaf.kind, value)
    except (TypeError, ValueError, OverflowError):
        words = KINDS[leaf.kind] if leaf.allowed is ANY else leaf.allowed.words
        raise Refusal(f"{leaf.path} is {value!r}; allowed is {words}") from None
    if not leaf.allowed.holds(typed):
        raise Refusal(f"{leaf.path} is {value!r}; allowed is {leaf.allowed.words}")
    return typed


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
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
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
