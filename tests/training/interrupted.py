"""Runs that are interrupted and resumed, and checks that two runs are the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from r2r2 import api, resolve, train
from r2r2.api import Result, RunOptions
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import read_manifest, write_manifest
from r2r2.training.checkpointing import CheckpointWriter

# Two evaluations per point, losses between them, and a replay buffer that fills up:
# all of them are incomplete when a checkpoint is taken.
TINY = {
    "env": "walks:Walk",
    "steps": 60,
    "warmup": 10,
    "utd": 2,
    "replay_size": 40,
    "eval_every": 30,
    "eval_average": 2,
    "eval_episodes": 2,
    "log_every": 20,
}
SIZES = "width latent model_width actor_width critic_width".split()
NEVER = RunOptions(workers=0, checkpoint_every="never")
OFTEN = RunOptions(workers=0, checkpoints=10**6)


class Interrupt(KeyboardInterrupt):
    """Ends a run as a signal does."""


def tiny(agent="td7+r2r2", **changes):
    """Return the config of a small run."""
    config = resolve({"agent": agent, "env": "any"}).agent
    small = {f"agent.{name}": 8 for name in SIZES if hasattr(config, name)}
    small |= {"agent.batch_size": 4, "agent.discount": 0.9}
    if agent.startswith("td7"):
        small["agent.target_period"] = 10
    return resolve({"agent": agent}, TINY, small, changes)


def saving_at(iterations: Callable[[int], bool]) -> type[CheckpointWriter]:
    """Return a writer that saves after these iterations of the loop.

    It waits for each write, so that none is skipped.
    """

    class AtIterations(CheckpointWriter):
        iteration = 0

        def due(self, step):
            self.iteration += 1
            return iterations(self.iteration)

        def write(self, content, fleet):
            super().write(content, fleet)
            self.wait()

    return AtIterations


def train_saving(config, path, iterations, options=OFTEN):
    """Train with checkpoints after these iterations, all of them kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "CheckpointWriter", saving_at(iterations))
        return train(config, path, options=options)


def interrupt(config, path, when, options=OFTEN, **more):
    """Train until `when(progress)` holds after an iteration."""

    def on_progress(progress):
        if progress.decisions.max() and when(progress):
            raise Interrupt

    with pytest.raises(Interrupt):
        train(config, path, on_progress=on_progress, options=options, **more)


def killed_after(whole: Result, path: Path, number: int) -> Path:
    """Return a copy of a run as if killed before later checkpoints were written."""
    shutil.copytree(whole.folder.path, path)
    manifest = read_manifest(path)
    write_manifest(path, manifest.members, "running", copies=manifest.copies)
    for file in (path / "checkpoints").iterdir():
        if int(file.name[:8]) > number:
            file.unlink()
    return path


def checkpoint(run: Path, number: int) -> tuple[dict, dict]:
    """Return the arrays and the notes of a checkpoint."""
    path = run / "checkpoints" / f"{number:08}.json"
    return read_arrays(path.with_suffix(".npz")), json.loads(path.read_text())["notes"]


def logged(run: Path, without=("resumed",)) -> list[dict]:
    """Return all events without their times, and without those that only measure times."""
    events = read_events(run / "events.jsonl")
    return [
        {name: value for name, value in event.items() if name != "time"}
        for event in events
        if event["event"] not in (*without, "time")
    ]


def assert_same_weights(ours: Result, theirs: Result) -> None:
    """Check that all weights, the last and the best, are equal to the bit."""
    assert ours.members == theirs.members
    for name in theirs.folder.members:
        a, b = (run.folder.best_weights(name) for run in (ours, theirs))
        assert a.exists() == b.exists()
        assert not b.exists() or a.read_bytes() == b.read_bytes()
    for name in theirs.folder.members:
        a, b = (read_arrays(run.folder.weights(name)) for run in (ours, theirs))
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].dtype == b[key].dtype
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def assert_same(ours: Result, theirs: Result, without=("resumed",)) -> None:
    """Check that weights, logs and the table are equal to the bit."""
    assert_same_weights(ours, theirs)
    logs = [logged(run.folder.path, without) for run in (ours, theirs)]
    assert logs[0] == logs[1]
    tables = [run.folder.evaluations.read_bytes() for run in (ours, theirs)]
    assert tables[0] == tables[1]
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    assert (ours.random, ours.stopped) == (theirs.random, theirs.stopped)
