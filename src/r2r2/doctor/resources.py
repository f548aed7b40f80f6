"""Rendering back ends, cache, disk, cores and memory."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r2r2.doctor.child import Problem
from r2r2.experiments.machine import available_cores
from r2r2.storage.files import cache_folder, reason
from r2r2.training.host_memory import host_bytes

GB = 10**9
# Checkpoints of a run hold its replay: up to 3 GB per member for a million rows of Humanoid-v5.
LITTLE_DISK, NO_DISK = 5 * GB, GB // 5
LITTLE_MEMORY = 3 * GB // 2  # `r2r2 train --quick` takes about 1.1 GB


def examine_rendering() -> tuple[dict[str, Any], list[Problem]]:
    """Return which back ends of MuJoCo can render here, and a problem if none can."""
    from r2r2.envs.rendering import BACKENDS, GL_VARIABLE, backend_error

    with ThreadPoolExecutor(len(BACKENDS)) as threads:
        errors = dict(zip(BACKENDS, threads.map(backend_error, BACKENDS), strict=True))
    facts = {name: {"works": not error, "error": error or None} for name, error in errors.items()}
    chosen = os.environ.get(GL_VARIABLE)
    if chosen and errors.get(chosen, "unknown back end"):
        what = f"the back end {chosen!r} does not work, so no videos can be recorded"
        return facts, [Problem(GL_VARIABLE, what, f"unset {GL_VARIABLE}")]
    if all(errors.values()):
        what = "no OpenGL back end works, so no videos can be recorded"
        advice = "on Debian or Ubuntu: apt-get install libegl1 libgl1 (or libosmesa6)"
        return facts, [Problem("rendering", what, advice)]
    return facts, []


def examine_cache() -> tuple[dict[str, Any], list[Problem]]:
    """Return the folder of compiled programs with its size, and whether it is writable."""
    folder = cache_folder()
    error = write_error(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    facts = {"folder": str(folder), "bytes": size, "writable": not error}
    if not error:
        return facts, []
    what = f"{folder} cannot be written ({error}), so every run compiles its programs again"
    advice = "set XDG_CACHE_HOME to a folder that you can write"
    return facts, [Problem("cache", what, advice)]


def examine_disk() -> tuple[dict[str, Any], list[Problem]]:
    """Return the free space for runs in the working folder, and whether runs can be written."""
    folder = Path.cwd()
    free, error = shutil.disk_usage(folder).free, write_error(folder)
    facts = {"folder": str(folder), "free_bytes": free, "writable": not error}
    if error:
        what = f"the working folder cannot be written ({error})"
        advice = "change to another folder, or name one with --out"
        return facts, [Problem("disk", what, advice, True)]
    if free >= LITTLE_DISK:
        return facts, []
    what = f"{free / GB:.1f} GB free in the working folder; checkpoints may need more"
    advice = "see r2r2 clean for what can be deleted, or write to another disk with --out"
    return facts, [Problem("disk", what, advice, free < NO_DISK)]


def examine_machine() -> tuple[dict[str, Any], list[Problem]]:
    """Return the cores and the memory that this process may use."""
    available = host_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {"cores": available_cores(), "memory_bytes": total, "available_bytes": available}
    if available >= LITTLE_MEMORY:
        return facts, []
    what = f"{available / GB:.1f} GB of memory available; a small run takes about 1.1 GB"
    return facts, [Problem("memory", what, "end other programs, or give the container more")]


def write_error(folder: Path) -> str:
    """Return why a folder, or else the nearest folder above it, cannot be written; "" if it can.

    Example:
        >>> write_error(Path(tempfile.gettempdir()) / "not" / "yet" / "there")
        ''
    """
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return reason(error)
