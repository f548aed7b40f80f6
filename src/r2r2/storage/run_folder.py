"""Each command creates one run folder: its layout, manifest and lock."""

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from r2r2.config.errors import UserError
from r2r2.config.toml_io import ADDED_FIELDS, MAX_TOML_BYTES, parse_toml
from r2r2.storage.checkpoints import CHECKPOINT_DIR, checkpoint_files
from r2r2.storage.files import (
    FileEntry,
    atomic_write,
    cannot_read,
    cannot_write,
    check_link,
    checksum,
    open_regular,
    parse_entries,
    read_json_object,
    read_regular,
)

CONFIG_FILE, VERSIONS_FILE, CURVE_FILE = "config.toml", "versions.json", "curve.png"
POLICY_FILE = "policy.json"
EVENTS_FILE, EVALUATIONS_FILE = "events.jsonl", "evaluations.csv"
MANIFEST_FILE, LOCK_FILE = "manifest.json", "lock"
WEIGHTS_FILE, BEST_WEIGHTS_FILE = "weights.npz", "best_weights.npz"
STOPPED_WEIGHTS_FILE = "stopped.npz"
PRUNED_FILE = "pruned.json"  # of a trial that `r2r2 tune` has ended early
RUN_FILES = (
    *(CONFIG_FILE, VERSIONS_FILE, POLICY_FILE, CURVE_FILE, EVENTS_FILE, EVALUATIONS_FILE),
    *(MANIFEST_FILE, LOCK_FILE),
)
COPIED_FILES = (CONFIG_FILE, VERSIONS_FILE, POLICY_FILE)  # the manifest has copies of them
TENSORBOARD_DIR = "tensorboard"
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
        return self.path / CURVE_FILE

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.path / TENSORBOARD_DIR

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints from which the run can be resumed."""
        return self.path / CHECKPOINT_DIR

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

    def policy_document(self) -> dict[str, object] | None:
        """Return the description of the run's policies; None for a run of an earlier version."""
        copy = _copies(self.path).get(POLICY_FILE)
        if copy is None:
            return read_json_object(self.path / POLICY_FILE)
        return cast("dict[str, object]", json.loads(copy))

    def write_versions(self, versions: Mapping[str, object]) -> None:
        """Write the versions that the run uses."""
        _write_copies(self, {**_copies(self.path), VERSIONS_FILE: _indented(versions)})

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

    def finish(
        self, stopped: Sequence[str] = (), files: Mapping[str, FileEntry] | None = None
    ) -> None:
        """Mark the run as finished, or as failed if all of its members were stopped.

        `files` are its files as they were written.
        """
        failed = bool(stopped) and len(stopped) == len(self.members)
        status: Status = "failed" if failed else "finished"
        write_manifest(self.path, self.members, status, stopped, _copies(self.path), files)


def create_run(
    path: Path,
    config_text: str,
    members: Sequence[str],
    overwrite: bool,
    versions: Mapping[str, object] | None = None,
    policy: Mapping[str, object] | None = None,
) -> RunFolder:
    """Create a new run completely or not at all; `overwrite` deletes a run, but nothing else."""
    check_members(members)
    folder, copies = RunFolder(path, tuple(members)), {CONFIG_FILE: config_text}
    if versions is not None:
        copies[VERSIONS_FILE] = _indented(versions)
    if policy is not None:
        copies[POLICY_FILE] = _one_line(policy)
    try:
        check_link(path)
        _check_available(path, config_text, overwrite)
        existed = path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if read_manifest(path):
            write_manifest(path, (), "running")  # marks it in case of a crash
            delete_contents(path)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(_discard, path, existed)
            _write_copies(folder, copies)
            for member in members:
                (path / member).mkdir()
            on_failure.pop_all()
    except OSError as error:
        raise cannot_write(path, error) from error
    return folder


def _discard(path: Path, existed: bool) -> None:
    """Delete the files of a run that could not be created."""
    with contextlib.suppress(OSError):
        delete_contents(path)
        (path / MANIFEST_FILE).unlink(missing_ok=True)
        if not existed:
            path.rmdir()


def reopen_run(
    path: Path,
    config_text: str,
    resumed: Mapping[str, object] | None = None,
    repairs: Mapping[Path, bytes] | None = None,
    policy: Mapping[str, object] | None = None,
) -> RunFolder:
    """Open a run to resume it.

    Args:
        path: the run folder.
        config_text: its config, which may have more steps.
        resumed: step and versions of this process, added to `versions.json`.
        repairs: content of damaged files.
        policy: description of its policies, which earlier versions did not write.
    """
    folder = open_run(path)
    try:
        _check_entries(folder)
        copies = {**_copies(path), CONFIG_FILE: config_text}
        if policy is not None:
            copies[POLICY_FILE] = _one_line(policy)
        if resumed is not None:
            text = copies.get(VERSIONS_FILE)
            record = json.loads(text) if text else read_json_object(path / VERSIONS_FILE) or {}
            earlier = cast("list[object]", record.get("resumed") or [])
            copies[VERSIONS_FILE] = _indented({**record, "resumed": [*earlier, dict(resumed)]})
        _write_copies(folder, copies)
        for target, content in (repairs or {}).items():
            atomic_write(target, content)
        for member in folder.members:
            (path / member).mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return folder


def _one_line(fields: Mapping[str, object]) -> str:
    return json.dumps(dict(fields), allow_nan=False) + "\n"


def _indented(fields: Mapping[str, object]) -> str:
    return json.dumps(dict(fields), indent=2) + "\n"


