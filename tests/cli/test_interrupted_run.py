"""Signals that reach the real program while it trains."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import train_tiny

from r2r2.cli.signals import WAIT

pytestmark = pytest.mark.slow

PROGRAM = """
import signal

# A shell's background job has it ignored, and hands that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
from r2r2.cli.main import entry
entry()
"""

# It hangs, in a reset or in a step, for as long as a file of that name is there.
WAITING = """
import time
from pathlib import Path
import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box

class Arm(Env):
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
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
"""

FIELDS = {
    "env": "waiting:Arm",
    "seeds": "1",
    "steps": "120",
    "warmup": "200",
    "eval_every": "60",
    "workers": "0",  # or an environment that hangs is cut off
    "out": "run",
}


@pytest.fixture
def start(caches, here):
    """Starts the program in the empty folder, until it hangs."""
    (here / "waiting.py").write_text(WAITING)
    running = []

    def started(hangs, stdout=subprocess.PIPE):
        Path(hangs).touch()
        argv = [sys.executable, "-c", PROGRAM, *train_tiny(**FIELDS)]
        process = subprocess.Popen(
            argv, stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        wait_for(Path("hanging").exists, process)
        return process

    yield started
    for process in running:
        process.kill()
        process.communicate()


def wait_for(holds, process):
    deadline = time.monotonic() + 240
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_an_interrupted_run_is_left_with_a_checkpoint_and_goes_on(
    start, r2r2, number, code
):
    process = start("step")
    process.send_signal(number)
    assert process.stderr.readline() == f"{WAIT}\n"
    Path("step").unlink()
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    said = "r2r2: 'run' is left at step 30; go on with: r2r2 train --resume run\n"
    assert err == said
    found = r2r2("train", "--resume", "run", "--workers=0")
    assert (found.code, found.err) == (0, "")
    assert "run: resuming from step 30\n" in found.out
    assert r2r2("train", "--resume", "run").out.startswith("run is finished already")


def test_one_that_is_asked_twice_is_left_at_once(start):
    screen, theirs = pty.openpty()
    process = start("step", theirs)
    os.close(theirs)
    process.send_signal(signal.SIGTERM)
    # A live bar has what is written to stderr shown above it.
    shown = b""
    while WAIT.encode() not in shown:
        shown += os.read(screen, 10_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    while not shown.endswith(b"\x1b[?25h\r\n"):
        shown += os.read(screen, 10_000)
    os.close(screen)
    assert shown.count(b"\x1b[?25l") == 1  # the bar's


def test_one_that_is_being_built_is_left_where_it_is(start, r2r2):
    process = start("reset")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    said = "r2r2: 'run' is unfinished; go on with: r2r2 train --resume run\n"
    assert (process.returncode, err) == (130, said)
    Path("reset").unlink()
    found = r2r2("train", "--resume", "run", "--workers=0")
    assert (found.code, found.err) == (0, "")
    assert "stopped before its first checkpoint; starting from step 0" in found.out
