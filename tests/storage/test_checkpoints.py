import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import checkpoint_samples
import numpy as np
import pytest
from checkpoint_samples import assert_intact, content

from r2r2.config.errors import UserError
from r2r2.storage import checkpoints as subject
from r2r2.storage.checkpoints import latest_valid, read_latest, removable_files, write_checkpoint
from r2r2.storage.files import StorageError

NOTHING = (None, [])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "x" / "checkpoints"


@pytest.fixture(autouse=True)
def run(folder, monkeypatch):
    """Create the run folder; skip fsync for speed."""
    folder.parent.mkdir()
    monkeypatch.setattr("os.fsync", lambda _: None)


def write(folder, step, needs=(), keep=2, size=1):
    return write_checkpoint(folder, content(step, needs, size), keep)


def names(folder):
    return sorted(os.listdir(folder))


def parts(*numbers):
    ends = ("json", "npz", "replay.npz", "worlds.npz")
    return [f"{number:08}.{end}" for number in numbers for end in ends]


def test_empty_folder_has_no_checkpoint(folder):
    assert latest_valid(folder) == NOTHING
    folder.mkdir()
    assert latest_valid(folder) == NOTHING


def test_checkpoint_round_trips(folder):
    written = write(folder, 1, size=50)
    assert names(folder) == parts(1)
    assert latest_valid(folder) == (written, [])
    assert (written.number, written.step) == (1, 1)
    assert written.segments == (folder / "00000001.replay.npz",)
    assert_intact(written)


def test_numpy_can_load_the_files(folder):
    with np.load(write(folder, 7).arrays, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["key"], [7, 8, 9, 10])


def test_format_1_still_loads(folder):
    """These files were written by an old version and must not be regenerated."""
    stored = Path(__file__).parent / "format_1" / "checkpoints"
    latest, messages = latest_valid(stored)
    assert (latest.number, messages) == (2, [])
    assert [path.name[:8] for path in latest.segments] == ["00000001", "00000002"]
    assert_intact(latest, size=2)


def test_nonfinite_metadata_round_trips(folder):
    notes = {"best": float("-inf"), "big": 2**60}
    write_checkpoint(folder, content(1)._replace(metadata=notes), keep=1)
    assert latest_valid(folder)[0].metadata == notes


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_latest_are_kept_and_numbers_increase(folder, keep):
    for step in range(1, 6):
        assert write(folder, step, keep=keep).number == step
    assert names(folder) == parts(*range(6 - keep, 6))


def test_segments_are_kept_while_a_kept_checkpoint_needs_them(folder):
    last = ()
    for step in range(1, 6):
        latest = write(folder, step, needs=last[-2:])
        last = [path.name for path in latest.segments]
    assert last == [f"0000000{n}.replay.npz" for n in (3, 4, 5)]
    extra = ["00000002.replay.npz", "00000003.replay.npz"]
    assert names(folder) == sorted([*extra, *parts(4, 5)])
    assert latest_valid(folder) == (latest, [])
    assert_intact(latest, size=1)


def test_foreign_files_are_not_deleted(folder):
    folder.mkdir()
    mine = ["notes.txt", "00000001.txt", "1.npz", ".00000001.json.tmp", "a00000001.npz"]
    for name in mine:
        (folder / name).write_text("mine")
    for step in range(1, 4):
        write(folder, step, keep=1)
    assert names(folder) == sorted([*mine, *parts(3)])


def test_incomplete_files_are_deleted_and_their_number_is_not_reused(folder):
    write(folder, 1)
    for name in ("00000002.npz", "00000002.replay.npz", ".00000002.json.0a1b2c3d.tmp"):
        (folder / name).write_text("torn")
    assert latest_valid(folder)[1] == []
    assert write(folder, 2).number == 3
    assert names(folder) == parts(1, 3)


def test_damaged_checkpoint_does_not_count_as_kept(folder):
    first, second = write(folder, 1, keep=3), write(folder, 2, keep=3)
    damage(second.env_states)
    third = write(folder, 3)
    assert names(folder) == parts(1, 3)
    damage(third.arrays)
    assert latest_valid(folder)[0] == first


def test_file_is_hashed_once_to_decide_what_to_keep(folder, monkeypatch):
    read = []
    digest = subject.file_digest

    def counted(path):
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(subject, "file_digest", counted)
    segments = []
    for step in range(1, 6):
        latest = write(folder, step, needs=segments, keep=2)
        segments = [path.name for path in latest.segments]
    assert len(read) == len(set(read)) == 4 * 3


def damage(path):
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_previous_checkpoint_is_used_if_the_latest_is_damaged(folder):
    first, second = write(folder, 8000), write(folder, 9000)
    damage(second.arrays)
    why = "is damaged (00000002.npz has a wrong checksum)"
    start = f"{folder.parent}: checkpoint 2 {why}; "
    used = "using the one of step 8000"
    assert latest_valid(folder) == (first, [start + used])
    damage(first.segments[0])
    assert latest_valid(folder) == (
        None,
        [
            f"{start}the one before it is damaged, too",
            f"{folder.parent}: checkpoint 1 is damaged (00000001.replay.npz has a "
            "wrong checksum); there is no earlier one",
        ],
    )


