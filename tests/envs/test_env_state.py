"""An episode that is saved and continued elsewhere is the same in every bit."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import (
    FrameStackObservation,
    RescaleAction,
    TimeAwareObservation,
    TimeLimit,
)
from scripted import Count

from r2r2.envs.make import BorrowedEnv, adapt_env, make_env
from r2r2.envs.suites import PAPER_TASKS, default_action_repeat, known_tasks
from r2r2.envs.vector.mujoco_state import Simulation
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state

BEFORE, AFTER = 30, 50


class Player:
    """Acts and, like a pool, begins the next episode when one ends."""

    def __init__(self, env, seed):
        self.env, self.seed = env, seed
        self.env.reset(seed=seed)

    def outcome(self, action):
        """All that an agent gets to see, in bytes."""
        obs, reward, *ended, _ = self.env.step(action)
        seen = [np.asarray(obs).tobytes(), np.float64(reward).tobytes(), bytes(ended)]
        if any(ended):
            self.seed += 1
            seen.append(self.env.reset(seed=self.seed)[0].tobytes())
        return b"|".join(seen)

    def outcomes(self, actions):
        return [self.outcome(action) for action in actions]


class Cut(NamedTuple):
    """An episode left at some step, and how it went on."""

    saved: dict
    seed: int
    actions: np.ndarray
    outcomes: list


def build(task):
    return make_env(task, default_action_repeat(task))


def cut(env, before=BEFORE, after=AFTER, seed=3):
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.5, 0.5, (before + after, *env.action_space.shape))
    player = Player(env, seed)
    player.outcomes(actions[:before])
    saved, begun = save_env_state(env), player.seed
    return Cut(saved, begun, actions[before:], player.outcomes(actions[before:]))


def continued(env, left, mend=lambda env: None):
    player = Player(env, left.seed)
    restore_env_state(env, left.saved)
    mend(env)
    return player.outcomes(left.actions)


TASKS = (*PAPER_TASKS, "Pendulum-v1", "MountainCarContinuous-v0")


@pytest.mark.parametrize("task", TASKS)
def test_fifty_steps_after_a_restore_are_equal_in_every_bit(task):
    env = build(task)
    left = cut(env)
    assert continued(build(task), left) == left.outcomes
    assert continued(env, left) == left.outcomes  # the same one, back again


NEEDS_A_DISPLAY = "quadruped-escape"


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["gymnasium", "dmc"])
def test_every_task_of_the_suites_is_restored_but_those_of_box2d(suite):
    for task in sorted({*known_tasks()[suite]} - {NEEDS_A_DISPLAY}):
        left = cut(build(task))
        if left.saved is None:
            assert "box2d" in type(build(task).unwrapped).__module__
        else:
            assert continued(build(task), left) == left.outcomes, task


def test_another_process_continues_to_the_bit(tmp_path):
    tasks = ("humanoid-walk", "Humanoid-v5")
    lefts = {task: cut(build(task)) for task in tasks}
    for task, left in lefts.items():
        np.savez(
            tmp_path / f"{task}.npz",
            seed=left.seed,
            actions=left.actions,
            **{f"saved:{name}": array for name, array in left.saved.items()},
        )
    program = [sys.executable, __file__, str(tmp_path), *tasks]
    subprocess.run(program, check=True)
    for task, left in lefts.items():
        there = (tmp_path / f"{task}.outcomes").read_bytes()
        assert there == b"".join(left.outcomes), task


def elsewhere(folder, tasks):
    """What the other process does."""
    for task in tasks:
        stored = np.load(folder / f"{task}.npz")
        saved = {
            name.removeprefix("saved:"): stored[name]
            for name in stored
            if name.startswith("saved:")
        }
        left = Cut(saved, int(stored["seed"]), stored["actions"], [])
        outcomes = continued(build(task), left)
        (folder / f"{task}.outcomes").write_bytes(b"".join(outcomes))


@pytest.mark.parametrize(
    ("task", "limit"), [("Pendulum-v1", 200), ("cartpole-swingup", 500)]
)
def test_the_time_limit_comes_at_the_same_step(task, limit):
    left = cut(build(task), before=limit - 10)
    assert left.seed == 3  # still the first episode
    there = continued(build(task), left)
    assert there == left.outcomes
    assert [len(seen) > len(there[0]) for seen in there].index(True) == 9


def test_an_episode_that_is_over_stays_over():
    env, other = build("cartpole-swingup"), build("cartpole-swingup")
    env.reset(seed=0)
    for _ in range(500):
        env.step(np.zeros(1))
    other.reset(seed=0)
    restore_env_state(other, save_env_state(env))
    with pytest.raises(ResetNeeded):
        other.step(np.zeros(1))


def test_a_state_taken_before_the_first_step_continues_too():
    left = cut(build("humanoid-stand"), before=0)
    assert continued(build("humanoid-stand"), left) == left.outcomes


def test_a_saved_state_is_a_copy_of_plain_arrays():
    env = build("Ant-v5")
    env.reset(seed=0)
    saved = save_env_state(env)
    then = {name: array.copy() for name, array in saved.items()}
    env.step(np.ones(8))
    for name, array in saved.items():
        np.testing.assert_array_equal(array, then[name])
        assert array.dtype.kind in "biuf"
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789_/.")


@pytest.mark.parametrize("task", ["Ant-v5", "Humanoid-v5"])
def test_without_the_derived_fields_the_reward_is_another(task):
    left = cut(build(task))
    fresh = build(task)
    fresh.reset(seed=left.seed)
    lacking = left.saved | {"task/derived": save_env_state(fresh)["task/derived"]}
    there = continued(build(task), left._replace(saved=lacking))
    assert there[0] != left.outcomes[0]


@pytest.mark.parametrize("task", ["Humanoid-v5", "humanoid-run"])
def test_without_the_warm_start_the_episode_is_another(task):
    left = cut(build(task))

    def chilled(env):
        inner = env.unwrapped
        data = inner.data if task[0] == "H" else inner._env.physics.data.ptr
        data.qacc_warmstart[:] = 0

    assert continued(build(task), left, chilled) != left.outcomes


def test_the_generators_go_on_where_they_were():
    for task in ("Pendulum-v1", "cartpole-swingup"):
        env, other = build(task), build(task)
        env.reset(seed=0)
        env.unwrapped.np_random.integers(2**20, dtype=np.uint32)  # leaves half a word
        if task == "cartpole-swingup":
            env.unwrapped._env.task.random.normal()  # leaves one of a pair
        other.reset(seed=0)
        restore_env_state(other, save_env_state(env))
        drawn = [e.unwrapped.np_random.integers(2**32, size=9) for e in (env, other)]
        np.testing.assert_array_equal(*drawn)
        np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_the_fields_are_all_that_the_model_sizes_and_nothing_of_the_arena():
    env = build("humanoid-run")
    env.reset(seed=0)
    physics = env.unwrapped._env.physics
    names = set(Simulation(physics.model.ptr, physics.data.ptr)._fields())
    assert names >= {
        *("qpos", "qvel", "ctrl", "qacc", "qacc_warmstart", "xpos", "xipos", "xmat"),
        *("cinert", "cvel", "cfrc_ext", "qfrc_actuator", "sensordata", "energy"),
        *("subtree_com", "qLD", "actuator_force", "xfrc_applied"),
    }
    assert not [name for name in names if name.startswith(("efc_", "iefc_", "efm_"))]


class Drifting(Count):
    """A `Count` that drifts at random, and says what its steps change."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + self.np_random.normal(), *rest

    def save_state(self):
        return {"obs": self.obs}

    def load_state(self, saved):
        self.obs = saved["obs"]  # and goes on writing it


