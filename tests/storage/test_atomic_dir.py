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


def test_folder_appears_complete_and_marked(tmp_path):
    out = tmp_path / "a" / "report"
    write(out)
    assert names(out) == ["index.html", "report.json"]
    assert names(out.parent) == ["report"]


def test_older_report_is_replaced(tmp_path):
    out = tmp_path / "report"
    write(out, "old")
    (out / "tables").mkdir()
    check_report_dir(out, NAMES)
    write(out)
    assert names(out) == ["index.html", "report.json"]
    assert (out / "index.html").read_text() == "new"
    assert names(tmp_path) == ["report"]


def fail_to_rename(monkeypatch, error, when):
    """Make the renames that `when` selects fail."""
    rename = Path.rename

    def fails(self, target):
        if when(self, target):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_error_leaves_the_old_report(tmp_path, error):
    out = tmp_path / "report"
    write(out, "old")
    with pytest.raises(error):
        write_half(out, error)
    assert (out / "index.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


def test_failed_swap_restores_the_old_report(tmp_path, monkeypatch):
    out = tmp_path / "report"
    write(out, "old")
    full = OSError(28, "No space left on device")
    fail_to_rename(monkeypatch, full, lambda source, _: source.name.endswith(".new"))
    with pytest.raises(UserError, match="cannot write: No space left on device"):
        write(out)
    assert (out / "index.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


@pytest.mark.parametrize(("ending", "text"), [(".old", "old"), ("report", "new")])
def test_interruption_between_renames_leaves_a_complete_report(tmp_path, monkeypatch, ending, text):
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


def test_old_report_that_cannot_be_restored_is_not_deleted(tmp_path, monkeypatch):
    out = tmp_path / "report"
    write(out, "old")
    denied = PermissionError(13, "Permission denied")
    fail_to_rename(monkeypatch, denied, lambda _, target: target == out)
    with pytest.raises(UserError, match="cannot write: Permission denied"):
        write(out)
    (kept,) = tmp_path.iterdir()
    assert (kept / "index.html").read_text() == "old"


def test_file_added_meanwhile_is_not_deleted(tmp_path):
    out = tmp_path / "report"
    write(out, "old")

    def write_slowly():
        with atomic_dir(out, {}, NAMES):
            (out / "notes.txt").write_text("mine")

    with pytest.raises(UserError, match=r"this report also contains 'notes.txt'"):
        write_slowly()
    assert names(out) == ["index.html", "notes.txt", "report.json"]
    assert names(tmp_path) == ["report"]


def test_missing_and_empty_folders_are_accepted(tmp_path):
    check_report_dir(tmp_path / "new", NAMES)
    check_report_dir(tmp_path, NAMES)
    write(tmp_path / "empty")


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"kind": "r2r2 run"}', "["])
def test_folder_that_is_not_a_report_is_rejected(tmp_path, content):
    (tmp_path / "index.html").write_text("mine")
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(UserError, match="not empty and not a report"):
        check_report_dir(tmp_path, NAMES)


def test_report_with_an_extra_file_is_rejected(tmp_path):
    write(tmp_path / "report")
    (tmp_path / "report" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"this report also contains 'notes.txt'"):
        check_report_dir(tmp_path / "report", NAMES)


@pytest.mark.parametrize(("old", "new"), [({}, "theory"), ({"page": "theory"}, "report")])
def test_page_of_another_command_is_rejected(tmp_path, old, new):
    out = tmp_path / "out"
    with atomic_dir(out, old, NAMES) as folder:
        (folder / "index.html").write_text("old")
    command = old.get("page", "report")
    with pytest.raises(UserError, match=f"contains the page of 'r2r2 {command}', which would be"):
        check_report_dir(out, NAMES, new)
    with pytest.raises(UserError, match=f"'r2r2 {command}'"), atomic_dir(out, {"page": new}, NAMES):
        pass
    assert (out / "index.html").read_text() == "old"
    check_report_dir(out, NAMES, command)


def test_file_or_link_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name in ("file", "link", "nowhere"):
        with pytest.raises(UserError, match="not a folder"):
            check_report_dir(tmp_path / name, NAMES)


def test_folder_below_a_file_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write: Not a directory"):
        write(tmp_path / "file" / "report")
