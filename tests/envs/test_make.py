"""Building environments, and the wrappers that agents see them through."""

import itertools

import gymnasium
import mujoco
import numpy as np
import pytest
import scripted

from r2r2.config.errors import UserError
from r2r2.envs.make import ActionRepeat, adapt_env, episode_seed, make_env, spec_of, time_limit_of
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_sizes_match_the_paper(task):
    _, obs_dim, action_dim = PAPER_TASKS[task]
    env = make_env(task, 1)
    assert spec_of(env) == Spec(obs_dim, action_dim)
    assert env.reset(seed=0)[0].shape == (obs_dim,)
    np.testing.assert_array_equal(env.action_space.high, np.ones(action_dim))
    env.close()


def episode(env, seed, steps=20):
    """Return observations and rewards of the first steps under fixed actions."""
    rng = np.random.default_rng(0)
    rows = [[*env.reset(seed=seed)[0], 0.0]]
    for _ in range(steps):
        obs, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape))
        rows.append([*obs, reward])
    return np.array(rows)


@pytest.mark.parametrize("task", ["humanoid-run", "Hopper-v5"])
def test_episode_depends_only_on_its_seed(task):
    one, other = make_env(task, 2), make_env(task, 2)
    first = episode(one, seed=7)
    episode(other, seed=3, steps=31)
    other.reset()
    np.testing.assert_array_equal(episode(other, seed=7), first)
    np.testing.assert_array_equal(episode(one, seed=7), first)
    assert not np.array_equal(episode(one, seed=8), first)


def test_no_environment_checker_is_added():
    env, names = make_env("Hopper-v5", 1), []
    while env is not env.unwrapped:
        names.append(type(env).__name__)
        env = env.env
    assert names == ["RescaleAction", "ActionRepeat", "TimeLimit", "OrderEnforcing"]


SPACE = "unsupported space; expected a Box of floats or integers, or a Dict or Tuple of them, got"
PIXELS = (
    "pixels are not supported; expected measurements such as positions and velocities, got a "
    "Box of shape (8, 8, 3) and type uint8"
)
ACTION = "unsupported action space; expected a bounded Box of floats, got"
BOUNDS = "expected low < high, both within +-1e+06, got"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("DiscreteObs", f"observation: {SPACE} a Discrete space"),
        ("ImageObs", f"observation: {PIXELS}"),
        ("EmptyObs", f"observation: {SPACE} a Box of shape (0,) and type float32"),
        ("EmptyDictObs", f"observation: {SPACE} an empty Dict space"),
        ("DiscretePartObs", f"observation['arm'][1]: {SPACE} a Discrete space"),
        ("BinaryPartObs", f"observation['touch']: {SPACE} a MultiBinary space"),
        ("ImagePartObs", f"observation['arm']['camera']: {PIXELS}"),
        ("OddKeyObs", "observation[2.5]: expected keys that are strings or integers >= 0, got 2.5"),
        ("MultiAction", f"{ACTION} a MultiDiscrete space"),
        ("DictAction", f"{ACTION} a Dict space"),
        ("LongDoubleAction", f"{ACTION} a Box of shape (2,) and type {np.dtype(np.longdouble)}"),
        ("IntAction", f"{ACTION} a Box of shape (2,) and type int64"),
        ("HalfFreeAction", f"unsupported bounds of action 1; {BOUNDS} -1 to inf"),
        ("HugeAction", f"unsupported bounds of action 0; {BOUNDS} -3.40282e+38 to 3.40282e+38"),
        ("FlatAction", f"unsupported bounds of action 1; {BOUNDS} -0 to 0"),
        ("FlatMatrixAction", f"unsupported bounds of action [1, 0]; {BOUNDS} 0 to 0"),
        ("Needy", "cannot be built: DependencyNotInstalled: armlib is not installed"),
        ("Cuont", "'scripted' has no task, class or function 'Cuont-v0'; did you mean 'Count-v0'?"),
    ],
)
def test_unsupported_task_of_a_module_is_an_error(task, message):
    task = f"scripted:{task}-v0"
    with pytest.raises(UserError) as error:
        make_env(task, 1)
    assert str(error.value) == f"env {task!r}: {message}"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("CartPole-v1", f"{ACTION} a Discrete space"),
        ("lqr-lqr_2_1", f"unsupported bounds of action 0; {BOUNDS} -1e+10 to 1e+10"),
        (
            "no.such:Arm-v0",
            "importing 'no.such' failed (ModuleNotFoundError: No module named 'no')",
        ),
        (":Arm-v0", "importing '' failed (ValueError: Empty module name)"),
        ("json:Arm-v0", "'json' has no task, class or function 'Arm-v0'"),
    ],
)
def test_unsupported_task_is_an_error(task, message):
    with pytest.raises(UserError) as error:
        make_env(task, 1)
    assert str(error.value) == f"env {task!r}: {message}"


def test_missing_dependency_is_named():
    with pytest.raises(UserError, match=r"^env 'Hopper-v3': cannot be built: .*gymnasium-robotics"):
        make_env("Hopper-v3", 1)


