"""Silence while a task is built, and at no other time."""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Generator
from typing import Any, Protocol, SupportsFloat, cast

import gymnasium


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds each action for several steps and sums their rewards.

    It belongs outside the time limit, which counts environment steps. An episode
    that ends during the repeat ends there, with the observation it ended in.

    Example:
        >>> env = ActionRepeat(gymnasium.make("Pendulum-v1"), 2)  # ends after 100 steps
    """

    def __init__(self, env: gymnasium.Env[Any, Any], times: int):
        super().__init__(env)
        self._times = times

    def step(
        self, action: Any
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Acts up to `times` times; `info` is the last step's."""
        total, steps = 0.0, 0
        while True:
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            steps += 1
            if terminated or truncated or steps >= self._times:
                return obs, total, terminated, truncated, info


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
