"""Failures of environments and worker processes in a pool."""

import gc
import inspect
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scripted
from gymnasium.error import ResetNeeded
from test_pool import children, env_slot

from r2r2.envs.make import BorrowedEnv
from r2r2.envs.spec import EnvFailure, Fault, Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import NO_EPISODE, StepRequest, StepResult


class Failing(scripted.Count):
    """Fails at step 3 of every episode, in the given way."""

    def __init__(self, way="", terminates_at=None):
        super().__init__(terminates_at)
        self.way = way

    def reset(self, *, seed=None, options=None):
        if self.way == "reset" and self.obs[1] == 3:
            raise RuntimeError("cannot reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.obs[1] < 3:
            return obs, reward, *rest
        if self.way == "raise":
            raise RuntimeError("the arm fell off")
        if self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        odd = {
            "nan reward": (obs, np.nan),
            "inf obs": (np.array([0, 1, -np.inf, np.nan]), reward),
            "short obs": (np.array([7.0]), reward),
        }
        return *odd.get(self.way, (obs, reward)), *rest


def failing(way, seed=0, **more):
    return env_slot(Member("arm", seed), builder=partial(Failing, way, **more))


def request(slots, seed=NO_EPISODE):
    return StepRequest(slots, np.zeros((len(slots), 2)), [seed] * len(slots))


def is_at(step: StepResult, row: int, t: int) -> bool:
    return bool(step.reward[row] == t * t and step.next_obs[row, 1] == t)


DETAILS = {
    "raise": "RuntimeError: the arm fell off",
    "nan reward": "reward: expected a finite number, got nan",
    "inf obs": "observation[2]: expected a finite number, got -inf",
    "short obs": "observation: expected shape (4,), got (1,)",
    "reset": "RuntimeError: cannot reset",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_failures_are_reported_and_other_slots_are_stepped(workers):
    env_slots = [failing(way, terminates_at=3) for way in DETAILS] + [failing("")]
    slots = list(range(len(env_slots)))
    with EnvPool(env_slots, workers) as pool:
        starts = pool.reset(slots, slots)[:, 0]
        for _ in range(2):
            before = pool.step(request(slots, seed=9))
        np.testing.assert_array_equal(before.obs[:, 1], 2)
        step = pool.step(request(slots, seed=9))
        assert [fault.slot for fault in step.faults] == slots[:-1]
        details = [fault.detail.splitlines()[-1] for fault in step.faults]
        assert details == list(DETAILS.values())
        assert all(fault.own_failure for fault in step.faults)
        np.testing.assert_array_equal(step.obs[:-1], before.obs[:-1])
        np.testing.assert_array_equal(step.next_obs[:-1], before.obs[:-1])
        np.testing.assert_array_equal(step.reward[:-1], 0)
        assert not step.ended.any()
        assert is_at(step, -1, t=3)
        with pytest.raises(ResetNeeded):
            pool.step(request([0]))
        again, faults = pool.try_reset(slots[:-1], slots[:-1])
        assert faults == ()
        np.testing.assert_array_equal(again[:, 0], starts[:-1])
        step = pool.step(request(slots))
        assert all(is_at(step, slot, t=1) for slot in slots[:-1])
        assert is_at(step, -1, t=4)


def test_failed_environment_is_closed_and_rebuilt():
    built = []

    def builder():
        built.append(Failing("raise"))
        return built[-1]

    with EnvPool([env_slot(Member("arm", 0), builder=builder)], workers=0) as pool:
        pool.reset([0], [0])
        while not pool.step(request([0])).faults:
            pass
        assert [env.closed for env in built] == [1]
        pool.reset([0], [0])
        assert len(built) == 2


def test_borrowed_environment_is_reset_and_never_closed():
    mine = Failing("nan reward")
    builder = partial(BorrowedEnv, mine)
    with EnvPool([env_slot(Member("arm", 0), builder=builder)], workers=0) as pool:
        pool.reset([0], [0])
        while not pool.step(request([0])).faults:
            pass
        pool.reset([0], [0])
        assert is_at(pool.step(request([0])), 0, t=1)
    assert not mine.closed


def test_dead_worker_loses_only_its_own_slots():
    # Slots 0, 2, 4 and 6 are in one worker, the others in another.
    ways = ["", "", "kill", "", "", "", ""]
    env_slots = [failing(way, seed) for seed, way in enumerate(ways)]
    with EnvPool(env_slots, workers=2) as pool:
        first, second = pool.worker_pids
        pool.reset(range(6), range(6))  # slot 6 never has an episode
        for _ in range(2):
            before = pool.step(request([0, 1, 2, 3]))
        step = pool.step(request([0, 1, 2, 3]))
        assert pool.worker_pids[0] != first
        assert pool.worker_pids[1] == second
        culprit, *others = step.faults
        death = "worker process killed by signal SIGKILL"
        assert culprit == Fault(2, death)
        assert [(fault.slot, fault.own_failure) for fault in others] == [(0, False), (4, False)]
        detail = f"lost with env 'arm' of member arm_s2: {death}"
        assert {fault.detail for fault in others} == {detail}
        np.testing.assert_array_equal(step.reward, [0, 9, 0, 9])
        np.testing.assert_array_equal(step.obs[2], before.obs[2])
        assert np.isfinite(step.next_obs).all()
        assert step.rows(0, 1).faults == step.faults
        obs, faults = pool.try_reset([0, 2, 4], [0, 2, 4])
        assert faults == ()
        assert len(set(obs[:, 0])) == 3
        step = pool.step(request(range(6)))
        assert [is_at(step, slot, t) for slot, t in enumerate([1, 4, 1, 4, 1, 1])]
        assert step.faults == ()


class Sleeping(scripted.Count):
    """Sleeps in step 2, possibly forever, and may start a child process before."""

    def __init__(self, seconds, pid_file=None):
        super().__init__()
        self.seconds, self.pid_file = seconds, pid_file

    def step(self, action):
        if self.obs[1] == 1:
            if self.pid_file:
                child = subprocess.Popen(["sleep", "600"])
                Path(self.pid_file).write_text(str(child.pid))
            time.sleep(self.seconds)
        return super().step(action)


class SlowToLoad:
    """A builder that takes a while to unpickle in a worker."""

    def __init__(self, *args):
        self._args = args

    def __call__(self):
        return Sleeping(*self._args)

    def __setstate__(self, state):
        time.sleep(0.3)
        self.__dict__.update(state)


def test_timeout_applies_to_single_slots_and_kills_children(tmp_path):
    pid_file = str(tmp_path / "child")
    args = [(0.4,), (600, pid_file), (0.4,), (0.4,)]
    env_slots = [
        env_slot(Member("slow", seed), builder=SlowToLoad(*how)) for seed, how in enumerate(args)
    ]
    with EnvPool(env_slots, workers=1, timeout=0.9) as pool:
        pool.reset(range(4), range(4))
        pool.step(request([0, 2, 3]))
        step = pool.step(request([0, 2, 3]))
        assert step.faults == ()
        pool.step(request([1]))
        step = pool.step(request([0, 1]))
        place = f"{__file__}:{inspect.getsourcelines(Sleeping.step)[1] + 5}"
        detail = f"no response within 0.9 seconds; process killed ({place})"
        assert step.faults[0] == Fault(1, detail)
        assert [fault.slot for fault in step.faults] == [1, 0, 2, 3]
        child = Path("/proc") / Path(pid_file).read_text() / "stat"
        deadline = time.monotonic() + 20
        while child.exists() and child.read_text().split()[2] != "Z":
            assert time.monotonic() < deadline, "the child process survived"
            time.sleep(0.05)
        assert pool.try_reset([0, 1], [0, 1])[1] == ()
        assert is_at(pool.step(request([0, 1])), 1, t=1)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_worker_lost_between_steps_is_reported_by_the_next_step(kind):
    env_slots = [failing("", seed) for seed in range(4)]
    with EnvPool(env_slots, workers=2, timeout=0.8) as pool:
        pool.reset(range(4), range(4))
        os.kill(pool.worker_pids[0], kind)
        assert pool.save_states([1, 0, 3]) == [None] * 3
        step = pool.step(request([1, 0]))
        assert [(fault.slot, fault.own_failure) for fault in step.faults] == [(0, True), (2, False)]
        assert is_at(step, 0, t=1)
        assert not step.reward[1]
        assert pool.step(request([1, 3])).faults == ()
        assert pool.try_reset([0, 2], [0, 2])[1] == ()
        assert all(is_at(pool.step(request([slot])), 0, t=1) for slot in (0, 2))


def test_fault_of_a_slot_that_is_reset_is_not_reported():
    with EnvPool([failing(""), failing("", 1)], workers=1) as pool:
        pool.reset([0, 1], [0, 1])
        os.kill(pool.worker_pids[0], signal.SIGKILL)
        pool.save_states([0, 1])
        _, faults = pool.try_reset([1], [1])
        assert [fault.slot for fault in faults] == [0]


def test_dead_workers_leave_no_process_or_file_descriptor(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EnvPool([failing("")], workers=1) as pool:

        def resources():
            gc.collect()
            return len(children()), len(os.listdir("/proc/self/fd"))

        before = resources()
        for _ in range(20):
            _, (fault,) = pool.try_reset([0], [0])
            assert fault.detail == "worker process exited with code 1"
        assert resources() == before
        with pytest.raises(EnvFailure, match="arm_s0: failed at training step"):
            pool.reset([0], [0])


class LargeState(scripted.Count):
    """Its state exceeds the capacity of a pipe, or cannot be saved."""

    def __init__(self, broken=False, size=100_000):
        super().__init__()
        self.memory, self.broken = np.zeros(size), broken

    def reset(self, *, seed=None, options=None):
        self.memory[:] = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.memory += np.arange(len(self.memory))
        _, _, *rest = super().step(action)
        return self.obs, self.memory[-1], *rest

    def save_state(self):
        if self.broken:
            raise RuntimeError("cannot save")
        return {"memory": self.memory, "obs": self.obs}

    def load_state(self, saved):
        # Modified in place by later steps.
        self.memory, self.obs = saved["memory"], saved["obs"]


def large_state(seed, broken=False):
    return env_slot(Member("large", seed), builder=partial(LargeState, broken))


def test_states_are_exchanged_between_local_and_remote_slots():
    stateless = env_slot(Member("stateless", 0), builder=scripted.Count)
    env_slots = [large_state(seed) for seed in range(3)] + [stateless]
    slots, saved = range(4), slice(0, 3)

    def play(pool, steps):
        results = [pool.step(request(slots)) for _ in range(steps)]
        obs = np.array([result.obs for result in results])
        return obs, np.array([result.reward for result in results])

    with EnvPool(env_slots, 2) as remote, EnvPool(env_slots, 0) as local:
        for pool in (remote, local):
            pool.reset(slots, slots)
            play(pool, 3)
        remote_states, local_states = (pool.save_states(slots) for pool in (remote, local))
        assert remote_states[3] is local_states[3] is None
        np.testing.assert_equal(remote_states[saved], local_states[saved])
        obs, reward = play(remote, 4)
        # Loading twice from the same arrays shows that they are copied.
        for pool, states in [
            (remote, local_states),
            (local, remote_states),
            (local, remote_states),
        ]:
            first, faults = pool.load_states(slots, slots, states)
            assert faults == ()
            np.testing.assert_array_equal(first[:, 1], 0)
            obs_again, reward_again = play(pool, 4)
            np.testing.assert_array_equal(obs_again[:, saved], obs[:, saved])
            np.testing.assert_array_equal(reward_again[:, saved], reward[:, saved])
            assert obs_again[0, 3, 1] == 1  # without a state it starts again


def test_state_is_received_by_a_polling_worker():
    small = env_slot(Member("small", 0), builder=partial(LargeState, size=3))
    with EnvPool([small], workers=1, spin_seconds=0.5) as pool:
        pool.reset([0], [0])
        pool.step(request([0]))
        states = pool.save_states([0])
        pool.step(request([0]))
        assert pool.load_states([0], [0], states)[1] == ()
        assert continues(pool, 0)


def test_simulation_of_a_worker_continues_bit_exactly_in_another_process():
    members = [Member("Hopper-v5", seed) for seed in range(2)]
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 2, 3))
    seeds = [7, 8]
    with EnvPool(list(map(env_slot, members)), 1) as pool:
        pool.reset([0, 1], seeds)
        for action in actions[:10]:
            pool.step(StepRequest([0, 1], action, [9, 9]))
        states = pool.save_states([0, 1])
        steps = [pool.step(StepRequest([0, 1], action, [9, 9])) for action in actions[10:]]
    with EnvPool(list(map(env_slot, members)), 0) as pool:
        assert pool.load_states([0, 1], seeds, states)[1] == ()
        again = [pool.step(StepRequest([0, 1], action, [9, 9])) for action in actions[10:]]
    for first, second in zip(steps, again, strict=True):
        for mine, other in zip(first.arrays, second.arrays, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("workers", [0, 1])
def test_invalid_state_is_a_fault_of_its_slot_only(workers):
    with EnvPool([large_state(0), large_state(1)], workers) as pool:
        pool.reset([0, 1], [0, 1])
        pool.step(request([0, 1]))
        good, other = pool.save_states([0, 1])
        _, faults = pool.load_states([0, 1], [0, 1], [{"odd": np.zeros(2)}, other])
        (fault,) = faults
        assert fault.slot == 0
        assert fault.detail.splitlines()[-1].startswith("ValueError: saved state: ")
        assert continues(pool, 1)
        assert pool.load_states([0], [0], [good])[1] == ()
        assert continues(pool, 0)


def continues(pool, slot):
    return pool.step(request([slot])).obs[0, 1] == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_failure_to_save_is_a_warning(workers):
    with EnvPool([large_state(0, broken=True), large_state(1)], workers) as pool:
        pool.reset([0, 1], [0, 1])
        pool.step(request([0, 1]))
        with pytest.warns(UserWarning, match="s0: state not saved: .*cannot save"):
            missing, state = pool.save_states([0, 1])
        assert missing is None
        assert "task/memory" in state
        assert all(continues(pool, slot) for slot in (0, 1))


def test_slot_without_episode_has_no_state():
    with EnvPool([large_state(0), large_state(1)], workers=0) as pool:
        pool.reset([1], [0])
        assert [state is None for state in pool.save_states([0, 1])] == [True, False]
