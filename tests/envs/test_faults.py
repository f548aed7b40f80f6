"""Environments that fail: who is concerned, who is not, and what takes their place."""

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import scripted
from gymnasium.error import ResetNeeded
from test_pool import children, place

from r2r2.envs.errors import EnvFailure, Fault
from r2r2.envs.make import BorrowedEnv
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import NO_EPISODE, StepRequest, StepResult


class Fails(scripted.Count):
    """Does so at step 3, in the given way; in its second life too."""

    def __init__(self, way="", terminates_at=None):
        super().__init__(terminates_at)
        self.way = way

    def reset(self, *, seed=None, options=None):
        if self.way == "reset" and self.obs[1] == 3:
            raise RuntimeError("no way back")
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
    return place(Member("arm", seed), source=partial(Fails, way, **more))


def turn(slots, seed=NO_EPISODE):
    return StepRequest(slots, np.zeros((len(slots), 2)), [seed] * len(slots))


def well(step: StepResult, row: int, t: int) -> bool:
    return bool(step.reward[row] == t * t and step.next_obs[row, 1] == t)


STORIES = {
    "raise": "RuntimeError: the arm fell off",
    "nan reward": "the reward is nan",
    "inf obs": "observation 2 of 4 is -inf",
    "short obs": "the observation has shape (1,); its space says (4,)",
    "reset": "RuntimeError: no way back",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_who_fails_is_told_and_the_others_are_stepped(workers):
    places = [failing(way, terminates_at=3) for way in STORIES] + [failing("")]
    slots = list(range(len(places)))
    with EnvPool(places, workers) as pool:
        starts = pool.reset(slots, slots)[:, 0]
        for _ in range(2):
            before = pool.step(turn(slots, seed=9))
        np.testing.assert_array_equal(before.obs[:, 1], 2)
        step = pool.step(turn(slots, seed=9))
        assert [fault.slot for fault in step.faults] == slots[:-1]
        told = [fault.detail.splitlines()[-1] for fault in step.faults]
        assert told == list(STORIES.values())
        assert all(fault.own_failure for fault in step.faults)
        np.testing.assert_array_equal(step.obs[:-1], before.obs[:-1])
        np.testing.assert_array_equal(step.next_obs[:-1], before.obs[:-1])
        np.testing.assert_array_equal(step.reward[:-1], 0)
        assert not step.ended.any()
        assert well(step, -1, t=3)
        with pytest.raises(ResetNeeded):
            pool.step(turn([0]))
        again, faults = pool.try_reset(slots[:-1], slots[:-1])
        assert faults == ()
        np.testing.assert_array_equal(again[:, 0], starts[:-1])
        step = pool.step(turn(slots))
        assert all(well(step, slot, t=1) for slot in slots[:-1])
        assert well(step, -1, t=4)


def test_an_environment_that_failed_is_closed_and_built_anew():
    built = []

    def source():
        built.append(Fails("raise"))
        return built[-1]

    with EnvPool([place(Member("arm", 0), source=source)], workers=0) as pool:
        pool.reset([0], [0])
        while not pool.step(turn([0])).faults:
            pass
        assert [env.closed for env in built] == [1]
        pool.reset([0], [0])
        assert len(built) == 2


def test_a_lent_environment_is_reset_again():
    mine = Fails("nan reward")
    source = partial(BorrowedEnv, mine)
    with EnvPool([place(Member("arm", 0), source=source)], workers=0) as pool:
        pool.reset([0], [0])
        while not pool.step(turn([0])).faults:
            pass
        pool.reset([0], [0])
        assert well(pool.step(turn([0])), 0, t=1)
    assert not mine.closed


def test_a_worker_that_dies_takes_only_its_own_with_it():
    # Slots 0, 2, 4 and 6 in one worker, the others in another.
    ways = ["", "", "kill", "", "", "", ""]
    places = [failing(way, seed) for seed, way in enumerate(ways)]
    with EnvPool(places, workers=2) as pool:
        first, second = [worker._process.pid for worker in pool._company.workers]
        pool.reset(range(6), range(6))  # the last never has an episode
        for _ in range(2):
            before = pool.step(turn([0, 1, 2, 3]))
        step = pool.step(turn([0, 1, 2, 3]))
        pids = [worker._process.pid for worker in pool._company.workers]
        assert pids[0] != first
        assert pids[1] == second
        culprit, *others = step.faults
        death = "its worker process was ended by signal SIGKILL"
        assert culprit == Fault(2, death)
        assert [(fault.slot, fault.own_failure) for fault in others] == [
            (0, False),
            (4, False),
        ]
        another = "it was lost with another environment, that of arm of member arm_s2"
        assert {fault.detail for fault in others} == {f"{another}: {death}"}
        np.testing.assert_array_equal(step.reward, [0, 9, 0, 9])
        np.testing.assert_array_equal(step.obs[2], before.obs[2])
        assert np.isfinite(step.next_obs).all()
        assert step.rows(0, 1).faults == step.faults
        obs, faults = pool.try_reset([0, 2, 4], [0, 2, 4])
        assert faults == ()
        assert len(set(obs[:, 0])) == 3
        step = pool.step(turn(range(6)))
        assert [well(step, slot, t) for slot, t in enumerate([1, 4, 1, 4, 1, 1])]
        assert step.faults == ()


class Hangs(scripted.Count):
    """Takes its time, or for ever, in step 2; it has started a process of its own."""

    def __init__(self, seconds, note=None):
        super().__init__()
        self.seconds, self.note = seconds, note

    def step(self, action):
        if self.obs[1] == 1:
            if self.note:
                child = subprocess.Popen(["sleep", "600"])
                Path(self.note).write_text(str(child.pid))
            time.sleep(self.seconds)
        return super().step(action)


class Arrives:
    """A source that takes longer to reach a worker than an order may take."""

    def __init__(self, *given):
        self._given = given

    def __call__(self):
        return Hangs(*self._given)

    def __setstate__(self, state):
        time.sleep(0.3)
        self.__dict__.update(state)


def test_a_worker_is_hung_when_one_slot_takes_too_long_and_not_all_of_them(tmp_path):
    note = str(tmp_path / "child")
    given = [(0.4,), (600, note), (0.4,), (0.4,)]
    places = [
        place(Member("slow", seed), source=Arrives(*how))
        for seed, how in enumerate(given)
    ]
    with EnvPool(places, workers=1, timeout=0.9) as pool:
        pool.reset(range(4), range(4))
        pool.step(turn([0, 2, 3]))
        step = pool.step(turn([0, 2, 3]))
        assert step.faults == ()
        pool.step(turn([1]))
        step = pool.step(turn([0, 1]))
        told = "it took longer than 0.9 seconds, and the process was ended"
        assert step.faults[0] == Fault(1, told)
        assert [fault.slot for fault in step.faults] == [1, 0, 2, 3]
        child = Path("/proc") / Path(note).read_text() / "stat"
        deadline = time.monotonic() + 20
        while child.exists() and child.read_text().split()[2] != "Z":
            assert time.monotonic() < deadline, "what it started outlived it"
            time.sleep(0.05)
        assert pool.try_reset([0, 1], [0, 1])[1] == ()
        assert well(pool.step(turn([0, 1])), 1, t=1)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_between_turns(kind):
    places = [failing("", seed) for seed in range(4)]
    with EnvPool(places, workers=2, timeout=0.8) as pool:
        pool.reset(range(4), range(4))
        os.kill(pool._company.workers[0]._process.pid, kind)
        assert pool.save_states([1, 0, 3]) == [None] * 3
        step = pool.step(turn([1, 0]))
        # Found when states were asked for, told with the next step.
        assert [(fault.slot, fault.own_failure) for fault in step.faults] == [
            (0, True),
            (2, False),
        ]
        assert well(step, 0, t=1)
        assert not step.reward[1]
        assert pool.step(turn([1, 3])).faults == ()
        assert pool.try_reset([0, 2], [0, 2])[1] == ()
        assert all(well(pool.step(turn([slot])), 0, t=1) for slot in (0, 2))


def test_what_is_reset_anyway_is_not_told_as_lost():
    with EnvPool([failing(""), failing("", 1)], workers=1) as pool:
        pool.reset([0, 1], [0, 1])
        pool._company.workers[0]._process.kill()
        pool.save_states([0, 1])
        _, faults = pool.try_reset([1], [1])
        assert [fault.slot for fault in faults] == [0]


def test_twenty_deaths_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EnvPool([failing("")], workers=1) as pool:

        def held():
            gc.collect()
            return len(children()), len(os.listdir("/proc/self/fd"))

        before = held()
        for _ in range(20):
            _, (fault,) = pool.try_reset([0], [0])
            assert fault.detail == "its worker process left with exit code 1"
        assert held() == before
        with pytest.raises(EnvFailure, match="arm of member arm_s0 failed at its tr"):
            pool.reset([0], [0])


class Vast(scripted.Count):
    """Its state is larger than what a pipe holds at once; or it has none to give."""

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
            raise RuntimeError("the tape is torn")
        return {"memory": self.memory, "obs": self.obs}

    def load_state(self, saved):
        # Taken as they are: a later step writes into them.
        self.memory, self.obs = saved["memory"], saved["obs"]


def vast(seed, broken=False):
    return place(Member("vast", seed), source=partial(Vast, broken))


def test_states_are_saved_and_loaded_wherever_an_environment_lives():
    slots, odd = range(6), place(Member("odd", 0), source=scripted.Count)
    places = [vast(seed) for seed in range(5)] + [odd]

    def played(pool, steps):
        found = [pool.step(turn(slots)) for _ in range(steps)]
        return [step.obs for step in found], [step.reward for step in found]

    with EnvPool(places, 2) as away, EnvPool(places, 0) as here:
        for pool in (away, here):
            pool.reset(slots, slots)
            played(pool, 3)
        kept = [pool.save_states(slots) for pool in (away, here)]
        assert kept[0][5] is kept[1][5] is None
        for mine, other in zip(*kept, strict=True):
            if mine is not None:
                np.testing.assert_equal(mine, other)
        after = played(away, 4)
        # What was saved here is loaded there, twice from the same arrays.
        for pool, states in [(away, kept[1]), (here, kept[0]), (here, kept[0])]:
            obs, faults = pool.load_states(slots, slots, states)
            assert faults == ()
            np.testing.assert_array_equal(obs[:, 1], 0)
            again = played(pool, 4)
            rows = slice(0, 5)
            np.testing.assert_array_equal(
                np.array(again[0])[:, rows], np.array(after[0])[:, rows]
            )
            np.testing.assert_array_equal(
                np.array(again[1])[:, rows], np.array(after[1])[:, rows]
            )
            # The one without a state began again.
            assert again[0][0][5, 1] == 1


def test_a_state_finds_a_worker_that_looks_for_orders(monkeypatch):
    monkeypatch.setattr("r2r2.envs.vector.pool.spin_seconds", lambda *_: 0.5)
    small = place(Member("small", 0), source=partial(Vast, size=3))
    with EnvPool([small], workers=1) as pool:
        pool.reset([0], [0])
        pool.step(turn([0]))
        states = pool.save_states([0])
        pool.step(turn([0]))
        assert pool.load_states([0], [0], states)[1] == ()
        assert well_loaded(pool, 0)


def test_physics_goes_on_from_a_worker_to_the_bit():
    members = [Member("Hopper-v5", seed) for seed in range(2)]
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 2, 3))
    seeds = [7, 8]
    with EnvPool(list(map(place, members)), 1) as pool:
        pool.reset([0, 1], seeds)
        for action in actions[:10]:
            pool.step(StepRequest([0, 1], action, [9, 9]))
        states = pool.save_states([0, 1])
        steps = [
            pool.step(StepRequest([0, 1], action, [9, 9])) for action in actions[10:]
        ]
    with EnvPool(list(map(place, members)), 0) as pool:
        assert pool.load_states([0, 1], seeds, states)[1] == ()
        again = [
            pool.step(StepRequest([0, 1], action, [9, 9])) for action in actions[10:]
        ]
    for first, second in zip(steps, again, strict=True):
        for mine, other in zip(first.arrays, second.arrays, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_does_not_fit_is_a_fault_of_that_slot_alone(workers):
    with EnvPool([vast(0), vast(1)], workers) as pool:
        pool.reset([0, 1], [0, 1])
        pool.step(turn([0, 1]))
        good, other = pool.save_states([0, 1])
        _, faults = pool.load_states([0, 1], [0, 1], [{"odd": np.zeros(2)}, other])
        (fault,) = faults
        assert fault.slot == 0
        assert fault.detail.splitlines()[-1].startswith("ValueError: the saved state")
        assert well_loaded(pool, 1)
        assert pool.load_states([0], [0], [good])[1] == ()
        assert well_loaded(pool, 0)


def well_loaded(pool, slot):
    return pool.step(turn([slot])).obs[0, 1] == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_no_state_is_no_fault(workers):
    with EnvPool([vast(0, broken=True), vast(1)], workers) as pool:
        pool.reset([0, 1], [0, 1])
        pool.step(turn([0, 1]))
        with pytest.warns(UserWarning, match="vast_s0 gave no state: .*tape is torn"):
            nothing, state = pool.save_states([0, 1])
        assert nothing is None
        assert "task/memory" in state
        assert all(well_loaded(pool, slot) for slot in (0, 1))


def test_there_is_no_state_where_no_episode_runs():
    with EnvPool([vast(0), vast(1)], workers=0) as pool:
        pool.reset([1], [0])
        assert [state is None for state in pool.save_states([0, 1])] == [True, False]
        assert isinstance(pool._company.troupe.env(0), gymnasium.Env)