class Blend(gymnasium.Wrapper):
    """Remembers the reward before, and does not say so."""

    before = 0.0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        given, self.before = (reward + self.before) / 2, reward
        return obs, given, *rest

    def reset(self, **keywords):
        self.before = 0.0
        return super().reset(**keywords)


class Forwarding(Blend):
    """Has its environment's methods, but not in its class."""

    def __getattr__(self, name):
        return getattr(self.env, name)


class SavedBlend(Blend):
    """Says so, for itself and what it wraps."""

    def save_state(self):
        return {"before": self.before} | self.env.save_state()

    def load_state(self, saved):
        self.before = float(saved["before"])
        self.env.load_state(saved)


def own(env):
    return adapt_env("own", BorrowedEnv(env), 2)


def test_an_environment_of_ones_own_says_what_its_steps_change():
    left = cut(own(TimeLimit(Drifting(), 100)))
    assert set(left.saved) == {"limit0/steps", "task/obs", "np_random/pcg64"}
    for _ in range(2):
        assert continued(own(TimeLimit(Drifting(), 100)), left) == left.outcomes


def test_a_wrapper_that_saves_speaks_for_what_it_wraps():
    left = cut(own(SavedBlend(Drifting())))
    assert set(left.saved) == {"task/obs", "task/before", "np_random/pcg64"}
    assert continued(own(SavedBlend(Drifting())), left) == left.outcomes


class Changed(RescaleAction):
    """A known wrapper's child, which may have state."""


