"""Build a validated config from layers of named values."""

import contextlib
import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from r2r2.config.agents import DEFAULT_AGENT, agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import MAX_INT, find_field, flatten_config, parse_value, replace_fields
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import TomlValues, flatten_tables, parse_toml

# The task of `--quick`, and the return that it should reach.
QUICK_TASK = {
    "env": "cartpole-swingup",
    "steps": 15_000,
    "warmup": 1_000,
    "utd": 3,
    "eval_every": 1_000,
    "eval_episodes": 3,
}
QUICK_TARGET = 500


@dataclasses.dataclass(frozen=True)
class SavedAgentConfig(AgentConfig):
    """Settings of an agent that cannot be imported, as a run folder holds them."""

    batch_size: int = 0
    discount: float = 0.0


def default_config(agent: str) -> RunConfig:
    """Return the default config of an agent."""
    spec = agent_spec(agent)
    return RunConfig(agent=spec.config, warmup=spec.warmup)


def quick_config(agent: str = DEFAULT_AGENT) -> dict[str, Any]:
    """Return the fields that `--quick` sets: a small task, and a small agent for it."""
    return {"agent": agent, **QUICK_TASK, **agent_spec(agent).preset}


def resolve(*layers: Mapping[str, Any]) -> RunConfig:
    """Return the validated config that layers of named values describe.

    Args:
        *layers: values by dotted name or in nested tables, as text or as TOML types;
            later layers take precedence, and `agent` or `agent.name` selects the agent.

    Raises:
        UserError: A field is unknown, or a value is not allowed.

    Example:
        >>> config = resolve({"env": "Hopper-v5"}, {"seeds": "3,7", "lambda-rr": "0"})
        >>> config.seeds, config.agent.name, config.agent.representation.lambda_rr
        ((3, 7), 'td7+r2r2', 0.0)
        >>> resolve({"env": "Hopper-v5", "agent": {"name": "td7", "width": 32}}).agent.width
        32
    """
    return validate(_with_values(default_config(agent_name(*layers)), layers))


def resolve_toml(text: str) -> RunConfig:
    """Return the config of a run; if its agent cannot be imported, with settings as in the file."""
    values = parse_toml(text)
    name = agent_name(values)
    try:
        default = default_config(name)
    except UserError:
        if ":" not in name:
            raise
        settings = tomllib.loads(text)["agent"]
        table = settings if isinstance(settings, dict) else {}
        default = RunConfig(agent=_as_dataclass(table | {"name": name}, (SavedAgentConfig,)))
    return _check_fields(_with_values(default, (values,)))


def resolve_agent(agent: str | AgentConfig, fields: Mapping[str, Any]) -> AgentConfig:
    """Return the validated config of an agent with some fields changed.

    Args:
        agent: its name or its config.
        fields: values by dotted name or by a unique ending of it, as in `resolve`.

    Raises:
        UserError: There is no such agent or field, or a value is not allowed.
    """
    config = RunConfig(agent=agent_spec(agent).config if isinstance(agent, str) else agent)
    table = {k: x for k, x in flatten_config(config).items() if k.startswith("agent.")}
    del table["agent.name"]
    found = [(find_field(table, name), value) for name, value in fields.items()]
    config = replace_fields(config, {field.path: value for field, value in found})
    return validate(dataclasses.replace(config, env=("any",))).agent


def run_defaults(config: RunConfig) -> RunConfig:
    """Return the default config of a run's agent on its task, or its own if not available."""
    try:
        default = default_config(config.agent.name)
    except UserError:
        default = RunConfig(agent=config.agent, warmup=config.warmup)
    size = default.agent.default_replay_size(config.env[0])
    return dataclasses.replace(default, replay_size=size)


def validate(config: RunConfig) -> RunConfig:
    """Return the config with typed values, or raise a `UserError`."""
    expected = type(agent_spec(config.agent.name).config)
    if type(config.agent) is not expected:
        got = type(config.agent).__name__
        name = config.agent.name
        raise UserError(f"expected {expected.__name__} for {name!r}, got {got}", "agent")
    config = _check_fields(config)
    if config.agent.representation is not None:
        config.agent.representation.check()
    if config.steps <= config.warmup and not config.random_only:
        raise UserError(
            f"expected more than warmup ({config.warmup}), got {config.steps}; increase --steps, "
            "lower --warmup, or add --random-only for a run of random actions without updates",
            "steps",
        )
    return config


