"""What a run's tasks decide: the fields whose 0 stands for the task's own value."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeVar

from r2r2.config.errors import UserError
from r2r2.config.resolve import default_config, with_action_repeat
from r2r2.config.run import RunConfig
from r2r2.config.simbav2 import SimbaV2Config, discount_for
from r2r2.envs.make import EnvBuilder, step_limit
from r2r2.envs.suites import ACTION_REPEAT, Suite, find_suite

T = TypeVar("T")

# Two, of which the lesser counts, where an episode can end badly and early.
CRITICS: dict[Suite, int] = {"gymnasium": 2, "dmc": 1}


def apply_task_defaults(
    config: RunConfig, source: EnvBuilder | None = None
) -> RunConfig:
    """The config with everything filled in that its tasks decide.

    Args:
        config: the run.
        source: what builds the caller's own environment, which `config.env` names.

    Raises:
        UserError: The tasks disagree, or do not say.

    Example:
        >>> from r2r2.config.resolve import resolve
        >>> config = resolve({"env": "Pendulum-v1", "agent": "simbav2"})
        >>> agent = apply_task_defaults(config).agent
        >>> agent.critics, agent.discount
        (2, 0.975)
    """
    suites = {task: "gymnasium" if source else find_suite(task) for task in config.env}
    repeats = {ACTION_REPEAT[suite] for suite in suites.values()}
    config = with_action_repeat(config, repeats)
    agent = config.agent
    if isinstance(agent, SimbaV2Config) and not agent.critics:
        counts = {task: CRITICS[suite] for task, suite in suites.items()}
        agent = dataclasses.replace(agent, critics=_agreed("critics", counts))
    if isinstance(agent, SimbaV2Config) and not agent.discount:
        discounts = {
            task: discount_for(_decisions(task, config.action_repeat, source))
            for task in config.env
        }
        agent = dataclasses.replace(agent, discount=_agreed("discount", discounts))
    return dataclasses.replace(config, agent=agent)


def task_default_config(
    config: RunConfig, source: EnvBuilder | None = None
) -> RunConfig:
    """The defaults of a run's agent on its first task, as far as that decides them."""
    default = dataclasses.replace(default_config(config.agent.name), env=config.env[:1])
    try:
        return apply_task_defaults(default, source)
    except UserError:
        return default


def _decisions(task: str, action_repeat: int, source: EnvBuilder | None) -> int:
    """Decision steps of a whole episode."""
    limit = step_limit(task, source)
    if limit is None:
        raise UserError(
            f"agent.discount is 0, from the length of an episode, but {task!r} has no "
            "time limit; give one, for example --discount 0.99"
        )
    return math.ceil(limit / action_repeat)


def _agreed(field: str, values: Mapping[str, T]) -> T:
    different = set(values.values())
    if len(different) > 1:
        raise UserError(
            f"agent.{field} is 0, the task's own, which differs between "
            f"{', '.join(values)}; give one for all"
        )
    return different.pop()
