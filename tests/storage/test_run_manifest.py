import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.config.errors import UserError
from r2r2.envs.spec import Member
from r2r2.storage.files import FileEntry
from r2r2.storage.run_folder import (
    RUN_FORMAT,
    RunManifest,
    check_members,
    is_member_name,
    read_manifest,
    write_manifest,
)


def test_manifest_round_trips(tmp_path):
    write_manifest(tmp_path, ["Hopper-v5_s0", "dog-run_s1"], "running")
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "kind": "r2r2 run",
        "format": 1,
        "status": "running",
        "members": ["Hopper-v5_s0", "dog-run_s1"],
    }
    expected = RunManifest(1, "running", ("Hopper-v5_s0", "dog-run_s1"))
    assert read_manifest(tmp_path) == expected


GOOD = {"kind": "r2r2 run", "format": RUN_FORMAT, "status": "running", "members": []}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "[" * 100_000,
        json.dumps({"name": "another program's manifest"}),
        json.dumps(GOOD | {"kind": "other"}),
        json.dumps(GOOD | {"format": "1"}),
        json.dumps(GOOD | {"status": "paused"}),
        json.dumps(GOOD | {"members": "ab"}),
        json.dumps(GOOD | {"members": [1]}),
        json.dumps(GOOD | {"members": ["../.."]}),
    ],
)
def test_other_content_is_not_a_manifest(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    assert read_manifest(tmp_path) is None


def test_folder_without_manifest_has_none(tmp_path):
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "absent") is None


def test_other_format_keeps_only_the_format(tmp_path):
    content = json.dumps({"kind": "r2r2 run", "format": 2, "fleet": {}})
    (tmp_path / "manifest.json").write_text(content)
    assert read_manifest(tmp_path) == RunManifest(2, "unknown", ())


def test_manifest_truncated_at_any_byte_is_none(tmp_path):
    write_manifest(tmp_path, ["a_s0"], "finished")
    complete = (tmp_path / "manifest.json").read_bytes()
    for length in range(len(complete) - len(b"}\n") + 1):
        (tmp_path / "manifest.json").write_bytes(complete[:length])
        assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("task", ["Hopper-v5", "dog-run", "my.package:space/Arm-v0"])
def test_member_names_are_valid_folder_names(task):
    check_members([Member(task, 3).name])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "...", "a/b", "/a", "a\\b", "a\0", "a\n", "a b", "config.toml"]
)
def test_name_outside_the_run_or_of_a_file_is_rejected(name):
    assert not is_member_name(name)
    with pytest.raises(UserError, match="not a valid folder name"):
        check_members(["good", name])


@settings(deadline=None)
@given(st.text())
def test_member_folder_is_directly_inside_the_run(tmp_path_factory, name):
    run = tmp_path_factory.getbasetemp()
    if is_member_name(name):
        assert (run / name).resolve().parent == run.resolve()


def test_duplicate_member_is_rejected():
    with pytest.raises(UserError, match="member 'a_s0': given twice"):
        check_members(["a_s0", "b_s0", "a_s0"])


def test_every_change_of_a_manifest_with_checksums_is_noticed(tmp_path):
    copies, files = {"config.toml": "steps = 1\n"}, {"a_s0/weights.npz": FileEntry(9, "ab")}
    write_manifest(tmp_path, ["a_s0"], "finished", copies=copies, files=files)
    assert read_manifest(tmp_path) == RunManifest(1, "finished", ("a_s0",), copies, files)
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    for place in range(len(content)):
        for changed in (b"", b"7", content[place : place + 1] * 2):
            new = content[:place] + changed + content[place + 1 :]
            path.write_bytes(new)
            manifest = read_manifest(tmp_path)
            assert new == content or manifest is None or manifest.status == "unknown"
    lines = content.splitlines(keepends=True)
    for number in range(len(lines)):
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "..", "a/../../b", "a/b/c", ""])
def test_manifest_with_files_outside_the_run_is_none(tmp_path, name):
    write_manifest(tmp_path, ["a_s0"], "finished", files={name: FileEntry(9, "ab")})
    assert read_manifest(tmp_path) is None
