"""Run folders whose logs are written by the test."""

import contextlib
import os

from r2r2.cli.run_monitor import RunMonitor
from r2r2.cli.watch_view import Size, render_runs
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Member
from r2r2.storage.evaluations import Row, append_evaluations
from r2r2.storage.events import EventLog, StepCounts
from r2r2.storage.run_folder import create_run, lock_run, write_manifest


class GrowingRun:
    """A run of 1000 decision steps."""

    def __init__(self, path, overwrite=False, **fields):
        defaults = {"env": "walk", "seeds": 2, "steps": 1000, "warmup": 100, "utd": 3}
        config = resolve(defaults | {"action_repeat": 2} | fields)
        self.members = [Member(t, s) for t in config.env for s in config.seeds]
        names = [member.name for member in self.members]
        self.folder = create_run(path, to_toml(config), names, overwrite)
        write_manifest(
            path, names, "running"
        )  # without a copy, so that tests can change the config
        self.path, self.now = path, 0.0

    def event(self, event, decisions, updates, member=None, **fields):
        """Append an event of a member, by its index, or of the run."""
        name = None if member is None else self.members[member].name
        seconds = iter([0.0, self.now])
        with EventLog(self.folder.events, clock=lambda: next(seconds)) as log:
            steps = StepCounts(2 * decisions, decisions, updates)
            log.write(event, steps, name, fields)

    def step(self, seconds, decisions, updates=0):
        """Append an event of every member."""
        self.now = seconds
        for member in range(len(self.members)):
            self.event("losses", decisions, updates, member, **{"loss/critic": 1.0})

    def returns(self, decisions, *values):
        """Append evaluations, in the order of the members."""
        pairs = zip(self.members, values, strict=False)
        rows = [Row("td7", *m, "return", 2 * decisions, value) for m, value in pairs]
        append_evaluations(self.folder.evaluations, rows)

    @contextlib.contextmanager
    def training(self):
        """Hold the lock, as a process that trains the run does."""
        with lock_run(self.path):
            yield

    def age(self, seconds):
        """Make the log's last change older."""
        status = self.folder.events.stat()
        os.utime(self.folder.events, (status.st_atime, status.st_mtime - seconds))


def render_paths(*paths, width=80, height=0, ascii_only=False, now=None):
    """Return the rows that show the runs in some folders."""
    runs = [RunMonitor(path) for path in paths]
    for run in runs:
        run.refresh()
    return render(runs, width, height, ascii_only, now)


def render(runs, width=80, height=0, ascii_only=False, now=None):
    """Return the rows that show some runs."""
    latest = max((run.modified or 0.0 for run in runs), default=0.0)
    size = Size(width, height, ascii_only)
    rows = render_runs(runs, latest if now is None else now, size)
    return [row.plain for row in rows]
