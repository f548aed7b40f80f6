"""Fields of a config, as the command line, TOML files and Python share them, by dotted name."""

import dataclasses
import json
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from r2r2.config.errors import UserError, did_you_mean, invalid_value

T = TypeVar("T")
Config = TypeVar("Config")

MAX_INT = 2**31 - 1  # integers of the device
MAX_SIZE = 2**20  # of a layer or a batch, so that products of sizes fit into integers
MAX_FLOAT = 1e18  # the product of two fits into single precision
MAX_COUNT = 1000  # of a list given by its length
MAX_JSON_BYTES = 2**14  # of an object, so that a config file can hold it
MAX_LEVELS = 20  # of an object

# Our names, each with those that other programs use.
SYNONYMS = {
    "agent": "algo algorithm method",
    "env": "task env_id env_name environment",
    "env_args": "env_kwargs environment_kwargs make_kwargs",
    "seeds": "seed num_seeds",
    "steps": "total_timesteps timesteps max_steps num_steps num_train_steps",
    "utd": "replay_ratio update_to_data updates_per_step",
    "warmup": "learning_starts start_steps random_steps explore_steps",
    "replay_size": "buffer_size buffer replay_buffer_size memory_size",
    "prefill": "dataset offline_dataset demonstrations demos data",
    "mix": "offline_ratio demo_ratio",
    "init_from": "pretrained load_from init_weights",
    "action_repeat": "frame_skip",
    "eval_episodes": "episodes n_eval_episodes num_eval_episodes",
    "eval_every": "eval_freq eval_interval",
    "stop_at_return": "reward_threshold target_return early_stop stop_return",
    "workers": "num_envs n_envs num_workers",
    "out": "logdir log_dir save_dir output",
    "discount": "gamma",
    **dict.fromkeys("encoder_rate critic_rate actor_rate first_rate".split(), "lr learning_rate"),
    **dict.fromkeys(("target_rate", "target_period"), "tau polyak"),
    **dict.fromkeys("width critic_width actor_width".split(), "hidden hidden_dim hidden_size"),
    "batch_size": "batch minibatch_size",
    "latent": "latent_dim latent_size zs_dim embedding_dim",
    "policy_delay": "policy_freq policy_frequency",
}


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
FINITE_OR_NEVER = Range(
    f"a number from {-MAX_FLOAT:g} to {MAX_FLOAT:g}, or inf (never)",
    lambda x: -MAX_FLOAT <= x <= MAX_FLOAT or x == math.inf,
)
NON_NEGATIVE = between(0, MAX_FLOAT)
POSITIVE = Range(f"a number > 0 and <= {MAX_FLOAT:g}", lambda x: 0 < x <= MAX_FLOAT)
EPISODES = integer_between(1, 100_000)  # an evaluation allocates all of them at once
SCALE = Range(
    "a number > 0 and <= 1",
    lambda x: isinstance(x, int | float) and not isinstance(x, bool) and 0 < x <= 1,
)
ANY = Range("any value", lambda _: True)


def option(default: T, text: str, allowed: Range = ANY) -> T:
    """Return a dataclass field with its help text and its allowed values."""
    return dataclasses.field(default=default, metadata={"help": text, "allowed": allowed})


class JsonObject(str):
    """A JSON object as text, with sorted keys; `parse_json_object` makes it.

    Equal objects are equal texts, so that it can be compared, hashed and shown.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the object as a new dict."""
        return typing.cast(dict[str, Any], json.loads(self))


NO_ARGS = JsonObject("{}")


class JsonProblem(ValueError):
    """The reason why a value is not a JSON object."""


def parse_json_object(value: Any) -> JsonObject:
    """Return a JSON object, given as text or as a dict of plain values.

    Raises:
        JsonProblem: It is not; the text says why.

    Example:
        >>> parse_json_object({"size": (2, 3), "goal": None})
        '{"goal": null, "size": [2, 3]}'
    """
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, Mapping):
            raise JsonProblem("not an object")
        text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)
        if len(text.encode()) > MAX_JSON_BYTES:
            raise JsonProblem(f"longer than {MAX_JSON_BYTES} bytes")
    except json.JSONDecodeError as error:
        raise JsonProblem(f"invalid JSON ({error.msg} at character {error.pos + 1})") from None
    except UnicodeEncodeError:  # half a surrogate pair
        raise JsonProblem("text that is not valid Unicode") from None
    except RecursionError:
        raise JsonProblem("too many levels") from None
    except ValueError as error:  # also of an integer with thousands of digits
        raise JsonProblem(str(error)) from None
    return JsonObject(text)


