"""Fleets on a Ray cluster: each is a process on some node, as it would be on this machine.

A node that sees the folder of sweeps works in it. From other nodes, snapshots of the run folder
are copied through Ray's object store. A fleet whose node is lost resumes on another one.
"""

import contextlib
import importlib
import os
import queue
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.config.errors import UserError
from r2r2.experiments.engine import FAILED, INTERRUPTED, FleetEnd
from r2r2.experiments.machine import GPU_MEMORY_SHARE, MAX_FLEETS_PER_GPU
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.ray_node import (
    CHUNK_BYTES,
    RESULT_VARIABLES,
    TOKEN_FILE,
    FleetJob,
    FleetRunner,
    NodeFacts,
    look_at_node,
    node_versions,
)
from r2r2.experiments.run_copy import RunCopy
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.files import StorageError, cannot_write, reason

TCP_SECONDS, CONNECT_SECONDS = 4.0, 12.0  # to reach an address
SNAPSHOT_SECONDS = 30.0  # between two copies of a run folder from its node
LOSS_SECONDS = 20.0  # until Ray notices that a node is lost, after its processes ended
CLOSE_SECONDS = 10.0  # to kill the processes of a fleet
READY_SECONDS = 1.0  # between two looks whether a fleet's actor has started
WAITING = "no node of the cluster can train a fleet now; waiting for one to join"
WRONG_TOKEN = re.compile(rb"InvalidAuthToken|AuthenticationError")  # in Ray's messages
CONNECT = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)"


