"""Standard output that nobody reads any more."""

import os
import sys

from r2r2.envs.output import lossy_output


def test_closed_output_discards_what_follows(monkeypatch):
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lossy_output():
            print("read", flush=True)
            assert os.read(read_end, 100) == b"read\n"
            os.close(read_end)
            for _ in range(3):
                print("lost" * 10_000, flush=True)
            assert not sys.stdout.isatty()
            print("in the buffer")
        assert sys.stdout is stream


def test_missing_output_stays_missing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with lossy_output():
        print("lost")
    assert sys.stdout is None
