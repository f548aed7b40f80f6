import gymnasium
import numpy as np
import pytest
import scripted  # noqa: F401, registers its tasks

from r2r2.envs.make import ActionRepeat, make_env


def play(task, times):
    """The steps of one episode, without their observations' start and action."""
    env = ActionRepeat(gymnasium.make(task, disable_env_checker=True), times)
    env.reset(seed=0)
    steps, ended = [], False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(np.zeros(2))
        assert info == {"t": obs[1]}
        steps.append((obs[1], reward, terminated, truncated))
        ended = terminated or truncated
    return steps


def test_an_odd_limit_cuts_the_last_repeat():
    # 1 + 4, 9 + 16, 25 + 36, and 49 alone: the limit of 7 falls inside the fourth.
    assert play("Count-v0", 2) == [
        (2, 5.0, False, False),
        (4, 25.0, False, False),
        (6, 61.0, False, False),
        (7, 49.0, False, True),
    ]


def test_a_repeat_beyond_the_episode():
    # 1 + 4 + 9 + 16 + 25 + 36 + 49 = 140.
    assert play("Count-v0", 10) == [(7, 140.0, False, True)]


@pytest.mark.parametrize(
    ("task", "ended"),
    [("Terminates-v0", (True, False)), ("Truncates-v0", (False, True))],
)
def test_a_termination_is_not_a_truncation(task, ended):
    assert play(task, 2) == [(2, 5.0, False, False), (3, 9.0, *ended)]


def test_a_termination_at_the_limit_is_both():
    assert play("Both-v0", 2)[-1] == (7, 49.0, True, True)


def test_once_is_the_task_itself():
    assert [step[:2] for step in play("Terminates-v0", 1)] == [(1, 1), (2, 4), (3, 9)]


def test_the_first_step_after_a_reset_starts_anew():
    env = ActionRepeat(gymnasium.make("Count-v0", disable_env_checker=True), 2)
    for _ in range(2):
        env.reset(seed=0)
        assert env.step(np.zeros(2))[1] == 5.0


@pytest.mark.parametrize(
    ("action", "received"),
    [
        # [-3, 1] and [0, 10]: the middles are -1 and 5, the halves 2 and 5.
        ([1, 1], [1, 10]),
        ([-1, -1], [-3, 0]),
        ([0, 0], [-1, 5]),
        ([0.5, -0.5], [0, 2.5]),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_actions_are_rescaled_to_asymmetric_bounds(action, received, times):
    env = make_env("scripted:Count-v0", times)
    env.reset(seed=0)
    obs = env.step(np.array(action, np.float32))[0]
    np.testing.assert_allclose(obs[2:], received, rtol=1e-6, atol=1e-6)


def test_double_bounds_keep_double_precision():
    # [-0.1, 0.3]: the middle is 0.1, the half 0.2; 0.1 + 0.2 / 3 = 1 / 6.
    env = make_env("scripted:Double-v0", 1)
    env.reset(seed=0)
    obs = env.step(np.array([1 / 3, -1.0]))[0]
    np.testing.assert_allclose(obs[2:], [1 / 6, -0.1], rtol=1e-14)


def test_symmetric_unit_bounds_change_no_bit():
    env = make_env("Hopper-v5", 1)
    action = np.random.default_rng(0).uniform(-1, 1, 3).astype(np.float32)
    inside = gymnasium.make("Hopper-v5")
    env.reset(seed=3)
    inside.reset(seed=3)
    np.testing.assert_array_equal(env.step(action)[0], inside.step(action)[0])
