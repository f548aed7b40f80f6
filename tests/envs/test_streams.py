"""Slots that workers play by themselves, ahead of the main process."""

import contextlib
import gc
import os
import signal
import time
from functools import partial

import numpy as np
import pytest
import scripted
from gymnasium.spaces import Box
from test_pool import children, env_slot

from r2r2.config.errors import UserError
from r2r2.envs.spec import Member
from r2r2.envs.vector import ipc
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import NO_EPISODE
from r2r2.envs.vector.streams import (
    EXPLORE,
    GREEDY,
    MANY_ROWS,
    RANDOM,
    ROWS,
    StreamPlan,
    StreamTable,
)
from r2r2.policy.actor import UniformActions
from small_policies import linear_actors

MANY = 10**9
NEXT_SEED = 77


class Walk(scripted.Count):
    """Its observations depend on all earlier actions.

    It can save its state, which is without what only depends on the seed.
    """

    def __init__(self, length=None, pause=0.0):
        super().__init__(truncates_at=length, action_space=scripted.PLAIN)
        self.pause = pause

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.bonus = seed
        return obs, info

    def step(self, action):
        time.sleep(self.pause)
        before = self.obs[2:4].copy()
        _, _, *rest = super().step(action)
        self.obs[2:4] += 0.9 * before + 0.1 * self.np_random.normal(size=2)
        return self.obs, float(self.obs[2]) + self.bonus, *rest

    def save_state(self):
        return {"obs": self.obs}

    def load_state(self, saved):
        self.obs = saved["obs"]


