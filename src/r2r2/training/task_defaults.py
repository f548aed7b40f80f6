"""Resolve the automatic settings of a run (value 0) from its tasks."""

import dataclasses
import math
from functools import partial

from r2r2.config.common import AgentConfig, TaskInfo
from r2r2.config.errors import UserError
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import run_defaults, with_action_repeat
from r2r2.config.run import RunConfig
from r2r2.envs.make import EnvBuilder, step_limit
from r2r2.envs.suites import ACTION_REPEAT, Suite, find_suite


def apply_task_defaults(
    config: RunConfig, source: EnvBuilder | None = None
) -> RunConfig:
    """Return the config with automatic settings resolved from its tasks.

    Args:
        config: the run.
        source: builder of the user's environment that `config.env` names.

    Raises:
        UserError: The tasks disagree, or do not determine a setting.

    Example:
        >>> from r2r2.config.resolve import resolve
        >>> config = resolve({"env": "Pendulum-v1", "agent": "simbav2"})
        >>> agent = apply_task_defaults(config).agent
        >>> agent.critics, agent.discount
        (2, 0.975)
    """
    suites: dict[str, Suite] = {
        task: "gymnasium" if source else find_suite(task) for task in config.env
    }
    repeats = {ACTION_REPEAT[suite] for suite in suites.values()}
    config = with_action_repeat(config, repeats)

    def length(task: str) -> int | None:
        limit = step_limit(task, source)
        return None if limit is None else math.ceil(limit / config.action_repeat)

    agents = [
        config.agent.for_task(TaskInfo(task, suite, partial(length, task)))
        for task, suite in suites.items()
    ]
    return dataclasses.replace(config, agent=_agreed(agents, config.env))


def task_default_config(
    config: RunConfig, source: EnvBuilder | None = None
) -> RunConfig:
    """Return the defaults of a run's agent on its first task, as far as known."""
    default = dataclasses.replace(run_defaults(config), env=config.env[:1])
    try:
        return apply_task_defaults(default, source)
    except UserError:
        return default


def _agreed(agents: list[AgentConfig], tasks: tuple[str, ...]) -> AgentConfig:
    """Return the config of all tasks, which must be the same."""
    first, *others = map(flatten_config, agents)
    for path, field in first.items():
        if any(other[path].value != field.value for other in others):
            raise UserError(
                f"agent.{path}: 0 (automatic) differs between {', '.join(tasks)}; set "
                "one value for all"
            )
    return agents[0]
