"""Rendering of MuJoCo tasks with or without a display, and what may help where rendering fails."""

import contextlib
import functools
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

GL_VARIABLE = "MUJOCO_GL"
BACKENDS = ("glfw", "egl", "osmesa")
SIZE = (480, 640)  # rows, columns

# Modules of which one is in the traceback of an error in MuJoCo's rendering.
RENDERERS = ("mujoco", "glfw", "OpenGL", "dm_control", "gymnasium.envs.mujoco", __name__)
# Packages whose name for pip differs from that of their module.
PACKAGES = {"cv2": "opencv-python", "OpenGL": "PyOpenGL", "PIL": "pillow"}

Frame = NDArray[np.uint8]  # [rows, columns, 3]

# Renders with the given back end. It runs in its own process, because a back end that
# fails to load prevents others from loading, and a driver may crash the process.
PROBE = """
import importlib, sys
import mujoco
gl = importlib.import_module(f"mujoco.{sys.argv[1]}").GLContext(8, 8)
gl.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100)
"""


@contextlib.contextmanager
def gl_backend() -> Generator[None]:
    """Set MUJOCO_GL to a working back end inside the context, if there is one.

    A value that the user has set is kept. Gymnasium and `Camera` read the variable
    when they render for the first time.
    """
    previous = os.environ.get(GL_VARIABLE)
    if name := previous or find_backend():
        os.environ[GL_VARIABLE] = name
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop(GL_VARIABLE, None)
        else:
            os.environ[GL_VARIABLE] = previous


@functools.cache
def find_backend() -> str | None:
    """Return the first back end that works here; 'glfw' only with a display."""
    display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    windows = display or sys.platform != "linux"
    return next(filter(backend_works, BACKENDS if windows else BACKENDS[1:]), None)


def backend_works(name: str) -> bool:
    """Return whether MuJoCo can render with a back end on this machine."""
    return not backend_error(name)


def backend_error(name: str) -> str:
    """Return why MuJoCo cannot render with a back end on this machine; "" if it can."""
    command = [sys.executable, "-c", PROBE, name]
    environ = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}
    try:
        process = subprocess.run(command, env=environ, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired as error:
        return f"no answer after {error.timeout:g} s"
    if process.returncode == 0:
        return ""
    lines = process.stderr.decode(errors="replace").split("\n")
    return next((x.strip() for x in reversed(lines) if x.strip()), f"code {process.returncode}")


def rendering_problem(error: BaseException) -> str:
    """Return clauses on why rendering failed and on what may help."""
    causes = [error]
    while cause := causes[-1].__cause__:
        causes.append(cause)
    missing = [x.name for x in causes if isinstance(x, ModuleNotFoundError) and x.name]
    if missing:
        module = missing[0].partition(".")[0]
        package = PACKAGES.get(module, module)
        return f": {module} is not installed; install it with 'pip install {package}'"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = [frame for x in causes for frame, _ in traceback.walk_tb(x.__traceback__)]
    modules = " ".join(f" {frame.f_globals.get('__name__')}." for frame in frames)
    uses_mujoco = any(f" {name}." in modules for name in RENDERERS)
    return f" ({text}){rendering_hint() if uses_mujoco else ''}"


def rendering_hint() -> str:
    """Return a clause on what may help where MuJoCo cannot render; may be empty."""
    if name := os.environ.get(GL_VARIABLE):
        return f"; unset {GL_VARIABLE} (now {name!r}) to use a back end that works"
    if find_backend() is None:
        return (
            "; no OpenGL back end works here: install libegl1 and libgl1, or libosmesa6"
            " (names of Debian packages)"
        )
    return ""


class Camera:
    """Renders a dm_control simulation with Gymnasium's viewer.

    dm_control's own renderer is chosen when it is imported. On a machine without a
    display it would choose one that needs a display.
    """

    def __init__(self, physics: Any):
        name = os.environ.get(GL_VARIABLE) or "glfw"
        if name not in BACKENDS:
            expected = f"expected one of {', '.join(BACKENDS)}"
            raise RuntimeError(f"{GL_VARIABLE}: {expected}, got {name!r}")
        viewer: Any = importlib.import_module("gymnasium.envs.mujoco.mujoco_rendering")
        self._physics, model, (rows, columns) = physics, physics.model.ptr, SIZE
        model.vis.global_.offwidth, model.vis.global_.offheight = columns, rows
        self._viewer = viewer.OffScreenViewer(
            model, physics.data.ptr, columns, rows, max_geom=10_000
        )
        # The first camera that moves with the body, or else the first one, if any.
        tracking = np.isin(model.cam_mode, (1, 2))  # MuJoCo's 'track' and 'trackcom'
        self._camera = int(np.argmax(tracking)) if model.ncam else -1

    def frame(self) -> Frame:
        """Return an image of the current state, from a camera of the task."""
        self._viewer.make_context_current()
        self._viewer.data = self._physics.data.ptr
        frame: Frame = self._viewer.render("rgb_array", self._camera)
        return frame

    def close(self) -> None:
        """Free the resources of the graphics driver."""
        self._viewer.con.free()
        self._viewer.free()
