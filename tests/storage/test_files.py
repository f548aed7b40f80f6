import os
import zlib

import pytest

from r2r2.config.errors import UserError
from r2r2.storage.files import LogFile, atomic_write, file_entry, read_lines, read_regular


def test_text_is_utf8_and_bytes_are_unchanged(tmp_path):
    atomic_write(tmp_path / "text", "é\n")
    atomic_write(tmp_path / "bytes", b"\xff\x00")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa9\n"
    assert (tmp_path / "bytes").read_bytes() == b"\xff\x00"


def test_existing_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("something much longer")
    atomic_write(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_new_file_has_default_permissions(tmp_path):
    (tmp_path / "other").write_text("")
    atomic_write(tmp_path / "file", "")
    modes = {(tmp_path / name).stat().st_mode for name in ("file", "other")}
    assert len(modes) == 1


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_):
        assert len(os.listdir(tmp_path)) == 2
        assert path.read_text() == "old"
        raise error

    monkeypatch.setattr(step, fail)
    with pytest.raises(type(error)):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_content_is_synced_before_the_rename(tmp_path, monkeypatch):
    synced = []

    def fsync(number):
        synced.append((os.fstat(number).st_size, (tmp_path / "file").exists()))

    monkeypatch.setattr("os.fsync", fsync)
    atomic_write(tmp_path / "file", "12345")
    assert synced == [(5, False)]


def test_missing_folder_raises_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "absent" / "file", "")


def test_lines_are_appended(tmp_path):
    path = tmp_path / "log"
    for line in ("a", "b"):
        with LogFile(path) as log:
            log.append(line)
    assert path.read_bytes() == b"a\nb\n"


def test_appended_line_is_readable_at_once(tmp_path):
    with LogFile(tmp_path / "log") as log:
        log.append("a")
        assert read_lines(tmp_path / "log") == ["a"]


def test_special_log_is_not_opened(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "log").symlink_to("precious")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("log", "is a symbolic link"), ("pipe", "is not a regular file")):
        with pytest.raises(OSError, match=why):
            LogFile(tmp_path / name)
    assert (tmp_path / "precious").read_text() == "precious"


def test_log_knows_its_checksum_and_a_copy_without_reading_it_again(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first\nincomplete")
    with LogFile(path) as log:
        for line in ("second", "é"):
            log.append(line)
            content = path.read_bytes()
            assert log.entry() == file_entry(path)
            assert zlib.decompress(log.compressed()) == content
        path.write_bytes(b"changed by another program")
        assert log.entry().bytes == len(content)
        assert zlib.decompress(log.compressed()) == content
        path.write_bytes(content)
        log.truncate(len(b"first\n"))
        assert log.entry() == file_entry(path) == file_entry(path, 6)
        assert path.read_bytes() == zlib.decompress(log.compressed()) == b"first\n"


def test_too_long_file_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(bytes(9))
    assert read_regular(tmp_path / "file", max_bytes=9) == bytes(9)
    with pytest.raises(OSError, match="is longer than 8 bytes"):
        read_regular(tmp_path / "file", max_bytes=8)


def test_incomplete_last_line_is_cut_before_appending(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"whole\ntor")
    with LogFile(path) as log:
        log.append("next")
    assert read_lines(path) == ["whole", "next"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", []), (b"torn", []), (b"a\nto", ["a"]), (b"a\n\nb\n", ["a", "", "b"])],
)
def test_only_complete_lines_are_read(tmp_path, content, lines):
    (tmp_path / "log").write_bytes(content)
    assert read_lines(tmp_path / "log") == lines


def test_incomplete_character_in_the_last_line_is_ignored(tmp_path):
    (tmp_path / "log").write_bytes(b"a\n\xc3")
    assert read_lines(tmp_path / "log") == ["a"]


def test_invalid_utf8_is_rejected_with_its_line(tmp_path):
    (tmp_path / "log").write_bytes(b"a\nb\n\xff\nc\n")
    with pytest.raises(UserError, match=r"log: line 3 is damaged: not valid UTF-8"):
        read_lines(tmp_path / "log")


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"log: cannot read: No such file"):
        read_lines(tmp_path / "log")
