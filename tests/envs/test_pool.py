"""Environments in this process and in workers: the same steps, the same faults."""

import gc
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import scripted
from gymnasium.error import ResetNeeded

from r2r2.config.errors import UserError
from r2r2.envs.errors import EnvFailure
from r2r2.envs.make import make_env
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.pool import EnvPool, worker_count
from r2r2.envs.vector.spin_wait import LOOK, spin_seconds
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, EnvSlot, StepRequest

COUNT = Member("scripted:Count-v0", 0)
TERMINATES = Member("scripted:Terminates-v0", 1)
ZEROS = np.zeros((2, 2))
NONE = [NO_EPISODE, NO_EPISODE]


def place(member, repeat=1, source=None):
    return EnvSlot(member, EnvFactory(member.task, repeat, source), "training")


# All here; all in workers, which sleep or look; the first here, the second in a worker.
PATHS = {
    "here": (0, 0, 0.0),
    "asleep": (2, 0, 0.0),
    "looking": (2, 0, LOOK),
    "both": (2, 1, 0.0),
}


@pytest.fixture(params=PATHS.values(), ids=PATHS)
def pool(request, monkeypatch):
    workers, here, looking = request.param
    monkeypatch.setattr("r2r2.envs.vector.pool.spin_seconds", lambda *_: looking)
    places = [place(member, repeat=2) for member in (COUNT, TERMINATES)]
    with EnvPool(places, workers, here) as pool:
        pool.starts = pool.reset([0, 1], [5, 6])[:, 0]
        yield pool


def test_sizes(pool):
    assert pool.spec == Spec(obs_dim=4, action_dim=2)


def test_reset_gives_the_slots_own_start(pool):
    for slot, seed in [(0, 5), (1, 6)]:
        alone = make_env(pool.slots[slot].member.task, 2).reset(seed=seed)[0]
        np.testing.assert_array_equal(pool.reset([slot], [seed]), [alone])
    assert pool.starts[0] != pool.starts[1]


def test_a_step_of_all(pool):
    step = pool.step(StepRequest([0, 1], np.array([[1.0, 1.0], [-1.0, -1.0]]), NONE))
    first, second = pool.starts
    np.testing.assert_allclose(step.next_obs, [[first, 2, 1, 10], [second, 2, -3, 0]])
    np.testing.assert_array_equal(step.obs, step.next_obs)
    np.testing.assert_array_equal(step.reward, [5, 5])
    assert not step.ended.any()
    kinds = [np.float64, np.float64, bool, bool, np.float64]
    assert [column.dtype for column in step.arrays] == kinds


def test_an_end_shows_where_it_ended_and_where_the_next_episode_begins(pool):
    pool.step(StepRequest([0, 1], ZEROS, [7, 8]))
    step = pool.step(StepRequest([0, 1], ZEROS, [7, 8]))
    np.testing.assert_array_equal(step.next_obs[:, :2], np.c_[pool.starts, [4, 3]])
    np.testing.assert_array_equal(step.reward, [25, 9])
    np.testing.assert_array_equal(step.terminated, [False, True])
    np.testing.assert_array_equal(step.truncated, [False, False])
    np.testing.assert_array_equal(step.obs[0], step.next_obs[0])
    begun = make_env(TERMINATES.task, 2).reset(seed=8)[0]
    np.testing.assert_array_equal(step.obs[1], begun)
    # The new episode runs: its first step is number 2, of two repeats.
    after = pool.step(StepRequest([1], ZEROS[:1], [9]))
    np.testing.assert_array_equal(after.next_obs[:, :2], [[begun[0], 2]])


def test_a_time_limit_is_no_termination(pool):
    for _ in range(4):
        step = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
    np.testing.assert_array_equal(step.next_obs[:, 1], [7])
    np.testing.assert_array_equal(step.terminated, [False])
    np.testing.assert_array_equal(step.truncated, [True])


