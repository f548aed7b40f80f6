"""The typed edge of dm_control, which has no types and is slow to import."""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Generator, Mapping
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.refusal import Refusal
from r2r2.envs.render import VARIABLE, Physics


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
        Refusal: MUJOCO_GL is set, and dm_control cannot be imported with it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cast(DMSuite, importlib.import_module("dm_control.suite"))
        except Exception as error:
            if not (wanted := os.environ.get(VARIABLE)):
                raise
            raise Refusal(
                f"{VARIABLE} is {wanted!r}, with which dm_control cannot be imported "
                f"({type(error).__name__}: {error}); unset it, or install what it needs"
            ) from error


@contextlib.contextmanager
def outdated() -> Generator[None]:
    """Lets dm_control 1.0.50 do what NumPy 2.5 deprecates: set an array's shape.

    It does so in every reset and step, so each of them is called within this.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting the shape", DeprecationWarning)
        yield
