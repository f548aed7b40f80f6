"""Publishing and fetching policies, with a folder and with a fake Hub client."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from policy_parts import sample
from r2r2.config.errors import UserError
from r2r2.export import hub
from r2r2.export.hub import Publication, pull_policy, push_policy


@pytest.fixture
def source(tmp_path):
    """The files of a run that are published, and a video."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.toml", "evaluations.csv", "curve.png"):
        (run / name).write_text(f"content of {name}")
    (tmp_path / "a.mp4").write_bytes(b"video")
    return Publication(run, tmp_path / "a.mp4")


@pytest.fixture
def published(source, tmp_path):
    push_policy(sample("td7").parts, source, str(tmp_path / "published"))
    return tmp_path / "published"


class Hub:
    """A Hub in memory, with the methods of `HfApi` that are used."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def create_repo(self, **options):
        self.calls.append(("create_repo", options))

    def upload_folder(self, *, repo_id, folder_path, **options):
        self.calls.append(("upload_folder", options))
        for path in (self.folder / repo_id).glob("*"):
            if path.name in options["delete_patterns"]:
                path.unlink()
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        return f"https://hub.example/{repo_id}"

    def repo_info(self, *, repo_id, repo_type):
        if not (self.folder / repo_id).exists():
            raise RuntimeError("404\n repository not found")
        return SimpleNamespace(sha="0123")

    def hf_hub_download(self, *, repo_id, filename, local_dir, revision, repo_type):
        assert revision == "0123"
        self.calls.append(("hf_hub_download", filename))
        shutil.copy(self.folder / repo_id / filename, local_dir)


def test_a_folder_is_published_and_fetched(published, tmp_path):
    names = {"README.md", "policy.npz", "policy.py", "config.toml", "evaluations.csv"}
    names |= {"curve.png", "replay.mp4", "export.json"}
    assert {path.name for path in published.iterdir()} == names
    fetched = pull_policy(str(published), tmp_path / "fetched")
    for name in names:
        assert (fetched / name).read_bytes() == (published / name).read_bytes()
    with np.load(fetched / "policy.npz", allow_pickle=False) as arrays:
        assert "weight0" in arrays


def test_the_card_has_the_header_of_the_hub(published):
    text = (published / "README.md").read_text()
    start, header, card = text.split("---\n", 2)
    assert start == ""
    fields = {k: json.loads(v) for k, v in (x.split(": ", 1) for x in header.splitlines())}
    assert fields["library_name"] == "r2r2"
    assert {"reinforcement-learning", "td7", "Hopper-v5"} < set(fields["tags"])
    (result,) = fields["model-index"][0]["results"]
    assert result["dataset"]["name"] == "Hopper-v5"
    assert result["metrics"][0]["value"] == "3210.50"
    assert card.startswith("\n# td7 on Hopper-v5, seed 3\n")
    assert "| All 2 seeds | return 3105.2 ± 148.8 (mean" in card
    assert "](curve.png)" in card
    assert "](replay.mp4)" in card


def test_the_hub_gets_and_gives_the_same_files(source, tmp_path, monkeypatch):
    client = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "hub_client", lambda: client)
    where = push_policy(sample("td7").parts, source, "hf:me/hopper", private=True)
    assert where == "https://hub.example/me/hopper"
    (_, created), (_, uploaded) = client.calls
    assert created["private"] is True
    assert uploaded["commit_message"] == "r2r2: td7 on Hopper-v5"
    (client.folder / "me/hopper/.gitattributes").write_text("not listed")
    fetched = pull_policy("hf:me/hopper", tmp_path / "fetched")
    assert (fetched / "replay.mp4").read_bytes() == b"video"
    assert not (fetched / ".gitattributes").exists()
    downloaded = [name for call, name in client.calls if call == "hf_hub_download"]
    assert downloaded[0] == "export.json"  # first, and then what it lists
    assert sorted(downloaded) == sorted(path.name for path in fetched.iterdir())
    with pytest.raises(UserError, match="hf:me/other: the Hugging Face Hub answered: 404 repo"):
        pull_policy("hf:me/other", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_second_push_to_the_hub_deletes_the_files_of_the_first(source, tmp_path, monkeypatch):
    client = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "hub_client", lambda: client)
    push_policy(sample("td7").parts, source, "hf:me/hopper")
    (client.folder / "me/hopper/notes.txt").write_text("mine")
    before = {path.name for path in (client.folder / "me/hopper").iterdir()}
    assert before == {*hub.PUBLISHED_FILES, "notes.txt"}
    push_policy(sample("td7").parts, source._replace(video=None), "hf:me/hopper")
    after = {path.name for path in (client.folder / "me/hopper").iterdir()}
    assert after == before - {"replay.mp4"}


def list_no_policy(folder):
    record = json.loads((folder / "export.json").read_text())
    record["files"] = {"README.md": record["files"]["README.md"]}
    (folder / "export.json").write_text(json.dumps(record))


def replace_file(folder):
    (folder / "policy.py").write_text("raise SystemExit('executed')")


def link_file(folder):
    (folder / "policy.py").unlink()
    (folder / "policy.py").symlink_to("/etc/hostname")


def remove_file(folder):
    (folder / "policy.npz").unlink()


def lengthen_file(folder):
    with (folder / "policy.npz").open("ab") as file:
        file.write(b"0")


def escape_folder(folder):
    record = json.loads((folder / "export.json").read_text())
    record["files"]["../stolen"] = record["files"]["policy.py"]
    (folder / "export.json").write_text(json.dumps(record))


def forget_record(folder):
    (folder / "export.json").write_text("{}")


def change_format(folder):
    record = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(record | {"format": 2}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (replace_file, "policy.py: not as it was published"),
        (lengthen_file, "policy.npz: not as it was published"),
        (link_file, "policy.py: cannot read: is a symbolic link"),
        (remove_file, "policy.npz: cannot read: No such file"),
        (escape_folder, "export.json is damaged"),
        (list_no_policy, "export.json lists no policy; expected policy.npz"),
        (forget_record, "not a published policy"),
        (change_format, "format: expected 1, got 2"),
    ],
)
def test_damaged_publications_are_rejected_and_nothing_is_written(
    published, tmp_path, damage, sentence
):
    damage(published)
    with pytest.raises(UserError, match=sentence):
        pull_policy(str(published), tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    assert not (tmp_path / "stolen").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_bad_names_and_a_missing_client_are_reported(source, tmp_path, monkeypatch):
    parts = sample("td7").parts
    with pytest.raises(UserError, match="expected a folder or hf:owner/name, got 'hf:hopper'"):
        push_policy(parts, source, "hf:hopper")
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'r2r2\[hub\]'"):
        push_policy(parts, source, "hf:me/hopper")
    with pytest.raises(UserError, match=r"nowhere\.mp4: cannot read"):
        push_policy(parts, source._replace(video=tmp_path / "nowhere.mp4"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
