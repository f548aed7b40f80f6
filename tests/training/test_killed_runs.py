"""Bit-exact resume of every family of agents, and after real kills."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupted import (
    NEVER,
    OFTEN,
    assert_same,
    assert_same_weights,
    killed_after,
    logged,
    tiny,
    train_saving,
)

from r2r2 import train
from r2r2.config.toml_io import to_toml
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import open_run
from r2r2.training import memory
from r2r2.training.memory import replay_rows
from r2r2.training.run_config import finalize_config

pytestmark = [pytest.mark.slow, pytest.mark.optimized]


@pytest.mark.parametrize(
    ("agent", "changes"),
    [
        ("td7-ln+r2r2", {"seeds": "5,"}),
        ("td7", {"seeds": 2, "agent.policy_checkpoints": False}),
        ("minphi+r2r2", {"seeds": 2}),
        ("simbav2", {"seeds": "5,"}),
        ("simbav2-spl+r2r2", {"seeds": 2}),
    ],
)
def test_every_family_resumes_bit_exact(tmp_path, agent, changes):
    config = tiny(agent, **changes)
    whole = train_saving(config, tmp_path / "whole", lambda number: number % 4 == 0)
    numbers = range(1, len(list((tmp_path / "whole/checkpoints").glob("*.json"))))
    for number in random.Random(agent).sample(numbers, 2):
        path = killed_after(whole, tmp_path / f"killed_{number}", number)
        assert_same(train(config, path, options=NEVER), whole)


class Command:
    """`r2r2 train` in a process, with a checkpoint after every step."""

    def __init__(self, tmp_path, config):
        (tmp_path / "run.toml").write_text(to_toml(finalize_config(config)))
        self.path, self._folder = tmp_path / "run", tmp_path
        self._words = [sys.executable, "-m", "r2r2", "train", "--config", "run.toml"]
        self._words += ["--out", "run", "--checkpoint-every", "1", "--workers", "2"]
        here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        self._env = os.environ | {
            "PYTHONPATH": os.pathsep.join(here),
            "XDG_CACHE_HOME": str(tmp_path),
        }

    def start(self):
        return subprocess.Popen(
            self._words, cwd=self._folder, env=self._env, start_new_session=True
        )

    def run_until(self, moment):
        """Start it, and kill all its processes when `moment` returns true."""
        process, before = self.start(), self.newest()
        try:
            while not moment(before):
                assert process.poll() is None, "it finished"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def files(self):
        folder = self.path / "checkpoints"
        return os.listdir(folder) if folder.exists() else []

    def newest(self):
        """Return the number of the newest checkpoint."""
        numbers = [int(name[:8]) for name in self.files() if name.endswith(".json")]
        return max(numbers, default=0)

    def torn(self):
        """Return whether a checkpoint is partly written."""
        numbers = [int(name[:8]) for name in self.files()]
        return max(numbers, default=0) > self.newest()


def test_resume_is_bit_exact_after_repeated_kills(tmp_path):
    """At random moments, and while a checkpoint is written."""
    config, rng = tiny(seeds=3, steps=200), random.Random(8)
    command, torn = Command(tmp_path, config), 0

    def in_writing(before):
        return command.newest() > before + 15 and command.torn()

    def at_random(before):
        if command.newest() == before:
            return False
        time.sleep(rng.uniform(0, 3))
        return True

    for moment in (in_writing, at_random, at_random):
        command.run_until(moment)
        torn += command.torn()
    assert torn, "no kill happened while a checkpoint was written"
    assert command.start().wait() == 0
    events = [event["event"] for event in read_events(command.path / "events.jsonl")]
    assert events.count("resumed") > 1
    whole = train(config, tmp_path / "whole", options=NEVER)
    ours = whole._replace(folder=open_run(command.path))
    assert_same(ours, whole)


def test_one_member_resumes_to_more_steps_bit_exact(tmp_path, monkeypatch):
    """With a replay buffer that grows, and updates pending at the end."""
    monkeypatch.setattr(memory, "MIN_ROWS", 80)
    roomy, path = {"seeds": "5,", "replay_size": 10_000}, tmp_path / "run"
    rows = [replay_rows(tiny(steps=steps, **roomy)) for steps in (49, 90)]
    assert rows == [160, 320]
    whole = train(tiny(steps=90, **roomy), tmp_path / "whole", options=NEVER)
    train(tiny(steps=49, **roomy), path, options=OFTEN)
    (end,) = [event for event in logged(path) if event["event"] == "end"]
    assert end["updates_not_made"] == 48
    longer = train(tiny(steps=90, **roomy), path, options=NEVER)
    ours, theirs = (run.folder.evaluations.read_text() for run in (longer, whole))
    (end,) = set(ours.splitlines()) - set(theirs.splitlines())
    assert ours.replace(f"{end}\n", "") == theirs
    assert ",49," in end
    # Evaluations of the last step ran before the next step, not beside it.
    logs = [logged(run.folder.path, ("resumed", "end")) for run in (longer, whole)]
    at_end = ("evaluation", "value", "diagnostics", "spectrum")
    logs[0] = [x for x in logs[0] if x["decision_step"] != 49 or x["event"] not in at_end]
    ours, theirs = (sorted(log, key=str) for log in logs)
    assert ours == theirs
    assert_same_weights(longer, whole)
