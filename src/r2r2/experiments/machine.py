"""The devices, cores and memory of this machine, as a plan needs them; JAX is not imported."""

import csv
import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from r2r2.training.host_memory import host_bytes

MAX_FLEETS_PER_GPU = 2  # at a time: their environments need cores as well
GPU_MEMORY_SHARE = 0.9  # of a GPU's memory, for several fleets on it
JAX_MEMORY_SHARE = 0.75  # of a GPU's memory, which JAX takes for one process by default
# Variables that say which share JAX takes; it accepts only one of them.
MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 20.0
DRIVER = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, also without nvidia-smi
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of the container: microseconds per period
GPU_PLATFORMS = ("", "cuda", "gpu")  # values of JAX_PLATFORMS that include NVIDIA's GPUs


class Device(NamedTuple):
    """A device that fleets train on."""

    name: str  # as `--device` takes it: 'cpu', 'gpu:0'
    kind: str  # such as 'NVIDIA H200'
    memory: int  # bytes; 0: unknown
    cuda: str = ""  # CUDA_VISIBLE_DEVICES of a process that trains on this GPU only

    @property
    def is_cpu(self) -> bool:
        """Whether fleets train on the cores of the machine."""
        return self.name == "cpu"


class Machine(NamedTuple):
    """What one machine offers to a sweep."""

    devices: tuple[Device, ...]  # GPUs, or else the CPU
    cores: int  # CPU cores that this process may use


def this_machine() -> Machine:
    """Return the devices and cores of this machine.

    All GPUs that CUDA_VISIBLE_DEVICES allows are used, or else the CPU, also if JAX has no
    support of GPUs here. NVIDIA's tools and files are asked, since JAX would reserve memory.

    Example:
        >>> machine = this_machine()
        >>> len(machine.devices) >= 1, machine.cores >= 1
        (True, True)
    """
    gpus = visible_gpus(nvidia_gpus()) if _jax_has_gpus() else []
    return Machine(tuple(gpus) or (Device("cpu", "cpu", host_bytes()),), available_cores())


def available_cores() -> int:
    """Return the CPU cores that this process and its container may use.

    Example:
        >>> 1 <= available_cores() <= (os.cpu_count() or 1)
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = (CPU_QUOTA.read_text() if CPU_QUOTA.exists() else "max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores or 1, int(quota) // max(int(period), 1))
    return max(cores or 1, 1)


class Gpu(NamedTuple):
    """A GPU as NVIDIA's driver describes it."""

    number: str  # as nvidia-smi counts
    uuid: str
    kind: str
    memory: int


def nvidia_gpus() -> list[Gpu]:
    """Return all GPUs of the machine, from nvidia-smi or from the driver's files."""
    try:
        output = subprocess.run(
            QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return _driver_gpus()
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines())]
    return [Gpu(row[0], row[1], row[2], _mebibytes(row[3])) for row in rows if len(row) == 4]


def _mebibytes(text: str) -> int:
    return int(text) * 2**20 if text.isdigit() else 0


def _driver_gpus() -> list[Gpu]:
    """Return the GPUs in the driver's files, which do not say how much memory they have."""
    gpus: list[Gpu] = []
    for number, file in enumerate(sorted(DRIVER.glob("*/information"))):
        lines = [line.partition(":") for line in file.read_text().splitlines()]
        facts = {name.strip(): value.strip() for name, _, value in lines}
        gpus.append(Gpu(str(number), facts.get("GPU UUID", ""), facts.get("Model", "GPU"), 0))
    return gpus


def visible_gpus(gpus: Sequence[Gpu]) -> list[Device]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, in its order, as CUDA reads it.

    Processes get the entry of a GPU as it stands there, since the numbers of CUDA are not those of
    nvidia-smi if GPUs differ. Without the variable they get identifiers, which are unambiguous.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        chosen = [(gpu, gpu.uuid or gpu.number) for gpu in gpus]
    else:
        chosen = _named_gpus(gpus, allowed.split(","))
    return [
        Device(f"gpu:{number}", gpu.kind, gpu.memory, entry)
        for number, (gpu, entry) in enumerate(chosen)
    ]


def _named_gpus(gpus: Sequence[Gpu], entries: Sequence[str]) -> list[tuple[Gpu, str]]:
    """Return the GPUs that entries name, each with its entry."""
    chosen: list[tuple[Gpu, str]] = []
    for entry in map(str.strip, entries):
        found = [x for x in gpus if entry and (entry == x.number or x.uuid.startswith(entry))]
        if entry.startswith("MIG-"):  # a part of a GPU, whose memory nvidia-smi does not list
            found = [Gpu(entry, entry, "MIG", 0)]
        if len(found) != 1 or found[0] in [gpu for gpu, _ in chosen]:
            break  # CUDA ignores an invalid entry and all after it
        chosen.append((found[0], entry))
    return chosen


def memory_share(fleets: int) -> float:
    """Return the share of a GPU's memory that a fleet gets if so many train on it.

    Example:
        >>> memory_share(2)
        0.45
    """
    name = memory_variable()
    default = JAX_MEMORY_SHARE if fleets == 1 else GPU_MEMORY_SHARE
    try:
        share = float(os.environ[name]) if name else default
    except ValueError:  # JAX will say so
        share = default
    return share / fleets


def memory_variable() -> str:
    """Return the variable in the environment that limits JAX's memory; empty if there is none."""
    return next((name for name in MEMORY_VARIABLES if os.environ.get(name)), "")


def _jax_has_gpus() -> bool:
    """Return whether JAX in a new process would train on NVIDIA's GPUs."""
    if not platforms_allow_gpus():
        return False
    spec = importlib.util.find_spec("jax_plugins")  # a namespace that holds the plugins of JAX
    places = spec.submodule_search_locations if spec else None
    return any(next(Path(place).glob("xla_cuda*"), None) is not None for place in places or [])


def platforms_allow_gpus() -> bool:
    """Return whether JAX_PLATFORMS, if it is set, lets JAX use NVIDIA's GPUs."""
    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    return bool(set(platforms) & set(GPU_PLATFORMS))
