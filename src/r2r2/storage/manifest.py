"""The file by which a folder is known as a run, and its members are found again."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

from r2r2.config.errors import UserError
from r2r2.storage.files import atomic_write, read_plain

NAME = "manifest.json"
KIND = "r2r2 run"
FORMAT = 1

Status = Literal["running", "finished"]


class Manifest(NamedTuple):
    """What a run's manifest says; of another format, only which."""

    format: int
    status: Status | Literal["unknown"]
    members: tuple[str, ...]


def write_manifest(run: Path, members: Sequence[str], status: Status) -> None:
    """Writes the manifest of a run, in one piece."""
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "status": status,
        "members": list(members),
    }
    atomic_write(run / NAME, json.dumps(manifest, indent=2) + "\n")


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a folder, or None where it has none that could be a run's."""
    try:
        content: object = json.loads(read_plain(run / NAME))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    fields = cast("dict[str, object]", content)
    number, status, members = (fields.get(k) for k in ("format", "status", "members"))
    if fields.get("kind") != KIND or not isinstance(number, int):
        return None
    if number != FORMAT:
        return Manifest(number, "unknown", ())
    if status not in ("running", "finished") or not isinstance(members, list):
        return None
    names = [str(name) for name in cast("list[object]", members)]
    if names != members or not all(is_member_name(name) for name in names):
        return None
    return Manifest(number, status, tuple(names))


def check_members(members: Sequence[str]) -> None:
    """Refuses names that cannot each have a folder inside a run."""
    for name in members:
        if not is_member_name(name):
            raise UserError(f"member is {name!r}, which cannot be the name of a folder")
        if members.count(name) > 1:
            raise UserError(f"member is {name!r}, which is there twice")


def is_member_name(name: str) -> bool:
    """Whether a folder of this name lies inside the run and beside the run's files.

    Example:
        >>> [is_member_name(name) for name in ("Hopper-v5_s3", "..", "curve.png")]
        [True, False, False]
    """
    of_a_file = re.search(r"\.(csv|json|jsonl|png|toml)$", name)
    plain = re.fullmatch(r"[\w.+-]+", name)
    return plain is not None and of_a_file is None and name.strip(".") != ""
