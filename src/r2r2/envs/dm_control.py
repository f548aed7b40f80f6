"""The DeepMind Control Suite as Gymnasium environments with flat observations."""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from r2r2.config.errors import UserError
from r2r2.envs.rendering import GL_VARIABLE, Camera, Frame, Physics


class ArraySpec(Protocol):
    """The shape of an array, with its bounds where it has some."""

    shape: tuple[int, ...]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]


class TimeStep(Protocol):
    """What a reset or a step gives; reward and discount are None after a reset."""

    reward: float
    discount: float
    observation: Mapping[str, ArrayLike]

    def last(self) -> bool:
        """Whether the episode ends here."""
        ...


class Task(Protocol):
    """The part of an environment that draws its starts."""

    random: np.random.RandomState


class Environment(Protocol):
    """A loaded task."""

    task: Task
    physics: Physics

    def control_timestep(self) -> float:
        """Simulated seconds per step."""
        ...

    _step_limit: float  # the time limit in steps, which no method of it tells

    def action_spec(self) -> ArraySpec:
        """Shape and bounds of the action."""
        ...

    def observation_spec(self) -> Mapping[str, ArraySpec]:
        """Shapes of the parts of the observation, in their order."""
        ...

    def reset(self) -> TimeStep:
        """Starts an episode."""
        ...

    def step(self, action: NDArray[np.floating]) -> TimeStep:
        """Acts once; after an episode's end this resets instead."""
        ...

    def close(self) -> None:
        """Frees the simulation."""
        ...


class DMSuite(Protocol):
    """The module `dm_control.suite`."""

    ALL_TASKS: tuple[tuple[str, str], ...]

    def load(self, domain_name: str, task_name: str) -> Environment:
        """Builds a task."""
        ...


@functools.cache
def dm_suite() -> DMSuite:
    """Imports `dm_control.suite` when it is first needed.

    The import tries to open a display and warns where there is none. What the user
    has set for rendering is loaded there and then, and may not be there.

    Raises:
        UserError: MUJOCO_GL is set, and dm_control cannot be imported with it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cast(DMSuite, importlib.import_module("dm_control.suite"))
        except Exception as error:
            if not (wanted := os.environ.get(GL_VARIABLE)):
                raise
            raise UserError(
                f"{GL_VARIABLE} is {wanted!r}; dm_control cannot be imported with it "
                f"({type(error).__name__}: {error}); unset it, or install what it needs"
            ) from error


Handler = Callable[[str], None]


class MuJoCo(Protocol):
    """The part of the untyped module `mujoco` that is used here."""

    def get_mju_user_warning(self) -> Handler | None:
        """Who hears MuJoCo's warnings; None for a log file and stderr."""
        ...

    def set_mju_user_warning(self, handler: Handler | None) -> None:
        """Chooses who hears MuJoCo's warnings."""
        ...


@contextlib.contextmanager
def suppress_warnings() -> Generator[None]:
    """Drops what libraries say about the tasks they ship, which no user can mend.

    MuJoCo's compiler, besides warning, leaves a `MUJOCO_LOG.TXT` in the working
    folder. Its warnings about a simulation come later, outside, and are heard.
    """
    mujoco = cast(MuJoCo, importlib.import_module("mujoco"))
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(handler)


@contextlib.contextmanager
def outdated() -> Generator[None]:
    """Lets dm_control 1.0.50 do what NumPy 2.5 deprecates: set an array's shape.

    It does so in every reset and step, so each of them is called within this.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting the shape", DeprecationWarning)
        yield


Vector = NDArray[np.floating]


class DMCEnv(gymnasium.Env[Vector, Vector]):
    """A dm_control task whose episodes are functions of their reset's seed.

    The observation is the concatenation of the task's parts in dm_control's order.

    Example:
        >>> env = DMCEnv("cartpole", "swingup")
        >>> env.observation_space.shape, env.action_space.shape
        ((5,), (1,))
    """

    def __init__(self, domain: str, task: str, render: bool = False):
        suite = dm_suite()
        with suppress_warnings():
            self._env = suite.load(domain, task)
        self.render_mode = "rgb_array" if render else None
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": 1 / self._env.control_timestep(),
        }
        self._camera: Camera | None = None
        self._running = False
        self.step_limit: float = self._env._step_limit  # infinite where there is none
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape)
            for bound in (action.minimum, action.maximum)
        )
        with outdated():
            parts = self._env.observation_spec().values()
        size = sum(int(np.prod(part.shape)) for part in parts)
        self.action_space = Box(low, high, dtype=np.float64)
        self.observation_space = Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Starts an episode; with a seed, whatever happened before is forgotten."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._env.task.random.seed(seed)
        self._running = True
        with outdated():
            return _flat(self._env.reset()), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Acts once; only an end of discount 0 is a termination.

        Raises:
            ResetNeeded: The episode is over. dm_control would reset in silence, and
                the reset's observation would pass for the action's outcome.
        """
        if not self._running:
            raise ResetNeeded("the episode is over: reset before the next step")
        with outdated():
            timestep = self._env.step(action)
        last = timestep.last()
        self._running = not last
        terminated = last and timestep.discount == 0
        truncated = last and not terminated
        return _flat(timestep), float(timestep.reward), terminated, truncated, {}

    def render(self) -> Frame | None:
        """The scene as it stands, if it was built to be rendered."""
        if self.render_mode is None:
            return None
        if self._camera is None:
            self._camera = Camera(self._env.physics)
        return self._camera.frame()

    def close(self) -> None:
        """Frees the simulation, and what draws it."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        self._env.close()


def _flat(timestep: TimeStep) -> Vector:
    """The parts of an observation as one vector; scalars have length 1."""
    return np.concatenate([np.ravel(part) for part in timestep.observation.values()])
