"""The config of a new run: its automatic settings, resolved from its tasks."""

import dataclasses
import math

from r2r2.config.common import TaskInfo
from r2r2.config.errors import UserError
from r2r2.config.fields import MAX_INT, JsonObject
from r2r2.config.resolve import run_defaults, validate
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields
from r2r2.envs.make import EnvBuilder
from r2r2.envs.suites import ACTION_REPEAT, Suite, find_suite
from r2r2.envs.vector.pool import try_task


def finalize_config(config: RunConfig, builder: EnvBuilder | None = None) -> RunConfig:
    """Return the validated config, its automatic settings resolved from its tasks."""
    config = validate(config)
    return _apply_task_defaults(config, builder, config.env_args)


def task_default_config(config: RunConfig, builder: EnvBuilder | None = None) -> RunConfig:
    """Return the defaults of a run's agent on its first task, as far as known."""
    timeout = config.env_timeout  # the environment may be slow to build
    default = dataclasses.replace(run_defaults(config), env=config.env[:1], env_timeout=timeout)
    try:  # with the arguments of the run, without which the environment may not be built
        return _apply_task_defaults(default, builder, config.env_args)
    except UserError:
        return default


def _apply_task_defaults(
    config: RunConfig, builder: EnvBuilder | None, env_args: JsonObject
) -> RunConfig:
    suites: dict[str, Suite] = {
        task: "gymnasium" if builder else find_suite(task) for task in config.env
    }

    def for_task(task: str, suite: Suite) -> RunConfig:
        repeat = config.action_repeat or ACTION_REPEAT[suite]

        def episode_length() -> int | None:
            own = try_task(task, builder, config.env_timeout, False, env_args).step_limit
            limit = min(own or MAX_INT, config.max_episode_steps or MAX_INT)
            return None if limit == MAX_INT else math.ceil(limit / repeat)

        agent = config.agent.for_task(TaskInfo(task, suite, episode_length))
        size = config.replay_size or agent.default_replay_size(task)
        return dataclasses.replace(config, agent=agent, action_repeat=repeat, replay_size=size)

    first, *others = (for_task(task, suite) for task, suite in suites.items())
    for other in others:
        for path in changed_fields(other, first):
            raise UserError(
                f"0 (automatic) differs between {', '.join(config.env)}; set one value for all",
                path,
            )
    return first
