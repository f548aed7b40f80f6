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
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds the lock."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], **pipes) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_lock_is_held_in_the_block_and_removed_after(tmp_path):
    assert not is_locked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_lock_of_another_process_is_rejected(tmp_path, other):
    who = f"another process (pid {other.pid})"
    sentence = f"{tmp_path}: in use; {who} is training this run"
    assert is_locked(tmp_path)
    for ask in (check_unlocked, lambda run: lock_run(run, timeout=0).__enter__()):
        with pytest.raises(UserError) as error:
            ask(tmp_path)
        assert str(error.value) == sentence
    assert is_locked(tmp_path)


def test_killed_process_releases_the_lock(tmp_path, other):
    other.kill()
    other.wait()
    assert os.listdir(tmp_path) == ["lock"]
    check_unlocked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_lock_is_not_reentrant(tmp_path):
    with lock_run(tmp_path):
        with pytest.raises(UserError, match="in use; this process is training"):
            lock_run(tmp_path, timeout=0).__enter__()
        assert is_locked(tmp_path)


def test_shared_lock_of_a_reader_is_waited_for(tmp_path):
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


def test_lock_file_deleted_while_waiting_is_not_accepted(tmp_path):
    path = tmp_path / "lock"
    number = os.open(path, os.O_CREAT | os.O_RDWR)
    assert subject._try_lock(number, path)
    path.unlink()
    assert not subject._try_lock(number, path)
    path.touch()
    assert not subject._try_lock(number, path)
    os.close(number)


def test_file_system_without_locks_is_allowed(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(subject.fcntl, "flock", none)
    with lock_run(tmp_path):
        assert not is_locked(tmp_path)


def test_symbolic_link_is_neither_followed_nor_written(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to("precious")
    assert not is_locked(tmp_path)
    with pytest.raises(UserError, match="cannot write"):
        lock_run(tmp_path).__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_missing_folder_is_rejected(tmp_path):
    assert not is_locked(tmp_path / "x")
    with pytest.raises(UserError, match="x: cannot write: No such file"):
        lock_run(tmp_path / "x").__enter__()


@pytest.mark.parametrize("content", ["", "nobody", "9" * 100])
def test_unknown_owner_is_called_another_process(tmp_path, content, monkeypatch):
    with lock_run(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(UserError, match=r"in use; another process( \(pid 9+\))? is tr"):
            check_unlocked(tmp_path)
