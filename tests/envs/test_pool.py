"""Environments in the main process and in workers behave the same."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import scripted
from gymnasium.error import ResetNeeded

from r2r2.config.errors import UserError
from r2r2.envs.make import make_env
from r2r2.envs.spec import EnvFailure, Member, Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector import pool as pools
from r2r2.envs.vector.ipc import BY_PIPE, DEVICE_SPIN_SECONDS, SPIN_SECONDS, default_spin
from r2r2.envs.vector.pool import EnvPool, worker_count, worker_spins
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, EnvSlot, StepRequest

COUNT = Member("scripted:Count-v0", 0)
TERMINATES = Member("scripted:Terminates-v0", 1)
ZEROS = np.zeros((2, 2))
NONE = [NO_EPISODE, NO_EPISODE]


def env_slot(member, repeat=1, builder=None):
    return EnvSlot(member, EnvFactory(member.task, repeat, builder), "training")


# Number of workers, of local slots, and seconds to poll.
KINDS = {
    "local": (0, 0, 0.0),
    "sleeping": (2, 0, 0.0),
    "polling": (2, 0, SPIN_SECONDS),
    "by pipe": (2, 0, BY_PIPE),
    "mixed": (2, 1, 0.0),
}


@pytest.fixture(params=KINDS, scope="module")
def shared_pool(request):
    workers, local, spin = KINDS[request.param]
    env_slots = [env_slot(member, repeat=2) for member in (COUNT, TERMINATES)]
    with EnvPool(env_slots, workers, local, spin_seconds=spin) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool):
    shared_pool.starts = shared_pool.reset([0, 1], [5, 6])[:, 0]
    return shared_pool


def test_sizes(pool):
    assert pool.spec == Spec(obs_dim=4, action_dim=2)


def test_reset_depends_on_task_and_seed(pool):
    for slot, seed in [(0, 5), (1, 6)]:
        expected = make_env(pool.slots[slot].member.task, 2).reset(seed=seed)[0]
        np.testing.assert_array_equal(pool.reset([slot], [seed]), [expected])
    assert pool.starts[0] != pool.starts[1]


def test_step_of_all_slots(pool):
    step = pool.step(StepRequest([0, 1], np.array([[1.0, 1.0], [-1.0, -1.0]]), NONE))
    first, second = pool.starts
    np.testing.assert_allclose(step.next_obs, [[first, 2, 1, 10], [second, 2, -3, 0]])
    np.testing.assert_array_equal(step.obs, step.next_obs)
    np.testing.assert_array_equal(step.reward, [5, 5])
    assert not step.ended.any()
    dtypes = [np.float64, np.float64, bool, bool, np.float64]
    assert [array.dtype for array in step.arrays] == dtypes


def test_end_has_final_observation_and_start_of_the_next_episode(pool):
    pool.step(StepRequest([0, 1], ZEROS, [7, 8]))
    step = pool.step(StepRequest([0, 1], ZEROS, [7, 8]))
    np.testing.assert_array_equal(step.next_obs[:, :2], np.c_[pool.starts, [4, 3]])
    np.testing.assert_array_equal(step.reward, [25, 9])
    np.testing.assert_array_equal(step.terminated, [False, True])
    np.testing.assert_array_equal(step.truncated, [False, False])
    np.testing.assert_array_equal(step.obs[0], step.next_obs[0])
    start = make_env(TERMINATES.task, 2).reset(seed=8)[0]
    np.testing.assert_array_equal(step.obs[1], start)
    # The first step of the new episode is two environment steps.
    after = pool.step(StepRequest([1], ZEROS[:1], [9]))
    np.testing.assert_array_equal(after.next_obs[:, :2], [[start[0], 2]])


def test_time_limit_is_a_truncation(pool):
    for _ in range(4):
        step = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
    np.testing.assert_array_equal(step.next_obs[:, 1], [7])
    np.testing.assert_array_equal(step.terminated, [False])
    np.testing.assert_array_equal(step.truncated, [True])


def test_rows_are_in_the_order_of_the_request(pool):
    pool.step(StepRequest([1], ZEROS[:1], [NO_EPISODE]))
    step = pool.step(StepRequest([1, 0], np.array([[1.0, 1.0], [-1.0, -1.0]]), NONE))
    second_then_first = [[pool.starts[1], 3, 1, 10], [pool.starts[0], 2, -3, 0]]
    np.testing.assert_allclose(step.next_obs, second_then_first)
    np.testing.assert_array_equal(step.reward, [9, 5])
    np.testing.assert_array_equal(step.terminated, [True, False])


def test_returned_arrays_are_copies(pool):
    start = pool.reset([0], [5])
    first = pool.step(StepRequest([0, 1], ZEROS, NONE))
    copies = [array.copy() for array in first.arrays]
    pool.step(StepRequest([0, 1], np.ones((2, 2)), NONE))
    for array, copy in zip(first.arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert start[0, 1] == 0


def test_step_after_the_end_raises_and_steps_no_slot(pool):
    pool.step(StepRequest([0, 1], ZEROS, NONE))
    pool.step(StepRequest([0, 1], ZEROS, NONE))
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        pool.step(StepRequest([0, 1], ZEROS, NONE))
    pool.reset([1], [6])
    step = pool.step(StepRequest([0, 1], ZEROS, NONE))
    np.testing.assert_array_equal(step.next_obs[:, 1], [6, 2])


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2,)])
def test_actions_of_wrong_shape_raise(shape):
    with EnvPool([env_slot(COUNT), env_slot(TERMINATES)], workers=0) as pool:
        pool.reset([0, 1], [5, 6])
        with pytest.raises(ValueError, match=r"actions: expected shape \(2, 2\)"):
            pool.step(StepRequest([0, 1], np.zeros(shape), NONE))


def test_tasks_of_different_sizes_are_an_error():
    members = [Member("Hopper-v5", 0), Member("Hopper-v5", 1), Member("Pendulum-v1", 0)]
    with pytest.raises(UserError) as error:
        EnvPool(list(map(env_slot, members)), workers=2)
    assert str(error.value) == (
        "env: tasks trained together must have equal sizes, got 'Hopper-v5'"
        " (observation 11, action 3), 'Pendulum-v1' (observation 3, action 1)"
    )


def test_float32_observations_become_float64():
    with EnvPool([env_slot(Member("Pendulum-v1", 0))], workers=0) as pool:
        assert pool.reset([0], [0]).dtype == np.float64
        step = pool.step(StepRequest([0], np.zeros((1, 1)), [0]))
        assert step.next_obs.dtype == np.float64


def test_close_closes_every_environment_once():
    built = []

    def builder():
        built.append(scripted.Count())
        return built[-1]

    with EnvPool([env_slot(COUNT, builder=builder)] * 2, workers=0) as pool:
        pool.reset([0, 1], [5, 6])
    pool.close()
    assert [env.closed for env in built] == [1, 1]


def test_simulation_in_a_worker_is_bit_exact():
    members = [Member("Hopper-v5", seed) for seed in range(3)]
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 3, 3))
    results = []
    for workers in (0, 2):
        with EnvPool(list(map(env_slot, members)), workers) as pool:
            pool.reset(range(3), [1, 2, 3])
            steps = [pool.step(StepRequest(range(3), a, [4, 5, 6])).arrays for a in actions]
        results.append([np.stack(array) for array in zip(*steps, strict=True)])
    for local, remote in zip(*results, strict=True):
        np.testing.assert_array_equal(local, remote)
    assert results[0][2].any()  # some episodes ended


def test_workers_are_limited_by_cores_and_slots():
    cores = len(os.sched_getaffinity(0))
    assert worker_count(None) == worker_count(10_000) == cores
    assert worker_count(0) == 0
    with pytest.raises(UserError, match="workers: expected an integer >= 0, got -1"):
        worker_count(-1)
    assert worker_count(None, players=2 * cores) == 2 * cores
    assert worker_count(None, players=100 * cores) == 4 * cores
    assert worker_count(3 * cores, players=2 * cores) == 2 * cores
    assert worker_count(1, players=2 * cores) == 1
    assert worker_count(2 * cores, players=1) == worker_count(None, players=1) == cores
    with EnvPool([env_slot(COUNT)], workers=5) as pool:
        assert len(pool.worker_pids) == 1


def test_all_cores_count_where_there_is_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert (worker_count(None), worker_count(6)) == (8, 6)


def test_by_pipe_nothing_is_read_before_the_last_byte_arrives():
    ours, theirs = Pipe()
    asked = []

    def is_done():
        asked.append(theirs.poll(0))
        return True

    content = iter([b"a state", ipc.WAKE])

    def send_later():
        assert not asked
        theirs.send_bytes(next(content))

    sleeps = np.zeros(1, bool)
    with ours, theirs:
        assert ipc.wait_until(is_done, BY_PIPE, ours, sleeps, send_later) == b"a state"
    assert len(asked) == 1


def test_local_class_is_sent_to_a_worker():
    class Local(scripted.Count):
        def __init__(self):
            super().__init__(terminates_at=2)

    with EnvPool([env_slot(Member("mine", 0), builder=Local)], workers=1) as pool:
        pool.reset([0], [0])
        pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
        step = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
    assert step.terminated.all()


class Breaking(scripted.Count):
    """Raises or kills its process at step 3."""

    def __init__(self, deadly=False):
        super().__init__()
        self.deadly = deadly

    def step(self, action):
        if self.obs[1] == 2 and self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.obs[1] == 2:
            raise RuntimeError("the arm fell off")
        return super().step(action)


@pytest.mark.parametrize(("workers", "spin"), [(0, 0), (1, SPIN_SECONDS), (1, BY_PIPE)])
def test_error_names_member_and_step(workers, spin):
    env_slots = [env_slot(COUNT), env_slot(Member("arm", 7), builder=Breaking)]
    with EnvPool(env_slots, workers, spin_seconds=spin) as pool:
        pool.reset([0, 1], [0, 0])
        for _ in range(2):
            pool.step(StepRequest([0, 1], ZEROS, NONE))
        text = str(pool.to_error(*pool.step(StepRequest([0, 1], ZEROS, NONE)).faults))
    assert text.startswith("env 'arm' of member arm_s7: failed at training step 3: Tr")
    assert text.endswith("RuntimeError: the arm fell off")
    assert "in step" in text


@pytest.mark.parametrize("spin", [0.0, SPIN_SECONDS])
def test_error_of_a_dead_worker_names_the_slot(spin):
    deadly = env_slot(Member("arm", 7), builder=lambda: Breaking(deadly=True))
    env_slots = [env_slot(COUNT), deadly, env_slot(TERMINATES)]
    with EnvPool(env_slots, workers=1, spin_seconds=spin) as pool:
        pool.reset([0, 1], [0, 0])
        for _ in range(2):
            pool.step(StepRequest([0, 1], ZEROS, NONE))
        faults = pool.step(StepRequest([0, 1], ZEROS, NONE)).faults
    assert str(pool.to_error(faults[0])) == (
        "env 'arm' of member arm_s7: failed at training step 3: worker process killed"
        " by signal SIGKILL"
    )


def test_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EnvPool([env_slot(COUNT)], workers=1) as pool, pytest.raises(EnvFailure) as error:
        pool.reset([0], [0])
    assert "worker process exited with code 1" in str(error.value)


def children():
    """Return the ids of the child processes."""
    mine = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for file in mine for pid in file.read_text().split()}


@pytest.mark.slow
def test_pools_leave_no_process_file_or_memory():
    def resources():
        gc.collect()
        files = len(os.listdir("/proc/self/fd"))
        return children(), files, set(os.listdir("/dev/shm"))

    before = resources()
    for _ in range(100):
        with EnvPool([env_slot(COUNT), env_slot(TERMINATES)], workers=1) as pool:
            pool.reset([0, 1], [5, 6])
            pool.step(StepRequest([0, 1], ZEROS, NONE))
    del pool  # its memory is freed with its arrays
    assert resources() == before


KILLED = """
    import signal
    import numpy as np

    # It may be inherited as ignored from a shell's background job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from r2r2.envs.spec import Member
    from r2r2.envs.vector.pool import EnvPool
    from r2r2.envs.vector.step_types import EnvFactory, EnvSlot, StepRequest

    member = Member("scripted:Count-v0", 0)
    slots = [EnvSlot(member, EnvFactory(member.task, 1), "training")] * 2
    with EnvPool(slots, workers=2) as pool:
        pool.reset([0, 1], [0, 1])
        print(*pool.worker_pids, flush=True)
        while True:
            pool.step(StepRequest([0, 1], np.zeros((2, 2)), [1, 2]))
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_workers_exit_with_the_main_process(kind):
    check_workers_exit(KILLED, kind, workers=2)


