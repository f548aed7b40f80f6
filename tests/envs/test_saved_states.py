"""Saved episodes continue bit-exactly, also in another process."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import FrameStackObservation, RescaleAction, TimeAwareObservation, TimeLimit
from scripted import Count

from r2r2.envs.make import BorrowedEnv, adapt_env, make_env
from r2r2.envs.suites import default_action_repeat, known_tasks
from r2r2.envs.vector.saved_states import Simulation, restore_env_state, save_env_state

BEFORE, AFTER = 30, 50


class Player:
    """Acts and, like a pool, starts the next episode when one ends."""

    def __init__(self, env, seed):
        self.env, self.seed = env, seed
        self.env.reset(seed=seed)

    def outcome(self, action):
        """Return everything that an agent sees, as bytes."""
        obs, reward, *ended, _ = self.env.step(action)
        seen = [np.asarray(obs).tobytes(), np.float64(reward).tobytes(), bytes(ended)]
        if any(ended):
            self.seed += 1
            seen.append(self.env.reset(seed=self.seed)[0].tobytes())
        return b"|".join(seen)

    def outcomes(self, actions):
        return [self.outcome(action) for action in actions]


class SavedEpisode(NamedTuple):
    """An episode saved at some step, and how it continued."""

    saved: dict
    seed: int
    actions: np.ndarray
    outcomes: list


def build(task):
    return make_env(task, default_action_repeat(task))


def play_and_save(env, before=BEFORE, after=AFTER, seed=3):
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.5, 0.5, (before + after, *env.action_space.shape))
    player = Player(env, seed)
    player.outcomes(actions[:before])
    saved, seed = save_env_state(env), player.seed
    actions = actions[before:]
    return SavedEpisode(saved, seed, actions, player.outcomes(actions))


def resume(env, episode, after_load=lambda env: None):
    player = Player(env, episode.seed)
    restore_env_state(env, episode.saved)
    after_load(env)
    return player.outcomes(episode.actions)


# One task per model; the slow test covers the others.
TASKS = (
    *("Ant-v5", "Hopper-v5", "Humanoid-v5", "dog-run", "humanoid-run"),
    *("Pendulum-v1", "MountainCarContinuous-v0"),
)


@pytest.mark.parametrize("task", TASKS)
def test_restored_episode_continues_bit_exactly(task):
    env = build(task)
    episode = play_and_save(env)
    assert resume(build(task), episode) == episode.outcomes
    assert resume(env, episode) == episode.outcomes  # also in the environment it came from


NEEDS_A_DISPLAY = "quadruped-escape"


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["gymnasium", "dmc"])
def test_every_listed_task_except_box2d_is_restored(suite):
    for task in sorted({*known_tasks()[suite]} - {NEEDS_A_DISPLAY}):
        episode = play_and_save(build(task))
        if episode.saved is None:
            assert "box2d" in type(build(task).unwrapped).__module__
        else:
            assert resume(build(task), episode) == episode.outcomes, task


def test_another_process_continues_bit_exactly(tmp_path):
    tasks = ("humanoid-walk", "Humanoid-v5")
    episodes = {task: play_and_save(build(task)) for task in tasks}
    for task, episode in episodes.items():
        np.savez(
            tmp_path / f"{task}.npz",
            seed=episode.seed,
            actions=episode.actions,
            **{f"saved:{name}": array for name, array in episode.saved.items()},
        )
    program = [sys.executable, __file__, str(tmp_path), *tasks]
    subprocess.run(program, check=True)
    for task, episode in episodes.items():
        actual = (tmp_path / f"{task}.outcomes").read_bytes()
        assert actual == b"".join(episode.outcomes), task


def resume_in_subprocess(folder, tasks):
    """Resume the tasks in the other process."""
    for task in tasks:
        stored = np.load(folder / f"{task}.npz")
        saved = {
            name.removeprefix("saved:"): stored[name]
            for name in stored
            if name.startswith("saved:")
        }
        episode = SavedEpisode(saved, int(stored["seed"]), stored["actions"], [])
        outcomes = resume(build(task), episode)
        (folder / f"{task}.outcomes").write_bytes(b"".join(outcomes))


@pytest.mark.parametrize(("task", "limit"), [("Pendulum-v1", 200), ("cartpole-swingup", 500)])
def test_time_limit_is_restored(task, limit):
    episode = play_and_save(build(task), before=limit - 10)
    assert episode.seed == 3  # still the first episode
    actual = resume(build(task), episode)
    assert actual == episode.outcomes
    assert [len(seen) > len(actual[0]) for seen in actual].index(True) == 9


def test_ended_episode_stays_ended():
    env, other = build("cartpole-swingup"), build("cartpole-swingup")
    env.reset(seed=0)
    for _ in range(500):
        env.step(np.zeros(1))
    other.reset(seed=0)
    restore_env_state(other, save_env_state(env))
    with pytest.raises(ResetNeeded):
        other.step(np.zeros(1))


def test_state_before_the_first_step_is_restored():
    episode = play_and_save(build("humanoid-stand"), before=0)
    assert resume(build("humanoid-stand"), episode) == episode.outcomes


def test_saved_state_is_a_copy_of_plain_arrays():
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
def test_derived_fields_are_needed_for_the_reward(task):
    episode = play_and_save(build(task))
    fresh = build(task)
    fresh.reset(seed=episode.seed)
    lacking = episode.saved | {"task/derived": save_env_state(fresh)["task/derived"]}
    actual = resume(build(task), episode._replace(saved=lacking))
    assert actual[0] != episode.outcomes[0]


@pytest.mark.parametrize("task", ["Humanoid-v5", "humanoid-run"])
def test_warm_start_is_needed_for_the_episode(task):
    episode = play_and_save(build(task))

    def clear_warm_start(env):
        inner = env.unwrapped
        data = inner.data if task[0] == "H" else inner._env.physics.data.ptr
        data.qacc_warmstart[:] = 0

    assert resume(build(task), episode, clear_warm_start) != episode.outcomes


def test_random_generators_are_restored():
    for task in ("Pendulum-v1", "cartpole-swingup"):
        env, other = build(task), build(task)
        env.reset(seed=0)
        env.unwrapped.np_random.integers(2**20, dtype=np.uint32)  # leaves 32 spare bits
        if task == "cartpole-swingup":
            env.unwrapped._env.task.random.normal()  # leaves a spare normal
        other.reset(seed=0)
        restore_env_state(other, save_env_state(env))
        drawn = [e.unwrapped.np_random.integers(2**32, size=9) for e in (env, other)]
        np.testing.assert_array_equal(*drawn)
        np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_derived_fields_are_those_sized_by_the_model():
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
    """A `Count` with random rewards that saves its own state."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + self.np_random.normal(), *rest

    def save_state(self):
        return {"obs": self.obs}

    def load_state(self, saved):
        self.obs = saved["obs"]  # modified in place by later steps