def test_rows_follow_the_slots(pool):
    pool.step(StepRequest([1], ZEROS[:1], [NO_EPISODE]))
    step = pool.step(StepRequest([1, 0], np.array([[1.0, 1.0], [-1.0, -1.0]]), NONE))
    second_then_first = [[pool.starts[1], 3, 1, 10], [pool.starts[0], 2, -3, 0]]
    np.testing.assert_allclose(step.next_obs, second_then_first)
    np.testing.assert_array_equal(step.reward, [9, 5])
    np.testing.assert_array_equal(step.terminated, [True, False])


def test_what_was_returned_does_not_change(pool):
    start = pool.reset([0], [5])
    first = pool.step(StepRequest([0, 1], ZEROS, NONE))
    kept = [column.copy() for column in first.arrays]
    pool.step(StepRequest([0, 1], np.ones((2, 2)), NONE))
    for column, copy in zip(first.arrays, kept, strict=True):
        np.testing.assert_array_equal(column, copy)
    assert start[0, 1] == 0


def test_no_slot_is_stepped_past_its_end(pool):
    pool.step(StepRequest([0, 1], ZEROS, NONE))
    pool.step(StepRequest([0, 1], ZEROS, NONE))
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        pool.step(StepRequest([0, 1], ZEROS, NONE))
    pool.reset([1], [6])
    step = pool.step(StepRequest([0, 1], ZEROS, NONE))
    # The refused step moved nobody: the first is at 6, the second at 2.
    np.testing.assert_array_equal(step.next_obs[:, 1], [6, 2])


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2,), (3, 2)])
def test_actions_of_another_shape(shape):
    with EnvPool([place(COUNT), place(TERMINATES)], workers=0) as pool:
        pool.reset([0, 1], [5, 6])
        with pytest.raises(ValueError, match=r"needed is \(2, 2\)"):
            pool.step(StepRequest([0, 1], np.zeros(shape), NONE))


def test_members_of_other_sizes_are_refused():
    members = [Member("Hopper-v5", 0), Member("Hopper-v5", 1), Member("Pendulum-v1", 0)]
    with pytest.raises(UserError) as refusal:
        EnvPool(list(map(place, members)), workers=2)
    assert str(refusal.value) == (
        "env is 'Hopper-v5' (observation 11, action 3) and 'Pendulum-v1'"
        " (observation 3, action 1); tasks trained together must have the same sizes"
    )


def test_single_precision_observations_become_double():
    with EnvPool([place(Member("Pendulum-v1", 0))], workers=0) as pool:
        assert pool.reset([0], [0]).dtype == np.float64
        step = pool.step(StepRequest([0], np.zeros((1, 1)), [0]))
        assert step.next_obs.dtype == np.float64


def test_close_frees_every_environment_once():
    with EnvPool([place(COUNT), place(TERMINATES)], workers=0) as pool:
        pool.reset([0, 1], [5, 6])
        inside = [pool._company.troupe.env(slot).unwrapped for slot in (0, 1)]
    pool.close()
    assert [env.closed for env in inside] == [1, 1]


def test_physics_is_the_same_in_a_worker_to_the_bit():
    members = [Member("Hopper-v5", seed) for seed in range(3)]
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 3, 3))
    found = []
    for workers in (0, 2):
        with EnvPool(list(map(place, members)), workers) as pool:
            pool.reset(range(3), [1, 2, 3])
            steps = [
                pool.step(StepRequest(range(3), a, [4, 5, 6])).arrays for a in actions
            ]
        found.append([np.stack(column) for column in zip(*steps, strict=True)])
    for here, there in zip(*found, strict=True):
        np.testing.assert_array_equal(here, there)
    assert found[0][2].any()  # episodes ended and began on the way


def test_there_are_never_more_workers_than_cores_or_slots():
    cores = len(os.sched_getaffinity(0))
    assert worker_count(None) == worker_count(10_000) == cores
    assert worker_count(0) == 0
    with pytest.raises(UserError, match="workers is -1; allowed is a whole number"):
        worker_count(-1)
    with EnvPool([place(COUNT)], workers=5) as pool:
        assert len(pool._company.workers) == 1


