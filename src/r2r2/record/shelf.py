"""The folder of a run's checkpoints: which are there, which are good, what may go."""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from r2r2.config.refusal import Refusal
from r2r2.record.files import reason, sync_folder
from r2r2.record.inventory import (
    MANIFEST,
    Damage,
    Inventory,
    check_files,
    digest_of,
    name_of,
    number_of,
    read_inventory,
)


def files_of(folder: Path) -> list[Path]:
    """Every file of a checkpoint in a folder, also of one that was never finished."""
    torn = re.compile(r"\.[0-9]{8}\.json\.[0-9a-f]{8}\.tmp")
    found = sorted(os.listdir(folder))
    ours = [n for n in found if number_of(n) is not None or torn.fullmatch(n)]
    return [folder / name for name in ours]


def numbers_of(folder: Path) -> list[int]:
    """The numbers of the checkpoints that have a manifest, the newest first."""
    try:
        names = [path.name for path in files_of(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal(f"'{folder}' cannot be read: {reason(error)}") from error
    manifests = [name for name in names if name.endswith(MANIFEST)]
    return sorted((number_of(name) or 0 for name in manifests), reverse=True)


def good_one(folder: Path, number: int, digest: Callable[[Path], str]) -> Inventory:
    """A checkpoint's manifest, its files checked by a digest as `check_files` takes it.

    Raises:
        Damage: It cannot be used.
    """
    inventory = read_inventory(folder, number)
    check_files(folder, inventory, digest)
    return inventory


def past_keeping(folder: Path, newest: Inventory, keep: int) -> list[Path]:
    """The files that none of the newest good checkpoints needs."""
    kept = [newest]
    for number in numbers_of(folder):
        if len(kept) < keep and number < newest.number:
            with contextlib.suppress(Damage):
                kept.append(good_one(folder, number, _digest_of))
    return others(folder, kept)


def others(folder: Path, kept: Iterable[Inventory]) -> list[Path]:
    """The files that none of these checkpoints needs."""
    needed = {name for inventory in kept for name in inventory.files}
    needed |= {name_of(inventory.number, MANIFEST) for inventory in kept}
    return [path for path in files_of(folder) if path.name not in needed]


def delete_files(paths: Iterable[Path]) -> None:
    """Deletes files of checkpoints as far as it can, manifests before what they name.

    So none is left whose files are gone, even should the power fail meanwhile.
    """
    found = list(paths)
    manifests = [path for path in found if path.suffix == MANIFEST]
    for group in (manifests, [path for path in found if path.suffix != MANIFEST]):
        for path in group:
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            for folder in {path.parent for path in group}:
                sync_folder(folder)


def _digest_of(path: Path) -> str:
    """A checksum that is taken once of a file that stays as it is."""
    try:
        now = path.lstat()
    except OSError as error:
        raise Damage(f"{path.name} cannot be read: {reason(error)}") from error
    return _remembered(path, (now.st_ino, now.st_size, now.st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _remembered(path: Path, _: tuple[int, ...]) -> str:
    return digest_of(path)
