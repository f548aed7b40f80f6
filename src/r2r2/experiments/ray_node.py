"""What runs on the nodes of a Ray cluster: a look at the node, and one process per fleet."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import r2r2
from r2r2.experiments.engine import FINISHED, INTERRUPTED
from r2r2.experiments.run_copy import LOCK_SECONDS, FileList, take_snapshot
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.run_folder import is_locked
from r2r2.storage.versions import package_version

CHUNK_BYTES = 2**25  # of a file that is sent to or from a node
TOKEN_FILE = ".r2r2-{}"  # in the folder of sweeps, named after its content
PACKAGES = ("jax", "jaxlib", "numpy", "mujoco", "dm_control", "gymnasium")
# Variables on which results depend, and that Ray sets in its own processes.
RESULT_VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS")


class NodeFacts(NamedTuple):
    """What a sweep needs to know about a node."""

    host: str
    cores: tuple[int, ...]  # numbers of those that processes may use
    gpu_memory: int  # bytes of its smallest GPU; 0: unknown
    shared: bool  # the node sees the folder of sweeps
    versions: dict[str, str]  # of r2r2 and of what results depend on


class FleetJob(NamedTuple):
    """A fleet to be trained on a node."""

    sweeps: str  # folder of sweeps; empty: the node does not see it, and uses a temporary one
    sweep: str
    fleet: str
    attempt: int
    device: str
    cores: tuple[int, ...]  # for this fleet
    variables: Mapping[str, str]  # of its environment
    checkpoint_every: str
    plan: bytes  # content of the plan's file, if `sweeps` is empty


def look_at_node(sweeps: str, token: str) -> NodeFacts:
    """Return the facts of the node on which this is called."""
    file = Path(sweeps) / TOKEN_FILE.format(token)
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1)
    try:
        shared = file.read_text() == token
    except OSError:
        shared = False
    return NodeFacts(os.uname().nodename, tuple(cores), _gpu_memory(), shared, node_versions())


def node_versions() -> dict[str, str]:
    """Return the versions of r2r2 and of the packages on which results depend."""
    python = ".".join(map(str, sys.version_info[:2]))
    packages = {name: package_version(name) for name in PACKAGES}
    return {"r2r2": r2r2.__version__, "python": python, **packages}


def _gpu_memory() -> int:
    """Return the memory of the smallest GPU of this machine, or 0; JAX is not initialized."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
        return min(int(line) for line in lines.split(b"\n") if line.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


class FleetRunner:
    """Trains one fleet on this node in a process of its own; an actor of Ray.

    `train` takes until the end of the process; the other methods are called meanwhile.
    """

    def __init__(self, job: FleetJob):
        self._job, self._scratch = job, ""
        self._process: subprocess.Popen[bytes] | None = None
        self._interrupted, self._starting = False, threading.Lock()
        if not job.sweeps:
            self._scratch = tempfile.mkdtemp(prefix="r2r2-sweep-")
        self._folder = SweepFolder(Path(job.sweeps or self._scratch), job.sweep)
        self._snapshot = Path(self._scratch, "snapshot")
        if not job.sweeps:
            self._folder.plan_file.parent.mkdir(parents=True)
            self._folder.plan_file.write_bytes(job.plan)

    def is_ready(self) -> bool:
        """Return True once the actor has started."""
        return True

    def receive(self, name: str, data: bytes, start: int) -> None:
        """Write a part of a file of the run folder; parts come in order."""
        path = self._folder.run(self._job.fleet) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if start else "wb") as file:
            file.write(data)

    def train(self) -> tuple[int, str]:
        """Train the fleet; return the exit code of its process and the last line of its log."""
        self._wait_for_lock()
        log = self._folder.log(self._job.fleet)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = self._start(output.fileno())
            code = process.wait() if process else INTERRUPTED
        if self._interrupted and code != FINISHED:
            code = INTERRUPTED  # also before the process could handle the signal
        return code, "" if code in (FINISHED, INTERRUPTED) else _last_line(log)

    def _wait_for_lock(self) -> None:
        """Wait until the process of a lost node has ended; it may have lost its node only."""
        end = time.monotonic() + LOCK_SECONDS
        run = self._folder.run(self._job.fleet)
        while is_locked(run) and time.monotonic() < end and not self._interrupted:
            time.sleep(0.5)

    def _start(self, output: int) -> subprocess.Popen[bytes] | None:
        """Start the process on the fleet's own cores, unless it was interrupted before."""
        job = self._job
        place = [str(self._folder.path), job.sweep, job.fleet, "--attempt", str(job.attempt)]
        place += ["--device", job.device, "--checkpoint-every", job.checkpoint_every]
        command = [sys.executable, "-m", "r2r2.experiments.fleet_job", *place]
        variables = {k: v for k, v in os.environ.items() if k not in RESULT_VARIABLES}
        variables |= job.variables
        # The process inherits both from this thread; Ray blocks signals in its processes.
        if job.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, job.cores)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        with self._starting:
            if not self._interrupted:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=variables,
                    start_new_session=True,
                )
        return self._process

    def interrupt(self) -> None:
        """Let the process write a checkpoint and end; a second call does nothing."""
        with self._starting:
            if self._interrupted:  # the process would end at once at a second signal
                return
            self._interrupted = True
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                # Not SIGINT, which is ignored if the cluster was started as a background job.
                self._process.send_signal(signal.SIGTERM)

    def snapshot(self) -> FileList:
        """Take a snapshot of the run and return the list of its files, for `read`."""
        run = self._folder.run(self._job.fleet)
        return take_snapshot(run, self._snapshot) if run.exists() else {}

    def read(self, name: str, start: int) -> bytes:
        """Return a part of a file of the last snapshot."""
        return _read_part(self._snapshot / name, start)

    def read_log(self, start: int) -> bytes:
        """Return a part of the log of this process."""
        log = self._folder.log(self._job.fleet)
        return _read_part(log, start) if log.exists() else b""

    def close(self) -> None:
        """Kill the process and delete the temporary folder."""
        self.interrupt()
        if self._process and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _read_part(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(CHUNK_BYTES)


def _last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode(errors="replace").split("\n")
    texts = [line.strip() for line in lines if line.strip()]
    return texts[-1].removeprefix("r2r2: error: ") if texts else ""
