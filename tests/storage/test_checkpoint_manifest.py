import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2r2.storage import checkpoints as subject
from r2r2.storage.checkpoints import (
    Checkpoint,
    DamagedCheckpointError,
    FileEntry,
    check_sizes,
    checkpoint_number,
    checksum,
    read_checkpoint,
    serialize_manifest,
)

ENTRY = FileEntry(3, "ab")
FILES = {
    "00000003.replay.npz": ENTRY,
    "00000007.npz": ENTRY,
    "00000007.replay.npz": ENTRY,
    "00000007.worlds.npz": ENTRY,
}
CHECKPOINT = Checkpoint(Path("run"), 7, 4000, FILES, {"a": [1.5, None]})
FIELDS = {
    "kind": "r2r2 checkpoint",
    "format": 1,
    "number": 7,
    "step": 4000,
    "files": {name: {"bytes": 3, "blake2b": "ab"} for name in FILES},
    "notes": {"a": [1.5, None]},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def forged(folder, rest):
    """Write a manifest with a valid checksum, as an attacker can."""
    start = f'{{"blake2b": "{checksum(rest.encode()).hexdigest()}", '
    (folder / "00000007.json").write_text(start + rest)


def forged_fields(folder, **changes):
    fields = {name: x for name, x in (FIELDS | changes).items() if x is not ...}
    forged(folder, json.dumps(fields)[1:])


def why(folder):
    with pytest.raises(DamagedCheckpointError) as damage:
        read_checkpoint(folder, 7)
    return str(damage.value)


def test_manifest_round_trips(tmp_path):
    (tmp_path / "00000007.json").write_text(serialize_manifest(CHECKPOINT))
    assert read_checkpoint(tmp_path, 7) == CHECKPOINT._replace(folder=tmp_path)
    names = [path.name for path in CHECKPOINT.segments]
    assert names == ["00000003.replay.npz", "00000007.replay.npz"]
    assert json.loads(serialize_manifest(CHECKPOINT)).items() >= FIELDS.items()


def test_forged_manifest_without_changes_is_valid(tmp_path):
    forged_fields(tmp_path)
    assert read_checkpoint(tmp_path, 7) == CHECKPOINT._replace(folder=tmp_path)


def files_with(*removed, **added):
    entries = {name: x for name, x in FIELDS["files"].items() if name not in removed}
    return entries | added


GOOD = {"bytes": 3, "blake2b": "ab"}


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 8},
        {"number": "7"},
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"step": 10**4000},
        {"step": ...},
        {"notes": ...},
        {"notes": []},
        {"notes": None},
        {"files": ...},
        {"files": []},
        {"files": {}},
        {"files": files_with("00000007.npz")},
        {"files": files_with("00000007.worlds.npz")},
        {"files": files_with("00000007.replay.npz")},
        {"files": files_with("00000007.replay.npz") | {"00000007.replay.npz": None}},
        {"files": files_with(**{"00000008.replay.npz": GOOD})},
        {"files": files_with(**{"00000001.replay.npz": GOOD})},
        {"files": files_with(**{"00000006.npz": GOOD})},
        {"files": {"00000005.replay.npz": GOOD} | files_with()},
        *(
            {"files": {name: GOOD} | files_with()}
            for name in (
                "../00000001.replay.npz",
                "/etc/00000001.replay.npz",
                "00000001.replay.npz\n",
                "0000000\u0661.replay.npz",
                "000000001.replay.npz",
                "00000001.replay.npz/../../secret",
                "..",
                "",
                "\0",
            )
        ),
        *(
            {"files": files_with(**{"00000007.npz": entry})}
            for entry in (
                None,
                3,
                {},
                {"bytes": 3},
                GOOD | {"bytes": -3},
                GOOD | {"bytes": 2**63},
                GOOD | {"bytes": 3.0},
                GOOD | {"bytes": "3"},
                GOOD | {"blake2b": 3},
                GOOD | {"path": "/etc/passwd"},
            )
        ),
    ],
    ids=str,
)
def test_forged_checksum_with_invalid_fields_is_damaged(tmp_path, changes):
    forged_fields(tmp_path, **changes)
    assert why(tmp_path) == "00000007.json has invalid fields"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a":' * 100_000, "is not valid JSON"),
        ('{"step": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("\udcff", "is not valid JSON"),
        ("3", "is not the manifest of a checkpoint"),
        ("[]", "is not the manifest of a checkpoint"),
        ('{"kind": "r2r2 run", "format": 1}', "is not the manifest of a checkpoint"),
        ('{"kind": "r2r2 checkpoint", "format": 2}', "has format 2, expected 1"),
        ('{"kind": "r2r2 checkpoint"}', "has format None, expected 1"),
        ('{"kind": "r2r2 checkpoint", "format": 1}', "has a wrong checksum"),
        ('{"kind": "r2r2 checkpoint", "format": 1, "blake2b": [{}]}', "has a wrong checksum"),
    ],
)
def test_other_content_is_damaged(tmp_path, content, expected):
    path = tmp_path / "00000007.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert why(tmp_path) == f"00000007.json {expected}"


def test_too_long_manifest_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "00000007.json").write_text(serialize_manifest(CHECKPOINT))
    monkeypatch.setattr(subject, "MAX_MANIFEST_BYTES", 200)
    assert why(tmp_path) == "00000007.json is not valid JSON"


@given(st.sampled_from(["number", "step", "files", "notes", "format", "kind"]), JSON)
def test_arbitrary_field_value_is_read_or_damaged(tmp_path_factory, name, value):
    folder = tmp_path_factory.mktemp("forged")
    forged_fields(folder, **{name: value})
    with pytest.raises(DamagedCheckpointError, match=r"^[^\n]*0000000\d\.[^\n]{,200}$"):
        check_sizes(folder, read_checkpoint(folder, 7).files)


@given(st.text())
def test_numbered_name_is_inside_the_folder(name):
    if checkpoint_number(name) is not None:
        assert os.path.basename(name) == name
        assert name.strip(".")


def test_huge_declared_size_is_not_allocated(tmp_path):
    forged_fields(tmp_path, files=files_with() | {"00000007.npz": GOOD | {"bytes": 2**62}})
    for name in FILES:
        (tmp_path / name).write_bytes(b"abc")
    result = read_checkpoint(tmp_path, 7)
    with pytest.raises(DamagedCheckpointError, match=f"00000007.npz has 3 bytes, expected {2**62}"):
        check_sizes(tmp_path, result.files)
