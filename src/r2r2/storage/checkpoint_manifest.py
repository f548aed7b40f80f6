"""The manifest of one checkpoint: which files it needs, and whether they are whole."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from r2r2.storage.files import open_plain, reason

KIND = "r2r2 checkpoint"
FORMAT = 1
LAST = 99_999_999  # the largest number that eight digits hold
LONGEST = 2**26  # bytes of a manifest: what is longer is not read, nor written

MANIFEST = ".json"
ARRAYS, WORLDS, SEGMENT = ".npz", ".worlds.npz", ".replay.npz"

# It holds everything behind itself: one byte that changes is seen.
START = '{{"blake2b": "{}", '

checksum = partial(hashlib.blake2b, digest_size=32)


class Damage(Exception):
    """Why a checkpoint cannot be used, in words that follow its number."""


class Entry(NamedTuple):
    """A file as it was written."""

    bytes: int
    blake2b: str


class CheckpointManifest(NamedTuple):
    """What the manifest of a checkpoint says."""

    number: int
    step: int
    files: dict[str, Entry]  # replay segments in order, the oldest first
    notes: dict[str, Any]

    @property
    def segments(self) -> tuple[str, ...]:
        """The names of its pieces of replay, the oldest first."""
        return tuple(name for name in self.files if name.endswith(SEGMENT))


def name_of(number: int, what: str) -> str:
    """The name of one of a checkpoint's files.

    Example:
        >>> name_of(12, WORLDS)
        '00000012.worlds.npz'
    """
    return f"{number:08}{what}"


def number_of(name: str) -> int | None:
    """The number of the checkpoint to which a file belongs; None of any other file.

    Example:
        >>> number_of("00000012.replay.npz"), number_of("../00000012.npz")
        (12, None)
    """
    ours = re.fullmatch(r"([0-9]{8})\.(json|[a-z.]*npz)", name)
    return int(ours[1]) if ours else None


def to_text(inventory: CheckpointManifest) -> str:
    """A manifest as the text of a file.

    Raises:
        TypeError: The notes hold what JSON cannot.
        ValueError: They are far too long.
    """
    fields = {"kind": KIND, "format": FORMAT, **inventory._asdict()}
    fields["files"] = {name: e._asdict() for name, e in inventory.files.items()}
    rest = json.dumps(fields)[1:] + "\n"
    if len(rest) > LONGEST:
        raise ValueError(f"the notes of a checkpoint take {len(rest)} bytes")
    return START.format(checksum(rest.encode()).hexdigest()) + rest


def read_inventory(folder: Path, number: int) -> CheckpointManifest:
    """The manifest of a checkpoint, every part of it checked.

    Raises:
        Damage: It is missing, damaged, or of another kind or format.
    """
    name = name_of(number, MANIFEST)
    try:
        with open_plain(folder / name) as file:
            content = file.read(LONGEST + len(START) + 65)
        held: object = json.loads(content)
    except OSError as error:
        raise Damage(f"{name} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise Damage(f"{name} is not JSON") from error
    fields = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
    if fields.get("kind") != KIND:
        raise Damage(f"{name} is not the manifest of a checkpoint")
    if fields.get("format") != FORMAT:
        other = repr(fields.get("format"))[:20]
        raise Damage(f"{name} has format {other}; this version of r2r2 reads {FORMAT}")
    start = START.format(fields.get("blake2b")).encode(errors="replace")
    found = START.format(checksum(content[len(start) :]).hexdigest()).encode()
    if content[: len(start)] != found:
        raise Damage(f"{name} has another checksum")
    if not _sound(fields, number):
        raise Damage(f"{name} does not hold what a manifest holds")
    files = {file: Entry(**entry) for file, entry in fields["files"].items()}
    return CheckpointManifest(number, fields["step"], files, fields["notes"])


def check_sizes(folder: Path, inventory: CheckpointManifest) -> None:
    """Whether every file is there and as long as it was.

    Raises:
        Damage: One is not.
    """
    for name, entry in inventory.files.items():
        try:
            with open_plain(folder / name) as file:
                found = file.seek(0, os.SEEK_END)
        except FileNotFoundError as error:
            raise Damage(f"{name} is missing") from error
        except OSError as error:
            raise Damage(f"{name} cannot be read: {reason(error)}") from error
        if found != entry.bytes:
            raise Damage(f"{name} has {found} bytes instead of {entry.bytes}")


def check_files(
    folder: Path, inventory: CheckpointManifest, digest: Callable[[Path], str]
) -> None:
    """Whether every file holds what was written.

    Args:
        folder: Where they are.
        inventory: What they were.
        digest: `digest_of`, which reads all of a file, or what remembers it.

    Raises:
        Damage: One does not.
    """
    check_sizes(folder, inventory)
    for name, entry in inventory.files.items():
        if digest(folder / name) != entry.blake2b:
            raise Damage(f"{name} has another checksum")


def digest_of(path: Path) -> str:
    """The checksum of a file's content.

    Raises:
        Damage: It cannot be read.
    """
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, checksum).hexdigest()
    except OSError as error:
        raise Damage(f"{path.name} cannot be read: {reason(error)}") from error


def _sound(fields: Mapping[str, Any], number: int) -> bool:
    """Whether a manifest names its own files, earlier segments, and nothing else."""
    files: object = fields.get("files")
    if not isinstance(files, dict) or not isinstance(fields.get("notes"), dict):
        return False
    entries = cast("dict[str, object]", files)
    own = [name_of(number, what) for what in (ARRAYS, WORLDS)]
    segments = [name for name in entries if name not in own]
    return (
        fields.get("number") == number
        and _whole(fields.get("step"))
        and all(name in entries for name in own)
        and all(re.fullmatch(r"[0-9]{8}\.replay\.npz", name) for name in segments)
        and segments == sorted(segments)
        and segments[-1:] == [name_of(number, SEGMENT)]
        and all(_is_entry(entry) for entry in entries.values())
    )


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    fields = cast("dict[str, object]", entry)
    return (
        sorted(fields) == sorted(Entry._fields)
        and _whole(fields["bytes"])
        and isinstance(fields["blake2b"], str)
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
