"""A folder of results that is there whole or not at all."""

import contextlib
import json
import secrets
import shutil
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import cast

from r2r2.config.refusal import Refusal
from r2r2.record.files import read_plain, reason, write_whole

NAME = "report.json"
KIND = "r2r2 report"


def check_vacant(path: Path, names: Collection[str]) -> None:
    """Refuses a place where a report would delete, or mix with, what is not one.

    Args:
        path: where it is to be.
        names: of all that a report consists of.

    Raises:
        Refusal: Something else is there, or a report with other things in it.

    Example:
        >>> check_vacant(Path("no/such/folder"), ["index.html"])
    """
    try:
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_dir() or path.is_symlink():
            raise Refusal(f"out is '{path}', which is no folder; give another name")
        found = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise _unwritable(path, error) from error
    if found and not _is_report(path):
        raise Refusal(
            f"out is '{path}', which is not empty and not a report, so it is not "
            "replaced; give another folder with --out"
        )
    if others := [name for name in found if name not in (*names, NAME)]:
        raise Refusal(
            f"out is '{path}', a report with {others[0]!r} in it besides, which would "
            "be lost; move that, or give another folder with --out"
        )


@contextlib.contextmanager
def replacing_folder(
    path: Path, facts: Mapping[str, object], names: Collection[str]
) -> Generator[Path]:
    """A new folder to write to, which takes the place of `path` when all is written.

    After an error, or an interruption, what was there stands as it was.

    Args:
        path: a place that `check_vacant` has let pass.
        facts: kept in the folder's `report.json`, by which it is known as a report.
        names: of all that a report consists of.

    Raises:
        Refusal: Nothing can be written there, or something else is there meanwhile.
    """
    whole = path.absolute()
    mark = secrets.token_hex(4)
    # Beside it, because a folder is renamed within one file system only.
    new, old = (whole.with_name(f".{whole.name}.{mark}.{x}") for x in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        text = json.dumps({"kind": KIND, **facts}, indent=2) + "\n"
        write_whole(new / NAME, text)
        check_vacant(path, names)
        _swap(whole, new, old)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(path: Path, new: Path, old: Path) -> None:
    """Puts `new` in the place of `path`, which is deleted only once `new` is there."""
    try:
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _is_report(path: Path) -> bool:
    try:
        content: object = json.loads(read_plain(path / NAME))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    return cast("dict[str, object]", content).get("kind") == KIND


def _unwritable(path: Path, error: OSError) -> Refusal:
    return Refusal(f"out is '{path}', which cannot be written: {reason(error)}")
