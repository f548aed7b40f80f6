import io
import os

import pytest

from r2r2.config.errors import UserError
from r2r2.storage import events as subject
from r2r2.storage.events import LogTail


@pytest.fixture
def log(tmp_path):
    return tmp_path / "events.jsonl"


def add(log, text):
    with log.open("a") as file:
        file.write(text)


def test_read_returns_the_new_lines(log):
    tail = LogTail(log)
    add(log, "one\ntwo\n")
    assert tail.read() == (False, [(1, "one"), (2, "two")], None)
    assert tail.read() == (False, [], None)
    add(log, "three\n")
    assert tail.read() == (False, [(3, "three")], None)


def test_only_new_bytes_are_read(log, monkeypatch):
    tail = LogTail(log)
    add(log, "x" * 5000 + "\n")
    tail.read()
    taken = []

    class Counted(io.FileIO):
        def read(self, most=-1):
            taken.append(super().read(most))
            return taken[-1]

    monkeypatch.setattr(subject, "open_regular", Counted)
    add(log, "new\n")
    assert tail.read().lines == [(2, "new")]
    assert sum(map(len, taken)) == subject.CONTEXT_BYTES + len("new\n")


def test_incomplete_line_waits(log):
    tail = LogTail(log)
    add(log, "one\ntw")
    assert tail.read().lines == [(1, "one")]
    assert tail.read().lines == []
    add(log, "o\nth")
    assert tail.read().lines == [(2, "two")]


def test_missing_log_is_empty(log):
    tail = LogTail(log)
    assert tail.read() == (False, [], None)
    add(log, "one\n")
    assert tail.read() == (False, [(1, "one")], None)


def test_truncated_log_is_read_again(log):
    tail = LogTail(log)
    add(log, "one\ntwo\nthree\n")
    tail.read()
    log.write_text("one\n")
    assert tail.read() == (True, [(1, "one")], None)


def test_truncated_log_that_has_grown_is_read_again(log):
    tail = LogTail(log)
    add(log, "one\ntwo\n")
    tail.read()
    os.truncate(log, len("one\n"))
    add(log, "other\nlines\nin its place\n")
    assert tail.read().restarted
    add(log, "more\n")
    assert tail.read() == (False, [(5, "more")], None)


def test_deleted_log_restarts(log):
    tail = LogTail(log)
    add(log, "one\n")
    tail.read()
    log.unlink()
    assert tail.read() == (True, [], None)
    assert tail.read() == (False, [], None)
    add(log, "one\n")
    assert tail.read().lines == [(1, "one")]


def test_invalid_utf8_is_reported_and_skipped(log):
    log.write_bytes(b"one\n\xff\xfe\nthree\n")
    news = LogTail(log).read()
    assert news.lines == [(1, "one"), (3, "three")]
    assert news.error == f"{log}: line 2 is damaged: not valid UTF-8"


def test_lines_longer_than_a_chunk_are_complete(log, monkeypatch):
    monkeypatch.setattr(subject, "CHUNK_BYTES", 4)
    add(log, "a line of some length\nb\n")
    assert LogTail(log).read().lines == [(1, "a line of some length"), (2, "b")]


def test_endless_line_is_reported_and_not_read(log, monkeypatch):
    monkeypatch.setattr(subject, "CHUNK_BYTES", 8)
    monkeypatch.setattr(subject, "MAX_LINE_BYTES", 16)
    add(log, "one\n" + "x" * 100 + "\nthree\n")
    news = LogTail(log).read()
    assert news.lines == [(1, "one")]
    assert "line 1 is damaged" in news.error
    assert news.error.endswith("is damaged: the following line has no end")


def test_links_and_pipes_are_not_opened(log, tmp_path):
    (tmp_path / "elsewhere").write_text("one\n")
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot read: is a symbolic link"):
        LogTail(log).read()
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(UserError, match="cannot read: is not a regular file"):
        LogTail(log).read()


def test_log_is_not_modified(log):
    add(log, "one\ntw")
    before = log.read_bytes(), log.stat().st_mtime_ns
    log.chmod(0o400)
    LogTail(log).read()
    assert (log.read_bytes(), log.stat().st_mtime_ns) == before
