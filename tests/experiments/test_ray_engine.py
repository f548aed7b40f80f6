import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tiny_sweep import VARIABLES, results, store_plan, train_directly

from r2r2.config.errors import UserError
from r2r2.experiments import ray_engine
from r2r2.experiments.engine import FINISHED, INTERRUPTED
from r2r2.experiments.plan import Plan
from r2r2.experiments.ray_engine import (
    WAITING,
    Node,
    RayEngine,
    Share,
    check_cluster,
    fleets_per_gpu,
    node_share,
)
from r2r2.experiments.ray_node import TOKEN_FILE, FleetJob, FleetRunner, NodeFacts, look_at_node

SCRIPT = Path(__file__).with_name("ray_cluster.py")
NAMESPACE = ["unshare", "-n", "-p", "-f", "-m", "--mount-proc", "--kill-child"]


def facts(cores=8, gpu_memory=0, shared=True):
    return NodeFacts("worker", tuple(range(cores)), gpu_memory, shared, {})


# A cluster of several nodes


def check_namespaces():
    """Skip the test where processes cannot have a network of their own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("unshare or ip is not installed")
    done = subprocess.run([*NAMESPACE, "ip", "link", "set", "lo", "up"], capture_output=True)
    if done.returncode:
        pytest.skip(f"no namespaces: {done.stderr.decode().strip()}")


@pytest.fixture
def work():
    """A folder with a short path, since names of sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="r2r2", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_sweep_that_loses_nodes_equals_an_undisturbed_one(work, monkeypatch):
    check_namespaces()
    for name, value in {**VARIABLES, "JAX_COMPILATION_CACHE_DIR": str(work / "xla")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(work))
    steps = 6_000  # so that a fleet is still running when its checkpoint is seen
    direct, plan = store_plan(work / "direct", steps=steps)
    losses, _ = store_plan(work / "losses", steps=steps)
    store_plan(work / "errors")
    train_directly(direct, plan)

    command = [*NAMESPACE, sys.executable, str(SCRIPT), str(work), "losses", "errors"]
    done = subprocess.run(command, capture_output=True, timeout=900, text=True)

    assert done.returncode == 0, done.stderr + (work / "nodes.log").read_text()[-3_000:]
    result = json.loads((work / "losses.json").read_text())
    assert result["losses left"] == []
    assert {state for state, *_ in result["states"].values()} == {"finished"}
    assert all(attempts == 1 for _, attempts, _ in result["states"].values())  # losses do not count
    assert {*result["messages"]} <= {WAITING}  # for a worker that has just been started
    events = losses.read_events()
    lost = [event["fleet"] for event in events if "was lost" in str(event.get("why"))]
    assert lost == [fleet.name for fleet in plan.fleets]
    assert [event["code"] for event in events if event["event"] == "interrupted"] == [INTERRUPTED]
    assert results(losses, plan) == results(direct, plan)
    assert sorted(x.name for x in losses.path.iterdir()) == ["logs", "plans", "runs"]
    check_connection_errors(json.loads((work / "errors.json").read_text()))


def check_connection_errors(result):
    errors = result["errors"]
    assert "127.0.0.1:6380: no Ray cluster can be reached there" in errors["127.0.0.1:6380"][0]
    assert "127.0.0.1:6390: no Ray cluster can be reached there" in errors["127.0.0.1:6390"][0]
    assert "token is missing or wrong" in errors["token"][0]
    assert all(seconds < 20 for _, seconds in errors.values())
    assert result["written"] == ["plans"]


# Without a cluster


@pytest.mark.parametrize(
    "address",
    ["head", "ray://head:10001", "head:port", ":6379", "h:99999", "h:²", f"h:{'1' * 5000}"],
)
def test_addresses_that_are_none(address, tmp_path):
    folder, plan = store_plan(tmp_path)
    with pytest.raises(UserError, match="--address: expected HOST:PORT"):
        RayEngine(folder, plan, address)


