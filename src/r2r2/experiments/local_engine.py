"""The engine of one machine: a process per fleet, on its GPUs or on some of its cores."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from r2r2.experiments.engine import FINISHED, INTERRUPTED, LOCKED, TERMINATED, FleetEnd
from r2r2.experiments.machine import (
    MEMORY_VARIABLES,
    Device,
    Machine,
    memory_share,
    memory_variable,
)
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.files import cannot_write

JOB = "r2r2.experiments.fleet_job"
POLL_SECONDS = 0.05  # between two looks at the processes
LOG_TAIL = 20_000  # bytes of a log in which the reason of a failure is looked for
MAX_WHY = 300  # letters
# Lines that follow the message of an exception without adding to it.
NOISE = re.compile(r"\W*|For simplicity, JAX has removed.*|The stack trace below excludes.*")
# Files of Linux that count processes killed for lack of memory.
OOM_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")


class Slot(NamedTuple):
    """A place for one fleet: a device, or its share of one, and the cores of its process."""

    device: Device
    fleets: int  # on the same device at the same time
    cores: tuple[int, ...]  # empty: any


class FleetProcess(NamedTuple):
    """The process of a fleet."""

    process: subprocess.Popen[bytes]
    slot: Slot
    log: Path
    offset: int  # length of the log at its start
    oom_kills: int  # of the whole system, at its start


class LocalEngine:
    """Starts a process for each fleet, as many at a time as devices and cores allow.

    Processes are in sessions of their own: Ctrl-C in the terminal reaches only the sweep, which
    interrupts them. They end when this process dies, however it does.
    """

    def __init__(self, folder: SweepFolder, plan: Plan, machine: Machine):
        self._folder = folder
        self._free = local_slots(plan, machine)
        self._running: dict[str, FleetProcess] = {}

    def free_slots(self) -> int:
        """Return how many more fleets can start now."""
        return len(self._free)

    def start(self, fleet: PlannedFleet, attempt: int) -> None:
        """Start or resume a fleet in the first free slot."""
        slot, log = self._free.pop(0), self._folder.log(fleet.name)
        folder = self._folder
        command = [sys.executable, "-m", JOB]
        command += [str(folder.path), folder.name, fleet.name, f"--attempt={attempt}"]
        command += [f"--device={slot.device.name.partition(':')[0]}", "--end-with-stdin"]
        command += [f"--cores={','.join(map(str, slot.cores))}"] if slot.cores else []
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                offset = output.tell()
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # its end tells the process that this one has died
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=slot_environment(slot, os.environ),
                    start_new_session=True,
                )
        except OSError as error:
            self._free.insert(0, slot)
            raise cannot_write(log, error) from error
        self._running[fleet.name] = FleetProcess(process, slot, log, offset, count_oom_kills())

    def wait(self, seconds: float) -> list[FleetEnd]:
        """Return the fleets that have ended, after at most so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            ended = [name for name, x in self._running.items() if x.process.poll() is not None]
            if ended or time.monotonic() >= deadline:
                return [self._collect(name) for name in ended]
            time.sleep(min(POLL_SECONDS, max(deadline - time.monotonic(), 0)))

    def interrupt(self) -> None:
        """Ask all running fleets to write a checkpoint and end."""
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                # Not SIGINT, which the children of a background job ignore.
                running.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill what is still running, with its environment workers."""
        for name, running in list(self._running.items()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()
            self._collect(name)

    def _collect(self, name: str) -> FleetEnd:
        """Free the slot of a process that has ended, and return how it ended."""
        running = self._running.pop(name)
        self._free.append(running.slot)
        if running.process.stdin is not None:
            running.process.stdin.close()
        code = running.process.returncode
        if code in (-signal.SIGINT, -signal.SIGTERM):  # before it could handle the signal
            code = INTERRUPTED if code == -signal.SIGINT else TERMINATED
        why = ""
        if code < 0:
            why = describe_signal(-code, count_oom_kills() > running.oom_kills)
        elif code not in (FINISHED, INTERRUPTED, TERMINATED):
            why = last_useful_line(_read_from(running.log, running.offset))
            why = why or f"exit code {code}"
        return FleetEnd(name, code, why, counts=code != LOCKED)


def local_slots(plan: Plan, machine: Machine) -> list[Slot]:
    """Return the places for fleets on a machine; devices get a second one after all have one."""
    places = [device for _ in range(plan.slots) for device in machine.devices]
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    slots: list[Slot] = []
    for index, device in enumerate(places):
        wanted = range(index * plan.cores, (index + 1) * plan.cores)
        cores = {available[n % len(available)] for n in wanted if available}
        slots.append(Slot(device, plan.slots, tuple(sorted(cores))))
    return slots


def slot_environment(slot: Slot, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a process in a slot, which sees only its own GPU."""
    variables = dict(environment)
    if slot.device.is_cpu:
        return variables | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    variables["CUDA_VISIBLE_DEVICES"] = slot.device.cuda
    if slot.fleets > 1:
        name = memory_variable() or MEMORY_VARIABLES[-1]
        variables[name] = f"{memory_share(slot.fleets):.3f}"
    return variables


def describe_signal(number: int, out_of_memory: bool) -> str:
    """Return a sentence on a process that a signal ended."""
    if number == signal.SIGKILL and out_of_memory:
        return "killed by the system: the machine ran out of memory"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"killed by {name}"


def count_oom_kills() -> int:
    """Return how many processes the system has killed for lack of memory; 0 if unknown."""
    count = 0
    for path in OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            lines = Path(path).read_text().splitlines()
            count += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return count


def last_useful_line(text: str) -> str:
    r"""Return the last line of a process's output that says why it failed.

    Example:
        >>> last_useful_line("Traceback ...\nValueError: no such joint\n----------\n")
        'ValueError: no such joint'
    """
    for line in reversed(text.splitlines()):
        line = line.strip()
        if not NOISE.fullmatch(line):
            line = re.sub(r"^r2r2: (error: )?", "", line)
            return line if len(line) <= MAX_WHY else f"{line[:MAX_WHY]}..."
    return ""


def _read_from(log: Path, offset: int) -> str:
    """Return the end of what was written to a log after an offset."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - LOG_TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