def test_damaged_segment_invalidates_all_checkpoints_that_need_it(folder):
    first = write(folder, 1)
    second = write(folder, 2, ["00000001.replay.npz"])
    write(folder, 3, ["00000002.replay.npz"], keep=3)
    damage(first.segments[0])
    latest, messages = latest_valid(folder)
    assert (latest.number, messages) == (3, [])
    damage(second.segments[1])
    assert latest_valid(folder)[0] is None


def why_damaged(folder):
    """Return why checkpoint 2 of two is damaged."""
    latest, (message,) = latest_valid(folder)
    assert latest.number == 1
    start, _, rest = message.partition(" is damaged (")
    assert start == f"{folder.parent}: checkpoint 2"
    why, _, end = rest.rpartition("); ")
    assert end == "using the one of step 1"
    return why


@pytest.mark.parametrize("name", parts(2))
def test_damage_to_any_byte_of_any_file_is_detected(folder, name):
    write(folder, 1)
    write(folder, 2)
    path = folder / name
    data = path.read_bytes()
    stride = 3 if path.suffix == ".json" else 13
    for place in range(0, len(data), stride):
        path.write_bytes(data[:place])
        assert name in why_damaged(folder)
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert name in why_damaged(folder)
    path.write_bytes(data + b"\0")
    assert name in why_damaged(folder)


@pytest.mark.parametrize("name", parts(2)[1:])
def test_missing_or_special_file_is_detected(folder, name):
    write(folder, 1)
    write(folder, 2)
    path, length = folder / name, (folder / name).stat().st_size
    path.rename(folder / "aside")
    assert why_damaged(folder) == f"{name} is missing"
    path.symlink_to("aside")
    assert why_damaged(folder) == f"cannot read {name}: is a symbolic link"
    path.unlink()
    path.mkdir()
    assert why_damaged(folder) == f"cannot read {name}: is not a regular file"
    path.rmdir()
    os.mkfifo(path)
    assert why_damaged(folder) == f"cannot read {name}: is not a regular file"
    path.unlink()
    path.touch()
    assert why_damaged(folder) == f"{name} has 0 bytes, expected {length}"


def test_manifest_that_is_a_link_or_folder_is_damaged(folder):
    write(folder, 1)
    write(folder, 2)
    path = folder / "00000002.json"
    path.rename(folder / "aside")
    path.symlink_to("aside")
    assert why_damaged(folder) == "cannot read 00000002.json: is a symbolic link"
    path.unlink()
    path.mkdir()
    assert why_damaged(folder) == "cannot read 00000002.json: is not a regular file"
    assert write(folder, 3).number == 3


def test_unreadable_folder_is_rejected(folder):
    folder.write_text("")
    with pytest.raises(UserError) as error:
        latest_valid(folder)
    assert str(error.value) == f"{folder}: cannot read: Not a directory"


def test_removable_files_are_those_the_latest_valid_checkpoint_does_not_need(folder):
    folder.mkdir()
    assert removable_files(folder) == []
    write(folder, 1)
    last = write(folder, 2, ["00000001.replay.npz"])
    (folder / "00000009.npz").touch()
    (folder / "mine").touch()
    needed = "00000001.replay.npz"
    others = [name for name in parts(1) if name != needed] + ["00000009.npz"]
    assert [path.name for path in removable_files(folder)] == others
    damage(last.arrays)
    (folder / "00000001.npz").unlink()
    assert removable_files(folder) == []


def test_manifest_appears_after_its_files_are_synced(folder, monkeypatch):
    synced = []

    def fsync(number):
        what = Path(os.readlink(f"/proc/self/fd/{number}")).name
        synced.append((what, (folder / "00000001.json").exists()))

    monkeypatch.setattr("os.fsync", fsync)
    write(folder, 1)
    assert synced[:4] == [
        ("00000001.npz", False),
        ("00000001.worlds.npz", False),
        ("00000001.replay.npz", False),
        ("checkpoints", False),
    ]
    assert synced[4][0].startswith(".00000001.json.")
    assert synced[4][1] is False
    assert synced[5] == ("checkpoints", True)


@pytest.mark.parametrize("count", range(7))
def test_failed_write_leaves_earlier_checkpoints(folder, monkeypatch, count):
    first = write(folder, 8000)
    left = count

    def fsync(_):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fsync)
        if count < 6:
            with pytest.raises(StorageError) as error:
                write(folder, 9000)
            assert str(error.value) == (
                f"{folder}: cannot write: No space left on device; the checkpoint of "
                "step 8000 is intact"
            )
        else:
            first = write(folder, 9000, keep=1)
    assert latest_valid(folder) == (first, [])
    assert names(folder) == parts(first.number)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_interrupted_write_leaves_no_files(folder, monkeypatch, error):
    def stop(*_):
        raise error

    write(folder, 1)
    monkeypatch.setattr(subject, "atomic_write", stop)
    with pytest.raises(type(error)):
        write(folder, 2)
    assert names(folder) == parts(1)


