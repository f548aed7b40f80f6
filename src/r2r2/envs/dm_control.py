"""The DeepMind Control Suite as Gymnasium environments with flat observations."""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Generator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.envs.rendering import GL_VARIABLE, Camera, Frame

Vector = NDArray[np.floating]


@functools.cache
def dm_suite() -> Any:
    """Import and return `dm_control.suite`, when it is first needed.

    The import tries to open a display and warns if there is none. It also loads the
    rendering back end that the user has selected, which may not be installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("dm_control.suite")
        except Exception as error:
            if not (backend := os.environ.get(GL_VARIABLE)):
                raise
            raise UserError(
                f"{GL_VARIABLE}: dm_control cannot be imported with {backend!r} "
                f"({type(error).__name__}: {error}); unset it, or install what it needs"
            ) from error


@contextlib.contextmanager
def suppress_warnings() -> Generator[None]:
    """Suppress warnings of libraries about the tasks they ship, while one is built.

    MuJoCo's compiler would also write a `MUJOCO_LOG.TXT` into the working folder. Its
    warnings about a running simulation come later and are not suppressed.
    """
    mujoco: Any = importlib.import_module("mujoco")
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(handler)


@contextlib.contextmanager
def _ignore_deprecation() -> Generator[None]:
    """Ignore that dm_control 1.0.50 sets array shapes, which NumPy 2.5 deprecates."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting the shape", DeprecationWarning)
        yield


class DMCEnv(gymnasium.Env[Vector, Vector]):
    """A dm_control task whose episodes depend only on the seed of their reset.

    The observation concatenates the task's observation parts in dm_control's order. `args` are
    further arguments of dm_control's `suite.load`.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        render: bool = False,
        args: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        suite = dm_suite()
        with suppress_warnings():
            self._env = suite.load(domain, task, **(args or {}))
        self.render_mode = "rgb_array" if render else None
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": 1 / self._env.control_timestep(),
        }
        self._camera: Camera | None = None
        self._running = False
        self.step_limit: float = self._env._step_limit  # may be infinite
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape) for bound in (action.minimum, action.maximum)
        )
        with _ignore_deprecation():
            parts = self._env.observation_spec().values()
        size = sum(int(np.prod(part.shape)) for part in parts)
        self.action_space = Box(low, high, dtype=np.float64)
        self.observation_space = Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Start an episode; a seed makes it independent of all earlier ones."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._env.task.random.seed(seed)
        self._running = True
        with _ignore_deprecation():
            return _flatten(self._env.reset()), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Act once; only an end with discount 0 is a termination."""
        if not self._running:
            # dm_control itself would reset silently, and return the first observation.
            raise ResetNeeded("the episode is over; call reset before the next step")
        with _ignore_deprecation():
            timestep = self._env.step(action)
        last = timestep.last()
        self._running = not last
        terminated = last and timestep.discount == 0
        return _flatten(timestep), float(timestep.reward), terminated, last and not terminated, {}

    def render(self) -> Frame | None:
        """Return an image of the scene, or None if not built with `render`."""
        if self.render_mode is None:
            return None
        if self._camera is None:
            self._camera = Camera(self._env.physics)
        return self._camera.frame()

    def close(self) -> None:
        """Free the simulation and its camera."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        self._env.close()


def _flatten(timestep: Any) -> Vector:
    return np.concatenate([np.ravel(part) for part in timestep.observation.values()])
