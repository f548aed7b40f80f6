"""Recorded episodes: frames, speed, and environments that cannot be rendered."""

import sys

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.envs.make import make_env
from r2r2.envs.spec import EnvFailure
from r2r2.training.video import EpisodeRecorder


def still(obs):
    return np.zeros(1)


def recorder(task, action_repeat=1):
    name = f"filmed:{task}"
    env = make_env(name, action_repeat, render=True)
    return EpisodeRecorder(name, env, action_repeat)


def dot(frame):
    """Return the first column of the dot."""
    return int(np.flatnonzero((frame == 255).any(axis=(0, 2)))[0])


def test_frames_show_the_start_and_every_decision():
    with recorder("Dot-v0") as made:
        columns = [dot(frame) for frame in made.frames(still, seeds=[3, 4])]
    assert columns == [5 * t for t in range(7)] * 2
    assert made.returns == [6.0, 6.0]
    assert (made.fps, made.max_steps) == (20, 6)


def test_repeated_action_is_one_longer_frame():
    with recorder("Dot-v0", action_repeat=4) as made:
        columns = [dot(frame) for frame in made.frames(still, seeds=[3])]
    assert columns == [0, 20, 30]  # the episode ends within the second decision
    assert (made.fps, made.max_steps) == (5, 2)


def test_policy_gets_the_observations():
    seen = []

    def act(obs):
        seen.append(obs)
        return np.zeros(1)

    with recorder("Dot-v0") as made:
        list(made.frames(act, seeds=[0]))
    assert [obs.shape for obs in seen] == [(2,)] * 6


def test_task_without_fps_has_a_default():
    with recorder("Silent-v0") as made:
        assert made.fps == 30


def test_dm_control_has_its_own_fps_and_length():
    env = make_env("cartpole-swingup", 2, render=True)
    with EpisodeRecorder("cartpole-swingup", env, 2) as made:
        assert (made.fps, made.max_steps) == (50, 500)


FRAME = "invalid frame; expected an array [height, width, 3] of uint8"


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("None-v0", f"{FRAME}, got NoneType"),
        ("Grey-v0", f"{FRAME}, got uint8[33, 41]"),
        ("Float-v0", f"{FRAME}, got float64[33, 41, 3]"),
        ("Capped-v0", "cannot be rendered here (OSError: the lens cap is on)"),
    ],
)
def test_task_that_cannot_be_rendered_is_refused(task, why, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")  # which has nothing to do with it
    played = []
    with recorder(task) as made, pytest.raises(UserError) as error:
        next(made.frames(played.append, seeds=[0]))
    assert str(error.value) == f"filmed:{task}: {why}"
    assert not played


def test_later_error_is_an_env_failure():
    with recorder("Breaks-v0") as made, pytest.raises(EnvFailure) as failure:
        list(made.frames(still, seeds=[0]))
    text = str(failure.value)
    assert text.startswith("filmed:Breaks-v0: failed at step 3 of its video: Traceback")
    assert text.endswith("OSError: the lens\n cap is on")


def problem_of(task):
    """Return why a task cannot be rendered."""
    env = make_env(task, 1, render=True)
    with EpisodeRecorder(task, env, 1) as made, pytest.raises(UserError) as error:
        next(made.frames(still, seeds=[0]))
    return str(error.value)


def test_missing_package_is_named_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)  # its import fails
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert problem_of("Pendulum-v1") == (
        "Pendulum-v1: cannot be rendered here: pygame is not installed; "
        "install it with 'pip install pygame'"
    )


def test_back_end_is_mentioned_where_mujoco_renders(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    hint = "; unset MUJOCO_GL (now 'disable') to use a back end that works"
    assert problem_of("cartpole-swingup").endswith(hint)
