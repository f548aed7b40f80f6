"""Each command creates one run folder: its layout, manifest and lock."""

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from r2r2.config.errors import UserError
from r2r2.config.toml_io import ADDED_FIELDS, MAX_TOML_BYTES, parse_toml
from r2r2.storage.files import (
    atomic_write,
    cannot_read,
    cannot_write,
    open_regular,
    read_json_object,
    read_regular,
)

CONFIG_FILE = "config.toml"
EVENTS_FILE, EVALUATIONS_FILE = "events.jsonl", "evaluations.csv"
MANIFEST_FILE, LOCK_FILE = "manifest.json", "lock"
WEIGHTS_FILE, BEST_WEIGHTS_FILE = "weights.npz", "best_weights.npz"
STOPPED_WEIGHTS_FILE = "stopped.npz"
RUN_KIND = "r2r2 run"
RUN_FORMAT = 1
# Processes that only check whether a run is locked hold the lock for a moment, too.
LOCK_TIMEOUT = 0.5  # seconds

Status = Literal["running", "finished", "failed"]


class RunFolder(NamedTuple):
    """The files of a run; made by `create_run` or `open_run`."""

    path: Path
    members: tuple[str, ...]

    @property
    def events(self) -> Path:
        """The event log."""
        return self.path / EVENTS_FILE

    @property
    def evaluations(self) -> Path:
        """The table of evaluations."""
        return self.path / EVALUATIONS_FILE

    @property
    def curve(self) -> Path:
        """The picture of the learning curve."""
        return self.path / "curve.png"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints from which the run can be resumed."""
        return self.path / "checkpoints"

    def weights(self, member: str) -> Path:
        """Return the weights file of a member."""
        return self._member_dir(member) / WEIGHTS_FILE

    def best_weights(self, member: str) -> Path:
        """Return the file with the policy of a member's best evaluation."""
        return self._member_dir(member) / BEST_WEIGHTS_FILE

    def stopped_weights(self, member: str) -> Path:
        """Return the file with the last usable weights of a stopped member."""
        return self._member_dir(member) / STOPPED_WEIGHTS_FILE

    def report(self, member: str) -> Path:
        """Return the file that says why a member was stopped."""
        return self._member_dir(member) / "stopped.json"

    def stopped(self) -> dict[str, str]:
        """Return the stopped members, each with the reason in its report."""
        reports = {name: self.report(name) for name in self.members}
        existing = {name: path for name, path in reports.items() if path.exists()}
        facts = {name: read_json_object(path) or {} for name, path in existing.items()}
        return {name: str(x.get("why", f"see '{existing[name]}'")) for name, x in facts.items()}

    def _member_dir(self, member: str) -> Path:
        if member not in self.members:
            raise ValueError(f"{member!r} is not a member of {self.path}")
        return self.path / member

    def config_text(self) -> str:
        """Return the resolved config as it was given to `create_run`."""
        path = self.path / CONFIG_FILE
        try:
            return _read_config(self.path)
        except OSError as error:
            raise cannot_read(path, error) from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: cannot read: not valid UTF-8") from error

    def write_versions(self, versions: Mapping[str, object]) -> None:
        """Write the versions that the run uses."""
        atomic_write(self.path / "versions.json", json.dumps(dict(versions), indent=2) + "\n")

    def add_versions(self, step: int, versions: Mapping[str, str]) -> None:
        """Add the versions that resume the run at a step, as an item of `resumed`."""
        record = read_json_object(self.path / "versions.json") or {}
        resumed = record.get("resumed")
        earlier = cast("list[object]", resumed) if isinstance(resumed, list) else []
        self.write_versions({**record, "resumed": [*earlier, {"step": step, **versions}]})

    def save_eval(self, results: Mapping[str, object]) -> Path:
        """Write results of `r2r2 eval` to a new file, named by the time, and return its path."""
        now = datetime.datetime.now(datetime.UTC)
        path = self.path / "evals" / f"{now:%Y-%m-%d_%H-%M-%S_%f}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, json.dumps(results, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error
        return path

    def finish(self, stopped: Sequence[str] = ()) -> None:
        """Mark the run as finished, or as failed if all of its members were stopped."""
        failed = bool(stopped) and len(stopped) == len(self.members)
        write_manifest(self.path, self.members, "failed" if failed else "finished", stopped)