def test_a_class_no_pickle_can_name_goes_to_a_worker():
    class Local(scripted.Count):
        def __init__(self):
            super().__init__(terminates_at=2)

    with EnvPool([place(Member("mine", 0), source=Local)], workers=1) as pool:
        pool.reset([0], [0])
        pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
        step = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE]))
    assert step.terminated.all()


class Breaks(scripted.Count):
    """Raises, or kills its process, at step 3."""

    def __init__(self, deadly=False):
        super().__init__()
        self.deadly = deadly

    def step(self, action):
        if self.obs[1] == 2 and self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.obs[1] == 2:
            raise RuntimeError("the arm fell off")
        return super().step(action)


@pytest.mark.parametrize(("workers", "looking"), [(0, 0), (1, 0), (1, LOOK)])
def test_an_environment_that_raises_is_named(workers, looking, monkeypatch):
    monkeypatch.setattr("r2r2.envs.vector.pool.spin_seconds", lambda *_: looking)
    places = [place(COUNT), place(Member("arm", 7), source=Breaks)]
    with EnvPool(places, workers) as pool:
        pool.reset([0, 1], [0, 0])
        for _ in range(2):
            pool.step(StepRequest([0, 1], ZEROS, NONE))
        text = str(pool.to_error(*pool.step(StepRequest([0, 1], ZEROS, NONE)).faults))
    assert text.startswith("arm of member arm_s7 failed at its training step 3: Trace")
    assert text.endswith("RuntimeError: the arm fell off")
    assert "in step" in text


@pytest.mark.parametrize("looking", [0.0, LOOK])
def test_a_worker_that_dies_is_named_with_its_slot(looking, monkeypatch):
    monkeypatch.setattr("r2r2.envs.vector.pool.spin_seconds", lambda *_: looking)
    deadly = place(Member("arm", 7), source=lambda: Breaks(deadly=True))
    with EnvPool([place(COUNT), deadly, place(TERMINATES)], workers=1) as pool:
        pool.reset([0, 1], [0, 0])
        for _ in range(2):
            pool.step(StepRequest([0, 1], ZEROS, NONE))
        faults = pool.step(StepRequest([0, 1], ZEROS, NONE)).faults
        with pytest.raises(EnvFailure) as failure:
            pool.raise_for(faults)
    assert str(failure.value) == (
        "arm of member arm_s7 failed at its training step 3: its worker process was"
        " ended by signal SIGKILL"
    )


def test_a_worker_that_cannot_start_is_a_failure_too(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EnvPool([place(COUNT)], workers=1) as pool, pytest.raises(EnvFailure) as told:
        pool.reset([0], [0])
    assert "left with exit code 1" in str(told.value)


def children():
    """The processes that have this one for a parent."""
    mine = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for file in mine for pid in file.read_text().split()}


@pytest.mark.slow
def test_a_hundred_pools_leave_nothing_behind():
    def held():
        gc.collect()
        files = len(os.listdir("/proc/self/fd"))
        return children(), files, set(os.listdir("/dev/shm"))

    before = held()
    for _ in range(100):
        with EnvPool([place(COUNT), place(TERMINATES)], workers=1) as pool:
            pool.reset([0, 1], [5, 6])
            pool.step(StepRequest([0, 1], ZEROS, NONE))
    del pool  # its memory lives as long as somebody can look at it
    assert held() == before