def check_workers_exit(program, kind, workers):
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shm = set(os.listdir("/dev/shm"))
    main = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        text=True,
        process_group=0,
    )
    with main:
        pids = list(map(int, main.stdout.readline().split()))
        assert len(pids) == workers
        os.killpg(main.pid, kind)
        try:
            main.wait(timeout=20)
        finally:
            main.kill()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a worker survived the main process"
        time.sleep(0.05)
    assert set(os.listdir("/dev/shm")) == shm


def test_unregistered_environment_class_can_be_used():
    with EnvPool([env_slot(Member("scripted:Count", 0))], workers=0) as pool:
        assert pool.reset([0], [3]).shape == (1, 4)


@pytest.mark.parametrize(
    ("workers", "cores", "machine", "polls"),
    [
        (8, 16, "x86_64", SPIN_SECONDS),
        (14, 16, "x86_64", SPIN_SECONDS),
        (15, 16, "x86_64", 0),
        (2, 16, "aarch64", BY_PIPE),
    ],
)
def test_processes_poll_only_with_spare_cores(workers, cores, machine, polls, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert default_spin(workers, cores) == polls
    assert set(worker_spins([env_slot(COUNT)] * 3, 3, cores=3)) == {min(polls, 0)}


def test_only_workers_with_training_slots_poll(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    evaluation = [env_slot(COUNT)._replace(purpose="evaluation")] * 2
    spins = worker_spins([env_slot(COUNT), *evaluation], workers=3, cores=16)
    assert spins == [SPIN_SECONDS, 0.0, 0.0]


@pytest.mark.parametrize(
    ("training", "cores", "expected"),
    [(5, 16, DEVICE_SPIN_SECONDS), (5, 9, DEVICE_SPIN_SECONDS), (5, 8, SPIN_SECONDS), (5, 6, 0.0)],
)
def test_beside_a_device_workers_poll_longer_if_cores_are_left(
    training, cores, expected, monkeypatch
):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    slots = [env_slot(COUNT)] * training + [env_slot(COUNT)._replace(purpose="evaluation")]
    spins = worker_spins(slots, training + 1, cores, beside_device=True)
    assert spins == [expected] * training + [0.0]


def cpu_seconds(pid):
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_idle_worker_stops_polling_and_still_reacts(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(pools, "available_cores", lambda: 16)
    with EnvPool([env_slot(COUNT)], workers=1) as pool:
        pool.expect_device_calls()
        pool.reset([0], [0])
        pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
        time.sleep(10 * DEVICE_SPIN_SECONDS)
        before = cpu_seconds(pool.worker_pids[0])
        time.sleep(0.5)
        assert cpu_seconds(pool.worker_pids[0]) - before < 0.1
        step = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
    assert step.obs[0, 1] == 2


def test_given_time_to_poll_is_kept():
    with EnvPool([env_slot(COUNT)], workers=1, spin_seconds=0.5) as pool:
        pool.expect_device_calls()
        assert pool._runner.arrays.spin_seconds[0] == 0.5


@pytest.mark.parametrize("workers", [0, 1])
def test_without_cores_for_it_expecting_device_calls_changes_nothing(workers, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(pools, "available_cores", lambda: 2)
    with EnvPool([env_slot(COUNT)], workers) as pool:
        pool.expect_device_calls()
        pool.reset([0], [0])
        assert pool._runner.arrays.spin_seconds[0] == 0


def test_unpicklable_builder_is_an_error_and_leaves_no_process():
    lock = threading.Lock()

    def locked():
        with lock:
            return scripted.Count()

    gc.collect()
    before = children(), len(os.listdir("/proc/self/fd"))
    env_slots = [env_slot(COUNT), env_slot(Member("mine", 0), builder=locked)]
    with pytest.raises(UserError, match="env 'mine': cannot be sent to a worker"):
        EnvPool(env_slots, workers=2)
    gc.collect()
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_error_of_an_idle_worker_names_a_requested_slot():
    members = [COUNT, TERMINATES, COUNT._replace(seed=9)]
    with EnvPool(list(map(env_slot, members)), workers=1) as pool:
        pool.reset([0, 1, 2], [0, 0, 0])
        os.kill(pool.worker_pids[0], signal.SIGKILL)
        faults = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE])).faults
        assert "scripted.Count-v0_s0: failed" in str(pool.to_error(faults[0]))


class Hanging(scripted.Count):
    """Never returns from a step."""

    def step(self, action):
        time.sleep(600)


HUNG = """
    import numpy as np
    from test_pool import Hanging, env_slot
    from r2r2.envs.spec import Member
    from r2r2.envs.vector.pool import EnvPool
    from r2r2.envs.vector.step_types import StepRequest

    with EnvPool([env_slot(Member("hangs", 0), builder=Hanging)], workers=1) as pool:
        pool.reset([0], [0])
        print(*pool.worker_pids, flush=True)
        pool.step(StepRequest([0], np.zeros((1, 2)), [1]))
"""


def test_hanging_worker_exits_with_the_main_process():
    check_workers_exit(HUNG, signal.SIGKILL, workers=1)
