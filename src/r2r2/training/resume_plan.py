"""Whether a run starts or resumes, and whether its checkpoint fits its config.

A checksum detects damage, but not a checkpoint that was written by something else. One
whose notes do not fit is refused before anything is changed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, cast

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import NON_RESULT_FIELDS, changed_fields, digest
from r2r2.storage.checkpoints import Checkpoint, latest_valid
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.files import is_count, is_number, parse_entries
from r2r2.storage.integrity import (
    LOGS,
    changed_files,
    difference,
    find_damage,
    logged_files,
    read_copy,
)
from r2r2.storage.run_folder import COPIED_FILES, EVENTS_FILE, open_run, read_manifest
from r2r2.training.memory import replay_rows
from r2r2.training.saved_config import find_config
from r2r2.training.state import OnMessage

Test = Callable[[object], bool]
Form = Test | Mapping[str, "Form"]

# Notes that the first runs did not write, with their value then.
DEFAULT_NOTES: Mapping[str, Any] = {"collapsed": [], "best": [], "files": {}}

# Works after the same command and after --resume, with which --overwrite is not allowed.
START_AGAIN = (
    "to start again from step 0, use r2r2 train --config RUN/config.toml --out RUN --overwrite"
)


class ResumePlan(NamedTuple):
    """How a run starts."""

    checkpoint: Checkpoint | None = None  # where to resume
    restart: bool = False  # an earlier process left no checkpoint
    retry: bool = False  # continue members whose environment failed, too
    repairs: Mapping[Path, bytes] = {}  # content of damaged logs


def plan_resume(
    path: Path, config: RunConfig, on_message: OnMessage, retry: bool = False
) -> ResumePlan:
    """Return how to start a finalized run in a folder that may hold a part of it."""
    earlier, manifest = find_config(path), read_manifest(path)
    if earlier is None or manifest is None:
        return ResumePlan()
    changed = changed_fields(config, earlier)
    ended = manifest.status != "running"
    again = bool(changed) or retry
    if set(changed) - {"steps", *NON_RESULT_FIELDS} or (ended and not again):
        return ResumePlan()
    _check_steps(path, config, earlier.steps)
    checkpoint, damaged = latest_valid(path / "checkpoints")
    if checkpoint is None:
        return _without_checkpoint(path, manifest.status, damaged, on_message)
    check_notes(path, checkpoint, config)
    repairs = _find_repairs(path, checkpoint)
    located = {file: difference(file, content, growing=True) for file, content in repairs.items()}
    for message in damaged:
        on_message(message)
    for file, why in (find_damage(path) | located).items():
        on_message(f"{file}: {why}; {_remedy(file, checkpoint)}")
    on_message(f"{path}: resuming from step {checkpoint.step}")
    return ResumePlan(checkpoint, retry=retry, repairs=repairs)


def _find_repairs(path: Path, checkpoint: Checkpoint) -> dict[Path, bytes]:
    """Return the content of damaged logs; refuse to resume if the checkpoint has no copy of it."""
    repairs: dict[Path, bytes] = {}
    for file, why in changed_files(path, logged_files(checkpoint), growing=True).items():
        if file.name in LOGS:
            content = read_copy(checkpoint, file.name)
            if content is None:
                raise UserError(f"{file}: {why}; no copy in '{checkpoint.arrays}'; {START_AGAIN}")
            repairs[file] = content
    return repairs


def _remedy(file: Path, checkpoint: Checkpoint) -> str:
    """Return what resuming does about a damaged file."""
    if file.name in LOGS:
        return f"restored from the checkpoint of step {checkpoint.step}"
    return "restored from manifest.json" if file.name in COPIED_FILES else "not restored"


def _without_checkpoint(
    path: Path, status: str, damaged: list[str], on_message: OnMessage
) -> ResumePlan:
    if damaged:
        raise UserError(f"{damaged[0]}; {START_AGAIN}")
    if status != "running":
        raise UserError(f"{path}: {status}, and has no checkpoint to continue from; {START_AGAIN}")
    for file, why in find_damage(path).items():
        on_message(f"{file}: {why}; it is replaced")
    on_message(f"{path}: stopped before its first checkpoint; starting from step 0")
    return ResumePlan(restart=True)


def _check_steps(path: Path, config: RunConfig, before: int) -> None:
    if config.steps == before:
        return
    if config.steps < before:
        raise invalid_value("steps", f"{before} or more, as in '{path}'", config.steps)
    if config.agent.depends_on_run_length:
        raise UserError(
            f"expected {before}, as in '{path}', got {config.steps}; the learning rate of "
            f"{config.agent.name} depends on the length of the run; choose another folder with "
            "--out",
            "steps",
        )


def check_notes(run: Path, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Check that a checkpoint's notes and the run's logs fit together."""
    notes, path = checkpoint.metadata, checkpoint.arrays.with_suffix(".json")
    invalid = _first_invalid({**DEFAULT_NOTES, **notes}, _form(config))
    invalid = invalid or _contradiction(notes["points"], config)
    if invalid:
        raise UserError(f"{path}: '{invalid}' in its notes is missing or invalid; {START_AGAIN}")
    if notes.get("config") not in (None, digest(config)):
        raise UserError(f"{path}: written by a run with another config; {START_AGAIN}")
    files, expected = logged_files(checkpoint), notes["journal"]["events"][0]
    if EVENTS_FILE in files:  # the logs are verified by their checksums
        lengths = [files[name].bytes if name in files else 0 for name in LOGS]
        if lengths != [expected, notes["journal"]["evaluations"]]:
            raise UserError(f"{path}: 'files' in its notes is invalid; {START_AGAIN}")
        return
    folder = open_run(run)
    size = folder.events.lstat().st_size if folder.events.exists() else 0
    if size < expected:
        raise UserError(
            f"{folder.events}: truncated; expected at least {expected} bytes, as when "
            f"the checkpoint was taken, got {size}; {START_AGAIN}"
        )
    if folder.evaluations.exists():
        read_evaluations(folder.evaluations)  # an error now rather than at the end