def _plain(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Return a value as JSON's types; raise if JSON or a config file cannot hold it."""
    if not levels:
        raise JsonProblem(f"more than {MAX_LEVELS} levels")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JsonProblem(f"{value} is not a JSON number")
        return value
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise JsonProblem(f"key {wrong[0]!r} is not a string")
        return {key: _plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1) for item in typing.cast(Iterable[Any], value)]
    raise JsonProblem(f"a {type(value).__name__} is not a JSON value")


KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple[int, ...]: "a count or a list of integers",
    tuple[str, ...]: "a name or a list of names",
    JsonObject: "a JSON object such as '{\"name\": 2}'",
}
TRUE, FALSE = ("true", "on", "yes"), ("false", "off", "no")


class FieldSpec(NamedTuple):
    """One field: its dotted name, type, current value, help and allowed values."""

    path: str
    kind: Any
    value: Any
    help: str
    allowed: Range

    @property
    def expected(self) -> str:
        """The allowed values as a phrase."""
        return KINDS[self.kind] if self.allowed is ANY else self.allowed.description


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
        raise UserError(f"ambiguous field; expected {' or '.join(matches)}", name)
    names = [*table] if "." in path else [other.rpartition(".")[2] for other in table]
    near = suggest(path, [*names, "agent"])
    raise UserError(f"unknown field{near or '; see r2r2 train --help'}", name)


def suggest(name: str, names: Iterable[str]) -> str:
    """Return the fields or options that an unknown name may mean, as the end of a sentence."""

    def word(name: str) -> str:
        return name.rpartition(".")[2].strip("-").replace("-", "_").lower()

    known = {word(other): other for other in names}
    ours = [x for x, others in SYNONYMS.items() if x in known and word(name) in others.split()]
    if ours:
        return f"; did you mean {' or '.join(repr(known[x]) for x in ours)}?"
    return did_you_mean(name, known.values(), most=1)


def parse_value(field: FieldSpec, value: Any) -> Any:
    """Return a value, given as text or as a TOML type, as the field's type."""
    try:
        typed = _convert(field.kind, value)
    except JsonProblem as problem:
        raise UserError(
            f"{problem}; expected {field.expected}, got {value!r}", field.path
        ) from None
    except (TypeError, ValueError, OverflowError):
        typed = None
    if typed is not None and field.allowed.is_valid(typed):
        return typed
    large = field.kind is int and typed is not None and typed > MAX_INT
    expected = f"an integer <= {MAX_INT}" if large else field.expected
    raise invalid_value(field.path, expected, value)


def _convert(kind: Any, value: Any) -> Any:
    if kind == tuple[int, ...]:
        return _to_integers(value)
    if kind == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(_convert(str, part).strip() for part in parts)
    if kind is JsonObject:
        return parse_json_object(value)
    if kind is bool:
        text = str(value).lower()
        return text in TRUE if text in TRUE + FALSE else None
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    return parse_count(value) if kind is int else kind(value)


def parse_count(value: Any) -> int:
    """Return an integer, also given as `1e4`, `10k`, `2.5M` or a float without a fraction."""
    number = value
    if isinstance(value, str):
        pattern = r"([+-]?[0-9_]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)([kKM]?)"
        if (match := re.fullmatch(pattern, value.strip())) is None:
            raise ValueError
        number = Fraction(match[1]) * {"": 1, "M": 10**6}.get(match[2], 1000)
    if number != int(number):
        raise ValueError
    return int(number)


def _to_integers(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        parts = value.strip().removesuffix(",").split(",")
        value = parts if "," in value else value
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
    # At most twelve digits, so that a float can hold it.
    minutes = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?) ?min\s*", text)
    if minutes and POSITIVE.is_valid(float(minutes[1])):
        return Interval(minutes=float(minutes[1]))
    try:
        steps = parse_count(re.sub(" steps?$", "", text.strip()))
    except ValueError:
        return None
    return Interval(steps=steps) if 1 <= steps <= MAX_INT else None


INTERVAL = Range(
    "minutes (10min, 0.5min), decision steps (5000) or never",
    lambda text: _parse_interval(text) is not None,
)

ANY_DEVICE = "auto"
DEVICE = Range(
    "cpu, gpu, one of several such as gpu:1, or auto (what JAX chooses)",
    lambda text: text == ANY_DEVICE or bool(re.fullmatch("(cpu|gpu|tpu)(:[0-9]{1,4})?", text)),
)

UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}  # seconds


def parse_duration(text: str) -> float:
    """Return the seconds of a text such as `90s`, `25m` or `1h30m`; 0 if it is not a duration.

    Example:
        >>> parse_duration("25m"), parse_duration("1h30m"), parse_duration("soon")
        (1500.0, 5400.0, 0.0)
    """
    part = r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|min|m|h|d)"
    if not re.fullmatch(rf"\s*(?:{part}\s*)+", text):
        return 0.0
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(part, text))


DURATION = Range("a time such as 90s, 25m or 2h", lambda text: not text or parse_duration(text) > 0)
