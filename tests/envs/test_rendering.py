"""Rendering without a display; tests that render need EGL."""

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
    """Simulate a machine without a display; return the list of back ends tried."""
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
    """Skip the test if EGL does not work."""
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
        (True, ["egl"], "egl", ["glfw", "egl"]),  # a stale display
    ],
)
def test_first_working_back_end_is_chosen(machine, monkeypatch, display, works, chosen, tried):
    if display:
        monkeypatch.setenv("DISPLAY", ":0")
    calls = machine(*works)
    with gl_backend():
        assert os.environ.get("MUJOCO_GL") == chosen
        with gl_backend():
            pass
    assert "MUJOCO_GL" not in os.environ
    assert calls == tried  # cached


def test_back_end_set_by_the_user_is_kept(machine, monkeypatch):
    tried = machine("egl")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with gl_backend():
        assert os.environ["MUJOCO_GL"] == "osmesa"
        assert rendering_hint() == ("; unset MUJOCO_GL (now 'osmesa') to use a back end that works")
    assert os.environ["MUJOCO_GL"] == "osmesa"
    assert tried == []


def test_unsupported_back_end_is_an_error(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    env = DMCEnv("cartpole", "swingup", render=True)
    env.reset(seed=0)
    with gl_backend(), pytest.raises(RuntimeError, match="glfw, egl, osmesa, got 'disable'"):
        env.render()


def test_hint_names_packages_if_no_back_end_works(machine):
    machine()
    with gl_backend():
        assert rendering_hint() == (
            "; no OpenGL back end works here: install libegl1 and libgl1, or libosmesa6"
            " (names of Debian packages)"
        )


def test_missing_back_end_does_not_work():
    assert not backend_works("nothing")


def test_render_without_render_mode_returns_none():
    env = DMCEnv("cartpole", "swingup")
    env.reset(seed=0)
    assert (env.render_mode, env.render()) == (None, None)


@pytest.mark.parametrize("task", ["cartpole-swingup", "InvertedPendulum-v5"])
def test_render_is_deterministic_and_follows_the_state(task, egl, monkeypatch):
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
        # The sky is lighter than the floor: the image is not upside down.
        assert first[:10].mean() > 1.3 * first[-10:].mean()
    assert first.std() > 3
    assert (first != later).any()


def test_rendering_works_if_dm_control_was_imported_first(egl):
    code = """
import dm_control.suite
import numpy as np
from r2r2.envs import rendering
from r2r2.envs.make import make_env
rendering.SIZE = 16, 24
env = make_env("pendulum-swingup", 1, render=True)
env.reset(seed=0)
with rendering.gl_backend():
    print(env.render().shape)
env.close()
"""
    plain = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert (result.stdout, result.stderr) == ("(16, 24, 3)\n", "")


def test_back_end_that_dm_control_cannot_import_is_an_error():
    code = """
from r2r2.envs.make import make_env
try:
    make_env("cartpole-swingup", 1)
except ValueError as error:
    print(type(error).__name__, error)
"""
    environ = os.environ | {"MUJOCO_GL": "wgl"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert result.stderr == ""
    assert result.stdout.startswith(
        "UserError MUJOCO_GL: dm_control cannot be imported with 'wgl' ("
    )
    assert result.stdout.endswith("); unset it, or install what it needs\n")
