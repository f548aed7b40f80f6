"""Nested observations and actions of any shape, as agents see them and as they are recorded."""

from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
import scripted
from gymnasium.spaces import Box, Dict
from test_pool import env_slot

import user_spaces
from r2r2.config.errors import UserError
from r2r2.envs.make import adapt_env, make_env, spaces_of, spec_of
from r2r2.envs.spec import InvalidEnvOutput, Member, Spec
from r2r2.envs.vector.pool import EnvPool, try_task
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, EnvSlot, StepRequest
from r2r2.policy.spaces import flatten_observation, spaces_to_json

TASK = "user_spaces:Robot"
PATHS = [("camera", "depth"), ("goal",), ("joints", 0), ("joints", 1)]


def test_nested_observation_is_flattened_in_the_order_of_its_space():
    env, raw = make_env(TASK, 1), user_spaces.Robot()
    assert spec_of(env) == Spec(8, 2)
    layout = spaces_of(env).observation
    assert [part.path for part in layout] == PATHS
    assert [part.shape for part in layout] == [(2, 2), (1,), (2,), ()]
    obs, expected = env.reset(seed=3)[0], raw.reset(seed=3)[0]
    assert obs.dtype == np.float64
    # Exact: neither the goal 1/3 nor the position went through float32.
    np.testing.assert_array_equal(obs, [0, 0, 0.25, 1, 1 / 3, *raw.position, 0])
    np.testing.assert_array_equal(flatten_observation(layout, expected), obs)


def test_order_is_that_of_gymnasium():
    """Which sorts the keys of a dict, but neither of an OrderedDict nor of keywords."""
    one = Box(-1, 1, (1,))
    for space, order in [
        (Dict({"z": one, "a": one}), "az"),
        (Dict(OrderedDict(z=one, a=one)), "za"),
        (Dict(z=one, a=one), "za"),
    ]:
        layout = spaces_of(adapt_env("mine", scripted.Shaped(space), 1)).observation
        assert "".join(part.path[0] for part in layout) == order
        flat = gymnasium.spaces.flatten(space, {"a": [0.1], "z": [0.2]})
        obs = flatten_observation(layout, {"a": [np.float32(0.1)], "z": [np.float32(0.2)]})
        np.testing.assert_array_equal(obs, flat)


def test_matrix_observation_is_flattened():
    env = make_env("user_spaces:Matrix", 1)
    env.reset(seed=0)
    obs = env.step(np.zeros(4))[0]
    np.testing.assert_array_equal(obs, (np.arange(6, dtype=np.float32) / 6).astype(np.float64))


def test_flat_vectors_are_not_copied_by_a_wrapper():
    env = make_env("scripted:Count-v0", 1)
    assert type(env).__name__ == "UnitAction"
    assert [part.path for part in spaces_of(env).observation] == [()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_environment_receives_its_bounds_exactly_and_its_type(dtype):
    raw = user_spaces.Robot(dtype=dtype)
    env = adapt_env("robot", raw, 1)
    env.reset(seed=0)
    for unit in ([-1.0, 1.0], [1.0, -1.0], [0.1, 0.7]):
        env.step(np.array(unit))  # it asserts that its space contains the action
    low, high = (bound.astype(dtype) for bound in (user_spaces.LOW, user_spaces.HIGH))
    assert [action.dtype for action in raw.received] == [dtype] * 3
    np.testing.assert_array_equal(raw.received[0], [low[0], high[1]])
    np.testing.assert_array_equal(raw.received[1], [high[0], low[1]])
    np.testing.assert_allclose(raw.received[2], [-0.8, 0.27], rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 2), (), (1, 3, 1)])
def test_environment_receives_actions_of_its_shape(shape):
    raw = user_spaces.Matrix(shape)
    env = adapt_env("matrix", raw, 2)
    size = int(np.prod(shape))
    assert spec_of(env).action_dim == size
    env.reset(seed=0)
    env.step(np.linspace(0, 1, size + 1)[1:])
    expected = (1 + np.arange(1, size + 1) / size) / 2 * np.arange(1, size + 1)
    np.testing.assert_allclose(raw.received, expected.reshape(shape), rtol=1e-6)
    assert spaces_of(env).action_shape == shape


def test_environments_of_gymnasium_receive_what_they_always_did():
    """Results of earlier versions stay reproducible to the bit."""
    names = [type(make_env(task, 1)).__name__ for task in ("Humanoid-v5", "cartpole-swingup")]
    assert names == ["RescaleAction"] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "observation['camera']['depth'][1, 0]: expected a finite number, got nan"),
        ({"goal": np.inf}, "observation['goal']: expected shape (1,), got ()"),
        ({"joints": (np.zeros(2), np.inf)}, "observation['joints'][1]: expected a finite number"),
        ({"joints": 3}, "observation['joints']: expected a tuple, got a int"),
        ({"camera": {"dpeth": 0}}, "observation['camera']: expected a key 'depth', got the keys"),
    ],
)
def test_invalid_part_of_an_observation_is_named(change, message):
    env = adapt_env("flawed", user_spaces.Flawed(change), 1)
    with pytest.raises(InvalidEnvOutput) as error:
        env.reset(seed=0)
    assert str(error.value).startswith(message)


def test_trial_in_a_worker_names_the_part_and_the_line():
    pattern = (
        r"^env 'user_spaces:Flawed': reset: observation\['camera'\]\['depth'\]\[1, 0\]: .*\.py:"
    )
    with pytest.raises(UserError, match=pattern):
        try_task("user_spaces:Flawed", None, 60.0)


@pytest.mark.parametrize("local", [True, False])
def test_trial_returns_the_spaces(local):
    expected = spaces_to_json(spaces_of(make_env(TASK, 1)))
    trial = try_task(TASK, None, 60.0, local)
    assert trial.spec == Spec(8, 2)
    assert spaces_to_json(trial.spaces) == expected
    assert expected["action"]["low"] == [-3.0, 0.1]
    assert expected["action"]["dtype"] == "float64"


@pytest.mark.parametrize("workers", [0, 1])
def test_pool_has_the_spaces_of_every_task(workers):
    """Layouts of equal sizes may differ: members share no parameters."""
    flat = env_slot(Member("flat", 0), builder=user_spaces.flat_robot)
    nested = EnvSlot(Member(TASK, 0), EnvFactory(TASK, 1), "training")
    with EnvPool([nested, flat], workers, trial=True) as pool:
        assert pool.spec == Spec(8, 2)
        assert list(pool.spaces) == [TASK, "flat"]
        assert [part.path for part in pool.spaces[TASK].observation] == PATHS
        assert [part.path for part in pool.spaces["flat"].observation] == [()]
        obs = pool.reset([0], [5])
        expected = make_env(TASK, 1).reset(seed=5)[0]
        np.testing.assert_array_equal(obs[0], expected)
        result = pool.step(StepRequest([0], np.array([[1.0, -1.0]]), [NO_EPISODE]))
        assert result.next_obs[0, 5] == expected[5] + 0.1


def test_state_of_a_nested_environment_is_saved_and_restored():
    env, other = make_env(TASK, 2), make_env(TASK, 2)
    env.reset(seed=1)
    env.step(np.array([0.3, -0.2]))
    saved = save_env_state(env)
    assert saved is not None
    other.reset(seed=1)
    restore_env_state(other, saved)
    action = np.array([-0.7, 0.1])
    np.testing.assert_array_equal(other.step(action)[0], env.step(action)[0])
