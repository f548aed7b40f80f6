"""When checkpoints are written."""

import threading

import numpy as np
import pytest

from r2r2.config.fields import parse_interval
from r2r2.storage.checkpoints import CheckpointContent
from r2r2.training import checkpointing
from r2r2.training.checkpointing import CheckpointWriter


class Fleet:
    """What a `CheckpointWriter` needs of a fleet."""

    opened = np.zeros(1, dtype=int)


def content(step):
    return CheckpointContent(step, {}, {}, {}, {}, earlier_segments=())


def test_checkpoint_is_due_at_every_multiple_of_steps(tmp_path):
    writer = CheckpointWriter(tmp_path, parse_interval("25"), keep=2)
    assert [writer.due(step) for step in (0, 24, 25, 26)] == [False, False, True, True]
    writer.write(content(27), Fleet)
    writer.wait()
    assert [writer.due(step) for step in (27, 49, 50, 90)] == [False, False, True, True]
    writer.close()


def test_checkpoint_is_due_a_time_after_the_last_one_began(tmp_path):
    now = 100.0
    writer = CheckpointWriter(tmp_path, parse_interval("0.5min"), keep=2, clock=lambda: now)
    assert not writer.due(10**6)
    now = 130.0
    assert writer.due(0)
    writer.write(content(3), Fleet)
    writer.wait()
    now = 159.0
    assert not writer.due(10**6)
    now = 160.0
    assert writer.due(4)
    writer.close()


def test_never_disables_checkpoints(tmp_path):
    writer = CheckpointWriter(tmp_path, parse_interval("never"), keep=2, clock=lambda: 0.0)
    assert not writer.enabled
    assert not writer.due(10**9)
    writer.close()


def test_no_checkpoint_is_due_while_one_is_written(tmp_path, monkeypatch):
    proceed, write = threading.Event(), checkpointing.write_checkpoint

    def slowly(*arguments):
        assert proceed.wait(timeout=60)
        return write(*arguments)

    monkeypatch.setattr(checkpointing, "write_checkpoint", slowly)
    writer = CheckpointWriter(tmp_path, parse_interval("1"), keep=2)
    writer.write(content(1), Fleet)
    writer.check()
    assert not writer.due(2)
    proceed.set()
    writer.wait()
    assert writer.due(2)
    writer.close()


def test_write_error_is_raised_by_the_next_check(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpointing, "write_checkpoint", full)
    writer = CheckpointWriter(tmp_path, parse_interval("1"), keep=2)
    writer.write(content(1), Fleet)
    writer.close()
    with pytest.raises(OSError, match="the disk is full"):
        writer.check()
