"""Sweeps with real processes, which are killed and interrupted."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r2r2.cli.main import main
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.run_folder import lock_pid

pytestmark = pytest.mark.slow

# Fleets that make updates, of which each takes some seconds.
GRID = """
[base]
env = "Pendulum-v1"
steps = 2000
warmup = 200
eval_every = 200
eval_episodes = 1
log_every = 100
width = 8
latent = 8
batch_size = 8
diagnostics.probe_batch = 16
diagnostics.probe_rows = 64

[[grids]]
agent = "td7+r2r2"
seeds = 2
utd = [1, 2]
"""
# Fleets that need no compiler and take a minute or more.
UNTRAINED = GRID.replace("steps = 2000", "steps = 1_000_000\nrandom_only = true")
PROGRAM = """
import signal

# The background jobs of a shell ignore SIGINT, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
from r2r2.cli.main import entry
entry()
"""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Leave compiled programs and measured speeds out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, own_cache):
    """The folder of a sweep without disturbance."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "grid.toml").write_text(GRID)
    assert main(["sweep", str(folder / "grid.toml"), "--out", str(folder / "sweeps")]) == 0
    return folder / "sweeps"


def evaluations(folder):
    """Return the content of all tables of evaluations, by run."""
    files = sorted((folder / "runs").glob("*/evaluations.csv"))
    return {file.parent.name: file.read_bytes() for file in files}


class SweepProcess:
    """The program in its own process and folder."""

    def __init__(self, folder, grid=GRID):
        (folder / "grid.toml").write_text(grid)
        self.out = folder / "sweeps"
        command = [sys.executable, "-c", PROGRAM, "sweep", "grid.toml"]
        self.log = (folder / "output.txt").open("a")
        pipes = {"stdout": self.log, "stderr": self.log, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=folder, **pipes)

    def wait_for_points(self, count):
        """Wait until the fleet that runs has so many evaluations; return its pid and folder."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert self.process.poll() is None
            for run in (self.out / "runs").glob("*"):
                pid, table = lock_pid(run), run / "evaluations.csv"
                if pid and table.exists() and len(table.read_text().splitlines()) > count:
                    return pid, run
            time.sleep(0.05)
        raise AssertionError("no evaluations")

    def end(self, timeout=300):
        code = self.process.wait(timeout)
        self.log.close()
        return code


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def sessions_of(pid):
    """Return all processes in the session of a fleet, among them its environment workers."""
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[3] == str(pid):
                pids.append(int(status.parent.name))
    return pids


def test_killed_and_interrupted_sweeps_end_with_the_same_bits(undisturbed, tmp_path):
    # The same fleets, whatever speeds were measured meanwhile.
    (tmp_path / "sweeps" / "plans").mkdir(parents=True)
    shutil.copy(undisturbed / "plans" / "grid.json", tmp_path / "sweeps" / "plans")
    sweep = SweepProcess(tmp_path)
    _, run = sweep.wait_for_points(4)
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.end() == 130
    assert list((run / "checkpoints").glob("*.npz")), "no checkpoint was written"
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(tmp_path / "sweeps", moved / "sweeps")
    sweep = SweepProcess(moved)
    pid, run = sweep.wait_for_points(10)
    os.kill(pid, signal.SIGKILL)
    assert sweep.end() == 0
    events = SweepFolder(sweep.out, "grid").read_events()
    failed = [event for event in events if event["event"] == "failed"]
    assert [(event["fleet"], event["code"]) for event in failed] == [(run.name, -9)]
    assert failed[0]["why"] == "killed by SIGKILL"
    assert evaluations(sweep.out) == evaluations(undisturbed)
    assert (sweep.out / "reports" / "grid" / "index.html").exists()


def test_nothing_is_left_of_a_sweep_that_is_killed(tmp_path):
    sweep = SweepProcess(tmp_path, UNTRAINED)
    pid, run = sweep.wait_for_points(1)
    group = sessions_of(pid)
    assert pid in group
    sweep.process.kill()
    sweep.end()
    deadline = time.monotonic() + 120
    while any(map(is_alive, group)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list((run / "checkpoints").glob("*.npz")), "no checkpoint was written"


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path):
    sweep = SweepProcess(tmp_path, UNTRAINED)
    pid, _ = sweep.wait_for_points(1)
    group = sessions_of(pid)
    os.kill(pid, signal.SIGSTOP)  # it cannot react
    sweep.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert sweep.process.poll() is None
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.end(20) == 130
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 60
    while any(map(is_alive, group)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_smoke_sweep_goes_from_nothing_to_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # nothing is compiled yet
    started = time.monotonic()
    assert main(["sweep", "smoke", "--out", str(tmp_path / "sweeps")]) == 0
    assert time.monotonic() - started < 12 * 60
    output = capsys.readouterr().out
    assert "24 of 24 runs finished" in output
    tables = tmp_path / "sweeps" / "reports" / "smoke" / "tables"
    cells = (tables / "paper_cells.md").read_text()
    assert cells.count("missing") == 297  # none of the paper's cells is in this experiment
    assert not (tables / "planned.md").exists()
    runs = (tables / "runs.md").read_text()
    assert runs.count("| finished |") == len(list((tmp_path / "sweeps" / "runs").iterdir()))
