"""Which device JAX uses, and why it is not a GPU."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.doctor.child import Answer, Problem, last_line, run_check
from r2r2.doctor.packages import ABSENT, EXTRA_PACKAGES
from r2r2.experiments.machine import QUERY_SECONDS, nvidia_gpus, platforms_allow_gpus, visible_gpus
from r2r2.storage.versions import package_version

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"  # vendor; graphics cards and accelerators
MEMORY_QUERY = (
    *("nvidia-smi", "--query-gpu=driver_version,memory.free,memory.total"),
    "--format=csv,noheader,nounits",
)
LEAST_FREE = 0.25  # of a GPU's memory; JAX reserves three quarters
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|OUT_OF_MEMORY|out of memory", re.IGNORECASE)
CUDA_LINE = re.compile("cuda|gpu", re.IGNORECASE)
VARIABLES = (
    *("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_ENABLE_X64", "MUJOCO_GL", "LD_LIBRARY_PATH"),
)


class Driver(NamedTuple):
    """What NVIDIA's driver says; without a driver there are no GPUs."""

    gpus: tuple[str, ...] = ()  # their kinds
    visible: int = 0  # how many CUDA_VISIBLE_DEVICES allows
    version: str = ""
    free: float = 1.0  # least share of free memory of a GPU

    @property
    def facts(self) -> dict[str, Any]:
        """The driver as JSON values."""
        return {"gpus": list(self.gpus), "visible": self.visible, "version": self.version or None}


class Use(NamedTuple):
    """The device that JAX uses, and what is wrong with it."""

    facts: dict[str, Any]
    problems: list[Problem]


def examine_devices(jax_works: bool) -> Use:
    """Return the device that training uses by default, and why it is not a GPU.

    JAX runs in a child process that reserves no memory and ends before this returns.
    """
    driver, plugin = find_driver(), cuda_plugin()
    facts: dict[str, Any] = {"driver": driver.facts, "cuda_plugin": plugin or None, "used": None}
    if not jax_works:
        return Use({**facts, "why_not_gpu": None}, [])
    answer = run_check(["device"], {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if answer.facts:
        facts["used"] = answer.facts[-1]
        why, problems = _why_not_gpu(answer, driver, plugin)
    else:
        why, problems = None, [_broken_jax(answer)]
    if driver.free < LEAST_FREE:
        what = f"{driver.free:.0%} of a GPU's memory is free; JAX reserves three quarters"
        problems.append(Problem("gpu", what, "see nvidia-smi for the processes that use it"))
    return Use({**facts, "why_not_gpu": why}, problems)


def _broken_jax(answer: Answer) -> Problem:
    """Return the problem of a JAX that finds no device at all."""
    what = f"JAX cannot compute ({answer.failure or last_line(answer.log)})"
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        what += f" with JAX_PLATFORMS={platforms}"
    if OUT_OF_MEMORY.search(answer.log):
        advice = "free memory of the device (see nvidia-smi), or train with --device cpu"
    elif platforms:
        advice = "unset JAX_PLATFORMS, so that JAX chooses a device"
    else:
        advice = "set JAX_PLATFORMS=cpu to train on the CPU"
    return Problem("device", what, advice, True)


def _why_not_gpu(answer: Answer, driver: Driver, plugin: str) -> tuple[str | None, list[Problem]]:
    """Return why JAX uses the CPU, and the problem if there is a GPU that it could use."""
    if answer.facts[-1].get("platform") != "cpu":
        return None, []
    if not driver.gpus:
        return _without_driver()
    what, advice = _unused_gpu(answer, driver, plugin)
    return what, [Problem("gpu", f"{driver.gpus[0]} is not used: {what}", advice)]


def _without_driver() -> tuple[str, list[Problem]]:
    if not has_nvidia_hardware():
        return "no NVIDIA GPU or driver found", []
    what = "there is an NVIDIA GPU, but no driver for it was found"
    advice = "install NVIDIA's driver; in a container, start it with access to the GPU (--gpus all)"
    return what, [Problem("gpu", what, advice)]


def _unused_gpu(answer: Answer, driver: Driver, plugin: str) -> tuple[str, str]:
    """Return why a GPU with a driver is not used, and what to do."""
    jaxlib = package_version("jaxlib")
    install = f"pip install 'jax[cuda12]=={package_version('jax')}'"
    if not platforms_allow_gpus():
        platforms = os.environ["JAX_PLATFORMS"]
        return f"JAX_PLATFORMS is set to {platforms!r}", "unset JAX_PLATFORMS"
    if not driver.visible:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        what = f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs"
        return what, "unset CUDA_VISIBLE_DEVICES, or name a GPU as nvidia-smi numbers them"
    if not plugin:
        return "the driver was found, but the CUDA plugin of JAX is not installed", install
    if plugin != jaxlib:
        return f"the CUDA plugin of JAX is {plugin}, but jaxlib is {jaxlib}", install
    if OUT_OF_MEMORY.search(answer.log):
        return "its memory is full", "see nvidia-smi for the processes that use it"
    lines = [line for line in answer.log.splitlines() if CUDA_LINE.search(line)]
    reason = last_line("\n".join(lines)) or "no reason given"
    advice = f"check with nvidia-smi that driver {driver.version or '?'} works and is new enough"
    return f"JAX could not start CUDA ({reason})", advice


def find_driver() -> Driver:
    """Return what NVIDIA's driver says about the GPUs of this machine."""
    gpus = nvidia_gpus()
    if not gpus:
        return Driver()
    version, free = _driver_state()
    return Driver(tuple(x.kind for x in gpus), len(visible_gpus(gpus)), version, free)


def _driver_state() -> tuple[str, float]:
    """Return the version of the driver, and the least share of free memory of a GPU."""
    try:
        output = subprocess.run(
            MEMORY_QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "", 1.0
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    shares = [int(x) / int(y) for _, x, y in rows if x.isdigit() and y.isdigit() and int(y)]
    return (rows[0][0] if rows else ""), min(shares, default=1.0)


def cuda_plugin() -> str:
    """Return the version of JAX's CUDA plugin, or ""."""
    versions = map(package_version, EXTRA_PACKAGES["cuda"])
    return next((x for x in versions if x != ABSENT), "")


def has_nvidia_hardware() -> bool:
    """Return whether a graphics card of NVIDIA is built in, also without a driver (Linux)."""
    for device in PCI_DEVICES.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith(DISPLAY_CLASS):
            return True
    return False