def create_run(path: Path, config_text: str, members: Sequence[str], overwrite: bool) -> RunFolder:
    """Create the folder of a new run; `overwrite` deletes a run in it, but nothing else."""
    check_members(members)
    try:
        _check_available(path, config_text, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        # First, so that a crash from here on leaves a folder known as a run.
        write_manifest(path, members, "running")
        delete_contents(path)
        atomic_write(path / CONFIG_FILE, config_text)
        for member in members:
            (path / member).mkdir()
    except OSError as error:
        raise cannot_write(path, error) from error
    return RunFolder(path, tuple(members))


def reopen_run(path: Path, config_text: str) -> RunFolder:
    """Open a run to resume it, and write its config, which may have more steps."""
    folder = open_run(path)
    try:
        _check_entries(path)
        write_manifest(path, folder.members, "running")
        atomic_write(path / CONFIG_FILE, config_text)
        for member in folder.members:
            (path / member).mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return folder


def open_run(path: Path) -> RunFolder:
    """Open an existing run, finished or not."""
    try:
        exists = path.exists()
        has_manifest = path.is_dir() and (path / MANIFEST_FILE).exists()
    except OSError as error:
        raise cannot_read(path, error) from error
    if not exists:
        raise UserError(f"{path}: does not exist")
    if not has_manifest:
        raise UserError(f"{path}: not a run folder; it has no {MANIFEST_FILE}")
    manifest = read_manifest(path)
    if manifest is None:
        raise UserError(f"{path / MANIFEST_FILE}: damaged or not a run's manifest")
    if manifest.format != RUN_FORMAT:
        raise UserError(
            f"{path / MANIFEST_FILE}: unsupported format; expected {RUN_FORMAT}, got "
            f"{manifest.format}"
        )
    return RunFolder(path, manifest.members)


def run_status(run: Path) -> str:
    """Return the status in the manifest, but 'interrupted' if no process trains a 'running' run."""
    manifest = read_manifest(run)
    status = str(manifest.status) if manifest else "unknown"
    return "interrupted" if status == "running" and not is_locked(run) else status


def _check_entries(path: Path) -> None:
    """Reject a run with links or special files: resuming must write only inside it."""
    for folder, subfolders, files in os.walk(path):
        for entry in (Path(folder, name) for name in sorted([*subfolders, *files])):
            if entry.is_symlink():
                raise UserError(f"{entry}: is a symbolic link; cannot resume the run")
            if not (entry.is_file() or entry.is_dir()):
                raise UserError(f"{entry}: not a regular file; cannot resume the run")
    for name in (EVENTS_FILE, EVALUATIONS_FILE):
        if (path / name).is_dir():
            raise UserError(f"{path / name}: is a folder; cannot resume the run")


def _check_available(path: Path, config_text: str, overwrite: bool) -> None:
    """Reject a folder whose content a new run would mix with or wrongly delete."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"{path}: is a file; expected a folder")
    if not any(path.iterdir()):
        return
    manifest = read_manifest(path)
    if manifest is None:
        raise UserError(
            f"{path}: not empty and not a run folder, so --overwrite does not delete "
            "it; choose another --out"
        )
    if overwrite:
        return
    same = _has_config(path, config_text)
    config = "the same config" if same else _other_config(path, config_text)
    content = {
        "finished": f"a finished run with {config}",
        "failed": f"a failed run with {config}",
        "running": f"an unfinished run with {config}",
        "unknown": "a run of another version of r2r2",
    }[manifest.status]
    raise UserError(
        f"{path}: contains {content}; choose another --out, or add --overwrite to delete it"
    )


def _read_config(run: Path) -> str:
    return read_regular(run / CONFIG_FILE, MAX_TOML_BYTES).decode()


def _has_config(run: Path, config_text: str) -> bool:
    try:
        return _read_config(run) == config_text
    except (OSError, UnicodeDecodeError):
        return False


def _other_config(path: Path, config_text: str) -> str:
    """Describe a config by the first fields in which it differs from another."""
    try:
        old, new = ADDED_FIELDS | parse_toml(_read_config(path)), parse_toml(config_text)
    except (OSError, ValueError, RecursionError):
        return "another config"
    names = [name for name in new if new[name] != old.get(name)]
    shown = [f"{name} is {old.get(name)}, not {new[name]}" for name in names[:2]]
    return f"another config ({'; '.join(shown)})" if shown else "another config"


def delete_contents(run: Path) -> None:
    """Delete all but manifest and lock; links are deleted, not followed."""
    for entry in run.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name not in (MANIFEST_FILE, LOCK_FILE):
            entry.unlink()


# The manifest, which marks a folder as a run


class RunManifest(NamedTuple):
    """The content of a run's manifest; of another format, only the format."""

    format: int
    status: Status | Literal["unknown"]
    members: tuple[str, ...]


def write_manifest(
    run: Path, members: Sequence[str], status: Status, stopped: Sequence[str] = ()
) -> None:
    """Write the manifest of a run atomically; it lists the stopped members, if any."""
    manifest = {"kind": RUN_KIND, "format": RUN_FORMAT, "status": status}
    lists = {"members": list(members)} | ({"stopped": list(stopped)} if stopped else {})
    text = json.dumps({**manifest, **lists}, indent=2) + "\n"
    atomic_write(run / MANIFEST_FILE, text)


def read_manifest(run: Path) -> RunManifest | None:
    """Return the manifest of a folder, or None if the folder is not a run."""
    fields = read_json_object(run / MANIFEST_FILE) or {}
    number, status, members = (fields.get(k) for k in ("format", "status", "members"))
    if fields.get("kind") != RUN_KIND or not isinstance(number, int):
        return None
    if number != RUN_FORMAT:
        return RunManifest(number, "unknown", ())
    if status not in get_args(Status) or not isinstance(members, list):
        return None
    names = [str(name) for name in cast("list[object]", members)]
    if names != members or not all(is_member_name(name) for name in names):
        return None
    return RunManifest(number, cast(Status, status), tuple(names))


def check_members(members: Sequence[str]) -> None:
    """Check that each member can have its own folder inside a run."""
    for name in members:
        if not is_member_name(name):
            raise UserError(f"member {name!r}: not a valid folder name")
        if members.count(name) > 1:
            raise UserError(f"member {name!r}: given twice")


def is_member_name(name: str) -> bool:
    """Return whether a name is a folder inside the run, unlike those of its files."""
    is_file = re.search(r"\.(csv|json|jsonl|png|toml)$", name)
    plain = re.fullmatch(r"[\w.+-]+", name)
    return plain is not None and is_file is None and name.strip(".") != ""


# The lock: one process at a time trains a run


@contextlib.contextmanager
def lock_run(run: Path, timeout: float = LOCK_TIMEOUT) -> Generator[None]:
    """Keep other processes from training or cleaning a run during the block."""
    try:
        descriptor = _acquire(run, timeout)
    except OSError as error:
        raise cannot_write(run, error) from error
    try:
        with contextlib.suppress(OSError):  # locking works on a full disk, too
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        # Before releasing: a process that opens the name from now on makes a new file.
        with contextlib.suppress(OSError):
            (run / LOCK_FILE).unlink()
        os.close(descriptor)


def is_locked(run: Path) -> bool:
    """Return whether a process holds the lock of a run."""
    try:
        with open_regular(run / LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_unlocked(run: Path) -> None:
    """Check that no process holds the lock of a run."""
    if is_locked(run):
        raise _in_use(run)


def lock_owner(run: Path) -> str:
    """Return a description of the process that holds the lock of a run."""
    pid = lock_pid(run)
    if pid == os.getpid():
        return "this process"
    return f"another process (pid {pid})" if pid else "another process"


def lock_pid(run: Path) -> int | None:
    """Return the pid in a run's lock file, or None; the lock itself is not touched."""
    try:
        with open_regular(run / LOCK_FILE) as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None


def _acquire(run: Path, timeout: float) -> int:
    """Open and lock the lock file; return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    deadline = time.monotonic() + timeout
    while True:
        descriptor = os.open(run / LOCK_FILE, flags, 0o644)
        if _try_lock(descriptor, run / LOCK_FILE):
            return descriptor  # the system releases the lock of a process that dies
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise _in_use(run)
        time.sleep(0.02)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: run unprotected
    try:
        # The previous holder may have deleted the file after it was opened here.
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _in_use(run: Path) -> UserError:
    return UserError(f"{run}: in use; {lock_owner(run)} is training this run")