def test_an_address_where_nothing_listens(tmp_path):
    folder, plan = store_plan(tmp_path)
    with pytest.raises(UserError, match=r"127.0.0.1:1: no Ray cluster .* \(Connection refused\)"):
        RayEngine(folder, plan, "127.0.0.1:1")
    assert os.listdir(tmp_path) == ["plans"]


def test_names_that_cannot_be_looked_up(monkeypatch):
    ended = threading.Event()

    def hang(*_):
        ended.wait(60)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(ray_engine, "TCP_SECONDS", 0.1)
    try:
        with pytest.raises(UserError, match=r"head:6379: no Ray cluster .*\(no answer"):
            check_cluster("head:6379")
    finally:
        ended.set()
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"no Ray cluster .*\(not a valid name"):
        check_cluster(f"{'x' * 70}:6379")


def test_without_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    folder, plan = store_plan(tmp_path)
    with pytest.raises(UserError, match=r"pip install 'r2r2\[ray\]'"):
        RayEngine(folder, plan, "127.0.0.1:1")


def test_slots_of_a_cpu_node_have_the_cores_of_the_plan():
    plan = Plan("x", 1.0, 3, ())
    share, slots = node_share(plan, {"CPU": 8.0}, facts(8))
    assert (share, slots) == (Share(3, 0.0), 2)
    node = Node("id", facts(8), share, slots)
    taken = [node.take_slot(), node.take_slot()]
    assert [node.cores(slot) for slot in taken] == [(0, 1, 2), (3, 4, 5)]
    assert node.free_slots == 0
    node.free_slot(taken[0])
    assert node.take_slot() == taken[0]


def test_a_cpu_node_with_too_few_cores_is_not_used():
    plan = Plan("x", 1.0, 4, ())
    assert "need 4 each" in node_share(plan, {"CPU": 2.0}, facts(8))
    assert "need 4 each" in node_share(plan, {"CPU": 8.0}, facts(2))  # Ray was told too many
    assert "0 cores" in node_share(plan, {}, facts(8))


def test_cores_of_a_node_whose_cores_ray_counts_twice():
    node = Node("id", facts(2), Share(2, 0.0), 2)
    assert [node.cores(slot) for slot in (0, 1)] == [(0, 1), (0, 1)]


def test_slots_of_a_gpu_node(tmp_path):
    _, plan = store_plan(tmp_path, cores=16)
    plan = plan._replace(slots=2)
    large = plan._replace(fleets=tuple(x._replace(memory=30 * 2**30) for x in plan.fleets))
    resources = {"CPU": 32.0, "GPU": 4.0}
    assert node_share(plan, resources, facts(32)) == (Share(8, 1.0), 4)  # memory is not known
    assert node_share(large, resources, facts(32, 80 * 2**30)) == (Share(4, 0.5), 8)
    assert node_share(large, resources, facts(32, 40 * 2**30)) == (Share(8, 1.0), 4)
    alone = large._replace(slots=1)  # as on the GPUs of one machine
    assert node_share(alone, resources, facts(32, 80 * 2**30)) == (Share(8, 1.0), 4)
    assert node_share(plan, {"CPU": 2.0, "GPU": 4.0}, facts(2)) == (Share(1, 1.0), 2)
    assert "no CPU cores" in node_share(plan, {"GPU": 4.0}, facts(2))


def test_only_so_many_fleets_share_a_gpu(tmp_path):
    _, plan = store_plan(tmp_path)
    small = tuple(fleet._replace(memory=1) for fleet in plan.fleets)
    for slots, expected in ((1, 1), (2, 2), (16, 2)):  # 16: planned for the cores of a CPU
        assert fleets_per_gpu(plan._replace(fleets=small, slots=slots), 80 * 2**30) == expected
    unknown = plan._replace(fleets=(*small, plan.fleets[0]), slots=2)
    assert fleets_per_gpu(unknown, 80 * 2**30) == 1


def test_a_node_sees_whether_it_shares_the_folder(tmp_path):
    assert not look_at_node(str(tmp_path), "token").shared
    (tmp_path / TOKEN_FILE.format("token")).write_text("token")
    node = look_at_node(str(tmp_path), "token")
    assert node.shared
    assert set(node.cores) == os.sched_getaffinity(0)
    assert {"r2r2", "jax", "mujoco"} <= node.versions.keys()


