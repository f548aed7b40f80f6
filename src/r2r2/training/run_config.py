"""The config of a new run: its automatic settings, resolved from its tasks."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from r2r2.config.common import TaskInfo
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import MAX_INT, JsonObject
from r2r2.config.resolve import run_defaults, validate
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields
from r2r2.envs.make import EnvBuilder
from r2r2.envs.spec import Member
from r2r2.envs.suites import ACTION_REPEAT, Suite, find_suite
from r2r2.envs.vector.pool import try_task
from r2r2.storage.run_folder import RunFolder, open_run
from r2r2.storage.transitions import file_sha256, resolve_source, source_digest
from r2r2.training.evaluation import last_weights_file
from r2r2.training.saved_config import fleet_members, load_config, select_members


def finalize_config(config: RunConfig, builder: EnvBuilder | None = None) -> RunConfig:
    """Return the validated config, its automatic settings resolved from its tasks and data."""
    config = validate(config)
    return _identify_sources(_apply_task_defaults(config, builder, config.env_args))


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


def _identify_sources(config: RunConfig) -> RunConfig:
    """Return the config with absolute paths and the checksums of the data to start from."""
    changes: dict[str, Any] = {}
    if config.prefill:
        source = changes["prefill"] = resolve_source(config.prefill)
        changes["prefill_sha256"] = digest = source_digest(source)
        if config.prefill_sha256 not in ("", digest):
            expected = f"the data with the SHA-256 {config.prefill_sha256}"
            raise UserError(f"{source}: expected {expected}, got {digest}", "prefill")
    if config.init_from and not config.init_from_sha256:
        # Recorded once: the other run may be continued or deleted after this one has begun.
        folder, member = find_trained_member(config.init_from)
        changes["init_from"] = f"{folder.path.resolve()}:{member.task}:{member.seed}"
        changes["init_from_sha256"] = file_sha256(last_weights_file(folder, member.name))
    return dataclasses.replace(config, **changes)


def find_trained_member(text: str) -> tuple[RunFolder, Member]:
    """Return the run and the member that `init_from` names: RUN, or RUN:TASK:SEED."""
    parts = text.split(":")
    paths = [(Path(":".join(parts[:n])), ":".join(parts[n:])) for n in range(len(parts), 0, -1)]
    found = [(path, name) for path, name in paths if path.is_dir()]
    if not found:
        raise invalid_value("init_from", "RUN or RUN:TASK:SEED with an existing run folder", text)
    path, name = found[0]  # the longest path, since tasks may contain colons, too
    folder = open_run(path)
    members = fleet_members(load_config(folder))
    names = ", ".join(f"{text}:{m.task}:{m.seed}" for m in members)
    if not name and len(members) > 1:
        raise UserError(f"expected one of {names}, got a run with several members", "init_from")
    try:
        (member,) = select_members(members, name or None)
    except UserError as error:
        raise UserError(f"{path}: {error}", "init_from") from None
    return folder, member
