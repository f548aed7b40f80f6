"""The config and members of a run folder; imports neither JAX nor Gymnasium."""

import dataclasses
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2r2.config.errors import StoppedMembersWarning, UserError, did_you_mean, invalid_value
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import parse_toml, unstated_precision
from r2r2.envs.spec import Member
from r2r2.policy.document import PolicyDocument
from r2r2.storage.events import early_end, read_events
from r2r2.storage.files import read_json_object
from r2r2.storage.run_folder import POLICY_FILE, RunFolder, open_run

ENV_FROM_PYTHON = "env_from_python"  # in versions.json


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


def check_env_given(path: Path, env: object) -> None:
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


def read_document(run: Path, fields: Mapping[str, Any]) -> PolicyDocument:
    """Return the description of a run's policies, from the content of its file."""
    path = run / POLICY_FILE
    try:
        document = PolicyDocument.from_json(fields)
    except ValueError as error:
        raise UserError(f"{path}: damaged: {error}") from None
    config = load_config(open_run(run))
    if missing := [task for task in config.env if task not in document.spaces]:
        raise UserError(f"{path}: damaged: the spaces of {missing[0]!r} are missing")
    return document


def last_step(folder: RunFolder, config: RunConfig) -> int:
    """Return the decision step at which a finished run ended, perhaps early."""
    if math.isinf(config.stop_at_return) or not folder.events.exists():
        return config.steps
    end = early_end(read_events(folder.events))
    return config.steps if end is None else end.step
