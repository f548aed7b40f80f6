"""From names and values, as people give them, to one checked config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from r2r2.config.agents import AGENTS, DEFAULT_AGENT, agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.fields import (
    LARGEST,
    find_field,
    flatten_config,
    parse_value,
    replace_fields,
)
from r2r2.config.run import RunConfig

# The task of `--quick`, and the return that it should reach.
QUICK_TASK = {
    "env": "cartpole-swingup",
    "steps": 15_000,
    "warmup": 1_000,
    "utd": 3,
    "eval_every": 1_000,
    "eval_episodes": 5,
}
QUICK_TARGET = 500

# Fields of an agent of which the first is to be less than the second.
PAIRS = (("lowest_value", "highest_value"), ("lowest_log_std", "highest_log_std"))


def default_config(agent: str) -> RunConfig:
    """The config of a named agent with nothing changed.

    Example:
        >>> default_config("td7").warmup
        25000
    """
    spec = agent_spec(agent)
    return RunConfig(agent=spec.config, warmup=spec.warmup)


def quick_config(agent: str = DEFAULT_AGENT) -> dict[str, Any]:
    """Return the fields that `--quick` sets: a small task, and a small agent for it.

    Example:
        >>> quick_config("simbav2")["agent.critic_width"]
        64
    """
    return {"agent": agent, **QUICK_TASK, **agent_spec(agent).preset}


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
    _check_agent(config.agent)
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


def _check_agent(agent: AgentConfig) -> None:
    expected = type(agent_spec(agent.name).config)
    if type(agent) is not expected:
        raise UserError(
            f"agent: expected a {expected.__name__} for {agent.name!r}, got a "
            f"{type(agent).__name__}"
        )


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
