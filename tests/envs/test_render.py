"""Pictures without a display. Those that are drawn need EGL, and are few and small."""

import os
import subprocess
import sys

import numpy as np
import pytest

from r2r2.envs import rendering as subject
from r2r2.envs.dm_control import DMCEnv
from r2r2.envs.make import make_env
from r2r2.envs.rendering import backend_works, find_backend, gl_backend, rendering_hint


@pytest.fixture
def machine(monkeypatch):
    """A machine without a display on which some back ends work; says what it tried."""
    tried = []
    monkeypatch.setattr(subject.sys, "platform", "linux")
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def with_backends(*names):
        monkeypatch.setattr(
            subject, "backend_works", lambda name: tried.append(name) or name in names
        )
        find_backend.cache_clear()
        return tried

    yield with_backends
    find_backend.cache_clear()


@pytest.fixture
def egl(monkeypatch):
    """A machine that draws, or none of it."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if not backend_works("egl"):
        pytest.skip("EGL does not work here")


@pytest.mark.parametrize(
    ("display", "works", "chosen", "tried"),
    [
        (False, ["glfw", "egl", "osmesa"], "egl", ["egl"]),
        (False, ["glfw", "osmesa"], "osmesa", ["egl", "osmesa"]),
        (False, ["glfw"], None, ["egl", "osmesa"]),
        (True, ["glfw", "egl"], "glfw", ["glfw"]),
        (True, ["egl"], "egl", ["glfw", "egl"]),  # a display that is gone
    ],
)
def test_the_first_back_end_that_draws_is_chosen(
    machine, monkeypatch, display, works, chosen, tried
):
    if display:
        monkeypatch.setenv("DISPLAY", ":0")
    found = machine(*works)
    with gl_backend():
        assert os.environ.get("MUJOCO_GL") == chosen
        with gl_backend():
            pass
    assert "MUJOCO_GL" not in os.environ
    assert found == tried  # once


def test_what_the_user_has_set_stands(machine, monkeypatch):
    tried = machine("egl")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with gl_backend():
        assert os.environ["MUJOCO_GL"] == "osmesa"
        assert rendering_hint() == (
            "; MUJOCO_GL is 'osmesa', and without it a back end would be chosen"
        )
    assert os.environ["MUJOCO_GL"] == "osmesa"
    assert tried == []


def test_what_the_user_has_set_is_what_draws(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    env = DMCEnv("cartpole", "swingup", render=True)
    env.reset(seed=0)
    with (
        gl_backend(),
        pytest.raises(RuntimeError, match="'disable' is none of glfw, egl"),
    ):
        env.render()


def test_where_nothing_draws_packages_are_named(machine):
    machine()
    with gl_backend():
        assert rendering_hint() == (
            "; no OpenGL works here, for which Debian's packages libegl1 and libgl1, "
            "or libosmesa6, would help"
        )


def test_a_back_end_that_is_not_there_does_not_draw():
    assert not backend_works("nothing")


def test_a_task_that_is_not_to_be_rendered_is_not():
    env = DMCEnv("cartpole", "swingup")
    env.reset(seed=0)
    assert (env.render_mode, env.render()) == (None, None)


@pytest.mark.parametrize("task", ["cartpole-swingup", "InvertedPendulum-v5"])
def test_a_task_is_drawn_as_it_moves_and_without_a_display(task, egl, monkeypatch):
    monkeypatch.setattr(subject, "SIZE", (48, 64))
    env = make_env(task, 2, render=True)
    env.reset(seed=0)
    with gl_backend():
        first = env.render()
        for _ in range(10):
            env.step(np.ones(1))
        later = env.render()
    again = make_env(task, 2, render=True)
    again.reset(seed=0)
    with gl_backend():
        np.testing.assert_array_equal(again.render(), first)
    for made in (env, again):
        made.close()
        made.close()
    assert first.dtype == later.dtype == np.uint8
    if task == "cartpole-swingup":
        assert first.shape == (48, 64, 3)
        # The sky is lighter than the floor: it is the right way up.
        assert first[:10].mean() > 1.3 * first[-10:].mean()
    assert first.std() > 3
    assert (first != later).any()


def test_the_order_of_imports_does_not_matter(egl):
    code = """
import dm_control.suite
import numpy as np
from r2r2.envs import rendering as render
from r2r2.envs.make import make_env
render.SIZE = 16, 24
env = make_env("pendulum-swingup", 1, render=True)
env.reset(seed=0)
with render.gl_backend():
    print(env.render().shape)
env.close()
"""
    plain = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert (said.stdout, said.stderr) == ("(16, 24, 3)\n", "")


def test_a_back_end_that_dm_control_cannot_import_is_refused():
    code = """
from r2r2.envs.make import make_env
try:
    make_env("cartpole-swingup", 1)
except ValueError as error:
    print(type(error).__name__, error)
"""
    environ = os.environ | {"MUJOCO_GL": "wgl"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert said.stderr == ""
    assert said.stdout.startswith(
        "UserError MUJOCO_GL is 'wgl'; dm_control cannot be imported with it ("
    )
    assert said.stdout.endswith("); unset it, or install what it needs\n")