class Wide(Walk):
    """Has such large observations that few rows may wait."""

    observation_space = Box(-np.inf, np.inf, (1200,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return np.tile(obs, 300), info

    def step(self, action):
        obs, *rest = super().step(action)
        return np.tile(obs, 300), *rest


class Failing(Walk):
    """Fails at step `at` of every episode, in the given way."""

    def __init__(self, way, at):
        super().__init__()
        self.way, self.at = way, at

    def step(self, action):
        if self.obs[1] == self.at - 1:
            self.way()
        return super().step(action)


def fall_off():
    raise RuntimeError("the arm fell off")


def hang():
    time.sleep(600)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def slots_of(*builders, purpose="training"):
    """Return a slot of another member for each environment."""
    pairs = enumerate(builders)
    slots = [env_slot(Member("walk", seed), builder=builder) for seed, builder in pairs]
    return [slot._replace(purpose=purpose) for slot in slots]


def make_pool(slots, workers=1, **more):
    seeds = dict.fromkeys(slot.member.seed for slot in slots)
    return EnvPool(slots, workers, actors=linear_actors(list(seeds)), **more)


def reset(pool):
    """Reset all slots with their numbers as seeds, which also ends what they play."""
    slots = range(len(pool.slots))
    pool.first_obs, faults = pool.try_reset(slots, slots)
    assert faults == ()
    return pool


@contextlib.contextmanager
def playing(slots, workers=1, **more):
    with make_pool(slots, workers, **more) as pool:
        yield reset(pool)


KINDS = {
    "local": {"workers": 0},
    "one worker": {"workers": 1},
    "two workers": {"workers": 2},
    "polling": {"workers": 1, "spin_seconds": ipc.SPIN_SECONDS},
    "by pipe": {"workers": 1, "spin_seconds": ipc.BY_PIPE},
}
SHORT, EVALUATED = 2, (3, 4)  # slots of an `any_pool`


@pytest.fixture(params=KINDS, scope="module")
def shared_any_pool(request):
    slots = slots_of(Walk, Walk, partial(Walk, 10)) + slots_of(Walk, Walk, purpose="evaluation")
    with make_pool(slots, **KINDS[request.param]) as pool:
        yield pool


@pytest.fixture
def any_pool(shared_any_pool):
    """A pool of any kind, with two members, an environment of short episodes, and evaluations."""
    return reset(shared_any_pool)


BREAKING, SLOW = 2, (3, 4)  # slots of a `pool`


@pytest.fixture(scope="module")
def shared_pool():
    slow = partial(Walk, pause=0.002)
    with make_pool(slots_of(Walk, Walk, partial(Failing, fall_off, 9), slow, slow)) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool):
    """A pool with one worker: two environments, one that raises in step 9, and two slow ones."""
    return reset(shared_pool)


def random_plan(first=0, steps=MANY, seed=NEXT_SEED):
    return StreamPlan(RANDOM, first, steps, seed)


def take_rows(pool, count, slots=(0,), wait=True):
    """Return the next `count` rows of every slot as arrays [count, ...] by name.

    Without `wait` they are taken in blocks.
    """
    parts = {slot: [] for slot in slots}

    def missing(slot):
        return count - sum(len(part["reward"]) for part in parts[slot])

    while waiting := [slot for slot in slots if missing(slot)]:
        taken = pool.take(waiting, wait, lambda slot: min(7, missing(slot)))
        assert taken.faults == ()
        assert not wait or taken.slots.tolist() == waiting
        for slot in {*taken.slots.tolist()}:
            parts[slot].append(rows_of(taken, slot))
    return {slot: concatenate(parts[slot]) for slot in slots}


def rows_of(taken, slot):
    """Return what was taken of a slot, by name."""
    names = ROWS if taken.obs.shape[1] else ROWS[:3]
    return {name: getattr(taken, name)[taken.slots == slot] for name in names}


def concatenate(parts):
    names = parts[0].keys() if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def take_until_fault(pool, slots=(0,), wait=True, pause=0.0):
    """Return the rewards of every slot until the first faults, and the faults."""
    rewards, deadline = {slot: [] for slot in slots}, time.monotonic() + 10
    while True:
        time.sleep(pause)
        taken = pool.take(slots, wait, lambda _: 3)
        for slot, reward in zip(taken.slots.tolist(), taken.reward, strict=True):
            rewards[slot].append(reward)
        if taken.faults:
            return rewards, taken.faults
        assert time.monotonic() < deadline


def expected_rows(slot, act, count, build=Walk):
    """Return rows of a new environment that is stepped here with `act(step, obs)`."""
    env = env_slot(Member("walk", 0), builder=build).factory.build()
    rows, obs = [], np.array(env.reset(seed=slot)[0])
    for step in range(count):
        action = np.array(act(step, obs), np.float64)
        next_obs, reward, *ended, _ = env.step(action)
        next_obs = obs = np.array(next_obs)
        if any(ended):
            obs = np.array(env.reset(seed=NEXT_SEED)[0])
        rows.append((reward, *ended, action, next_obs, obs))
    return dict(zip(ROWS, map(np.array, zip(*rows, strict=True)), strict=True))


def expected_random_rows(slot, count, first=0, build=Walk):
    uniform = UniformActions(slot, 2)
    return expected_rows(slot, lambda step, _: uniform(first + step), count, build)


def assert_rows_equal(actual, expected, names=ROWS):
    assert actual.keys() == set(names)
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def rows_ahead(pool, slot):
    """Return how many rows of a slot wait to be taken."""
    return int(pool.streams._streams.made[slot]) - pool.streams._taken[slot]


def wait_for_rows(pool, slot, rows):
    deadline = time.monotonic() + 10
    while rows_ahead(pool, slot) < rows:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_for_failure(pool, slot):
    deadline = time.monotonic() + 10
    while not pool.streams.has_failed(slot):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_rows_are_those_of_stepping_by_hand(any_pool):
    any_pool.play({slot: random_plan(first=5) for slot in (0, 1)})
    rows = take_rows(any_pool, 100, slots=(0, 1))
    for slot in (0, 1):
        assert_rows_equal(rows[slot], expected_random_rows(slot, 100, first=5))


def test_policies_are_played_with_their_noise(any_pool):
    rng = np.random.default_rng(0)
    policies = rng.normal(size=(2, 4, 2)) * [[[1e-3], [0.01], [1], [1]]]
    policies, noise = policies.astype(np.float32), rng.normal(size=(2, 200, 2)).astype(np.float32)

    def draw(slot, first, count):
        return noise[slot, first : first + count]

    for member in (0, 1):
        any_pool.streams.set_policy(EXPLORE, member, [policies[member]])
    plans = {s: StreamPlan(EXPLORE, 7, 150, 0, partial(draw, s)) for s in (0, 1)}
    any_pool.play(plans)
    rows = take_rows(any_pool, 150, slots=(0, 1))
    for slot in (0, 1):

        def explore(step, obs, slot=slot):
            return np.tanh(obs.astype(np.float32) @ policies[slot] + noise[slot, 7 + step])

        assert_rows_equal(rows[slot], expected_rows(slot, explore, 150))


def test_evaluation_slots_play_greedily_and_have_rewards_only(any_pool):
    policies = [np.full((4, 2), value, np.float32) for value in (1e-3, -1e-3)]
    for member in (0, 1):
        any_pool.streams.set_policy(GREEDY, member, [policies[member]])
    first, second = EVALUATED
    any_pool.play({slot: StreamPlan(GREEDY, 0, MANY, NEXT_SEED) for slot in EVALUATED})
    rows = take_rows(any_pool, 20, slots=EVALUATED)
    # A new policy is used after a reset.
    any_pool.reset([first], [first])
    any_pool.streams.set_policy(GREEDY, 0, [policies[1]])
    any_pool.play({first: StreamPlan(GREEDY, 0, MANY, NEXT_SEED)})
    again = take_rows(any_pool, 20, slots=[first])[first]
    for actual, slot, policy in (
        (rows[first], first, 0),
        (rows[second], second, 1),
        (again, first, 1),
    ):

        def greedy(_, obs, policy=policy):
            return np.tanh(obs.astype(np.float32) @ policies[policy])

        assert_rows_equal(actual, expected_rows(slot, greedy, 20), ROWS[:3])


def test_episode_ends_the_plan_and_the_next_one_continues(any_pool):
    parts = []
    for first, steps in ((0, MANY), (10, 4), (14, MANY)):
        assert not any_pool.streams.has_plan(SHORT)
        any_pool.play({SHORT: random_plan(first, steps)})
        parts.append(take_rows(any_pool, min(steps, 20 - first, 10), [SHORT])[SHORT])
    assert not any_pool.streams.has_plan(SHORT)
    expected = expected_random_rows(SHORT, 20, build=partial(Walk, 10))
    assert expected["truncated"].nonzero()[0].tolist() == [9, 19]
    assert_rows_equal(concatenate(parts), expected)


def test_episode_may_be_the_last(any_pool):
    any_pool.play({SHORT: random_plan(seed=NO_EPISODE)})
    rows = take_rows(any_pool, 10, [SHORT])[SHORT]
    assert rows["truncated"].tolist() == [False] * 9 + [True]
    np.testing.assert_array_equal(rows["obs"], rows["next_obs"])
    assert any_pool.save_states([SHORT]) == [None]


def test_plan_is_known_before_its_rows_are_allowed(pool, monkeypatch):
    """However long the main process takes between them."""
    allow = StreamTable._allow

    def slow_allow(table, slot):
        waits = allow(table, slot)
        time.sleep(0.12 * waits)  # a worker that sleeps looks for rows every 50 ms
        return waits

    monkeypatch.setattr(StreamTable, "_allow", slow_allow)
    slot, parts = SLOW[0], []
    for first, steps in ((0, 5), (5, 80)):
        pool.play({slot: random_plan(first, steps)})
        parts.append(take_rows(pool, steps, [slot])[slot])
    assert_rows_equal(concatenate(parts), expected_random_rows(slot, 85))


def test_worker_makes_no_rows_beyond_the_plan(pool):
    pool.play({0: random_plan(steps=7)})
    wait_for_rows(pool, 0, 7)
    time.sleep(0.05)
    assert rows_ahead(pool, 0) == 7
    assert take_rows(pool, 7)[0]["next_obs"][-1, 1] == 7
    assert not pool.streams.has_plan(0)
    nothing = pool.take([0], wait=False)
    assert (nothing.slots.tolist(), nothing.faults) == ([], ())
    assert not (nothing.terminated | nothing.truncated).any()


def test_blocks_of_rows_are_of_one_episode_and_at_most_as_long_as_requested(walks):
    pool, most = reset(walks[0]), {0: 7, 2: 20}
    pool.play({slot: random_plan(steps=40) for slot in (0, 2)})
    parts = {0: [], 2: []}
    for slot, rows in ((0, 40), (2, 30)):
        wait_for_rows(pool, slot, rows)
    for _ in range(2):
        taken = pool.take([0, 2], wait=False, most=most.get)
        for slot in (0, 2):
            parts[slot].append(rows_of(taken, slot))
    assert [len(part["reward"]) for part in parts[0] + parts[2]] == [7, 7, 20, 10]
    assert not pool.streams.has_plan(2)
    for slot, build in ((0, Walk), (2, partial(Walk, 30))):
        rows = concatenate(parts[slot])
        assert_rows_equal(rows, expected_random_rows(slot, len(rows["reward"]), build=build))
    # A row of each, if it waits; the next block is of the next episode.
    pool.play({2: random_plan(first=30)})
    wait_for_rows(pool, 2, 30)
    assert pool.take([0, 2], wait=True, most=most.get).slots.tolist() == [0, 2]


def test_rows_wrap_around_the_ring():
    counts = []

    def draw(first, count):
        counts.append(count)
        return np.full((count, 2), 1e-4 * np.arange(first, first + count)[:, None], np.float32)

    def explore(step, obs):
        return np.tanh(np.full(2, 1e-4 * step, np.float32))

    with playing(slots_of(Wide, Wide)) as pool:
        ring = pool.streams._layout.ring
        assert ring < 500
        for wait in (True, False):
            reset(pool)
            pool.streams.set_policy(EXPLORE, 1, [np.zeros((1200, 2))])
            pool.play({0: random_plan(), 1: StreamPlan(EXPLORE, 0, MANY, NEXT_SEED, draw)})
            wait_for_rows(pool, 0, ring)
            time.sleep(0.05)
            assert rows_ahead(pool, 0) == ring  # no row is overwritten
            rows = take_rows(pool, 5 * ring + 3, slots=(0, 1), wait=wait)
            assert_rows_equal(rows[0], expected_random_rows(0, 5 * ring + 3, build=Wide))
            assert_rows_equal(rows[1], expected_rows(1, explore, 5 * ring + 3, build=Wide))
    assert max(counts) <= ring // 2  # so that drawing does not take long


def test_rows_are_worth_taking_when_there_are_many(pool):
    reset(pool)
    pool.play({0: random_plan(steps=MANY_ROWS - 1)})
    wait_for_rows(pool, 0, MANY_ROWS - 1)
    assert not pool.should_take([0])
    take_rows(pool, MANY_ROWS - 1)
    pool.play({0: random_plan(first=MANY_ROWS - 1, steps=MANY_ROWS)})
    wait_for_rows(pool, 0, MANY_ROWS)
    assert pool.should_take([0])


def test_rows_are_worth_taking_when_an_episode_has_ended():
    with playing(slots_of(partial(Walk, 5))) as pool:
        assert not pool.should_take([0])
        pool.play({0: random_plan()})
        wait_for_rows(pool, 0, 5)
        assert pool.should_take([0])
        take_rows(pool, 5)
        assert not pool.should_take([0])


def test_rows_of_slots_that_wait_for_commands_are_always_worth_taking():
    with playing(slots_of(Walk), local=1) as pool:
        reset(pool)
        assert not pool.plays_ahead([0])
        assert pool.should_take([0])


def test_slots_of_one_worker_take_turns(pool):
    pool.play({slot: random_plan() for slot in SLOW})
    wait_for_rows(pool, SLOW[0], 10)
    ahead = [rows_ahead(pool, slot) for slot in SLOW]
    assert abs(ahead[0] - ahead[1]) <= 1


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("pause", [0.0, 0.005])
def test_rows_before_a_failure_are_delivered(pool, pause, wait):
    check_failure(pool, BREAKING, wait, pause)


def test_rows_before_a_failure_are_delivered_in_the_main_process():
    with playing(slots_of(partial(Failing, fall_off, 9)), workers=0) as pool:
        check_failure(pool, 0, wait=True)


def check_failure(pool, slot, wait, pause=0.0):
    for first in (0, 8):
        pool.play({slot: random_plan(first)})
        rewards, (fault,) = take_until_fault(pool, [slot], wait, pause)
        expected = expected_random_rows(slot, 8, first)["reward"]
        np.testing.assert_array_equal(rewards[slot], expected)
        assert (fault.slot, fault.own_failure) == (slot, True)
        assert fault.detail.endswith("RuntimeError: the arm fell off")
        assert "in fall_off" in fault.detail
        assert not pool.streams.has_plan(slot)
        assert pool.take([], wait).faults == ()  # it is reported once
        assert pool.try_reset([slot], [slot])[1] == ()


@pytest.mark.parametrize("method", ["wait_rows", "check_rows"])
def test_rows_made_while_the_main_process_waits_are_delivered(pool, method, monkeypatch):
    waits = getattr(pool._runner, method)

    def slow(*arguments):
        outcome = waits(*arguments)
        time.sleep(0.05)  # the worker plays on, and fails
        return outcome

    monkeypatch.setattr(pool._runner, method, slow)
    pool.play({BREAKING: random_plan()})
    rewards, (fault,) = take_until_fault(pool, [BREAKING], wait=method == "wait_rows")
    assert len(rewards[BREAKING]) == 8
    assert fault.detail.endswith("RuntimeError: the arm fell off")


def test_error_names_the_step_of_a_failure(pool):
    pool._steps[BREAKING] = 0
    for step in (9, 18):
        pool.play({BREAKING: random_plan()})
        _, (fault,) = take_until_fault(pool, [BREAKING])
        text = str(pool.to_error(fault))
        assert text.startswith(f"env 'walk' of member walk_s2: failed at training step {step}: Tr")
        pool.reset([BREAKING], [0])


def test_other_slots_of_the_worker_play_on_after_a_failure(pool):
    pool.play({slot: random_plan() for slot in (0, BREAKING)})
    rewards, (fault,) = take_until_fault(pool, [0, BREAKING])
    assert (fault.slot, len(rewards[BREAKING])) == (BREAKING, 8)
    made = np.append(rewards[0], take_rows(pool, 50)[0]["reward"])
    np.testing.assert_array_equal(made, expected_random_rows(0, len(made))["reward"])


@pytest.fixture(scope="module")
def pair():
    """A pool with two workers."""
    with make_pool(slots_of(*[partial(Walk, pause=0.001)] * 4), workers=2) as pool:
        yield pool


@pytest.mark.parametrize(("wait", "ahead"), [(True, 5), (False, 100)])
def test_killed_worker_loses_the_episodes_of_its_slots(pair, wait, ahead):
    pool = reset(pair)
    pool.play({slot: random_plan(steps=100) for slot in range(4)})
    wait_for_rows(pool, 2, ahead)
    os.kill(pool.worker_pids[0], signal.SIGKILL)  # that of slots 0 and 2
    rewards, faults = take_until_fault(pool, slots=(2, 0), wait=wait)
    assert {fault.slot for fault in faults} == {0, 2}
    assert faults[0].detail == "worker process killed by signal SIGKILL"
    assert [fault.own_failure for fault in faults] == [True, False]
    assert len(rewards[2]) >= ahead - 1
    again, faults = pool.try_reset([0, 2], [0, 2])
    assert faults == ()
    np.testing.assert_array_equal(again, pool.first_obs[[0, 2]])
    pool.play({slot: random_plan() for slot in (0, 2)})
    rows = take_rows(pool, 20, slots=range(4))
    for slot in range(4):
        assert_rows_equal(rows[slot], expected_random_rows(slot, 20))


def test_failure_in_a_worker_that_dies_is_reported_once():
    with playing(slots_of(partial(Failing, fall_off, 5), partial(Failing, die, 5))) as pool:
        pool.play({slot: random_plan() for slot in (0, 1)})
        faults = []
        while len(faults) < 2:
            failed = {fault.slot for fault in faults}
            faults += pool.take([slot for slot in (0, 1) if slot not in failed], wait=True).faults
        details = {fault.slot: fault.detail for fault in faults}
        assert len(faults) == len(details) == 2
        assert details[1] == "worker process killed by signal SIGKILL"
        assert details[0].endswith(("the arm fell off", details[1]))
        assert pool.try_reset([0, 1], [0, 1])[1] == ()


@pytest.fixture(scope="module")
def impatient():
    """A pool with a short time limit; slots 1 to 3 are slow."""
    slow = partial(Walk, pause=0.15)
    with make_pool(slots_of(partial(Failing, hang, 4), slow, slow, slow), timeout=0.3) as pool:
        yield pool


@pytest.mark.parametrize("wait", [True, False])
def test_hanging_environment_is_reported_after_the_timeout(impatient, wait):
    pool = reset(impatient)
    pool.play({0: random_plan()})
    begin = time.monotonic()
    rewards, faults = take_until_fault(pool, wait=wait)
    assert len(rewards[0]) == 3
    assert 0.3 < time.monotonic() - begin < 5
    assert [(fault.slot, fault.own_failure) for fault in faults] == [
        *((0, True), (1, False), (2, False), (3, False))
    ]
    assert "no response within 0.3 seconds; process killed" in faults[0].detail
    reset(pool)


def test_time_that_a_worker_took_to_start_does_not_count(impatient):
    pool = reset(impatient)
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    pool.play({0: random_plan(steps=2)})
    take_until_fault(pool)
    reset(pool)  # takes longer than the time limit
    (pid,) = pool.worker_pids
    os.kill(pid, signal.SIGSTOP)
    pool.play({0: random_plan(steps=2)})
    for _ in range(5):
        taken = pool.take([0], wait=False)
        assert (taken.slots.tolist(), taken.faults) == ([], ())
        time.sleep(0.02)
    os.kill(pid, signal.SIGCONT)
    take_rows(pool, 2)


@pytest.mark.parametrize("wait", [True, False])
def test_slow_environments_are_not_reported_as_hanging(impatient, wait):
    """Their steps together take longer than the timeout."""
    pool = reset(impatient)
    pool.play({slot: random_plan() for slot in (1, 2, 3)})
    take_rows(pool, 1, slots=(1, 2, 3), wait=wait)
    take_rows(pool, 2, slots=[3], wait=wait)


def test_close_while_workers_play_leaves_nothing(monkeypatch):
    # Workers must end by themselves; after this time they are killed with a warning, an error here.
    monkeypatch.setattr("r2r2.envs.vector.pool.CLOSE_SECONDS", 120.0)

    def resources():
        gc.collect()
        files = len(os.listdir("/proc/self/fd"))
        return children(), files, set(os.listdir("/dev/shm"))

    before = resources()
    with playing(slots_of(*[Walk, partial(Walk, pause=0.01)] * 2), workers=2) as pool:
        pool.play({slot: random_plan() for slot in range(4)})
        take_rows(pool, 3, slots=range(4))
        pool.close()
    del pool  # its memory is freed with its arrays
    assert resources() == before


@pytest.fixture(scope="module")
def walks():
    """A pool, and two others to continue in; episodes of slots 2 and 3 have 30 steps."""
    short = partial(Walk, 30)
    slots = slots_of(Walk, Walk, short, short, partial(Walk, pause=0.002))
    with make_pool(slots) as first, make_pool(slots) as remote, make_pool(slots, 0) as local:
        yield first, (remote, local)


# The rows that are not taken contain no end of an episode, or one, or there are none.
@pytest.mark.parametrize(
    ("slots", "taken", "count"),
    [((0, 1), 0, 40), ((0, 1), 12, 40), ((2, 3), 12, 30), ((2, 3), 30, 30)],
)
def test_saved_stream_continues_with_the_same_rows(walks, slots, taken, count):
    first, others = walks
    reset(first).play({slot: random_plan(steps=40) for slot in slots})
    for slot in slots:
        wait_for_rows(first, slot, count)
    before = take_rows(first, taken, slots)
    states = first.save_states(slots)
    after = take_rows(first, count - taken, slots)  # the worker is not disturbed
    first.play({slot: random_plan(first=count) for slot in slots})
    last = take_rows(first, 15, slots)
    build = partial(Walk, 30 if slots == (2, 3) else None)
    for slot in slots:
        expected = expected_random_rows(slot, count + 15, build=build)
        assert_rows_equal(
            concatenate([x[slot] for x in (before, after, last) if x[slot]]), expected
        )
    for state in states:
        assert all(array.dtype.kind in "biuf" for array in state.values())
    for pool in others:
        assert reset(pool).load_states(slots, slots, states)[1] == ()
        np.testing.assert_equal(take_rows(pool, count - taken, slots), after)
        assert not pool.streams.has_plan(slots[0])
        pool.play({slot: random_plan(first=count) for slot in slots})
        np.testing.assert_equal(take_rows(pool, 15, slots), last)


def test_stream_that_is_saved_while_it_plays_continues_with_the_same_rows(walks):
    first, others = walks
    reset(first).play({4: random_plan()})
    take_rows(first, 10, [4])
    wait_for_rows(first, 4, 5)
    (state,) = first.save_states([4])
    rest, waiting = take_rows(first, 40, [4])[4], len(state["stream/reward"])
    assert 5 <= waiting < 20
    for pool in others:
        assert reset(pool).load_states([4], [4], [state])[1] == ()
        rows = [take_rows(pool, waiting, [4])[4]]
        pool.play({4: random_plan(first=10 + waiting)})
        rows.append(take_rows(pool, 40 - waiting, [4])[4])
        assert_rows_equal(concatenate(rows), rest)


@pytest.mark.parametrize(
    ("kind", "taken"), [("local", 3), ("local", 8), ("one worker", 3), ("by pipe", 8)]
)
def test_saved_stream_that_has_failed_fails_again_after_the_same_rows(pool, kind, taken):
    """Also if it is saved again before that, and with other workers."""
    pool.play({BREAKING: random_plan()})
    wait_for_failure(pool, BREAKING)
    take_rows(pool, taken, [BREAKING])
    (state,) = pool.save_states([BREAKING])
    assert len(state["stream/reward"]) == 8 - taken
    assert all(array.dtype.kind in "biuf" for array in state.values())
    rewards, (fault,) = take_until_fault(pool, [BREAKING])  # the worker is not disturbed
    expected = expected_random_rows(BREAKING, 8)["reward"][taken:]
    np.testing.assert_array_equal(rewards[BREAKING], expected)
    with playing(pool.slots[: BREAKING + 1], **KINDS[kind]) as other:
        for _ in range(2):
            assert other.load_states([BREAKING], [5], [state])[1] == ()
            assert other.streams.has_plan(BREAKING)  # nothing new is played before
            (again,) = other.save_states([BREAKING])
            np.testing.assert_equal(
                *({k: v for k, v in x.items() if k != "stream/made"} for x in (again, state))
            )
        rewards, (repeated,) = take_until_fault(other, [BREAKING])
        np.testing.assert_array_equal(rewards[BREAKING], expected)
        assert (repeated, repeated.own_failure) == (fault, True)
        assert not other.streams.has_plan(BREAKING)
        assert other.take([], wait=True).faults == ()  # it is reported once
        check_failure(reset(other), BREAKING, wait=True)
        # A reset in place of the report forgets the failure.
        other.load_states([BREAKING], [5], [state])
        other.reset([BREAKING], [BREAKING])
        other.play({BREAKING: random_plan()})
        rows = take_rows(other, 8, [BREAKING])[BREAKING]
        assert_rows_equal(rows, expected_random_rows(BREAKING, 8))


@pytest.mark.parametrize(
    "fault", [np.zeros(0, np.uint32), np.zeros(3), np.array([2**31], np.uint32)]
)
def test_saved_failure_without_a_text_is_refused(pool, fault):
    pool.play({BREAKING: random_plan()})
    wait_for_failure(pool, BREAKING)
    (state,) = pool.save_states([BREAKING])
    with pytest.raises(UserError, match=f"array '{BREAKING}/stream/fault': "):
        pool.load_states([BREAKING], [5], [state | {"stream/fault": fault}])
