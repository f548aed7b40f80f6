"""Runs that are left and gone on with, and what it takes for two to be the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from r2r2 import api as start
from r2r2 import resolve, train
from r2r2.api import Result, RunOptions
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events
from r2r2.training.checkpointing import CheckpointWriter

# Two evaluations to a point, losses between them, and a replay that comes to its end:
# all of them are then left half done.
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


class Left(KeyboardInterrupt):
    """What ends a run, as a signal does."""


def tiny(agent="td7+r2r2", **changes):
    """The config of a small run."""
    own = resolve({"agent": agent, "env": "any"}).agent
    small = {f"agent.{name}": 8 for name in SIZES if hasattr(own, name)}
    small |= {"agent.batch_size": 4, "agent.discount": 0.9}
    if agent.startswith("td7"):
        small["agent.target_period"] = 10
    return resolve({"agent": agent}, TINY, small, changes)


def saved_at(turns: Callable[[int], bool]) -> type[CheckpointWriter]:
    """A saver that takes a checkpoint after these turns of the loop, not by the clock.

    It has none under way when the next is due, so that it takes all of them.
    """

    class AtTurns(CheckpointWriter):
        turn = 0

        def due(self, step):
            self.turn += 1
            return turns(self.turn)

        def write(self, content, fleet):
            super().write(content, fleet)
            self.wait()

    return AtTurns


def train_saving(config, path, turns, options=OFTEN):
    """A whole run with checkpoints after these turns, all of them kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "CheckpointWriter", saved_at(turns))
        return train(config, path, options=options)


def leave(config, path, when, options=OFTEN, **more):
    """Trains until `when(progress)` holds after a turn."""

    def watch(progress):
        if progress.decisions.max() and when(progress):
            raise Left

    with pytest.raises(Left):
        train(config, path, on_progress=watch, options=options, **more)


def killed_after(whole: Result, path: Path, number: int) -> Path:
    """What a kill leaves that comes when later checkpoints are not there yet."""
    shutil.copytree(whole.folder.path, path)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"finished"', '"running"'))
    for file in (path / "checkpoints").iterdir():
        if int(file.name[:8]) > number:
            file.unlink()
    return path


def checkpoint(run: Path, number: int) -> tuple[dict, dict]:
    """The arrays and the notes of a checkpoint."""
    path = run / "checkpoints" / f"{number:08}.json"
    return read_arrays(path.with_suffix(".npz")), json.loads(path.read_text())["notes"]


def logged(run: Path, without=("resumed",)) -> list[dict]:
    """All events but for their times."""
    found = read_events(run / "events.jsonl")
    return [
        {name: value for name, value in event.items() if name != "time"}
        for event in found
        if event["event"] not in without
    ]


def assert_same_weights(ours: Result, theirs: Result) -> None:
    """Every member's, to the bit."""
    assert ours.members == theirs.members
    for name in theirs.folder.members:
        a, b = (read_arrays(run.folder.weights(name)) for run in (ours, theirs))
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].dtype == b[key].dtype
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def assert_same(ours: Result, theirs: Result, without=("resumed",)) -> None:
    """Every weight, every logged number and the table are the same to the bit."""
    assert_same_weights(ours, theirs)
    logs = [logged(run.folder.path, without) for run in (ours, theirs)]
    assert logs[0] == logs[1]
    tables = [run.folder.evaluations.read_bytes() for run in (ours, theirs)]
    assert tables[0] == tables[1]
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    assert (ours.random, ours.stopped) == (theirs.random, theirs.stopped)