class Blend(gymnasium.Wrapper):
    """A wrapper with state that it does not save."""

    before = 0.0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        given, self.before = (reward + self.before) / 2, reward
        return obs, given, *rest

    def reset(self, **keywords):
        self.before = 0.0
        return super().reset(**keywords)


class Forwarding(Blend):
    """A wrapper that forwards attributes, so that only instances have `save_state`."""

    def __getattr__(self, name):
        return getattr(self.env, name)


class SavedBlend(Blend):
    """A wrapper that saves its own state and that of its environment."""

    def save_state(self):
        return {"before": self.before} | self.env.save_state()

    def load_state(self, saved):
        self.before = float(saved["before"])
        self.env.load_state(saved)


def adapt(env):
    return adapt_env("mine", BorrowedEnv(env), 2)


def test_user_environment_is_restored_by_its_own_methods():
    episode = play_and_save(adapt(TimeLimit(Drifting(), 100)))
    assert set(episode.saved) == {"limit0/steps", "task/obs", "np_random/pcg64"}
    for _ in range(2):
        assert resume(adapt(TimeLimit(Drifting(), 100)), episode) == episode.outcomes


def test_wrapper_with_state_methods_saves_what_it_wraps():
    episode = play_and_save(adapt(SavedBlend(Drifting())))
    assert set(episode.saved) == {"task/obs", "task/before", "np_random/pcg64"}
    assert resume(adapt(SavedBlend(Drifting())), episode) == episode.outcomes


