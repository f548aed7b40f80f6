"""From names and values, as people give them, to one checked config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from r2r2.config.agents import AGENTS, WARMUP, agent_config
from r2r2.config.errors import UserError
from r2r2.config.fields import (
    LARGEST,
    find_field,
    flatten_config,
    parse_value,
    replace_fields,
)
from r2r2.config.run import RunConfig

DEFAULT_AGENT = "td7+r2r2"

# Fields of an agent of which the first is to be less than the second.
PAIRS = (("lowest_value", "highest_value"), ("lowest_log_std", "highest_log_std"))


def default_config(agent: str) -> RunConfig:
    """The config of a named agent with nothing changed.

    Example:
        >>> default_config("td7").warmup
        25000
    """
    config = agent_config(agent)
    return RunConfig(agent=config, warmup=WARMUP[type(config)])


def resolve(*layers: Mapping[str, Any]) -> RunConfig:
    """One config from layers of named values, later ones winning.

    Args:
        *layers: values by dotted name, as text or as TOML types; the agent stands
            under `agent` or `agent.name`.

    Example:
        >>> config = resolve({"env": "Hopper-v5"}, {"seeds": "3,7", "lambda-rr": "0"})
        >>> config.seeds, config.agent.name, config.agent.representation.lambda_rr
        ((3, 7), 'td7+r2r2', 0.0)
    """
    config = default_config(agent_name(*layers))
    table = flatten_config(config)
    del table["agent.name"]  # the agent's name is no field to change alone
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in ("agent", "agent.name"):
                leaf = find_field(table, name)
                values[leaf.path] = parse_value(leaf, value)
    return validate(replace_fields(config, values))


def validate(config: RunConfig) -> RunConfig:
    """The config, if its fields are allowed and agree with each other."""
    agent_config(config.agent.name)
    if not config.env:
        raise UserError(
            "env is missing; name a task, for example --env Hopper-v5 or --env dog-run "
            "('r2r2 list envs' shows them), or start from --quick"
        )
    typed = {
        path: parse_value(leaf, leaf.value)
        for path, leaf in flatten_config(config).items()
    }
    config = replace_fields(config, typed)
    if config.steps * config.utd > LARGEST:
        raise UserError(
            f"utd is {config.utd}; allowed with {config.steps} steps is at most "
            f"{LARGEST // config.steps}, {LARGEST} updates in all"
        )
    for low, high in PAIRS:
        first, second = (getattr(config.agent, name, None) for name in (low, high))
        if first is not None and second is not None and not first < second:
            raise UserError(
                f"agent.{low} is {first}; allowed is less than agent.{high}, which is "
                f"{second}"
            )
    if config.eval_every % config.eval_average:
        raise UserError(
            f"eval_average is {config.eval_average}; allowed is a divisor of "
            f"eval_every, which is {config.eval_every}"
        )
    return config


def with_action_repeat(config: RunConfig, repeats: set[int]) -> RunConfig:
    """The config with 0 replaced by the suite's own action repeat."""
    if config.action_repeat:
        return config
    if len(repeats) > 1:
        raise UserError(
            f"action_repeat is 0, the suite's own, which differs between "
            f"{', '.join(config.env)}; give one for all"
        )
    return dataclasses.replace(config, action_repeat=min(repeats))


def agent_name(*layers: Mapping[str, Any]) -> str:
    """The agent that layers of named values ask for."""
    name: Any = DEFAULT_AGENT
    for layer in layers:
        name = layer.get("agent.name", layer.get("agent", name))
    if not isinstance(name, str):
        raise UserError(f"agent is {name!r}; allowed are {', '.join(AGENTS)}")
    return name
