"""Signals and a closed output that reach the real program while it trains."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import train_tiny

from r2r2.training.signals import WAIT

pytestmark = [pytest.mark.slow, pytest.mark.optimized]

PROGRAM = """
import signal

# The background jobs of a shell ignore SIGINT, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
from r2r2.cli.main import entry
entry()
"""

# It hangs, in a reset or in a step, as long as a file of that name exists; not in the trial.
WAITING = """
import time
from pathlib import Path
import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box
from r2r2.envs.vector.trial import TRIAL_SEED

class Arm(Env):
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if seed != TRIAL_SEED:
            self.hang("reset")
        return self.np_random.uniform(-1, 1, 2), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 30:
            self.hang("step")
        return self.np_random.uniform(-1, 1, 2), 1.0, False, self.steps == 50, {}

    def hang(self, name):
        while Path(name).exists():
            Path("hanging").touch()
            time.sleep(0.01)

class LoudArm(Arm):
    def step(self, action):
        print("a step", flush=True)
        return super().step(action)
"""

FIELDS = {
    "env": "waiting:Arm",
    "seeds": "1",
    "steps": "120",
    "random_only": "true",
    "eval_every": "60",
    "workers": "0",  # a worker's environment would be stopped when it hangs
    "out": "run",
}


@pytest.fixture
def start(cli_settings, workdir):
    """Start the program in the empty folder, and wait until it hangs."""
    (workdir / "waiting.py").write_text(WAITING)
    processes = []

    def started(hangs, stdout=subprocess.PIPE, **changed):
        Path(hangs).touch()
        argv = [sys.executable, "-c", PROGRAM, *train_tiny(**FIELDS | changed)]
        process = subprocess.Popen(argv, stdout=stdout, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        wait_for(Path("hanging").exists, process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(condition, process):
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_writes_a_checkpoint_and_resumes(start, cli, number, code):
    process = start("step")
    process.send_signal(number)
    assert process.stderr.readline() == f"{WAIT}\n"
    Path("step").unlink()
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    message = "'run' stopped at step 30; resume with: r2r2 train --resume run"
    assert err == f"r2r2: {message}\n"
    resumed = cli("train", "--resume", "run", "--workers=0")
    assert (resumed.code, resumed.err) == (0, "")
    assert "from step 30\n" in resumed.out
    again = cli("train", "--resume", "run")
    assert again.out.startswith("run is already finished")


def test_a_second_signal_exits_at_once(start):
    terminal, child = pty.openpty()
    process = start("step", child)
    os.close(child)
    process.send_signal(signal.SIGTERM)
    # A live display shows above itself what is written to stderr.
    shown = b""
    while WAIT.encode() not in shown:
        shown += os.read(terminal, 10_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    while not shown.endswith(b"\x1b[?25h\r\n"):
        shown += os.read(terminal, 10_000)
    os.close(terminal)
    assert shown.count(b"\x1b[?25l") == 1


def test_a_run_interrupted_before_its_first_step_starts_again(start, cli):
    process = start("reset")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    message = "'run' stopped before its first step; resume with: "
    assert process.returncode == 130
    assert err == f"r2r2: {message}r2r2 train --resume run\n"
    Path("reset").unlink()
    resumed = cli("train", "--resume", "run", "--workers=0")
    assert (resumed.code, resumed.err) == (0, "")
    assert "before its first checkpoint" in resumed.out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_goes_on_when_its_output_is_closed(start, workers):
    process = start("step", env="waiting:LoudArm", workers=workers)
    assert process.stdout.readline()
    process.stdout.close()
    Path("step").unlink()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
    assert json.loads(Path("run/manifest.json").read_text())["status"] == "finished"
    assert "stopped" not in Path("run/events.jsonl").read_text()
    assert "episode_dropped" not in Path("run/events.jsonl").read_text()