def import_ray() -> Any:
    """Return the module `ray`.

    Raises:
        UserError: It is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # never start a cluster, which would listen
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError(
            "--engine ray: ray is not installed; install it with pip install 'r2r2[ray]'"
        ) from None


def check_cluster(address: str | None) -> None:
    """Check within 20 seconds that a Ray cluster can be reached.

    Args:
        address: of the cluster's head, `HOST:PORT`; None: the cluster that this machine is in.

    Raises:
        UserError: Ray is not installed, or there is no cluster at the address.
    """
    import_ray()
    if address is not None:
        _check_address(address)
    _check_connection(address)


def connect(address: str | None) -> Any:
    """Connect this process to a Ray cluster and return the module `ray`; see `check_cluster`."""
    check_cluster(address)
    ray = import_ray()
    ray.init(address or "auto", log_to_driver=False, logging_level="ERROR")
    return ray


def _check_address(address: str) -> None:
    """Check the form of an address, and that something listens there."""
    host, _, port = address.rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= 65535
    if "://" in address or not host or not is_port:
        raise UserError(
            f"--address: expected HOST:PORT of a Ray cluster's head, got {address!r:.80}"
        )
    if why := _try_to_open(host.strip("[]"), int(port)):
        raise _unreachable(address, why)


def _try_to_open(host: str, port: int) -> str:
    """Return why nothing can be reached at an address; empty if something listens there.

    In a thread, since looking up a name has no time limit of its own.
    """
    answers: queue.Queue[str] = queue.Queue()

    def open_connection() -> None:
        try:
            socket.create_connection((host, port), TCP_SECONDS).close()
            answers.put("")
        except (OSError, UnicodeError) as error:  # a part of a name is longer than 63 letters
            answers.put(reason(error) if isinstance(error, OSError) else "not a valid name")

    threading.Thread(target=open_connection, daemon=True).start()
    try:
        return answers.get(timeout=TCP_SECONDS + 1)
    except queue.Empty:
        return f"no answer within {TCP_SECONDS:.0f} s"


def _unreachable(address: str, why: str) -> UserError:
    return UserError(
        f"--address {address}: no Ray cluster can be reached there ({why}); expected HOST:PORT of "
        "the head of a running cluster"
    )


def _check_connection(address: str | None) -> None:
    """Connect in another process first: in this one, Ray would try for minutes."""
    output, code = _try_to_connect(address or "auto")
    if code == 0:
        return
    if WRONG_TOKEN.search(output):
        expected = "expected that of the head in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        place = f"--address {address}" if address else "--engine ray"
        raise UserError(f"{place}: the token is missing or wrong; {expected}")
    if address is None:
        raise UserError(
            "--engine ray: this machine is not part of a running Ray cluster; start or join one "
            "with 'ray start', as docs/cluster.md describes"
        )
    if code is None:
        raise _unreachable(address, f"no answer within {CONNECT_SECONDS:.0f} s")
    lines = output.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
    raise _unreachable(address, lines[-1][:200])


def _try_to_connect(address: str) -> tuple[bytes, int | None]:
    """Connect in another process; return its messages and its exit code, None if it has none."""
    command = [sys.executable, "-c", CONNECT, address]
    end = time.monotonic() + CONNECT_SECONDS
    with tempfile.TemporaryFile() as messages:
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=messages)
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
                messages.seek(0)
                if WRONG_TOKEN.search(messages.read()):
                    break  # Ray would try it again
        finally:
            code = process.poll()
            process.kill()
            process.wait()
        messages.seek(0)
        return messages.read(), code


# Nodes and their slots


class Share(NamedTuple):
    """What one fleet gets of a node."""

    cores: int
    gpus: float


class Node:
    """A node of the cluster and the slots for fleets on it."""

    def __init__(self, name: str, facts: NodeFacts, share: Share, slots: int):
        self.name, self.facts, self.share = name, facts, share
        self._free = list(range(slots))

    @property
    def free_slots(self) -> int:
        """The number of slots without a fleet."""
        return len(self._free)

    def take_slot(self) -> int:
        """Return a free slot, which is no longer free then."""
        return self._free.pop(0)

    def free_slot(self, slot: int) -> None:
        """Make a slot free again."""
        self._free = sorted([*self._free, slot])

    def cores(self, slot: int) -> tuple[int, ...]:
        """Return the cores of a slot: its own, if the node has so many."""
        count, cores = self.share.cores, self.facts.cores
        own = cores[slot * count : (slot + 1) * count]
        return own if len(own) == count else cores[:count]


def node_share(
    plan: Plan, resources: Mapping[str, float], facts: NodeFacts
) -> tuple[Share, int] | str:
    """Return what each fleet gets of a node and the number of slots, or why it is not used.

    On a CPU, each fleet gets exactly the plan's cores, because its results depend on them.

    Example:
        >>> facts = NodeFacts("worker", tuple(range(16)), 0, True, {})
        >>> node_share(Plan("smoke", 1.0, 4, ()), {"CPU": 16.0}, facts)
        (Share(cores=4, gpus=0.0), 4)
    """
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if gpus:
        per_gpu = fleets_per_gpu(plan, facts.gpu_memory)
        slots = max(1, min(gpus * per_gpu, cpus))
        cores = min(cpus // slots, plan.cores or cpus)
        return (Share(cores, 1 / per_gpu), slots) if cpus else "it offers no CPU cores to Ray"
    cores = plan.cores or cpus
    if not cpus or min(cpus, len(facts.cores)) < cores:
        return f"it offers {cpus} cores; the fleets of this plan need {max(cores, 1)} each"
    return Share(cores, 0.0), cpus // cores


def fleets_per_gpu(plan: Plan, memory: int) -> int:
    """Return how many fleets may share a GPU with so much memory; one, if that is unknown.

    These are as many as the plan says, which has more if it was made for the cores of a CPU.

    Example:
        >>> fleets_per_gpu(Plan("smoke", 1.0, 4, ()), 0)
        1
    """
    needed = [fleet.memory for fleet in plan.fleets]
    if not memory or not needed or min(needed) <= 0:
        return 1
    fitting = int(memory * GPU_MEMORY_SHARE) // max(needed)
    return max(1, min(MAX_FLEETS_PER_GPU, plan.slots, fitting))


class _Cluster:
    """The nodes of a cluster: those that joined lately are looked at, lost ones are dropped."""

    def __init__(self, ray: Any, folder: SweepFolder, plan: Plan, say: Callable[[str], None]):
        self._ray, self._plan, self._say = ray, plan, say
        self._path, self._token = str(folder.path.absolute()), secrets.token_hex(16)
        self._token_file = folder.path / TOKEN_FILE.format(self._token)
        self._looks: dict[str, Any] = {}  # at nodes, by id
        self._nodes: dict[str, Node] = {}
        self._told: set[str] = set()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            self._token_file.write_text(self._token)
        except OSError as error:
            raise cannot_write(self._token_file, error) from error

    def nodes(self) -> list[Node]:
        """Return the nodes that fleets can use now."""
        alive = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for name in alive.keys() - self._looks.keys():
            self._looks[name] = self._look(name)
        for name in [*self._looks]:
            if name not in alive:
                del self._looks[name]
                self._nodes.pop(name, None)
            elif name not in self._nodes:
                self._add(name, alive[name]["Resources"])
        nodes = list(self._nodes.values())
        if not nodes and not any(self._looks.values()):
            self._tell(WAITING)
        return [node for node in nodes if node.share.gpus] or nodes

    def is_lost(self, node: Node) -> bool:
        """Return whether the cluster no longer has a node."""
        return all(x["NodeID"] != node.name for x in self._ray.nodes() if x["Alive"])

    def affinity(self, name: str) -> Any:
        """Return Ray's option that binds work to a node."""
        module = importlib.import_module("ray.util.scheduling_strategies")
        return module.NodeAffinitySchedulingStrategy(name, soft=False)

    def _look(self, name: str) -> Any:
        options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": self.affinity(name)}
        return self._ray.remote(look_at_node).options(**options).remote(self._path, self._token)

    def _add(self, name: str, resources: Mapping[str, float]) -> None:
        """Add a node if the look at it has ended and it can train fleets."""
        ref = self._looks[name]
        if ref is None or not self._ray.wait([ref], timeout=0)[0]:
            return
        self._looks[name] = None
        try:
            facts = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._tell(f"node {name[:8]} is not used: {str(error).strip().splitlines()[-1]}")
            return
        share = node_share(self._plan, resources, facts)
        if isinstance(share, str):
            if "CPU" in resources:  # else the head, which only controls the cluster
                self._tell(f"node {facts.host} ({name[:8]}) is not used: {share}")
        elif facts.versions["r2r2"] != node_versions()["r2r2"]:
            ours, theirs = node_versions()["r2r2"], facts.versions["r2r2"]
            self._tell(f"node {facts.host} is not used: it has r2r2 {theirs}, not {ours}")
        else:
            self._tell_versions(facts)
            self._nodes[name] = Node(name, facts, *share)

    def _tell_versions(self, facts: NodeFacts) -> None:
        others = {k: v for k, v in node_versions().items() if facts.versions.get(k) != v}
        if others:
            texts = [f"{k} {facts.versions.get(k)}, not {v}" for k, v in others.items()]
            self._tell(f"node {facts.host} has {', '.join(texts)}; results may differ")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

    def close(self) -> None:
        """Delete the file by which nodes see whether they share the folder."""
        self._token_file.unlink(missing_ok=True)


