import os
import subprocess
import sys

import pytest

from r2r2.config.errors import UserError
from r2r2.storage import run_folder as subject
from r2r2.storage.run_folder import check_unlocked, is_locked, lock_run

HOLDING = """
import sys
from pathlib import Path
from r2r2.storage.run_folder import lock_run
with lock_run(Path(sys.argv[1])):
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
    assert not is_locked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_trains_is_refused(tmp_path, other):
    who = f"another process (pid {other.pid})"
    sentence = f"{tmp_path}: in use; {who} is training this run"
    assert is_locked(tmp_path)
    for ask in (check_unlocked, lambda run: lock_run(run, timeout=0).__enter__()):
        with pytest.raises(UserError) as refusal:
            ask(tmp_path)
        assert str(refusal.value) == sentence
    assert is_locked(tmp_path)


def test_a_process_that_is_killed_lets_go(tmp_path, other):
    other.kill()
    other.wait()
    assert os.listdir(tmp_path) == ["lock"]
    check_unlocked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_not_held_twice_in_one_process(tmp_path):
    with lock_run(tmp_path):
        with pytest.raises(UserError, match="in use; this process is training"):
            lock_run(tmp_path, timeout=0).__enter__()
        assert is_locked(tmp_path)


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
            with lock_run(tmp_path):
                assert looks == 1


def test_a_lock_that_was_taken_away_while_it_was_waited_for_is_none(tmp_path):
    path = tmp_path / "lock"
    number = os.open(path, os.O_CREAT | os.O_RDWR)
    assert subject._try_lock(number, path)
    path.unlink()
    assert not subject._try_lock(number, path)
    path.touch()
    assert not subject._try_lock(number, path)
    os.close(number)


def test_without_locks_a_run_goes_on_unguarded(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(subject.fcntl, "flock", none)
    with lock_run(tmp_path):
        assert not is_locked(tmp_path)


def test_a_link_is_neither_followed_nor_written(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to("precious")
    assert not is_locked(tmp_path)
    with pytest.raises(UserError, match="cannot write"):
        lock_run(tmp_path).__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert not is_locked(tmp_path / "x")
    with pytest.raises(UserError, match="x: cannot write: No such file"):
        lock_run(tmp_path / "x").__enter__()


@pytest.mark.parametrize("content", ["", "nobody", "9" * 100])
def test_an_unknown_holder_is_another_process(tmp_path, content, monkeypatch):
    with lock_run(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(
            UserError, match=r"in use; another process( \(pid 9+\))? is tr"
        ):
            check_unlocked(tmp_path)
