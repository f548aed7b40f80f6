"""A report's folder is whole or not there, and nothing else is ever replaced."""

from pathlib import Path

import pytest

from r2r2.config.errors import UserError
from r2r2.storage.files import atomic_dir, check_report_dir

NAMES = ("index.html", "tables")


def write(path, text="new"):
    with atomic_dir(path, {"runs": []}, NAMES) as folder:
        (folder / "index.html").write_text(text)


def write_half(path, error):
    with atomic_dir(path, {}, NAMES) as folder:
        (folder / "index.html").write_text("half")
        raise error


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_folder_appears_whole_with_what_it_is(tmp_path):
    out = tmp_path / "a" / "report"
    write(out)
    assert names(out) == ["index.html", "report.json"]
    assert names(out.parent) == ["report"]


def test_an_older_report_is_replaced_whole(tmp_path):
    out = tmp_path / "report"
    write(out, "old")
    (out / "tables").mkdir()
    check_report_dir(out, NAMES)
    write(out)
    assert names(out) == ["index.html", "report.json"]
    assert (out / "index.html").read_text() == "new"
    assert names(tmp_path) == ["report"]


def fail_to_rename(monkeypatch, error, when):
    """From now on, those renames that `when` picks fail."""
    rename = Path.rename

    def fails(self, target):
        if when(self, target):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_after_an_error_the_old_one_stands_and_nothing_is_left_behind(tmp_path, error):
    out = tmp_path / "report"
    write(out, "old")
    with pytest.raises(error):
        write_half(out, error)
    assert (out / "index.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


def test_a_swap_that_fails_puts_the_old_one_back(tmp_path, monkeypatch):
    out = tmp_path / "report"
    write(out, "old")
    full = OSError(28, "No space left on device")
    fail_to_rename(monkeypatch, full, lambda source, _: source.name.endswith(".new"))
    with pytest.raises(UserError, match="cannot write: No space left on device"):
        write(out)
    assert (out / "index.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


@pytest.mark.parametrize(("ending", "text"), [(".old", "old"), ("report", "new")])
def test_an_interruption_between_renames_leaves_a_whole_report(
    tmp_path, monkeypatch, ending, text
):
    out = tmp_path / "report"
    write(out, "old")
    rename, left = type(out).rename, [ending]

    def interrupted(self, target):
        moved = rename(self, target)
        if left and str(target).endswith(left[0]):
            left.clear()
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(type(out), "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(out)
    assert not left
    assert (out / "index.html").read_text() == text
    assert names(tmp_path) == ["report"]


def test_an_old_report_that_cannot_be_put_back_is_not_deleted(tmp_path, monkeypatch):
    out = tmp_path / "report"
    write(out, "old")
    denied = PermissionError(13, "Permission denied")
    fail_to_rename(monkeypatch, denied, lambda _, target: target == out)
    with pytest.raises(UserError, match="cannot write: Permission denied"):
        write(out)
    (kept,) = tmp_path.iterdir()
    assert (kept / "index.html").read_text() == "old"


def test_what_was_put_there_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "report"
    write(out, "old")

    def write_slowly():
        with atomic_dir(out, {}, NAMES):
            (out / "notes.txt").write_text("mine")

    with pytest.raises(UserError, match=r"this report also contains 'notes.txt'"):
        write_slowly()
    assert names(out) == ["index.html", "notes.txt", "report.json"]
    assert names(tmp_path) == ["report"]


def test_nothing_and_an_empty_folder_are_vacant(tmp_path):
    check_report_dir(tmp_path / "new", NAMES)
    check_report_dir(tmp_path, NAMES)
    write(tmp_path / "empty")


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"kind": "r2r2 run"}', "["])
def test_what_is_no_report_is_refused(tmp_path, content):
    (tmp_path / "index.html").write_text("mine")
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(UserError, match="not empty and not a report"):
        check_report_dir(tmp_path, NAMES)


def test_a_report_with_something_of_ones_own_in_it_is_refused(tmp_path):
    write(tmp_path / "report")
    (tmp_path / "report" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"this report also contains 'notes.txt'"):
        check_report_dir(tmp_path / "report", NAMES)


def test_a_file_or_a_link_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name in ("file", "link", "nowhere"):
        with pytest.raises(UserError, match="not a folder"):
            check_report_dir(tmp_path / name, NAMES)


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write: Not a directory"):
        write(tmp_path / "file" / "report")
