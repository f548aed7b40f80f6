"""Publish a policy in the layout of the Hugging Face Hub, and fetch one.

A published policy is a folder, or a model repository of the Hub with the same files:

    README.md        model card, with the header that the Hub reads
    policy.npz       weights, normalizer and bounds
    policy.py        runs them with NumPy
    config.toml      config of the run
    evaluations.csv  learning curves of all members of the run
    curve.png        picture of them
    replay.mp4       video, if there is one
    export.json      facts about the policy, and the checksum of every file
"""

import importlib
import importlib.util
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.config.errors import UserError, invalid_value
from r2r2.export.card import model_card
from r2r2.export.export import (
    CARD_FILE,
    EXPORT_FILE,
    EXPORT_FORMAT,
    EXPORT_KIND,
    FORMATS,
    check_export_dir,
    policy_files,
    write_record,
)
from r2r2.policy.policy import PolicyParts
from r2r2.storage.files import (
    FileEntry,
    atomic_write,
    cannot_read,
    file_entry,
    open_regular,
    parse_entries,
    read_json_object,
    read_regular,
    replace_dir,
)
from r2r2.storage.run_folder import CONFIG_FILE, CURVE_FILE, EVALUATIONS_FILE

VIDEO_FILE = "replay.mp4"  # the name that the Hub shows
HUB_PREFIX = "hf:"
MAX_BYTES = 2**31  # of one file
# All files that a push writes; those of an earlier push that the new one lacks are deleted.
PUBLISHED_FILES = (
    *(CARD_FILE, EXPORT_FILE, CONFIG_FILE, EVALUATIONS_FILE, CURVE_FILE, VIDEO_FILE),
    *FORMATS["numpy"],
)


class Publication(NamedTuple):
    """What is published besides the policy."""

    run: Path
    video: Path | None = None


def hub_client() -> Any:
    """Return the client of the Hugging Face Hub, from the optional package huggingface_hub."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UserError(
            "hf:owner/name: huggingface_hub is not installed; install it with "
            "pip install 'r2r2[hub]'"
        )
    return importlib.import_module("huggingface_hub").HfApi()


def push_policy(
    parts: PolicyParts,
    source: Publication,
    dest: str,
    overwrite: bool = False,
    private: bool = False,
) -> str:
    """Publish a policy to a folder or to `hf:owner/name`, and return where it is.

    A folder is written completely or not at all. On the Hub, one commit replaces the files of an
    earlier push, and other files of the repository stay.
    """
    repo = _repo_of(dest)
    if repo is None:
        out = Path(dest)
        check = partial(check_export_dir, out, overwrite)
        check()
        with replace_dir(out, check) as folder:
            _write_publication(folder, parts, source)
        return str(out)
    client = hub_client()
    with tempfile.TemporaryDirectory() as folder:
        _write_publication(Path(folder), parts, source)
        message = f"r2r2: {parts.info.get('agent')} on {parts.info.get('task')}"
        with _HubErrors(dest):
            client.create_repo(repo_id=repo, repo_type="model", private=private, exist_ok=True)
            answer = client.upload_folder(
                repo_id=repo,
                repo_type="model",
                folder_path=folder,
                commit_message=message,
                delete_patterns=list(PUBLISHED_FILES),
            )
    return str(answer)


def pull_policy(source: str, out: Path, overwrite: bool = False) -> Path:
    """Fetch a published policy into a folder, completely or not at all.

    Only the files that `export.json` lists are fetched, and their checksums must agree. Nothing
    that was fetched is executed.
    """
    check = partial(check_export_dir, out, overwrite)
    check()
    repo = _repo_of(source)
    if repo is None:
        _copy_verified(Path(source), out, check)
        return out
    client = hub_client()
    with tempfile.TemporaryDirectory() as folder:
        with _HubErrors(source):  # all files of one commit
            commit = client.repo_info(repo_id=repo, repo_type="model").sha
        place = {"repo_id": repo, "repo_type": "model", "revision": commit, "local_dir": folder}
        with _HubErrors(source):
            client.hf_hub_download(filename=EXPORT_FILE, **place)
        for file in _listed_files(Path(folder), source):
            with _HubErrors(source):
                client.hf_hub_download(filename=file, **place)
        _copy_verified(Path(folder), out, check, source)
    return out


def _repo_of(name: str) -> str | None:
    """Return the repository that `hf:owner/name` means, or None for a folder."""
    if not name.startswith(HUB_PREFIX):
        return None
    repo = name.removeprefix(HUB_PREFIX)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise UserError(f"expected a folder or hf:owner/name, got {name!r}")
    return repo


class _HubErrors:
    """Turns every error of the Hub's client, such as no network, into one sentence."""

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            text = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self._name}: the Hugging Face Hub answered: {text}") from error


