"""Behavior of dm_control tasks as Gymnasium environments."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from r2r2.envs.dm_control import DMCEnv, dm_suite
from r2r2.envs.make import make_env

HUMANOID = {
    "joint_angles": 21,
    "head_height": 1,  # a scalar
    "extremities": 12,
    "torso_vertical": 3,
    "com_velocity": 3,
    "velocity": 27,
}


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_observation_is_flat_in_dm_control_order():
    env = DMCEnv("humanoid", "stand")
    obs, _ = env.reset(seed=7)
    inner = dm_suite().load("humanoid", "stand")
    inner.task.random.seed(7)
    parts = inner.reset().observation
    assert {name: np.size(part) for name, part in parts.items()} == HUMANOID
    ends = np.cumsum(list(HUMANOID.values()))[:-1]
    for name, values in zip(HUMANOID, np.split(obs, ends), strict=True):
        np.testing.assert_array_equal(values, np.ravel(parts[name]))
    assert env.observation_space.contains(obs)
    assert obs.dtype == np.float64


def test_action_bounds_match_dm_control():
    inner = dm_suite().load("quadruped", "walk").action_spec()
    space = DMCEnv("quadruped", "walk").action_space
    np.testing.assert_array_equal(space.low, inner.minimum)
    np.testing.assert_array_equal(space.high, inner.maximum)
    assert space.high.max() > 1  # so these are not all -1 to 1
    rescaled = make_env("quadruped-walk", 2).action_space
    np.testing.assert_array_equal(rescaled.high, np.ones(12))
    np.testing.assert_array_equal(rescaled.low, -np.ones(12))


def test_time_limit_truncates_after_500_decisions():
    env = make_env("cartpole-swingup", 2)
    env.reset(seed=0)
    for step in range(1, 501):
        _, reward, terminated, truncated, _ = env.step(np.zeros(1))
        assert (terminated, truncated) == (False, step == 500)
        assert type(reward) is float


@pytest.mark.parametrize(("discount", "ended"), [(0.0, (True, False)), (1.0, (False, True))])
def test_only_discount_zero_is_a_termination(discount, ended, monkeypatch):
    env = DMCEnv("cartpole", "balance")
    env.reset(seed=0)
    assert env.step(np.zeros(1))[2:4] == (False, False)
    monkeypatch.setattr(env._env.task, "get_termination", lambda _: discount)
    assert env.step(np.zeros(1))[2:4] == ended


def test_step_after_end_raises(monkeypatch):
    env = DMCEnv("cartpole", "balance")
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(1))
    env.reset(seed=0)
    monkeypatch.setattr(env._env.task, "get_termination", lambda _: 1.0)
    env.step(np.zeros(1))
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(1))


def test_reset_without_seed_continues_the_stream():
    env = DMCEnv("cartpole", "swingup")
    first, second = env.reset(seed=7)[0], env.reset()[0]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