def _copies(run: Path) -> Mapping[str, str]:
    manifest = read_manifest(run)
    return manifest.copies if manifest else {}


def _write_copies(folder: RunFolder, copies: Mapping[str, str]) -> None:
    """Write small files, after the manifest, from which they can be restored."""
    write_manifest(folder.path, folder.members, "running", copies=copies)
    for name, text in copies.items():
        atomic_write(folder.path / name, text)


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


def _check_entries(run: RunFolder) -> None:
    """Check that resuming writes only to this run: its files, and folders that the user linked."""
    check_link(run.path)
    for name in (CHECKPOINT_DIR, TENSORBOARD_DIR, *run.members):
        if os.path.lexists(run.path / name):
            _check_folder(run.path, run.path / name)
        for folder, subfolders, files in os.walk(run.path / name):
            _check_regular([Path(folder, name) for name in (*subfolders, *files)])
    _check_regular([run.path / name for name in RUN_FILES])
    for name in (EVENTS_FILE, EVALUATIONS_FILE):
        if (run.path / name).is_dir():
            raise UserError(f"{run.path / name}: is a folder; cannot resume the run")


def _check_regular(entries: Iterable[Path]) -> None:
    for entry in entries:
        if entry.is_symlink():
            raise UserError(f"{entry}: is a symbolic link; cannot resume the run")
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise UserError(f"{entry}: not a regular file; cannot resume the run")


def _check_folder(run: Path, folder: Path) -> None:
    """Check that a folder of a run, or the one that it links to, has no files of anything else."""
    check_link(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder; cannot resume the run")
    if not folder.is_symlink():
        return
    target = folder.resolve()
    for other in (x for x in (target, *target.parents) if x != run.resolve()):
        if read_manifest(other):
            raise UserError(f"{folder}: is a symbolic link into another run, '{other}'")
    others = {*folder.iterdir()} - {*checkpoint_files(folder)}
    if folder.name == CHECKPOINT_DIR and others:
        raise UserError(f"{folder}: is a symbolic link to other files: '{min(others).name}'")


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
    if overwrite or (manifest.status == "running" and not manifest.members):
        return  # the latter is left of a deletion that was interrupted
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
    """Return the config that the manifest holds, or else that of `config.toml`."""
    copy = _copies(run).get(CONFIG_FILE)
    return read_regular(run / CONFIG_FILE, MAX_TOML_BYTES).decode() if copy is None else copy


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
    copies: Mapping[str, str] = {}  # content of small files, which can be restored from it
    files: Mapping[str, FileEntry] = {}  # other files at the end of the run


def write_manifest(
    run: Path,
    members: Sequence[str],
    status: Status,
    stopped: Sequence[str] = (),
    copies: Mapping[str, str] | None = None,
    files: Mapping[str, FileEntry] | None = None,
) -> None:
    """Write the manifest of a run atomically; it lists the stopped members, if any."""
    fields: dict[str, object] = {"kind": RUN_KIND, "format": RUN_FORMAT, "status": status}
    fields |= {"members": list(members)} | ({"stopped": list(stopped)} if stopped else {})
    if copies or files:
        entries = {name: entry._asdict() for name, entry in (files or {}).items()}
        fields |= {"copies": dict(copies or {}), "files": entries}
    atomic_write(run / MANIFEST_FILE, _manifest_text(fields))


def _manifest_text(fields: Mapping[str, object]) -> str:
    """Return the text of a manifest, which ends with its own checksum if it holds others."""
    digest = checksum(json.dumps(fields).encode()).hexdigest()
    return _indented({**fields, "blake2b": digest} if "files" in fields else fields)


def read_manifest(run: Path) -> RunManifest | None:
    """Return the manifest of a folder, or None if it is damaged or the folder is not a run."""
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
    manifest = RunManifest(number, cast(Status, status), tuple(names))
    if fields.keys() <= {"kind", "format", "status", "members", "stopped"}:
        return manifest  # of a run from before there were checksums
    unsigned = {name: value for name, value in fields.items() if name != "blake2b"}
    copies, files = fields.get("copies"), parse_entries(fields.get("files"))
    if files is None or not isinstance(copies, dict) or not _is_intact(run, unsigned):
        return None
    return manifest._replace(copies=cast("dict[str, str]", copies), files=files)


def _is_intact(run: Path, fields: Mapping[str, object]) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return read_regular(run / MANIFEST_FILE) == _manifest_text(fields).encode()
    return False


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
    with lock_file(run / LOCK_FILE, lambda: _in_use(run), timeout):
        yield


@contextlib.contextmanager
def lock_file(
    path: Path, in_use: Callable[[], UserError], timeout: float = LOCK_TIMEOUT
) -> Generator[None]:
    """Hold a lock during the block; its file has the pid of this process and is deleted after."""
    try:
        descriptor = _acquire(path, in_use, timeout)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    try:
        with contextlib.suppress(OSError):  # locking works on a full disk, too
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        # Before releasing: a process that opens the name from now on makes a new file.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def is_locked(run: Path) -> bool:
    """Return whether a process holds the lock of a run."""
    return is_file_locked(run / LOCK_FILE)


def is_file_locked(path: Path) -> bool:
    """Return whether a process holds the lock of `lock_file`."""
    try:
        with open_regular(path) as file:
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


def _acquire(path: Path, in_use: Callable[[], UserError], timeout: float) -> int:
    """Open and lock the lock file; return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    deadline = time.monotonic() + timeout
    while True:
        descriptor = os.open(path, flags, 0o644)
        if _try_lock(descriptor, path):
            return descriptor  # the system releases the lock of a process that dies
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise in_use()
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
