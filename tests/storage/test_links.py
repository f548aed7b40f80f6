"""Symbolic links in a run: the user's own folders are followed, everything else is refused."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.storage.checkpoints import CheckpointContent, latest_valid, write_checkpoint
from r2r2.storage.disk_usage import delete_run, removable_checkpoints, run_usage
from r2r2.storage.run_folder import create_run, open_run, reopen_run

MEMBERS = ["a_s0"]
OTHER_USER = 54321
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def write(run, step):
    arrays = {"x": np.zeros(3)}
    return write_checkpoint(run / "checkpoints", CheckpointContent(step, {}, arrays, {}, {}, ()), 2)


@pytest.fixture
def run(tmp_path):
    """An unfinished run with a checkpoint."""
    path = create_run(tmp_path / "run", "", MEMBERS, overwrite=False).path
    write(path, 7)
    return path


def move(path, target):
    """Move a folder, and leave a link to it."""
    shutil.move(path, target)
    path.symlink_to(target)
    return target


@pytest.fixture(params=["same file system", "other file system"])
def scratch(request, tmp_path):
    """A folder of the user, where linked folders are kept."""
    if request.param == "same file system":
        (tmp_path / "scratch").mkdir()
        yield tmp_path / "scratch"
        return
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def test_linked_checkpoints_are_read_and_written_where_they_are(run, scratch):
    target = move(run / "checkpoints", scratch / "checkpoints")
    reopen_run(run, "steps = 9")
    assert write(run, 8).number == 2
    assert (run / "checkpoints").is_symlink()
    checkpoint, damaged = latest_valid(run / "checkpoints")
    assert (checkpoint.step, damaged) == (8, [])
    assert {"00000001.npz", "00000002.json"} < set(os.listdir(target))
    assert not [name for name in os.listdir(target) if name.endswith(".tmp")]


def test_linked_run_is_resumed_and_overwritten(run, scratch):
    target = move(run, scratch / "run")
    reopen_run(run, "steps = 9")
    assert (target / "config.toml").read_text() == "steps = 9"
    create_run(run, "other", MEMBERS, overwrite=True)
    assert run.is_symlink()
    assert open_run(target).config_text() == "other"
    assert not (target / "checkpoints").exists()


def test_linked_member_is_followed(run, scratch):
    move(run / "a_s0", scratch / "a_s0")
    reopen_run(run, "")


def test_links_that_the_run_does_not_write_to_are_ignored(run, tmp_path):
    (run / "notes.txt").symlink_to(tmp_path / "missing")
    (run / "data").symlink_to(tmp_path)
    reopen_run(run, "")


def dangling(run, tmp_path):
    (run / "checkpoints").symlink_to(tmp_path / "missing")


def looping(run, tmp_path):
    (run / "checkpoints").symlink_to("checkpoints")


def to_a_file(run, tmp_path):
    (tmp_path / "file").write_text("precious")
    (run / "checkpoints").symlink_to(tmp_path / "file")


def to_other_files(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("precious")
    (run / "checkpoints").symlink_to(tmp_path / "thesis")


def to_another_run(run, tmp_path):
    other = create_run(tmp_path / "other", "", MEMBERS, overwrite=False).path
    write(other, 3)
    (run / "checkpoints").symlink_to("../other/checkpoints")


def to_a_folder_of_all_users(run, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (run / "checkpoints").symlink_to(tmp_path / "open")


def in_a_folder_of_all_users(run, tmp_path):
    (tmp_path / "scratch").mkdir()
    (run / "checkpoints").symlink_to(tmp_path / "scratch")
    run.chmod(0o777)


def to_another_user(run, tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHER_USER, OTHER_USER)
    (run / "checkpoints").symlink_to(tmp_path / "theirs")


def of_another_user(run, tmp_path):
    (tmp_path / "scratch").mkdir()
    (run / "checkpoints").symlink_to(tmp_path / "scratch")
    os.lchown(run / "checkpoints", OTHER_USER, OTHER_USER)


def inside_checkpoints(run, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "00000002.json").symlink_to(tmp_path / "precious")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (dangling, "is a symbolic link to nothing; expected a folder"),
        (looping, "is a symbolic link to nothing; expected a folder"),
        (to_a_file, "is a symbolic link to a file; only folders may be linked"),
        (to_other_files, "is a symbolic link to other files: 'thesis.tex'"),
        (to_another_run, "is a symbolic link into another run, '{}/other'"),
        (to_a_folder_of_all_users, "is a symbolic link to '{}/open', which all users can write"),
        (in_a_folder_of_all_users, "is a symbolic link in a folder that all users can write"),
        pytest.param(
            to_another_user,
            "is a symbolic link to '{}/theirs', which belongs to another user",
            marks=AS_ROOT,
        ),
        pytest.param(
            of_another_user, "is a symbolic link that belongs to another user", marks=AS_ROOT
        ),
        (inside_checkpoints, "is a symbolic link; cannot resume the run"),
    ],
)
def test_unsafe_link_is_refused_with_the_reason(run, tmp_path, make, why):
    shutil.rmtree(run / "checkpoints")
    make(run, tmp_path)
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(UserError) as error:
        reopen_run(run, "steps = 9")
    link = run / "checkpoints"
    link = link / "00000002.json" if make is inside_checkpoints else link
    assert str(error.value) == f"{link}: {why.format(tmp_path)}"
    assert (run / "manifest.json").read_bytes() == before


def test_new_run_in_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match="run: is a symbolic link to nothing"):
        create_run(tmp_path / "run", "", MEMBERS, overwrite=False)
    assert not (tmp_path / "missing").exists()


def test_deleting_a_run_deletes_its_links_but_not_their_targets(run, scratch):
    target = move(run / "checkpoints", scratch / "checkpoints")
    before = sorted(os.listdir(target))
    assert removable_checkpoints(run_usage(run)) == []
    create_run(run, "", MEMBERS, overwrite=True)
    assert not (run / "checkpoints").is_symlink()
    (run / "checkpoints").symlink_to(target)
    delete_run(run_usage(run))
    assert not run.exists()
    assert sorted(os.listdir(target)) == before