# The process on a node, with another program in place of the fleet's


PROGRAM = """
import json, os, signal, sys, time
print(json.dumps([sys.argv[1:], sorted(os.sched_getaffinity(0)), os.environ["XLA_FLAGS"]]))
sys.stdout.flush()
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
open(sys.argv[1] + "/started", "w").close()
deadline = time.monotonic() + float(os.environ["SLEEP"])
while time.monotonic() < deadline and not signals:
    time.sleep(0.01)
if signals:
    time.sleep(0.5)  # a second signal would arrive meanwhile
    print(f"{len(signals)} signals")
    sys.exit(1)  # as before it could handle the signal
print("r2r2: error: no such fleet")
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def make_runner(tmp_path, monkeypatch):
    """Make the runner of a fleet whose process is PROGRAM."""
    package = tmp_path / "modules" / "r2r2" / "experiments"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "fleet_job.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray would
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def make(code=0, sleep=0.0, sweeps=str(tmp_path)):
        core = min(os.sched_getaffinity(0))
        variables = {"XLA_FLAGS": "--x", "CODE": str(code), "SLEEP": str(sleep)}
        return FleetRunner(
            FleetJob(sweeps, "tiny", "fleet", 2, "cpu", (core,), variables, "5min", b"{}")
        )

    return make


def in_thread(function):
    """Call a function in a thread, whose cores and signals may be changed."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(function()))
    thread.start()
    return thread, returned


def test_the_process_gets_its_cores_and_the_variables_of_the_driver(make_runner, tmp_path):
    thread, returned = in_thread(make_runner().train)
    thread.join()
    assert returned == [(FINISHED, "")]
    arguments, cores, flags = json.loads(
        (tmp_path / "logs" / "fleet.log").read_text().split("\n")[0]
    )
    options = ["--attempt", "2", "--device", "cpu", "--checkpoint-every", "5min"]
    assert arguments == [str(tmp_path), "tiny", "fleet", *options]
    assert cores == [min(os.sched_getaffinity(0))]
    assert flags == "--x"


def test_a_failed_process_says_why(make_runner):
    thread, returned = in_thread(make_runner(code=2).train)
    thread.join()
    assert returned == [(2, "no such fleet")]


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["shell", "background"])
def handles_sigint(request):
    """Start processes as from a shell, or as from a background job, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_process_ends(make_runner, handles_sigint, tmp_path):
    runner = make_runner(sleep=600)
    thread, returned = in_thread(runner.train)
    while thread.is_alive() and not (tmp_path / "started").exists():
        thread.join(0.05)
    runner.interrupt()
    runner.interrupt()  # which must not be a second signal
    thread.join()
    assert returned == [(INTERRUPTED, "")]
    assert "1 signals" in (tmp_path / "logs" / "fleet.log").read_text()


def test_a_process_that_was_interrupted_before_its_start(make_runner, tmp_path):
    runner = make_runner(sleep=600)
    runner.interrupt()
    thread, returned = in_thread(runner.train)
    thread.join()
    assert returned == [(INTERRUPTED, "")]
    assert not (tmp_path / "started").exists()


def test_a_node_without_the_folder_uses_a_temporary_one(make_runner, tmp_path):
    runner = make_runner(sweeps="")
    (scratch,) = tmp_path.glob("r2r2-sweep-*")
    assert (scratch / "plans" / "tiny.json").read_bytes() == b"{}"
    runner.receive("member/weights.npz", b"ab", 0)
    runner.receive("member/weights.npz", b"cd", 2)
    assert (scratch / "runs" / "fleet" / "member" / "weights.npz").read_bytes() == b"abcd"
    assert list(runner.snapshot()) == ["member/weights.npz"]
    assert runner.read("member/weights.npz", 1) == b"bcd"
    assert runner.read_log(0) == b""
    runner.close()
    assert not scratch.exists()
