"""Whether a run begins, or goes on from where an earlier process left it."""

from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import NON_RESULT_FIELDS, changed_fields, parse_toml
from r2r2.storage.checkpoints import Checkpoint, latest_valid
from r2r2.storage.run_folder import open_run, read_manifest
from r2r2.training.checkpoint_validation import AGAIN, check_notes
from r2r2.training.state import OnMessage


class ResumePlan(NamedTuple):
    """How a run starts."""

    checkpoint: Checkpoint | None = None  # goes on from there
    anew: bool = False  # an earlier process left nothing to go on from


def read_config(path: Path) -> RunConfig | None:
    """The config of the run in a folder; None where there is none to be read."""
    if read_manifest(path) is None:
        return None
    try:
        return resolve(parse_toml(open_run(path).config_text()))
    except (ValueError, RecursionError):
        return None


def plan_resume(path: Path, config: RunConfig, say: OnMessage) -> ResumePlan:
    """What is to be done in a folder; where that is not this run's, nothing special.

    Args:
        path: the run's folder.
        config: the run, settled.
        say: called with sentences for people.

    Raises:
        UserError: This run is there, and cannot go on.
    """
    there, manifest = read_config(path), read_manifest(path)
    if there is None or manifest is None:
        return ResumePlan()
    different = changed_fields(config, there)
    over = manifest.status == "finished"
    if set(different) - {"steps", *NON_RESULT_FIELDS} or (over and not different):
        return ResumePlan()
    _check_steps(path, config, there.steps)
    checkpoint, damaged = latest_valid(path / "checkpoints")
    if checkpoint is None:
        return _without(path, over, damaged, say)
    check_notes(path, checkpoint, config)
    for sentence in damaged:
        say(sentence)
    say(f"'{path}' goes on from step {checkpoint.step}")
    return ResumePlan(checkpoint)


def _without(path: Path, over: bool, damaged: list[str], say: OnMessage) -> ResumePlan:
    if damaged:
        raise UserError(f"{damaged[0]}; {AGAIN}")
    if over:
        raise UserError(
            f"run is '{path}', which is finished and has no checkpoint left to go on "
            f"from; {AGAIN}"
        )
    say(f"'{path}' was left before its first checkpoint: it begins again from step 0")
    return ResumePlan(anew=True)


def _check_steps(path: Path, config: RunConfig, before: int) -> None:
    if config.steps == before:
        return
    if config.steps < before:
        raise UserError(
            f"steps is {config.steps}; allowed for '{path}', which is a run of "
            f"{before}, is as many or more"
        )
    agent = config.agent
    if agent.depends_on_run_length:
        raise UserError(
            f"steps is {config.steps}; allowed for '{path}' is {before}, because "
            f"{agent.name}'s learning rate falls until the last step of the run: give "
            "another folder with --out"
        )
