import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_engine import tiny_plan

from r2r2.experiments import local_engine
from r2r2.experiments.engine import LOCKED
from r2r2.experiments.fleet_job import main as fleet_job
from r2r2.experiments.local_engine import (
    LocalEngine,
    Slot,
    count_oom_kills,
    describe_signal,
    last_useful_line,
    local_slots,
    slot_environment,
)
from r2r2.experiments.machine import MEMORY_VARIABLES, Device, Machine
from r2r2.experiments.plan import write_plan
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.run_folder import lock_run
from synthetic_runs import write_run

HERE = Path(__file__).parent
CPU = Device("cpu", "cpu", 2**34)
GPUS = tuple(Device(f"gpu:{n}", "NVIDIA H200", 2**37, str(4 + n)) for n in range(2))


def plan_of(*names, cores=1, slots=1):
    fleet = tiny_plan().fleets[0]
    fleets = tuple(fleet._replace(name=name) for name in names)
    return tiny_plan()._replace(fleets=fleets, cores=cores, slots=slots)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Return a function that starts fleets with the stub job, one on each device."""
    monkeypatch.setattr(local_engine, "JOB", "stub_job")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    with contextlib.ExitStack() as stack:

        def start(*names, devices=(CPU,)):
            plan = plan_of(*names, slots=len(names) // len(devices))
            machine = Machine(devices, len(names))
            made = LocalEngine(SweepFolder(tmp_path, "tiny"), plan, machine)
            stack.callback(made.close)
            for fleet in plan.fleets:
                made.start(fleet, 1)
            return made

        yield start


def ends_of(engine, count):
    ends, deadline = [], time.monotonic() + 60
    while len(ends) < count and time.monotonic() < deadline:
        ends += engine.wait(0.2)
    return {end.fleet: end for end in ends}


def session_of(engine):
    return [x.process.pid for x in engine._running.values()]


def processes_in(session):
    """Return the live processes of a session."""
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                pids.append(int(status.parent.name))
    return pids


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_end_of_a_process_says_why(engine):
    running = engine("fails", "quiet", "killed", "ends")
    assert running.free_slots() == 0
    ends = ends_of(running, 4)
    assert running.free_slots() == 4
    assert {name: (end.code, end.why) for name, end in ends.items()} == {
        "fails": (1, "ValueError: no such joint"),
        "quiet": (5, ends["quiet"].why),
        "killed": (-9, "killed by SIGKILL"),
        "ends": (0, ""),
    }
    assert ends["quiet"].why.startswith("environment  --attempt=1 --device=cpu")


def test_the_reason_is_not_that_of_an_earlier_attempt(engine, tmp_path):
    running = engine("fails")
    ends_of(running, 1)
    log = tmp_path / "logs" / "fails.log"
    with log.open("a") as file:
        file.write("EarlierError: no\n")
    fleet = plan_of("fails").fleets[0]
    running.start(fleet, 2)
    assert ends_of(running, 1)["fails"].why == "ValueError: no such joint"
    assert log.read_text().count("ValueError") == 2


def test_every_gpu_has_a_process_that_sees_no_other(engine, tmp_path):
    running = engine("one", "two", devices=GPUS)
    assert running.free_slots() == 0
    ends = ends_of(running, 2)
    assert {end.code for end in ends.values()} == {0}
    logs = [(tmp_path / "logs" / f"{name}.log").read_text() for name in ("one", "two")]
    assert [log.split()[:4] for log in logs] == [
        ["environment", number, "--attempt=1", "--device=gpu"] for number in ("4", "5")
    ]


def test_interrupted_processes_end_by_themselves(engine, tmp_path):
    running = engine("waits")
    (session,) = session_of(running)
    wait_for(lambda: len(processes_in(session)) == 2)
    running.interrupt()
    assert ends_of(running, 1)["waits"][1:] == (143, "", True)


def test_close_kills_the_process_and_its_workers(engine):
    running = engine("waits")
    (session,) = session_of(running)
    wait_for(lambda: len(processes_in(session)) == 2)
    running.close()
    wait_for(lambda: processes_in(session) == [])  # the system takes a moment to end a worker


def test_fleets_at_the_same_time_have_different_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7, 11}, raising=False)
    slots = local_slots(plan_of("a", cores=2, slots=2), Machine((CPU,), 5))
    assert [slot.cores for slot in slots] == [(2, 3), (5, 7)]
    # A stored plan for a machine with more cores.
    (slot,) = local_slots(plan_of("a", cores=8), Machine((CPU,), 5))
    assert slot.cores == (2, 3, 5, 7, 11)


def test_all_gpus_have_a_fleet_before_one_is_shared():
    slots = local_slots(plan_of("a", cores=1, slots=2), Machine(GPUS, 64))
    assert [slot.device.name for slot in slots] == ["gpu:0", "gpu:1"] * 2


def test_a_process_sees_its_own_gpu_only():
    shared = slot_environment(Slot(GPUS[1], 2, ()), {"HOME": "x", "CUDA_VISIBLE_DEVICES": "4,5"})
    assert shared["CUDA_VISIBLE_DEVICES"] == "5"
    assert shared["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"
    alone = slot_environment(Slot(GPUS[0], 1, ()), {})
    assert alone == {"CUDA_VISIBLE_DEVICES": "4"}
    cpu = slot_environment(Slot(CPU, 1, ()), {})
    assert cpu == {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("name", MEMORY_VARIABLES)
def test_fleets_that_share_a_gpu_share_the_memory_that_the_user_allows(monkeypatch, name):
    for other in MEMORY_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "0.6")
    shared = slot_environment(Slot(GPUS[0], 2, ()), os.environ)
    # JAX refuses to start if both variables are set.
    assert {x: shared.get(x) for x in MEMORY_VARIABLES if x in shared} == {name: "0.300"}
    alone = slot_environment(Slot(GPUS[0], 1, ()), os.environ)
    assert alone[name] == "0.6"


def test_processes_killed_for_lack_of_memory_are_told_apart(tmp_path, monkeypatch):
    assert describe_signal(9, True) == "killed by the system: the machine ran out of memory"
    assert describe_signal(9, False) == "killed by SIGKILL"
    assert describe_signal(11, True) == "killed by SIGSEGV"
    counter = tmp_path / "events"
    counter.write_text("oom 3\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(local_engine, "OOM_COUNTERS", (str(counter), str(tmp_path / "none")))
    assert count_oom_kills() == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("r2r2: error: Foo-v1: unknown task\n\n", "Foo-v1: unknown task"),
        ("jaxlib.XlaRuntimeError: out\n---\nFor simplicity, JAX has removed its x\n", "jaxlib."),
        ("", ""),
        ("x" * 1000, "x" * 300 + "..."),
    ],
)
def test_the_last_useful_line(text, line):
    assert last_useful_line(text).startswith(line)
    assert bool(last_useful_line(text)) == bool(line)


def test_exit_codes_of_a_job_that_cannot_start(tmp_path, capsys):
    folder = SweepFolder(tmp_path, "tiny")
    assert fleet_job([str(tmp_path), "tiny", "a"]) == 2
    assert "does not exist" in capsys.readouterr().err
    write_plan(folder.plan_file, plan_of("a", cores=0))
    assert fleet_job([str(tmp_path), "tiny", "b"]) == 2
    assert "not a fleet" in capsys.readouterr().err
    write_run(folder.run("a"), plan_of("a").fleets[0].config, finished=False)
    with lock_run(folder.run("a")):
        assert fleet_job([str(tmp_path), "tiny", "a"]) == LOCKED
    assert "in use" in capsys.readouterr().err


def test_a_process_ends_when_its_parent_is_killed(tmp_path):
    """The parent holds the other side of its standard input, and is killed without a signal."""
    code = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(HERE)!r})
child = subprocess.Popen([sys.executable, "-c", '''
import threading, time
from r2r2.experiments.fleet_job import _end_with_stdin
threading.Thread(target=_end_with_stdin, daemon=True).start()
print("ready", flush=True)
time.sleep(100)
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(100)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert processes_in(child) == [child]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: processes_in(child) == [])
