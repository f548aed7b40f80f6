"""When checkpoints are taken."""

import threading

import numpy as np
import pytest

from r2r2.config.fields import parse_interval
from r2r2.storage.checkpoints import CheckpointContent
from r2r2.training import checkpointing as subject
from r2r2.training.checkpointing import CheckpointWriter


class Fleet:
    """As far as a saver that writes looks at it."""

    opened = np.zeros(1, dtype=int)


def content(step):
    return CheckpointContent(step, {}, {}, {}, {}, earlier_segments=())


def test_by_steps_one_is_due_at_every_multiple(tmp_path):
    saver = CheckpointWriter(tmp_path, parse_interval("25"), keep=2)
    assert [saver.due(step) for step in (0, 24, 25, 26)] == [False, False, True, True]
    saver.write(content(27), Fleet)
    saver.wait()
    assert [saver.due(step) for step in (27, 49, 50, 90)] == [False, False, True, True]
    saver.close()


def test_by_the_clock_one_is_due_so_long_after_the_last_began(tmp_path):
    now = 100.0
    saver = CheckpointWriter(
        tmp_path, parse_interval("0.5min"), keep=2, clock=lambda: now
    )
    assert not saver.due(10**6)
    now = 130.0
    assert saver.due(0)
    saver.write(content(3), Fleet)
    saver.wait()
    now = 159.0
    assert not saver.due(10**6)
    now = 160.0
    assert saver.due(4)
    saver.close()


def test_never_is_never(tmp_path):
    saver = CheckpointWriter(
        tmp_path, parse_interval("never"), keep=2, clock=lambda: 0.0
    )
    assert not saver.enabled
    assert not saver.due(10**9)
    saver.close()


def test_none_is_due_while_one_is_being_written(tmp_path, monkeypatch):
    go_on, write = threading.Event(), subject.write_checkpoint

    def slowly(*arguments):
        assert go_on.wait(timeout=60)
        return write(*arguments)

    monkeypatch.setattr(subject, "write_checkpoint", slowly)
    saver = CheckpointWriter(tmp_path, parse_interval("1"), keep=2)
    saver.write(content(1), Fleet)
    saver.check()
    assert not saver.due(2)
    go_on.set()
    saver.wait()
    assert saver.due(2)
    saver.close()


def test_what_went_wrong_in_writing_is_raised_at_the_next_look(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(subject, "write_checkpoint", full)
    saver = CheckpointWriter(tmp_path, parse_interval("1"), keep=2)
    saver.write(content(1), Fleet)
    saver.close()
    with pytest.raises(OSError, match="the disk is full"):
        saver.check()
