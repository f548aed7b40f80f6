"""Whether the notes of a checkpoint are such as a run of its config writes.

A checksum tells damage, not who wrote a file. Whoever did, notes that do not fit are
refused in a sentence before anything is changed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.storage.checkpoints import Checkpoint
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.files import is_count, is_number
from r2r2.storage.run_folder import open_run
from r2r2.training.memory import replay_rows

Test = Callable[[object], bool]
Form = Test | Mapping[str, "Form"]

# What the first runs did not note, as it would have been.
LATER: Mapping[str, Any] = {"collapsed": []}

AGAIN = "its command with --overwrite begins it again from step 0"


def check_notes(run: Path, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Refuses a checkpoint whose notes, or whose logs, are not those of a run.

    Args:
        run: the run's folder.
        checkpoint: of which every file is as it was written.
        config: the run, settled.

    Raises:
        UserError: Something in them is missing or cannot be.
    """
    odd = _misfit({**LATER, **checkpoint.metadata}, _form(config))
    odd = odd or _disagreement(checkpoint.metadata["points"], config.eval_episodes)
    if odd:
        name = checkpoint.arrays.with_suffix(".json")
        why = f"its notes of '{odd}' are missing or cannot be"
        raise UserError(
            f"run is '{run}', whose '{name}' cannot be used: {why}; {AGAIN}"
        )
    folder, length = open_run(run), checkpoint.metadata["journal"]["events"][0]
    found = folder.events.lstat().st_size if folder.events.exists() else 0
    if found < length:
        why = f"has {found} bytes; the checkpoint was taken when it had {length}"
        raise UserError(f"run is '{run}', whose '{folder.events}' {why}; {AGAIN}")
    if folder.evaluations.exists():
        read_evaluations(folder.evaluations)  # which would be refused at the end else


def _form(config: RunConfig) -> Mapping[str, Form]:
    """What every note of a run is to be."""
    size, episodes = len(config.env) * len(config.seeds), config.eval_episodes
    member, whole, number = _below(size), is_count, is_number
    counts = _each(_row(member, whole, whole))
    points: Mapping[str, Form] = {
        "width": lambda x: whole(x) and x != 0,
        "begun": _each(whole, size),
        "due": counts,
        "counts": counts,
        "held": _each(_row(whole, whole)),
        "playing": _each(_row(member, whole, _below(episodes))),
        "returns": _each(_row(member, *[number] * episodes)),
        "first": _each(_row(member, whole)),
    }
    journal: Mapping[str, Form] = {
        "events": _row(whole, lambda x: number(x) and 0 <= cast(float, x) < 2**62),
        "evaluations": whole,
        "points": _each(_each(number), size),
        "random": lambda x: _is_table(x, config.env, _each(number)),
        "logged": whole,
        "stopped": _each(member),
    }
    return {
        "points": points,
        "journal": journal,
        "faults": _each(_row(member, whole)),
        "stopped": _each(_row(member, lambda x: isinstance(x, str))),
        "collapsed": _each(member),
        "rows": _below(replay_rows(config) + 1),
    }


def _misfit(notes: Mapping[str, Any], form: Mapping[str, Form]) -> str | None:
    """The name of the first note that is missing or of another form."""
    for name, wanted in form.items():
        found: object = notes.get(name)
        if callable(wanted):
            if name not in notes or not wanted(found):
                return name
        elif not isinstance(found, dict):
            return name
        elif inner := _misfit(cast("dict[str, Any]", found), wanted):
            return f"{name}.{inner}"
    return None


def _disagreement(points: Mapping[str, Any], episodes: int) -> str | None:
    """The name of a note about evaluations that the others contradict."""
    width, begun = points["width"], points["begun"]
    playing: list[list[int]] = points["playing"]
    busy = sorted({member for member, _, _ in playing})
    episode: list[Test] = [lambda m: m in busy, _below(episodes)]
    later: dict[str, list[Test]] = {
        "failed": [_below(2**31)],
        "biases": [is_number] * 3,
    }
    for name, rest in later.items():  # which the first runs did not note
        if not _each(_row(*episode, *rest))(points.get(name, [])):
            return f"points.{name}"
    for name in ("counts", "returns", "first"):
        if sorted(row[0] for row in points[name]) != busy:
            return f"points.{name}"
    # As `places_for` lays them out: every member's own, behind those of training.
    own = all((slot - len(begun)) // width == member for member, slot, _ in playing)
    if not own or len({slot for _, slot, _ in playing}) < len(playing):
        return "points.playing"
    return None if all(begun[member] > 0 for member in busy) else "points.begun"


def _below(end: int) -> Test:
    return lambda x: is_count(x, end)


def _each(test: Test, count: int | None = None) -> Test:
    def holds(x: object) -> bool:
        if not isinstance(x, list) or (count is not None and len(x) != count):
            return False
        return all(test(item) for item in cast("list[object]", x))

    return holds


def _row(*tests: Test) -> Test:
    def holds(x: object) -> bool:
        if not isinstance(x, list) or len(cast("list[object]", x)) != len(tests):
            return False
        pairs = zip(tests, cast("list[object]", x), strict=True)
        return all(test(item) for test, item in pairs)

    return holds


def _is_table(x: object, names: tuple[str, ...], test: Test) -> bool:
    if not isinstance(x, dict):
        return False
    items = cast("dict[str, object]", x).items()
    return all(name in names and test(item) for name, item in items)
