"""Run folders that grow as a test says: quick to make, every number is chosen."""

import contextlib
import os

from r2r2.cli.run_monitor import Watched
from r2r2.cli.terminal_curve import Size
from r2r2.cli.watch_view import picture
from r2r2.config.resolve import resolve
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Member
from r2r2.storage.evaluations import Row, append_evaluations
from r2r2.storage.events import EventLog, StepCounts
from r2r2.storage.run_folder import create_run, lock_run


class Grown:
    """A run of 1000 decision steps whose log is written by the test."""

    def __init__(self, path, overwrite=False, **fields):
        layers = {"env": "walk", "seeds": 2, "steps": 1000, "warmup": 100, "utd": 3}
        config = resolve(layers | {"action_repeat": 2} | fields)
        self.members = [Member(t, s) for t in config.env for s in config.seeds]
        names = [member.name for member in self.members]
        self.folder = create_run(path, to_toml(config), names, overwrite)
        self.path, self.now = path, 0.0

    def event(self, event, decisions, updates, member=None, **fields):
        """One event of a member, by its place, or of the run."""
        name = None if member is None else self.members[member].name
        with EventLog(self.folder.events, clock=lambda: 0.0) as log:
            log._start = -self.now
            log.write(
                event, StepCounts(2 * decisions, decisions, updates), name, fields
            )

    def step(self, seconds, decisions, updates=0):
        """All members come to a step."""
        self.now = seconds
        for member in range(len(self.members)):
            self.event("losses", decisions, updates, member, **{"loss/critic": 1.0})

    def returns(self, decisions, *values):
        """A point of the curve, in the order of the members."""
        pairs = zip(self.members, values, strict=False)
        rows = [Row("td7", *m, "return", 2 * decisions, value) for m, value in pairs]
        append_evaluations(self.folder.evaluations, rows)

    @contextlib.contextmanager
    def trained(self):
        """While something trains it: this process."""
        with lock_run(self.path):
            yield

    def age(self, seconds):
        """The time of the log's last change, so long before the time it has."""
        found = self.folder.events.stat()
        os.utime(self.folder.events, (found.st_atime, found.st_mtime - seconds))


def seen(*paths, width=80, height=0, ascii_only=False, now=None):
    """The rows of a picture of runs."""
    runs = [Watched(path) for path in paths]
    for run in runs:
        run.look()
    return shown(runs, width, height, ascii_only, now)


def shown(runs, width=80, height=0, ascii_only=False, now=None):
    """The rows of a picture of runs that are watched already."""
    now = max((run.changed or 0.0 for run in runs), default=0.0) if now is None else now
    rows = picture(runs, now, Size(width, height, ascii_only))
    return [row.plain for row in rows]