@pytest.mark.parametrize(
    "env",
    [
        Count(),
        Blend(Drifting()),
        Forwarding(Drifting()),
        TimeAwareObservation(TimeLimit(Drifting(), 9)),
        Changed(Drifting(), -np.ones(2, np.float32), np.ones(2, np.float32)),
        TimeLimit(FrameStackObservation(gymnasium.make("Hopper-v5"), 2), 9),
    ],
    ids=lambda env: type(env).__name__,
)
def test_what_is_not_known_offers_no_state_and_takes_none(env):
    env.reset(seed=0)
    assert save_env_state(env) is None
    with pytest.raises(ValueError, match="takes no saved state"):
        restore_env_state(env, {})


def test_a_child_of_a_mujoco_task_is_another_task():
    kind = type(gymnasium.make("Hopper-v5").unwrapped)
    env = type("Taller", (kind,), {})()
    env.reset(seed=0)
    assert save_env_state(env) is None


def test_another_kind_of_generator_offers_no_state():
    env = Drifting()
    env.reset(seed=0)
    env.np_random = np.random.Generator(np.random.Philox(0))
    assert save_env_state(env) is None


@pytest.mark.parametrize(
    "given", [{"Obs": np.zeros(2)}, {"obs": "far"}, {"obs": None}, {"": 1}]
)
def test_names_and_kinds_of_ones_own_are_checked(given):
    env = Drifting()
    env.save_state = lambda: given
    env.reset(seed=0)
    with pytest.raises(ValueError, match="save_state of Drifting gives"):
        save_env_state(env)


def other(name, change):
    return pytest.param(name, change, id=f"{name}-{change.__name__}")


def gone(_):
    return None


def longer(array):
    return np.append(array, array[-1:])


def flat(array):
    return array[None]


def whole(array):
    return array.astype(np.int64)


def text(array):
    return array.astype("U3")


def nan(array):
    return np.full_like(array, np.nan)


def huge(array):
    return np.full_like(array, 1e300)


def most(array):
    return np.full_like(array, np.iinfo(array.dtype).max)


def past(array):
    return np.append(array[:-1], array[-1:] * 0 + 625)


def signed(array):
    return array.astype(np.int64)


def bumped(array):
    return array ^ np.ones_like(array)


HUMANOID = "humanoid-stand"


@pytest.fixture(scope="module")
def humanoid():
    """A humanoid after some steps and another, both on loan, and the first's state."""
    env, fresh = build(HUMANOID), build(HUMANOID)
    return cut(env, 5, 5), fresh


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(other("task/derived", change) for change in (gone, longer, whole, text)),
        *(other("task/integration", change) for change in (longer, nan, huge, flat)),
        *(other("task/layout", change) for change in (gone, bumped)),
        *(other("task/random", change) for change in (most, past, signed, longer)),
        *(other("np_random/pcg64", change) for change in (most, signed, longer)),
        *(other("task/step_count", change) for change in (flat, text)),
    ],
)
def test_what_does_not_fit_is_refused(name, change, humanoid):
    left, fresh = humanoid
    saved = dict(left.saved)
    changed = change(saved.pop(name))
    saved |= {} if changed is None else {name: changed}
    fresh.reset(seed=left.seed)
    with pytest.raises(ValueError, match="the saved state") as refused:
        restore_env_state(fresh, saved)
    assert "\n" not in str(refused.value)
    assert continued(fresh, left) == left.outcomes  # and nothing of it stays


def test_fields_that_hold_nonsense_move_nothing(humanoid):
    left, fresh = humanoid
    fresh.reset(seed=left.seed)
    derived = nan(left.saved["task/derived"])
    restore_env_state(fresh, left.saved | {"task/derived": derived})
    assert np.isfinite(fresh.unwrapped._env.physics.data.qpos).all()


@pytest.mark.parametrize("name", ["task/more", "limit0/steps", "task", "", "/x"])
def test_a_name_too_many_is_refused(name, humanoid):
    left, fresh = humanoid
    fresh.reset(seed=left.seed)
    with pytest.raises(ValueError, match="the saved state has"):
        restore_env_state(fresh, left.saved | {name: np.zeros(1)})


def test_the_state_of_another_task_is_refused():
    ant, hopper = build("Ant-v5"), build("Hopper-v5")
    for env in (ant, hopper):
        env.reset(seed=0)
    with pytest.raises(ValueError, match="is of kind 'f' and shape"):
        restore_env_state(hopper, save_env_state(ant))


def test_what_ones_own_load_state_raises_is_a_refusal():
    env = own(Drifting())
    env.reset(seed=0)
    saved = save_env_state(env)
    del saved["task/obs"]
    with pytest.raises(ValueError, match="the saved state does not fit: 'obs'"):
        restore_env_state(env, saved)


if __name__ == "__main__":
    elsewhere(Path(sys.argv[1]), sys.argv[2:])