def test_failing_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "bent_arm.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"'bent_arm' failed \(ZeroDivisionError: "):
        make_env("bent_arm:Arm-v0", 1)


def test_warnings_of_user_packages_are_shown():
    with pytest.warns(UserWarning, match="my arm is bent"):
        make_env("scripted:Loud-v0", 1)


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "cheetah-run"])
def test_mujoco_warning_handler_is_restored(task):
    received, before = [], mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(received.append)
    try:
        make_env(task, 1)
        assert received == []
        gymnasium.make("HalfCheetah-v5")
        assert "settotalmass" in received[0]
    finally:
        mujoco.set_mju_user_warning(before)


def test_episode_seeds_are_distinct():
    purposes = ["train", "evaluate", "eval-command"]
    seeds = [episode_seed(*name) for name in itertools.product(range(5), purposes, range(99))]
    assert len(set(seeds)) == len(seeds) == 5 * 3 * 99
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)


def test_episode_seeds_never_change():
    # Recorded: a change here changes every run.
    assert [episode_seed(3, "train", index) for index in range(2)] == [1108881640, 738072020]


def test_largest_seed_is_accepted():
    for task in ["cartpole-swingup", "Hopper-v5"]:
        make_env(task, 1).reset(seed=2**32 - 1)


def test_time_limit_counts_environment_steps():
    for task, limit in {"Pendulum-v1": 200, "cartpole-swingup": 1000}.items():
        assert time_limit_of(make_env(task, 2)) == limit
    assert time_limit_of(scripted.Count()) is None


@pytest.mark.parametrize(
    ("task", "limits", "steps"),
    [
        ("Count-v0", (0, 0), 7),  # its own limit
        ("Count-v0", (3, 0), 3),
        ("Count-v0", (9, 0), 7),
        ("Count-v0", (0, 3), 7),
        (scripted.Count, (0, 3), 3),
        (scripted.Count, (5, 3), 5),
    ],
)
def test_episodes_are_truncated_at_the_shortest_limit(task, limits, steps):
    made = gymnasium.make(task, disable_env_checker=True) if isinstance(task, str) else task()
    env = adapt_env("mine", made, 2, *limits)
    assert time_limit_of(env) == steps
    env.reset(seed=0)
    for _ in range((steps - 1) // 2):
        assert env.step(np.zeros(2))[2:4] == (False, False)
    obs, _, terminated, truncated, _ = env.step(np.zeros(2))
    assert (obs[1], terminated, truncated) == (steps, False, True)


def play(task, times):
    """Return (t, reward, terminated, truncated) of each step of one episode."""
    env = ActionRepeat(gymnasium.make(task, disable_env_checker=True), times)
    env.reset(seed=0)
    steps, ended = [], False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(np.zeros(2))
        assert info == {"t": obs[1]}
        steps.append((obs[1], reward, terminated, truncated))
        ended = terminated or truncated
    return steps


def test_time_limit_can_end_within_a_repeat():
    # 1 + 4, 9 + 16, 25 + 36, and 49 alone: the limit of 7 falls within the fourth.
    assert play("Count-v0", 2) == [
        (2, 5.0, False, False),
        (4, 25.0, False, False),
        (6, 61.0, False, False),
        (7, 49.0, False, True),
    ]


def test_repeat_longer_than_the_episode():
    # 1 + 4 + 9 + 16 + 25 + 36 + 49 = 140.
    assert play("Count-v0", 10) == [(7, 140.0, False, True)]


@pytest.mark.parametrize(
    ("task", "ended"), [("Terminates-v0", (True, False)), ("Truncates-v0", (False, True))]
)
def test_repeat_distinguishes_termination_and_truncation(task, ended):
    assert play(task, 2) == [(2, 5.0, False, False), (3, 9.0, *ended)]


def test_termination_at_the_time_limit_is_both():
    assert play("Both-v0", 2)[-1] == (7, 49.0, True, True)


def test_repeat_of_one_changes_nothing():
    assert [step[:2] for step in play("Terminates-v0", 1)] == [(1, 1), (2, 4), (3, 9)]


def test_repeat_restarts_after_reset():
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
def test_actions_are_rescaled_to_asymmetric_bounds(action, received):
    env = make_env("scripted:Count-v0", 2)
    env.reset(seed=0)
    obs = env.step(np.array(action, np.float32))[0]
    np.testing.assert_allclose(obs[2:], received, rtol=1e-6, atol=1e-6)


def test_float64_bounds_keep_float64_precision():
    # [-0.1, 0.3]: the middle is 0.1, the half 0.2; 0.1 + 0.2 / 3 = 1 / 6.
    env = make_env("scripted:Double-v0", 1)
    env.reset(seed=0)
    obs = env.step(np.array([1 / 3, -1.0]))[0]
    np.testing.assert_allclose(obs[2:], [1 / 6, -0.1], rtol=1e-14)


def test_unit_bounds_change_no_bit():
    env = make_env("Hopper-v5", 1)
    action = np.random.default_rng(0).uniform(-1, 1, 3).astype(np.float32)
    inner = gymnasium.make("Hopper-v5")
    env.reset(seed=3)
    inner.reset(seed=3)
    np.testing.assert_array_equal(env.step(action)[0], inner.step(action)[0])
