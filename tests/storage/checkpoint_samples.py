"""Checkpoint contents for tests, also for a writer process that gets killed."""

import sys
from pathlib import Path

import numpy as np

from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import (
    REPLAY_SEGMENT,
    CheckpointContent,
    file_name,
    latest_valid,
    write_checkpoint,
)


def content(step, needs=(), size=50):
    """Return a content that differs from that of any other step in every part."""
    arrays = {"actor/kernel": np.full((2, size), step, np.float32)}
    arrays["key"] = np.arange(4, dtype=np.uint32) + step
    worlds = {"0/qpos": np.full(3, step / 3), "0/done": np.array(step % 2 == 0)}
    segment = {"reward": np.full((3, size), step, np.float32), "empty": np.zeros((0, 2))}
    notes = {"step": step, "points": [[1.5, None], []], "word": "é"}
    return CheckpointContent(step, notes, arrays, worlds, segment, tuple(needs))


def assert_intact(latest, size=50, segments=None):
    """Check that a checkpoint has the content of its step."""
    wanted = content(latest.step, size=size)
    assert latest.metadata == wanted.metadata
    assert_same(read_arrays(latest.arrays), wanted.arrays)
    assert_same(read_arrays(latest.env_states), wanted.env_states)
    for path in latest.segments:
        step = int(path.name[:8]) if segments is None else segments[path.name]
        assert_same(read_arrays(path), content(step, size=size).replay_segment)


def assert_same(latest, wanted):
    assert list(latest) == list(wanted)
    for name, array in wanted.items():
        assert latest[name].dtype == array.dtype, name
        np.testing.assert_array_equal(latest[name], array, strict=True)


def write_forever(folder, size):
    """Write checkpoints of two earlier segments each, forever."""
    newest, _ = latest_valid(folder)
    while True:
        before = [] if newest is None else [path.name for path in newest.segments[-2:]]
        taken = [int(path.name[:8]) for path in folder.glob("[0-9]*")]
        number = max([0, *taken]) + 1
        newest = write_checkpoint(folder, content(number, before, size), keep=2)
        assert newest.segments[-1].name == file_name(number, REPLAY_SEGMENT)
        print(number, flush=True)


if __name__ == "__main__":
    write_forever(Path(sys.argv[1]), int(sys.argv[2]))
