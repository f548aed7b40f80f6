"""A Ray cluster of several nodes on loopback, inside a network and process namespace of its own.

`python ray_cluster.py FOLDER CHECK` is started by `test_ray_engine.py` in such a namespace, where
it starts nodes, kills them, and carries out a stored sweep. It ends with everything it started.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from r2r2.config.errors import UserError
from r2r2.experiments import ray_engine
from r2r2.experiments.ray_engine import RayEngine
from r2r2.experiments.runner import run_plan
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.checkpoints import DamagedCheckpointError, checkpoint_numbers, read_checkpoint

ADDRESS = "127.0.0.1:6379"
RAY = str(Path(sys.executable).with_name("ray"))


def start_node(folder, *options, hide=None):
    """Start a node in its own session; with `hide`, it sees an empty folder there."""
    common = ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block"]
    command = [RAY, "start", *common, "--object-store-memory=100000000", *options]
    if hide:
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, str(hide), *command]
    with (folder / "nodes.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def start_head(folder):
    options = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
    return start_node(folder, *options, f"--temp-dir={folder / 'ray'}")


def start_worker(folder, hide=None):
    return start_node(folder, f"--address={ADDRESS}", "--num-cpus=1", hide=hide)


def children(pid):
    """Return the processes that descend from a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


def kill_node(node):
    """Kill a node with all of its processes at once, as if its machine were switched off."""
    pids = [node.pid, *children(node.pid)]
    for pid in pids:  # so that nobody starts others, or says goodbye
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for pid in {*pids, *children(node.pid)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


def wait_until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.1)


def is_listening():
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 6379), 1).close()
        return True


def has_checkpoint(folder, fleet, step=500):
    """Return whether a fleet has a checkpoint after updates were made."""
    checkpoints = folder.run(fleet) / "checkpoints"
    with contextlib.suppress(DamagedCheckpointError):
        return any(
            read_checkpoint(checkpoints, n).step >= step for n in checkpoint_numbers(checkpoints)
        )


def check_losses(folder, work):
    """Interrupt a sweep, start it again, and lose its node twice; nodes that join are used."""
    plan, nodes, messages = folder.plan(), [start_worker(work, hide=folder.path)], []
    options = {"on_message": messages.append, "checkpoint_every": "100"}
    first, second = (fleet.name for fleet in plan.fleets)

    def interrupt(_):
        if has_checkpoint(folder, first, 500):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        run_plan(folder, plan, RayEngine(folder, plan, ADDRESS, **options), interrupt)
    # The run folder is sent to the node now, which does not see it.
    engine = RayEngine(folder, plan, ADDRESS, **options)
    losses = [(first, 900), (second, 500)]

    def lose_node(statuses):
        fleet, step = losses[0] if losses else (first, 0)
        is_running = statuses[fleet].state == "running"
        if losses and is_running and has_checkpoint(folder, fleet, step):
            losses.pop(0)
            kill_node(nodes.pop())
            nodes.append(start_worker(work))  # it sees the folder of the sweep

    statuses = run_plan(folder, plan, engine, lose_node)
    states = {name: (x.state, x.attempts, x.why) for name, x in statuses.items()}
    return {"states": states, "messages": messages, "losses left": losses}


def check_errors(folder, _):
    """Return the errors of addresses without a cluster, and how long they took."""
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "6390", "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2)
    errors = {}
    for name in ("127.0.0.1:6380", "127.0.0.1:6390", "token"):
        if name == "token":
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        start = time.monotonic()
        try:
            RayEngine(folder, folder.plan(), ADDRESS if name == "token" else name)
        except UserError as error:
            errors[name] = str(error), time.monotonic() - start
    server.kill()
    return {"errors": errors, "written": sorted(x.name for x in folder.path.iterdir())}


CHECKS = {"losses": check_losses, "errors": check_errors}


def main():
    work, checks = Path(sys.argv[1]), sys.argv[2:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    token = secrets.token_hex(32)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    ray_engine.SNAPSHOT_SECONDS = 0.3
    start_head(work)
    wait_until(is_listening)
    for name in checks:
        started = time.monotonic()
        result = CHECKS[name](SweepFolder(work / name, "tiny"), work)
        result["seconds"] = time.monotonic() - started
        (work / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