def _write_publication(folder: Path, parts: PolicyParts, source: Publication) -> None:
    files = policy_files(parts, "numpy")
    for name in (CONFIG_FILE, EVALUATIONS_FILE, CURVE_FILE):
        if (path := source.run / name).exists():
            files[name] = _read(path)
    if source.video is not None:
        files[VIDEO_FILE] = _read(source.video)
    files[CARD_FILE] = hub_card(parts, files).encode()
    for name, content in files.items():
        atomic_write(folder / name, content)
    write_record(folder, parts, {"formats": ["numpy"]}, files)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise cannot_read(path, error) from error


def hub_card(parts: PolicyParts, files: Iterable[str]) -> str:
    """Return the model card with the header that the Hub reads."""
    info, names = parts.info, list(files)
    agent, task = str(info.get("agent", "policy")), str(info.get("task", "task"))
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "continuous-control", "r2r2"]
    task_type = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    result: dict[str, Any] = {"task": task_type, "dataset": {"name": task, "type": task}}
    if reward := _mean_reward(info.get("return")):
        metric = {"type": "mean_reward", "name": "mean_reward", "value": reward, "verified": False}
        result["metrics"] = [metric]
    header: dict[str, Any] = {"library_name": "r2r2", "tags": [*tags, agent, task]}
    if "metrics" in result:
        header["model-index"] = [{"name": agent, "results": [result]}]
    # Values in JSON are also valid YAML.
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items()]
    text = "\n".join(["---", *lines, "---", "", model_card(parts, ["numpy"])])
    if CURVE_FILE in names:
        text += f"\n## Learning curve\n\n![Learning curve]({CURVE_FILE})\n"
    if VIDEO_FILE in names:
        text += f"\n## Video\n\n[{VIDEO_FILE}]({VIDEO_FILE})\n"
    return text


def _mean_reward(record: Any) -> str:
    """Return this policy's own return; the card has the spread over seeds."""
    if not isinstance(record, dict) or not math.isfinite(record["mean"]):
        return ""
    return f"{record['mean']:.2f}"


def _copy_verified(
    folder: Path, out: Path, check: Callable[[], None], shown: str | None = None
) -> None:
    """Copy the files that a publication lists to a new folder, after checking each."""
    name = shown or str(folder)
    entries = _listed_files(folder, name)
    with replace_dir(out, check) as new:
        for file, entry in entries.items():
            try:
                with open_regular(folder / file) as stream:
                    content = stream.read(min(entry.bytes, MAX_BYTES) + 1)
            except OSError as error:
                raise UserError(f"{name}: {file}: cannot read: {error.strerror}") from error
            atomic_write(new / file, content)
            if file_entry(new / file) != entry:
                raise UserError(
                    f"{name}: {file}: not as it was published; expected checksum "
                    f"{entry.blake2b[:16]}..., got another; pull it again"
                )
        atomic_write(new / EXPORT_FILE, read_regular(folder / EXPORT_FILE))


def _listed_files(folder: Path, name: str) -> dict[str, FileEntry]:
    record = read_json_object(folder / EXPORT_FILE) or {}
    if record.get("kind") != EXPORT_KIND:
        raise UserError(f"{name}: not a published policy; expected a file {EXPORT_FILE}")
    if record.get("format") != EXPORT_FORMAT:
        raise invalid_value(f"{name}: format", f"{EXPORT_FORMAT}", record.get("format"))
    entries = parse_entries(record.get("files"))
    if not entries or any("/" in file or file.startswith(".") for file in entries):
        raise UserError(f"{name}: {EXPORT_FILE} is damaged: 'files' is not a list of files")
    if not any(entries.keys() >= set(files) for files in FORMATS.values()):
        raise UserError(f"{name}: {EXPORT_FILE} lists no policy; expected policy.npz and policy.py")
    return entries
