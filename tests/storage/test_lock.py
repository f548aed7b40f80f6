import os
import subprocess
import sys

import pytest

from r2r2.config.errors import UserError
from r2r2.storage import lock as subject
from r2r2.storage.lock import check_free, hold, is_held

HOLDING = """
import sys
from pathlib import Path
from r2r2.storage.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the folder."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], **pipes
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_is_held_within_and_nothing_is_left(tmp_path):
    assert not is_held(tmp_path)
    with hold(tmp_path):
        assert is_held(tmp_path)
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not is_held(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_trains_is_refused(tmp_path, other, monkeypatch):
    monkeypatch.setattr(subject, "PATIENCE", 0)
    who = f"another process (pid {other.pid})"
    sentence = f"run is '{tmp_path}', which {who} is training"
    assert is_held(tmp_path)
    for ask in (check_free, lambda run: hold(run).__enter__()):
        with pytest.raises(UserError) as refusal:
            ask(tmp_path)
        assert str(refusal.value) == sentence
    assert is_held(tmp_path)


def test_a_process_that_is_killed_lets_go(tmp_path, other):
    other.kill()
    other.wait()
    assert os.listdir(tmp_path) == ["lock"]
    check_free(tmp_path)
    with hold(tmp_path):
        assert is_held(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_not_held_twice_in_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "PATIENCE", 0)
    with hold(tmp_path):
        with pytest.raises(UserError, match="which this process is training"):
            hold(tmp_path).__enter__()
        assert is_held(tmp_path)


def test_who_only_looks_does_not_keep_others_from_holding(tmp_path):
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as file:
        subject.fcntl.flock(file, subject.fcntl.LOCK_SH)
        looks = 0

        def sleep(_):
            nonlocal looks
            looks += 1
            subject.fcntl.flock(file, subject.fcntl.LOCK_UN)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subject.time, "sleep", sleep)
            with hold(tmp_path):
                assert looks == 1


def test_a_lock_that_was_taken_away_while_it_was_waited_for_is_none(tmp_path):
    path = tmp_path / "lock"
    number = os.open(path, os.O_CREAT | os.O_RDWR)
    assert subject._taken(number, path)
    path.unlink()
    assert not subject._taken(number, path)
    path.touch()
    assert not subject._taken(number, path)
    os.close(number)


def test_without_locks_a_run_goes_on_unguarded(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(subject.fcntl, "flock", none)
    with hold(tmp_path):
        assert not is_held(tmp_path)


def test_a_link_is_neither_followed_nor_written(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to("precious")
    assert not is_held(tmp_path)
    with pytest.raises(UserError, match="which cannot be written"):
        hold(tmp_path).__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert not is_held(tmp_path / "x")
    with pytest.raises(UserError, match="x', which cannot be written: No such file"):
        hold(tmp_path / "x").__enter__()


@pytest.mark.parametrize("content", ["", "nobody", "9" * 100])
def test_an_unknown_holder_is_another_process(tmp_path, content, monkeypatch):
    with hold(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(
            UserError, match=r"which another process( \(pid 9+\))? is tr"
        ):
            check_free(tmp_path)