# Fleets


class _Lost(Exception):
    """The actor of a fleet is gone, and perhaps its node."""


class _RunningFleet:
    """A fleet on a node, followed by a thread of this process."""

    def __init__(self, ray: Any, node: Node, slot: int, actor: Any, copy: RunCopy | None):
        self._ray, self.node, self.slot, self._actor = ray, node, slot, actor
        self._copy, self._log_bytes = copy, 0
        self.interrupted = threading.Event()

    def follow(self, log: Path) -> tuple[int, str]:
        """Train the fleet; return the exit code of its process and why it failed."""
        try:
            return self._follow(log)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise _Lost(str(error).strip().splitlines()[0]) from error
        finally:
            self._release()

    def _follow(self, log: Path) -> tuple[int, str]:
        ready = self._actor.is_ready.remote()
        while not self._ray.wait([ready], timeout=READY_SECONDS)[0]:
            if self.interrupted.is_set():  # while it waits for the resources
                return INTERRUPTED, ""
        self._ray.get(ready)
        if self._copy:
            self._copy.open()
            self._send_run(self._copy)
        end = self._actor.train.remote()
        if self.interrupted.is_set():
            self._actor.interrupt.remote()
        while not self._ray.wait([end], timeout=SNAPSHOT_SECONDS)[0]:
            self._fetch_snapshot(log)
        self._fetch_snapshot(log)
        code, why = self._ray.get(end)
        return code, why

    def interrupt(self) -> None:
        """Let the fleet write a checkpoint and end."""
        self.interrupted.set()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._actor.interrupt.remote()

    def kill(self) -> None:
        """Kill the fleet's process without a checkpoint."""
        self.interrupted.set()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._actor.close.remote()

    def _send_run(self, copy: RunCopy) -> None:
        """Send the run folder, from which the node resumes."""
        for name in copy.files:
            with copy.path(name).open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    start = file.tell() - len(data)
                    self._ray.get(self._actor.receive.remote(name, data, start))

    def _fetch_snapshot(self, log: Path) -> None:
        if self._copy is None:
            return
        while data := self._ray.get(self._actor.read_log.remote(self._log_bytes)):
            self._log_bytes += len(data)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                file.write(data)
        snapshot = self._ray.get(self._actor.snapshot.remote())
        for name in self._copy.missing(snapshot):
            start, length = 0, snapshot[name].bytes
            while start < length or not start:
                data = self._ray.get(self._actor.read.remote(name, start))
                self._copy.receive(name, data, start)
                start += len(data) or CHUNK_BYTES
        self._copy.publish(snapshot)

    def _release(self) -> None:
        """End the actor, with its process and temporary folder."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait([self._actor.close.remote()], timeout=CLOSE_SECONDS)
        with contextlib.suppress(Exception):  # it has died already
            self._ray.kill(self._actor)
        if self._copy:
            self._copy.close()


def _print_message(text: str) -> None:
    print(f"r2r2: {text}", file=sys.stderr, flush=True)


class RayEngine:
    """Starts fleets on the nodes of a Ray cluster; an `Engine` for `run_plan`.

    If a node has GPUs, fleets use only nodes with GPUs. Nodes that join later are used, too.

    Args:
        folder: the files of the sweep; its plan is stored.
        plan: the fleets.
        address: of the cluster's head, `HOST:PORT`; None: the cluster that this machine is in.
        on_message: called with sentences for the user, for example on nodes that are not used.
        checkpoint_every: as in `RunOptions`.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached; nothing was written.
    """

    def __init__(
        self,
        folder: SweepFolder,
        plan: Plan,
        address: str | None = None,
        *,
        on_message: Callable[[str], None] = _print_message,
        checkpoint_every: str = "10min",
    ):
        self._variables = {k: os.environ[k] for k in RESULT_VARIABLES if k in os.environ}
        self._folder, self._checkpoint_every = folder, checkpoint_every
        self._ray = connect(address)
        self._cluster = _Cluster(self._ray, folder, plan, on_message)
        self._running: dict[str, _RunningFleet] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._ends: queue.Queue[FleetEnd] = queue.Queue()

    def free_slots(self) -> int:
        """Return how many more fleets the nodes of the cluster can take now."""
        nodes = self._cluster.nodes()
        if not any(node.free_slots for node in nodes):
            return 0
        # Others may use the cluster as well.
        available = self._ray.available_resources()
        share = nodes[0].share
        limits = [int(available.get("CPU", 0) // min(node.share.cores for node in nodes))]
        if share.gpus:
            limits.append(int(available.get("GPU", 0) / share.gpus + 1e-6))
        return min(sum(node.free_slots for node in nodes), *limits)

    def start(self, fleet: PlannedFleet, attempt: int) -> None:
        """Start a fleet on the node with the most free slots."""
        nodes = [node for node in self._cluster.nodes() if node.free_slots]
        if not nodes:  # one was lost just now
            self._ends.put(FleetEnd(fleet.name, FAILED, "no node is free", counts=False))
            return
        node = max(nodes, key=lambda x: (x.free_slots, x.facts.shared))
        slot = node.take_slot()
        actor = self._make_actor(node, self._job(fleet, attempt, node, slot))
        copy = None
        if not node.facts.shared:
            incoming = self._folder.path / "incoming" / fleet.name
            copy = RunCopy(self._folder.run(fleet.name), incoming)
        running = _RunningFleet(self._ray, node, slot, actor, copy)
        thread = threading.Thread(target=self._follow, args=(fleet.name, running), daemon=True)
        self._running[fleet.name], self._threads[fleet.name] = running, thread
        thread.start()

    def _job(self, fleet: PlannedFleet, attempt: int, node: Node, slot: int) -> FleetJob:
        variables = dict(self._variables)
        if not node.share.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        elif node.share.gpus % 1:  # the GPU has other fleets as well
            variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        return FleetJob(
            sweeps=str(self._folder.path.absolute()) if node.facts.shared else "",
            sweep=self._folder.name,
            fleet=fleet.name,
            attempt=attempt,
            device="gpu" if node.share.gpus else "cpu",
            cores=node.cores(slot),
            variables=variables,
            checkpoint_every=self._checkpoint_every,
            plan=b"" if node.facts.shared else self._folder.plan_file.read_bytes(),
        )

    def _make_actor(self, node: Node, job: FleetJob) -> Any:
        options = {"num_cpus": node.share.cores, "num_gpus": node.share.gpus}
        options |= {"max_concurrency": 4, "max_restarts": 0, "max_task_retries": 0}
        options |= {"scheduling_strategy": self._cluster.affinity(node.name)}
        return self._ray.remote(FleetRunner).options(**options).remote(job)

    def _follow(self, name: str, running: _RunningFleet) -> None:
        """Follow a fleet to its end; in a thread of its own."""
        try:
            end = FleetEnd(name, *running.follow(self._folder.log(name)))
        except _Lost as loss:
            end = self._lost(name, running.node, str(loss))
        except (OSError, StorageError, UserError) as error:
            end = FleetEnd(name, FAILED, str(error))
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            end = FleetEnd(name, FAILED, lines[-1])
        self._ends.put(end)

    def _lost(self, name: str, node: Node, why: str) -> FleetEnd:
        """Return the end of a fleet whose actor died; it counts if its node is still there."""
        deadline = time.monotonic() + LOSS_SECONDS
        while time.monotonic() < deadline:
            if self._cluster.is_lost(node):
                return FleetEnd(name, FAILED, f"node {node.facts.host} was lost", counts=False)
            time.sleep(0.5)
        return FleetEnd(name, FAILED, f"its process on {node.facts.host} was killed: {why}")

    def wait(self, seconds: float) -> list[FleetEnd]:
        """Return the fleets that have ended, after at most so many seconds."""
        ends: list[FleetEnd] = []
        with contextlib.suppress(queue.Empty):
            ends.append(self._ends.get(timeout=seconds))
            while True:
                ends.append(self._ends.get_nowait())
        for end in ends:
            if running := self._running.pop(end.fleet, None):
                running.node.free_slot(running.slot)
        return ends

    def interrupt(self) -> None:
        """Let all running fleets write a checkpoint and end."""
        for running in self._running.values():
            running.interrupt()

    def close(self) -> None:
        """Kill running fleets and leave the cluster, which goes on."""
        for running in self._running.values():
            running.kill()
        for thread in self._threads.values():
            thread.join(CLOSE_SECONDS)
        self._cluster.close()
        with contextlib.suppress(OSError):
            (self._folder.path / "incoming").rmdir()
        self._ray.shutdown()
