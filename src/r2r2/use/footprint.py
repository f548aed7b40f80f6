"""How much memory a run takes, for as far as the machine tells."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax

PROC = Path("/proc")


def resident(proc: Path = PROC) -> int | None:
    """Resident bytes of this process and all below it; None where Linux is not there.

    Pages that processes share count for each of them.
    """
    found = [_pages(proc, pid) for pid in (os.getpid(), *_below(proc, os.getpid()))]
    return sum(found) * os.sysconf("SC_PAGE_SIZE") or None


def on_device() -> int | None:
    """Bytes in use on the accelerator that trains; None on a CPU."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use")


def _below(proc: Path, pid: int) -> Iterator[int]:
    """Children, and theirs: a fork server stands between a pool and its workers."""
    for thread in (proc / str(pid) / "task").glob("*"):
        for child in map(int, _words(thread / "children")):
            yield child
            yield from _below(proc, child)


def _pages(proc: Path, pid: int) -> int:
    _, pages, *_ = (*_words(proc / str(pid) / "statm"), "0", "0")
    return int(pages)


def _words(path: Path) -> list[str]:
    """A file of numbers; none of a process that has ended meanwhile."""
    try:
        return path.read_text().split()
    except OSError:
        return []