def _form(config: RunConfig) -> Mapping[str, Form]:
    """Return the test for each note."""
    size, episodes = len(config.env) * len(config.seeds), config.eval_episodes
    member, count = _below(size), is_count
    rows = _each(_row(member, count, count))
    points: Mapping[str, Form] = {
        "width": lambda x: count(x) and x != 0,
        "due": rows,
        "counts": rows,
        "held": _each(_row(count, count)),
        "playing": _each(_row(member, count, _below(episodes))),
        "returns": _each(_row(member, *[is_number] * episodes)),
        "first": _each(_row(member, count)),
    }
    journal: Mapping[str, Form] = {
        "events": _row(count, lambda x: is_number(x) and 0 <= cast(float, x) < 2**62),
        "evaluations": count,
        "points": _each(_each(is_number), size),
        "random": lambda x: _is_table(x, config.env, _each(is_number)),
        "logged": count,
        "stopped": _each(member),
    }
    return {
        "points": points,
        "journal": journal,
        "faults": _each(_row(member, count)),
        "stopped": _each(_row(member, lambda x: isinstance(x, str))),
        "collapsed": _each(member),
        "best": _each(member),
        "files": lambda x: parse_entries(x) is not None,
        "rows": _below(replay_rows(config) + 1),
    }


def _first_invalid(notes: Mapping[str, Any], form: Mapping[str, Form]) -> str | None:
    """Return the name of the first note that is missing or fails its test."""
    for name, expected in form.items():
        value: object = notes.get(name)
        if callable(expected):
            if name not in notes or not expected(value):
                return name
        elif not isinstance(value, dict):
            return name
        elif inner := _first_invalid(cast("dict[str, Any]", value), expected):
            return f"{name}.{inner}"
    return None


def _contradiction(points: Mapping[str, Any], config: RunConfig) -> str | None:
    """Return the name of a note about evaluations that the others contradict."""
    size, episodes = len(config.env) * len(config.seeds), config.eval_episodes
    running: list[list[int]] = points["playing"]
    busy = sorted({member for member, _, _ in running})
    episode: list[Test] = [lambda m: m in busy, _below(episodes)]
    optional: dict[str, list[Test]] = {  # the first runs did not write them
        "failed": [_below(2**31)],
        "lengths": [_below(2**31)],
        "biases": [is_number] * 3,
    }
    for name, rest in optional.items():
        if not _each(_row(*episode, *rest))(points.get(name, [])):
            return f"points.{name}"
    if not _each(_row(_below(size), is_count, is_count))(points.get("cancelled", [])):
        return "points.cancelled"
    for name in ("counts", "returns", "first"):
        if sorted(row[0] for row in points[name]) != busy:
            return f"points.{name}"
    # In the order of `eval_slots`: each member's slots, after those of training.
    ordered = all((slot - size) // points["width"] == m for m, slot, _ in running)
    distinct = len({slot for _, slot, _ in running}) == len(running)
    return None if ordered and distinct else "points.playing"


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _below(end: int) -> Test:
    return lambda value: is_count(value, end)


def _each(test: Test, length: int | None = None) -> Test:
    return lambda x: _is_list(x) and length in (None, len(x)) and all(map(test, x))


def _row(*tests: Test) -> Test:
    return lambda x: (
        _is_list(x)
        and len(x) == len(tests)
        and all(test(item) for test, item in zip(tests, x, strict=True))
    )


def _is_table(value: object, names: tuple[str, ...], test: Test) -> bool:
    if not isinstance(value, dict):
        return False
    items = cast("dict[str, object]", value).items()
    return all(name in names and test(item) for name, item in items)
