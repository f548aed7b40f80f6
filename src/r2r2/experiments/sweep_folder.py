"""The folder of sweeps: plans, the runs that they share, logs and reports.

    plans/NAME.json     the plan of a sweep, see `plan.py`
    plans/NAME.jsonl    what happened to its fleets
    plans/NAME.lock     while a process carries it out
    runs/FLEET          run folders, shared by all sweeps of the folder
    logs/FLEET.log      output of the fleet's processes
    reports/NAME        the report of a sweep

All paths in these files are relative, so the folder can be moved or copied.
"""

import contextlib
import json
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.experiments.experiment import RunKey, run_keys
from r2r2.experiments.plan import Plan, read_plan
from r2r2.storage.checkpoints import (
    CHECKPOINT_DIR,
    DamagedCheckpointError,
    checkpoint_numbers,
    read_checkpoint,
)
from r2r2.storage.disk_usage import find_runs
from r2r2.storage.files import LogFile, cannot_write, read_lines
from r2r2.storage.run_folder import lock_file, read_manifest
from r2r2.training.saved_config import find_config, fleet_members

Event = Mapping[str, object]


class SweepFolder(NamedTuple):
    """The files of one sweep in a folder that several sweeps may share."""

    path: Path
    name: str  # of the sweep

    @property
    def plan_file(self) -> Path:
        """The stored plan."""
        return self.path / "plans" / f"{self.name}.json"

    @property
    def events(self) -> Path:
        """The log of what happened to the fleets."""
        return self.path / "plans" / f"{self.name}.jsonl"

    @property
    def report(self) -> Path:
        """The folder of the report."""
        return self.path / "reports" / self.name

    @property
    def lock(self) -> Path:
        """The file that the process of the sweep locks."""
        return self.path / "plans" / f"{self.name}.lock"

    def run(self, fleet: str) -> Path:
        """Return the run folder of a fleet."""
        return self.path / "runs" / fleet

    def log(self, fleet: str) -> Path:
        """Return the file with the output of a fleet's processes."""
        return self.path / "logs" / f"{fleet}.log"

    def plan(self) -> Plan | None:
        """Return the stored plan, or None if there is none yet."""
        return read_plan(self.plan_file)

    def append(self, event: str, fleet: str = "", **fields: object) -> None:
        """Append an event to the log."""
        line = {"time": round(time.time(), 3), "event": event, "fleet": fleet, **fields}
        try:
            self.events.parent.mkdir(parents=True, exist_ok=True)
            with LogFile(self.events) as log:
                log.append(json.dumps(line))
        except OSError as error:
            raise cannot_write(self.events, error) from error

    def read_events(self) -> list[Event]:
        """Return the events so far; damaged lines are left out."""
        events: list[Event] = []
        for line in read_lines(self.events) if self.events.exists() else []:
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if isinstance(fields, dict):
                events.append(fields)
        return events


@contextlib.contextmanager
def lock_sweep(folder: SweepFolder) -> Generator[None]:
    """Keep other processes from carrying out the same sweep during the block.

    Folders that are still empty at the end are deleted.
    """
    created = [path for path in (folder.lock.parent, folder.path) if not path.exists()]
    try:
        folder.lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder.path, error) from error
    what = f"{folder.path}: another process carries out the sweep {folder.name!r}"
    try:
        with lock_file(folder.lock, lambda: UserError(f"{what}; wait for it or use another --out")):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty
            for path in created:
                path.rmdir()


def sweep_names(path: Path) -> list[str]:
    """Return the names of the sweeps in a folder."""
    return sorted(file.stem for file in (path / "plans").glob("*.json"))


def sweep_name(experiment: str, scale: float) -> str:
    """Return the name of a sweep: the experiment's, with the scale if it is scaled.

    Example:
        >>> sweep_name("main-table", 1.0), sweep_name("main-table", 0.01)
        ('main-table', 'main-table_x0.01')
    """
    return experiment if scale == 1 else f"{experiment}_x{scale:g}"


def finished_runs(folder: Path) -> dict[tuple[RunKey, int], Path]:
    """Return the folder of every finished run below a folder, by the run and its steps.

    Members that were stopped are not among them.
    """
    runs: dict[tuple[RunKey, int], Path] = {}
    for path in find_runs(folder):
        manifest = read_manifest(path)
        config = find_config(path) if manifest and manifest.status == "finished" else None
        if config is None:
            continue
        stopped = {
            x.name for x in fleet_members(config) if (path / x.name / "stopped.json").exists()
        }
        for key, member in zip(run_keys(config), fleet_members(config), strict=True):
            if member.name not in stopped:
                runs[key, config.steps] = path
    return runs


def saved_step(run: Path) -> int:
    """Return the decision step from which a run would resume; 0 without a checkpoint."""
    folder = run / CHECKPOINT_DIR
    for number in checkpoint_numbers(folder) if folder.is_dir() else []:
        with contextlib.suppress(DamagedCheckpointError):
            return read_checkpoint(folder, number).step
    return 0
