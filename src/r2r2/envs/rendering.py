"""Pictures of MuJoCo tasks on any machine, with a display or without."""

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

GL_VARIABLE = "MUJOCO_GL"
BACKENDS = ("glfw", "egl", "osmesa")
SIZE = (480, 640)  # rows, columns

Frame = NDArray[np.uint8]  # [rows, columns, 3]

# Draws with the back end that is named. It runs apart, because one that fails to load
# leaves its process unable to load another, and a driver may take it down.
PROBE = """
import importlib, sys
import mujoco
gl = importlib.import_module(f"mujoco.{sys.argv[1]}").GLContext(8, 8)
gl.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100)
"""


class Pointer(Protocol):
    """What dm_control wraps around MuJoCo's own objects."""

    ptr: Any


class Physics(Protocol):
    """A simulation of dm_control."""

    model: Pointer
    data: Pointer


@contextlib.contextmanager
def gl_backend() -> Generator[None]:
    """Within it, MUJOCO_GL names a back end that works here, if there is one.

    What the user has set stands. Gymnasium reads the variable at the first picture,
    and so does `Camera`.
    """
    before = os.environ.get(GL_VARIABLE)
    name = before or find_backend()
    if name:
        os.environ[GL_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(GL_VARIABLE, None)
        else:
            os.environ[GL_VARIABLE] = before


@functools.cache
def find_backend() -> str | None:
    """Return the first back end that works here; 'glfw' only with a display."""
    display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    shown = display or sys.platform != "linux"
    return next(filter(backend_works, BACKENDS if shown else BACKENDS[1:]), None)


def backend_works(name: str) -> bool:
    """Whether MuJoCo can draw here with a back end."""
    command = [sys.executable, "-c", PROBE, name]
    environ = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def rendering_hint() -> str:
    """What a user could change where nothing was drawn, as a clause; may be empty."""
    if name := os.environ.get(GL_VARIABLE):
        return f"; {GL_VARIABLE} is {name!r}, and without it a back end would be chosen"
    if find_backend() is None:
        return (
            "; no OpenGL works here, for which Debian's packages libegl1 and libgl1, "
            "or libosmesa6, would help"
        )
    return ""


class Camera:
    """Draws a dm_control simulation with the back end that MUJOCO_GL names.

    dm_control's own renderer is fixed when it is imported, which on a machine without
    a display is too early: it settles for one that needs a display.
    """

    def __init__(self, physics: Physics):
        name = os.environ.get(GL_VARIABLE) or "glfw"
        if name not in BACKENDS:
            raise RuntimeError(f"{name!r} is none of {', '.join(BACKENDS)}")
        mujoco: Any = importlib.import_module("mujoco")
        self._mujoco, self._physics = mujoco, physics
        model, (rows, columns) = physics.model.ptr, SIZE
        self._gl = importlib.import_module(f"mujoco.{name}").GLContext(columns, rows)
        self._gl.make_current()
        model.vis.global_.offwidth, model.vis.global_.offheight = columns, rows
        self._view = mujoco.MjrRect(0, 0, columns, rows)
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._options, self._lens = mujoco.MjvOption(), mujoco.MjvCamera()
        if model.ncam:
            self._lens.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self._lens.fixedcamid = _tracking_camera(model.cam_mode)
        else:
            mujoco.mjv_defaultFreeCamera(model, self._lens)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def frame(self) -> Frame:
        """The simulation as it stands, from a camera of the task."""
        mujoco, physics = self._mujoco, self._physics
        self._gl.make_current()
        mujoco.mjv_updateScene(
            physics.model.ptr,
            physics.data.ptr,
            self._options,
            None,
            self._lens,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        mujoco.mjr_render(self._view, self._scene, self._context)
        upside_down = np.empty((*SIZE, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(upside_down, None, self._view, self._context)
        return upside_down[::-1]

    def close(self) -> None:
        """Frees what the graphics driver holds."""
        self._context.free()
        self._gl.free()


def _tracking_camera(modes: NDArray[np.integer]) -> int:
    """The first camera that moves with the body, or else the first of all."""
    follows = np.isin(modes, (1, 2))  # MuJoCo's 'track' and 'trackcom'
    return int(np.argmax(follows))