def test_failed_first_write_says_there_is_no_earlier_checkpoint(folder, monkeypatch):
    folder.write_text("a file")
    with pytest.raises(StorageError) as error:
        write(folder, 1)
    assert str(error.value) == (
        f"{folder}: cannot write: File exists; there is no earlier checkpoint"
    )


@pytest.mark.parametrize("needed", ["00000007.replay.npz", "00000001.npz", "../secret.replay.npz"])
def test_unknown_segment_is_rejected(folder, needed):
    write(folder, 8000)
    with pytest.raises(StorageError) as error:
        write(folder, 9000, [needed])
    messages = str(error.value)
    assert messages.startswith(f"{folder}: cannot write: {needed} does not belong to")
    assert messages.endswith("; the checkpoint of step 8000 is intact")
    assert names(folder) == parts(1)


def test_missing_segment_is_rejected(folder):
    (segment,) = write(folder, 8000).segments
    segment.unlink()
    with pytest.raises(StorageError) as error:
        write(folder, 9000, [segment.name])
    assert str(error.value) == (
        f"{folder}: cannot write: {segment.name} is missing; there is no earlier checkpoint"
    )


def test_invalid_or_too_long_metadata_leave_no_files(folder, monkeypatch):
    with pytest.raises(TypeError):
        write_checkpoint(folder, content(1)._replace(metadata={"a": object()}), 1)
    monkeypatch.setattr(subject, "MAX_MANIFEST_BYTES", 300)
    with pytest.raises(ValueError, match="checkpoint metadata too long"):
        write(folder, 1)
    assert names(folder) == []


FULL = """
import resource, sys
from pathlib import Path
from checkpoint_samples import content
from r2r2.storage.checkpoints import write_checkpoint
from r2r2.storage.files import StorageError
write_checkpoint(Path(sys.argv[1]), content(8000), 2)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    write_checkpoint(Path(sys.argv[1]), content(9000, size=100_000), 2)
except StorageError as error:
    print(error)
"""


def python(*arguments, **options):
    paths = os.pathsep.join([str(Path(checkpoint_samples.__file__).parent), *sys.path])
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("limit", [0, 600, 500_000])
def test_full_disk_is_reported_and_leaves_the_earlier_checkpoint(folder, limit):
    with python("-c", FULL, folder, limit) as process:
        messages = process.communicate()[0]
    assert messages == (
        f"{folder}: cannot write: File too large; the checkpoint of step 8000 is intact\n"
    )
    assert process.returncode == 0
    assert names(folder) == parts(1)
    assert latest_valid(folder)[0].step == 8000


def test_kill_9_leaves_a_valid_checkpoint(folder):
    moments = random.Random(time.time_ns())
    size, last, torn = 30_000, 0, 0
    for _ in range(10):
        with python(checkpoint_samples.__file__, folder, size) as process:
            last = int(process.stdout.readline())
            time.sleep(moments.uniform(0, 0.06))
            process.kill()
            last = max([last, *map(int, process.stdout.read().split())])
        latest, messages = latest_valid(folder)
        assert messages == []
        assert latest.number >= last
        assert_intact(latest, size=size)
        torn += len(names(folder)) > len(parts(1, 2)) + 2  # two segments before
    final = write(folder, 10**6)
    assert names(folder)[-8:] == parts(latest.number, final.number)
    assert len(names(folder)) <= 8 + 2
    assert torn, "no kill happened during a write"


def test_arrays_of_the_latest_readable_checkpoint_are_read(folder):
    assert read_latest(folder, Path.read_bytes) is None
    first, second = write(folder, 1), write(folder, 2)
    assert read_latest(folder, Path.read_bytes) == (second, second.arrays.read_bytes())
    second.arrays.write_bytes(second.arrays.read_bytes()[:-1])
    assert read_latest(folder, Path.read_bytes) == (first, first.arrays.read_bytes())
    first.arrays.unlink()
    with pytest.raises(UserError) as error:
        read_latest(folder, Path.read_bytes)
    problem = "no checkpoint can be read: 00000002.npz has a wrong checksum"
    assert str(error.value) == f"{folder}: {problem}"


def test_checkpoints_that_are_replaced_while_they_are_read_are_read_again(folder):
    write(folder, 1)
    asked = []

    def read(path):
        asked.append(path.name)
        if len(asked) < 3:  # meanwhile the run writes the next one and deletes this one
            write(folder, 1 + len(asked), keep=1)
        if not path.exists():
            raise UserError(f"{path}: does not exist")
        return path.name

    checkpoint, name = read_latest(folder, read)
    assert asked == ["00000001.npz", "00000002.npz", "00000003.npz"]
    assert (checkpoint.step, name) == (3, "00000003.npz")
