"""Whether a run starts or resumes, and whether its checkpoint fits its config.

A checksum detects damage, but not a checkpoint that was written by something else. One
whose notes do not fit is refused before anything is changed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, cast

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import NON_RESULT_FIELDS, changed_fields
from r2r2.storage.checkpoints import Checkpoint, latest_valid
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.files import is_count, is_number
from r2r2.storage.run_folder import open_run, read_manifest
from r2r2.training.memory import replay_rows
from r2r2.training.run_config import find_config
from r2r2.training.state import OnMessage

Test = Callable[[object], bool]
Form = Test | Mapping[str, "Form"]

# Notes that the first runs did not write, with their value then.
DEFAULT_NOTES: Mapping[str, Any] = {"collapsed": [], "best": []}

# Works after the same command and after --resume, with which --overwrite is not allowed.
START_AGAIN = (
    "to start again from step 0, use r2r2 train --config RUN/config.toml --out RUN --overwrite"
)


class ResumePlan(NamedTuple):
    """How a run starts."""

    checkpoint: Checkpoint | None = None  # where to resume
    restart: bool = False  # an earlier process left no checkpoint
    retry: bool = False  # continue members whose environment failed, too


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
    for message in damaged:
        on_message(message)
    on_message(f"{path}: resuming from step {checkpoint.step}")
    return ResumePlan(checkpoint, retry=retry)


def _without_checkpoint(
    path: Path, status: str, damaged: list[str], on_message: OnMessage
) -> ResumePlan:
    if damaged:
        raise UserError(f"{damaged[0]}; {START_AGAIN}")
    if status != "running":
        raise UserError(f"{path}: {status}, and has no checkpoint to continue from; {START_AGAIN}")
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
    invalid = _first_invalid({**DEFAULT_NOTES, **checkpoint.metadata}, _form(config))
    invalid = invalid or _contradiction(checkpoint.metadata["points"], config)
    if invalid:
        path = checkpoint.arrays.with_suffix(".json")
        raise UserError(f"{path}: '{invalid}' in its notes is missing or invalid; {START_AGAIN}")
    folder, expected = open_run(run), checkpoint.metadata["journal"]["events"][0]
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