KILLED = """
    import signal
    import numpy as np

    # A shell's background job has it ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from r2r2.envs.spec import Member
    from r2r2.envs.vector.pool import EnvPool
    from r2r2.envs.vector.step_types import EnvFactory, EnvSlot, StepRequest

    member = Member("scripted:Count-v0", 0)
    places = [EnvSlot(member, EnvFactory(member.task, 1), "training")] * 2
    with EnvPool(places, workers=2) as pool:
        pool.reset([0, 1], [0, 1])
        print(*(w._process.pid for w in pool._company.workers), flush=True)
        while True:
            pool.step(StepRequest([0, 1], np.zeros((2, 2)), [1, 2]))
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_leave_with_the_process_they_work_for(kind):
    killed_with_its_workers(KILLED, kind, workers=2)


def killed_with_its_workers(program, kind, workers):
    command = [sys.executable, "-c", textwrap.dedent(program)]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shm = set(os.listdir("/dev/shm"))
    main = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=here,
        text=True,
        process_group=0,
    )
    with main:
        theirs = list(map(int, main.stdout.readline().split()))
        assert len(theirs) == workers
        os.killpg(main.pid, kind)
        try:
            main.wait(timeout=20)
        finally:
            main.kill()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in theirs):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.05)
    assert set(os.listdir("/dev/shm")) == shm


def test_a_gymnasium_environment_is_not_needed_to_be_registered():
    factory = EnvFactory("scripted:Count", 1)
    with EnvPool(
        [EnvSlot(Member("scripted:Count", 0), factory, "training")], 0
    ) as pool:
        assert pool.reset([0], [3]).shape == (1, 4)
        assert isinstance(pool._company.troupe.env(0).unwrapped, gymnasium.Env)


@pytest.mark.parametrize(
    ("workers", "cores", "machine", "looks"),
    [
        (8, 16, "x86_64", True),
        (14, 16, "x86_64", True),
        (15, 16, "x86_64", False),
        (2, 16, "aarch64", False),
    ],
)
def test_only_who_has_a_core_to_spare_looks(
    workers, cores, machine, looks, monkeypatch
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert bool(spin_seconds(workers, cores)) == looks


def test_only_workers_with_a_member_to_train_look(monkeypatch):
    monkeypatch.setattr("r2r2.envs.vector.pool.available_cores", lambda: 16)
    away = [place(COUNT)._replace(purpose="evaluation")] * 2
    with EnvPool([place(COUNT), *away], workers=3) as pool:
        looks = [bool(worker._looking) for worker in pool._company.workers]
    assert looks == [platform.machine() == "x86_64", False, False]


def test_what_cannot_be_pickled_is_refused_and_nothing_is_left():
    lock = threading.Lock()

    def locked():
        with lock:
            return scripted.Count()

    gc.collect()
    before = children(), len(os.listdir("/proc/self/fd"))
    places = [place(COUNT), place(Member("mine", 0), source=locked)]
    with pytest.raises(
        UserError, match="env is 'mine', which cannot be sent to a worker"
    ):
        EnvPool(places, workers=2)
    gc.collect()
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_a_worker_that_died_idle_is_named_with_a_slot_that_was_to_be_stepped():
    places = [place(COUNT), place(TERMINATES), place(COUNT._replace(seed=9))]
    with EnvPool(places, workers=1) as pool:
        pool.reset([0, 1, 2], [0, 0, 0])
        pool._company.workers[0]._process.kill()
        pool._company.workers[0]._process.wait()
        faults = pool.step(StepRequest([0], ZEROS[:1], [NO_EPISODE])).faults
        assert "scripted.Count-v0_s0 failed" in str(pool.to_error(faults[0]))


class Hangs(scripted.Count):
    """Never comes back from a step."""

    def step(self, action):
        time.sleep(600)


HUNG = """
    import numpy as np
    from test_pool import Hangs, place
    from r2r2.envs.spec import Member
    from r2r2.envs.vector.pool import EnvPool
    from r2r2.envs.vector.step_types import StepRequest

    with EnvPool([place(Member("hangs", 0), source=Hangs)], workers=1) as pool:
        pool.reset([0], [0])
        print(*(w._process.pid for w in pool._company.workers), flush=True)
        pool.step(StepRequest([0], np.zeros((1, 2)), [1]))
"""


def test_a_worker_that_hangs_leaves_too():
    killed_with_its_workers(HUNG, signal.SIGKILL, workers=1)