class Changed(RescaleAction):
    """A subclass of a stateless wrapper, which may have state."""


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
def test_unknown_environments_are_not_supported(env):
    env.reset(seed=0)
    assert save_env_state(env) is None
    with pytest.raises(ValueError, match="not supported"):
        restore_env_state(env, {})


def test_subclass_of_a_mujoco_task_is_not_supported():
    kind = type(gymnasium.make("Hopper-v5").unwrapped)
    env = type("Taller", (kind,), {})()
    env.reset(seed=0)
    assert save_env_state(env) is None


def test_other_random_generators_are_not_supported():
    env = Drifting()
    env.reset(seed=0)
    env.np_random = np.random.Generator(np.random.Philox(0))
    assert save_env_state(env) is None


@pytest.mark.parametrize("given", [{"Obs": np.zeros(2)}, {"obs": "far"}, {"obs": None}, {"": 1}])
def test_arrays_of_save_state_are_checked(given):
    env = Drifting()
    env.save_state = lambda: given
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Drifting\.save_state: expected"):
        save_env_state(env)


def case(name, change):
    return pytest.param(name, change, id=f"{name}-{change.__name__}")


def missing(_):
    return None


def longer(array):
    return np.append(array, array[-1:])


def nested(array):
    return array[None]


def as_int(array):
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


def bumped(array):
    return array ^ np.ones_like(array)


HUMANOID = "humanoid-stand"


@pytest.fixture(scope="module")
def humanoid():
    """Return a saved episode and another environment of the same task."""
    env, fresh = build(HUMANOID), build(HUMANOID)
    return play_and_save(env, 5, 5), fresh


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(case("task/derived", change) for change in (missing, longer, as_int, text)),
        *(case("task/integration", change) for change in (longer, nan, huge, nested)),
        *(case("task/layout", change) for change in (missing, bumped)),
        *(case("task/random", change) for change in (most, past, as_int, longer)),
        *(case("np_random/pcg64", change) for change in (most, as_int, longer)),
        *(case("task/step_count", change) for change in (nested, text)),
    ],
)
def test_invalid_state_is_an_error(name, change, humanoid):
    episode, fresh = humanoid
    saved = dict(episode.saved)
    changed = change(saved.pop(name))
    saved |= {} if changed is None else {name: changed}
    fresh.reset(seed=episode.seed)
    with pytest.raises(ValueError, match=r"^saved state: ") as error:
        restore_env_state(fresh, saved)
    assert "\n" not in str(error.value)
    assert resume(fresh, episode) == episode.outcomes  # nothing of it remains


def test_invalid_derived_fields_do_not_change_the_positions(humanoid):
    episode, fresh = humanoid
    fresh.reset(seed=episode.seed)
    derived = nan(episode.saved["task/derived"])
    restore_env_state(fresh, episode.saved | {"task/derived": derived})
    assert np.isfinite(fresh.unwrapped._env.physics.data.qpos).all()


@pytest.mark.parametrize("name", ["task/more", "limit0/steps", "task", "", "/x"])
def test_additional_array_is_an_error(name, humanoid):
    episode, fresh = humanoid
    fresh.reset(seed=episode.seed)
    with pytest.raises(ValueError, match="saved state: unexpected array"):
        restore_env_state(fresh, episode.saved | {name: np.zeros(1)})


def test_state_of_another_task_is_an_error():
    ant, hopper = build("Ant-v5"), build("Hopper-v5")
    for env in (ant, hopper):
        env.reset(seed=0)
    with pytest.raises(ValueError, match="expected kind 'f' and shape"):
        restore_env_state(hopper, save_env_state(ant))


def test_error_of_load_state_is_reported():
    env = adapt(Drifting())
    env.reset(seed=0)
    saved = save_env_state(env)
    del saved["task/obs"]
    with pytest.raises(ValueError, match="saved state: cannot be loaded: 'obs'"):
        restore_env_state(env, saved)


if __name__ == "__main__":
    resume_in_subprocess(Path(sys.argv[1]), sys.argv[2:])