def agent_name(*layers: Mapping[str, Any]) -> str:
    """Return the name of the agent that layers of named values select."""
    name: Any = DEFAULT_AGENT
    source: tuple[Mapping[str, Any], str] = {}, ""
    for layer in layers:
        values = flatten_tables(layer)
        for key in ("agent", "agent.name"):
            if key in values:
                name, source = values[key], (layer, key)
    with _located(*source):
        if not isinstance(name, str):
            raise invalid_value("agent", "a name", name)
        if ":" not in name:
            agent_spec(name)
    return name


@contextlib.contextmanager
def _located(layer: Mapping[str, Any], name: str) -> Iterator[None]:
    """Put file and line before the errors of a value, where it is from a file."""
    try:
        yield
    except UserError as error:
        if not isinstance(layer, TomlValues):
            raise
        raise UserError(f"{layer.place(name)}{error}") from None


def _with_values(config: RunConfig, layers: tuple[Mapping[str, Any], ...]) -> RunConfig:
    table = flatten_config(config)
    del table["agent.name"]  # selects the agent, and is not a field to change
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in flatten_tables(layer).items():
            if name not in ("agent", "agent.name"):
                with _located(layer, name):
                    field = find_field(table, name)
                    values[field.path] = parse_value(field, value)
    return replace_fields(config, values)


def _check_fields(config: RunConfig) -> RunConfig:
    if not config.env:
        raise UserError(
            "expected one or more tasks, for example --env Hopper-v5; 'r2r2 list envs' "
            "lists them, and --quick selects one",
            "env",
        )
    typed = {path: parse_value(x, x.value) for path, x in flatten_config(config).items()}
    config = replace_fields(config, typed)
    if config.steps * config.utd > MAX_INT:
        limit = f"at most {MAX_INT // config.steps} with {config.steps} steps"
        raise invalid_value("utd", limit, config.utd)
    _check_sources(config)
    config.agent.check()
    if config.overlap_acting and config.agent.policy_checkpoints:
        name = config.agent.name
        expected = f"false, as {name!r} has policy checkpoints and updates between episodes"
        raise invalid_value("overlap_acting", expected, True)
    probe = config.diagnostics
    if probe.probe_rows < probe.probe_batch:
        least = f"at least diagnostics.probe_batch ({probe.probe_batch})"
        raise invalid_value("diagnostics.probe_rows", least, probe.probe_rows)
    if config.eval_every % config.eval_average:
        divisor = f"a divisor of eval_every ({config.eval_every})"
        raise invalid_value("eval_average", divisor, config.eval_average)
    return config


def _check_sources(config: RunConfig) -> None:
    """Check the fields about data to start from against each other."""
    needs_data = ("prefill_only_updates", "mix", "prefill_sha256")
    for field in needs_data if not config.prefill else ():
        if value := getattr(config, field):
            raise UserError(f"expected data in prefill with {field} {value}, got none", "prefill")
    if config.init_from_sha256 and not config.init_from:
        raise UserError("expected a run with init_from_sha256, got none", "init_from")
    if config.prefill_only_updates and config.random_only:
        raise UserError("expected 0 with random_only, which makes no updates", needs_data[0])
    most = MAX_INT - config.steps * config.utd
    if config.prefill_only_updates > most:
        raise invalid_value(needs_data[0], f"at most {most}", config.prefill_only_updates)
    batch = config.agent.batch_size
    if config.mix and not 0 < offline_rows(config.mix, batch) < batch:
        expected = f"a share of at least 1 and at most {batch - 1} rows of a batch of {batch}"
        raise invalid_value("mix", expected, config.mix)


def offline_rows(share: float, batch_size: int) -> int:
    """Return how many rows of a batch are a share of it, rounded to the nearest integer."""
    return math.floor(share * batch_size + 0.5)


def _as_dataclass(table: Mapping[str, Any], bases: tuple[type, ...] = ()) -> Any:
    """Return an object whose fields have the values of a TOML table."""
    fields: list[tuple[str, Any, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            value = _as_dataclass(value)
        kind: Any = type(value)
        if isinstance(value, list):
            value = tuple(value)
            texts = any(isinstance(item, str) for item in value)
            kind = tuple[str, ...] if texts else tuple[int, ...]
        fields.append((name, kind, dataclasses.field(default=value)))
    return dataclasses.make_dataclass("Settings", fields, bases=bases, frozen=True)()
