"""The devices, cores and memory of this machine, as a plan needs them."""

import os
from typing import NamedTuple


class Device(NamedTuple):
    """A device that fleets train on."""

    name: str  # as `--device` takes it: 'cpu', 'gpu:0'
    kind: str  # such as 'NVIDIA H200'
    memory: int  # bytes


class Machine(NamedTuple):
    """What one machine offers to a sweep."""

    devices: tuple[Device, ...]  # GPUs, or else the CPU
    cores: int  # CPU cores that this process may use


def this_machine() -> Machine:
    """Return the devices and cores of this machine; JAX is not initialized."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine((Device("cpu", "cpu", memory),), cores or 1)
