"""Whether the files of a run still are as they were written.

The manifest has copies of small files and, once the run has ended, the checksums of the others.
Every checkpoint has the checksums of the logs so far, and copies from which they are restored.
"""

import contextlib
import itertools
import zlib
from collections.abc import Mapping
from pathlib import Path

from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import (
    CHECKPOINT_DIR,
    Checkpoint,
    DamagedCheckpointError,
    checkpoint_numbers,
    read_checkpoint,
)
from r2r2.storage.files import FileEntry, checksum, file_entry, parse_entries, read_regular, reason
from r2r2.storage.run_folder import EVALUATIONS_FILE, EVENTS_FILE, MANIFEST_FILE, read_manifest

LOGS = (EVENTS_FILE, EVALUATIONS_FILE)
COPY_PREFIX = "logs/"  # of the arrays of a checkpoint that hold compressed logs

Damage = dict[Path, str]  # what is wrong with a file, which is not as it was written


def find_damage(run: Path) -> Damage:
    """Return the damaged files of a run; files without a recorded checksum count as intact.

    The logs of an unfinished run are compared up to its newest checkpoint: later lines are
    repeated when it is resumed.
    """
    manifest = read_manifest(run)
    if manifest is None:
        return {run / MANIFEST_FILE: "damaged or missing"}
    copies = {run / name: text.encode() for name, text in manifest.copies.items()}
    damage = {path: why for path, x in copies.items() if (why := difference(path, x))}
    if manifest.files:
        return damage | changed_files(run, manifest.files)
    for number in checkpoint_numbers(run / CHECKPOINT_DIR):
        with contextlib.suppress(DamagedCheckpointError):
            newest = read_checkpoint(run / CHECKPOINT_DIR, number)
            return damage | changed_files(run, logged_files(newest), growing=True)
    return damage


def logged_files(checkpoint: Checkpoint) -> dict[str, FileEntry]:
    """Return the files of a run as they were when a checkpoint was taken; empty if unknown."""
    return parse_entries(checkpoint.metadata.get("files")) or {}


def changed_files(run: Path, files: Mapping[str, FileEntry], growing: bool = False) -> Damage:
    """Return the files that differ from their entries; logs that are `growing` may be longer."""
    damage: Damage = {}
    for name, entry in files.items():
        try:
            got = file_entry(run / name, entry.bytes if growing and name in LOGS else None)
        except OSError as error:
            damage[run / name] = f"cannot read: {reason(error)}"
            continue
        if got.bytes != entry.bytes:
            damage[run / name] = f"damaged; expected {entry.bytes} bytes, got {got.bytes}"
        elif got != entry:
            damage[run / name] = f"damaged; its {entry.bytes} bytes have a wrong checksum"
    return damage


def difference(path: Path, written: bytes, growing: bool = False) -> str:
    """Return in which line a file differs from what was written; empty if in none."""
    try:
        content = read_regular(path, 2 * len(written) + 2**20)
    except OSError as error:
        return f"cannot read: {reason(error)}"
    content = content[: len(written)] if growing else content
    lines = itertools.zip_longest(content.split(b"\n"), written.split(b"\n"))
    changed = [number for number, (ours, theirs) in enumerate(lines, start=1) if ours != theirs]
    return f"line {changed[0]} is damaged: not as it was written" if changed else ""


def read_copy(checkpoint: Checkpoint, name: str) -> bytes | None:
    """Return a log as it was when a checkpoint was taken; None if the checkpoint has no copy."""
    array, entry = read_arrays(checkpoint.arrays).get(COPY_PREFIX + name), logged_files(checkpoint)
    if array is None or name not in entry:
        return None
    try:
        content = zlib.decompressobj().decompress(array.tobytes(), entry[name].bytes + 1)
    except zlib.error:
        return None
    return content if entry[name] == (len(content), checksum(content).hexdigest()) else None
