"""One command is one run is one folder."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.toml_io import LONGEST, parse_toml
from r2r2.storage import lock, manifest
from r2r2.storage.files import atomic_write, read_plain

CONFIG = "config.toml"
EVENTS, EVALUATIONS = "events.jsonl", "evaluations.csv"


class RunFolder(NamedTuple):
    """Where a run keeps what it writes; made by `create_run` or `open_run`.

    Example:
        if not overwrite and is_finished(path, config_text):
            return  # nothing to do: this very run is already there
        folder = create_run(path, config_text, [m.name for m in members], overwrite)
        ...
        folder.finish()
    """

    path: Path
    members: tuple[str, ...]

    @property
    def events(self) -> Path:
        """The log of events."""
        return self.path / EVENTS

    @property
    def evaluations(self) -> Path:
        """The table of evaluations."""
        return self.path / EVALUATIONS

    @property
    def curve(self) -> Path:
        """The picture of the learning curve."""
        return self.path / "curve.png"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files, if the run was asked for some."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, from which the run can go on."""
        return self.path / "checkpoints"

    def weights(self, member: str) -> Path:
        """The weights of one of the run's members."""
        return self._own(member) / "weights.npz"

    def report(self, member: str) -> Path:
        """Why one of the run's members was stopped, if it was."""
        return self._own(member) / "stopped.json"

    def _own(self, member: str) -> Path:
        if member not in self.members:
            raise ValueError(f"{member!r} is not a member of {self.path}")
        return self.path / member

    def config_text(self) -> str:
        """The resolved config, as it was handed to `create_run`.

        Raises:
            UserError: It cannot be read.
        """
        try:
            return read_plain(self.path / CONFIG, LONGEST).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise _unfit(self.path, f"has no readable {CONFIG}") from error

    def write_versions(self, versions: Mapping[str, str]) -> None:
        """Keeps what the run was made with."""
        content = json.dumps(dict(versions), indent=2) + "\n"
        atomic_write(self.path / "versions.json", content)

    def finish(self) -> None:
        """Marks the run as finished; until then it counts as unfinished."""
        manifest.write_manifest(self.path, self.members, "finished")


def create_run(
    path: Path, config_text: str, members: Sequence[str], overwrite: bool
) -> RunFolder:
    """Makes the folder of a new run, with its config and a folder per member.

    Args:
        path: The folder; it may exist if it is empty, or a run and `overwrite` is set.
        config_text: The resolved config.
        members: The names of the members, each the name of a folder.
        overwrite: Whether a run that is there already is deleted.

    Raises:
        UserError: Something else is there, or nothing can be written there; a folder
            that is not a run is never deleted.
    """
    manifest.check_members(members)
    try:
        _check_vacant(path, config_text, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        # The manifest goes first: a crash from here on leaves an unfinished run.
        manifest.write_manifest(path, members, "running")
        _empty(path)
        atomic_write(path / CONFIG, config_text)
        for member in members:
            (path / member).mkdir()
    except OSError as error:
        raise UserError(
            f"out is '{path}', which cannot be written: {error.strerror}"
        ) from error
    return RunFolder(path, tuple(members))


def reopen_run(path: Path, config_text: str) -> RunFolder:
    """The folder of a run that goes on, with a config that may have more steps.

    Raises:
        UserError: no run that this version can read, or nothing can be written.
    """
    folder = open_run(path)
    try:
        _check_inside(path)
        manifest.write_manifest(path, folder.members, "running")
        atomic_write(path / CONFIG, config_text)
        for member in folder.members:
            (path / member).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"out is '{path}', which cannot be written: {error.strerror}"
        ) from error
    return folder


def open_run(path: Path) -> RunFolder:
    """The folder of a run that is there, finished or not.

    Raises:
        UserError: There is no run that this version can read.
    """
    try:
        exists, held = path.exists(), path.is_dir() and (path / manifest.NAME).exists()
    except OSError as error:
        raise _unfit(path, f"cannot be read: {error.strerror}") from error
    if not exists:
        raise _unfit(path, "does not exist")
    if not held:
        raise _unfit(path, f"is not the folder of a run: it has no {manifest.NAME}")
    found = manifest.read_manifest(path)
    if found is None:
        raise _unfit(path, f"has a {manifest.NAME} that is damaged or no run's")
    if found.format != manifest.FORMAT:
        known = f"this version of r2r2 reads {manifest.FORMAT}"
        raise _unfit(path, f"has a {manifest.NAME} of format {found.format}; {known}")
    return RunFolder(path, found.members)


def _check_inside(path: Path) -> None:
    """Refuses a run whose files lie elsewhere: nothing outside it is to be written."""
    for folder, inner, files in os.walk(path):
        for entry in (Path(folder, name) for name in sorted([*inner, *files])):
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                what = "is a link" if entry.is_symlink() else "is no file"
                raise _unfit(path, f"cannot go on: '{entry}' {what}")
    for name in (EVENTS, EVALUATIONS):
        if (path / name).is_dir():
            raise _unfit(path, f"cannot go on: '{path / name}' is a folder")


def is_finished(path: Path, config_text: str) -> bool:
    """Whether a finished run of exactly this config is already there."""
    found = manifest.read_manifest(path)
    over = found is not None and found.status == "finished"
    return over and _same(path, config_text)


def _check_vacant(path: Path, config_text: str, overwrite: bool) -> None:
    """Refuses a folder in which a run would mix with, or delete, what it must not."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"out is '{path}', which is a file; give a folder")
    if not any(path.iterdir()):
        return
    found = manifest.read_manifest(path)
    if found is None:
        raise UserError(
            f"out is '{path}', which is not empty and not the folder of a run, so not "
            "even --overwrite deletes it; give another folder"
        )
    if not overwrite:
        same = _same(path, config_text)
        other = f"another config{_difference(path, config_text)}"
        config = "this config" if same else other
        what = {
            "finished": f"a finished run of {config}",
            "running": f"an unfinished run of {config}",
            "unknown": "a run of another version of r2r2",
        }[found.status]
        raise UserError(
            f"out is '{path}', which holds {what}; give another folder with --out, or "
            "--overwrite to delete it"
        )


def _same(path: Path, config_text: str) -> bool:
    try:
        return read_plain(path / CONFIG, LONGEST) == config_text.encode()
    except OSError:
        return False


def _difference(path: Path, config_text: str) -> str:
    """In brackets, the first fields in which the run that is there differs."""
    try:
        there = parse_toml(read_plain(path / CONFIG, LONGEST).decode())
        here = parse_toml(config_text)
    except (OSError, ValueError, RecursionError):
        return ""
    names = [name for name in here if here[name] != there.get(name)]
    shown = [f"{n} is {there.get(n)} there, {here[n]} here" for n in names[:2]]
    return f" ({'; '.join(shown)})" if shown else ""


def _empty(path: Path) -> None:
    """Deletes all but manifest and lock; a link is deleted, not followed."""
    for entry in path.iterdir():
        if entry.name in (manifest.NAME, lock.NAME):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"run is '{path}', which {why}")
