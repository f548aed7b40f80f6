"""The memory of this machine, as far as a container allows its use; does not import JAX."""

import os
from pathlib import Path

# Limits of containers: cgroup version 2, then version 1.
CGROUP_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def host_bytes() -> int:
    """Return the memory that programs can still allocate, in bytes.

    Example:
        >>> host_bytes() > 2**20
        True
    """
    texts = [file.read_text().strip() for file in CGROUP_FILES if file.exists()]
    return min(_available(), *(int(text) for text in texts if text.isdigit()), 2**62)


def _available() -> int:
    """Return the memory that Linux can provide, which includes reclaimable caches."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
