"""The config of a run: members, automatic settings, and the config in a run folder."""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

from r2r2.config.common import TaskInfo
from r2r2.config.errors import StoppedMembersWarning, UserError, did_you_mean, invalid_value
from r2r2.config.fields import MAX_INT
from r2r2.config.resolve import resolve_toml, run_defaults, validate
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields, parse_toml, unstated_precision
from r2r2.envs.make import Env, EnvBuilder
from r2r2.envs.spec import Member
from r2r2.envs.suites import ACTION_REPEAT, Suite, find_suite
from r2r2.envs.vector.pool import try_task
from r2r2.storage.files import read_json_object
from r2r2.storage.run_folder import RunFolder, open_run
from r2r2.storage.transitions import file_sha256, resolve_source, source_digest
from r2r2.training.evaluation import last_weights_file

ENV_FROM_PYTHON = "env_from_python"  # in versions.json


def finalize_config(config: RunConfig, builder: EnvBuilder | None = None) -> RunConfig:
    """Return the validated config, its automatic settings resolved from its tasks and data."""
    return _identify_sources(_apply_task_defaults(validate(config), builder))


def task_default_config(config: RunConfig, builder: EnvBuilder | None = None) -> RunConfig:
    """Return the defaults of a run's agent on its first task, as far as known."""
    timeout = config.env_timeout  # the environment may be slow to build
    default = dataclasses.replace(run_defaults(config), env=config.env[:1], env_timeout=timeout)
    try:
        return _apply_task_defaults(default, builder)
    except UserError:
        return default


def _apply_task_defaults(config: RunConfig, builder: EnvBuilder | None) -> RunConfig:
    suites: dict[str, Suite] = {
        task: "gymnasium" if builder else find_suite(task) for task in config.env
    }

    def for_task(task: str, suite: Suite) -> RunConfig:
        repeat = config.action_repeat or ACTION_REPEAT[suite]

        def episode_length() -> int | None:
            own = try_task(task, builder, config.env_timeout).step_limit
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


def fleet_members(config: RunConfig) -> tuple[Member, ...]:
    """Return the fleet's members in order: all seeds of each task."""
    return tuple(Member(task, seed) for task in config.env for seed in config.seeds)


def select_members(members: tuple[Member, ...], name: str | None) -> tuple[Member, ...]:
    """Return the member named `task:seed` or by its folder; all members for None."""
    if name is None:
        return members
    selected = tuple(m for m in members if name in (f"{m.task}:{m.seed}", m.name))
    if not selected:
        names = [f"{m.task}:{m.seed}" for m in members]
        near = did_you_mean(name, names, most=1)
        raise invalid_value("member", f"one of {', '.join(names)}", name, near)
    return selected


def members_to_evaluate(
    folder: RunFolder, members: tuple[Member, ...], name: str | None
) -> tuple[Member, ...]:
    """Return the member of that name, or those that were not stopped; all, if all were stopped."""
    selected, stopped = select_members(members, name), folder.stopped()
    trained = tuple(member for member in selected if member.name not in stopped)
    note = "left out" if trained else "not a trained policy"
    for member in (x for x in selected if x.name in stopped):
        why = stopped[member.name]
        text = f"{member.name}: {note}; the member was stopped: {why}"
        warnings.warn(text, StoppedMembersWarning, stacklevel=3)
    return trained or selected


def check_env_given(path: Path, env: EnvBuilder | Env | None) -> None:
    """Reject a run whose environment was given from Python, and is not given now."""
    record = {} if env is not None else read_json_object(path / "versions.json") or {}
    if name := record.get(ENV_FROM_PYTHON):
        raise UserError(
            f"{path}: this run was trained with an environment given from Python ({name}); pass "
            "env= to train, evaluate_run or record_video there"
        )


def load_config(folder: RunFolder) -> RunConfig:
    """Return the config in a run folder."""
    path, text = folder.path / "config.toml", folder.config_text()
    try:
        config = resolve_toml(text)
        stated = "precision" in parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None
    if tuple(member.name for member in fleet_members(config)) != folder.members:
        raise UserError(f"{path}: its members differ from those in manifest.json")
    versions = None if stated else read_json_object(folder.path / "versions.json")
    if versions is not None and versions.get("platform") == "gpu":
        config = dataclasses.replace(config, precision=unstated_precision(versions))
    return config


def find_config(path: Path) -> RunConfig | None:
    """Return the config of the run at a path, or None if there is no readable run."""
    try:
        return load_config(open_run(path))
    except UserError:
        return None
