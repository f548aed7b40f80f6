"""Episodes of a policy as pictures."""

import contextlib
import math
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from r2r2.config.refusal import Refusal
from r2r2.envs.dmc import EPISODE, DMCEnv
from r2r2.envs.failure import EnvFailure
from r2r2.envs.make import Env
from r2r2.envs.render import Frame, advice

Act = Callable[[NDArray[np.float64]], NDArray[np.floating]]  # observation -> action

# Environment steps per second where a task does not say.
RATE = 30.0


class Film:
    """An environment that is played in front of a camera, in real time at `fps`.

    `returns` holds the undiscounted returns of the episodes that were played.

    Args:
        task: its name.
        env: built for the render mode 'rgb_array'; it is closed with the film.
        action_repeat: its environment steps per decision.
    """

    def __init__(self, task: str, env: Env, action_repeat: int):
        self._task, self._env = task, env
        self.fps = _rate(env) / action_repeat
        limit = _limit(env)
        # Decision steps of the longest episode, if it is known.
        self.longest = None if limit is None else math.ceil(limit / action_repeat)
        self.returns: list[float] = []
        self._steps = 0

    def frames(self, act: Act, seeds: Sequence[int]) -> Generator[Frame]:
        """Plays episodes: a picture of each start, then one after every decision.

        Raises:
            Refusal: The environment cannot be rendered; nothing was played.
            EnvFailure: It raised.
        """
        for seed in seeds:
            with self._blamed():
                obs, _ = self._env.reset(seed=seed)
            yield self._first() if seed == seeds[0] else self._frame()
            total, over = 0.0, False
            while not over:
                action = act(obs)
                with self._blamed():
                    obs, reward, ended, cut, _ = self._env.step(action)
                self._steps += 1
                total, over = total + float(reward), ended or cut
                yield self._frame()
            self.returns.append(total)

    def _first(self) -> Frame:
        """The first picture, which shows whether there can be any."""
        try:
            with warnings.catch_warnings():
                # It warns that there is no display, and then fails.
                warnings.filterwarnings("ignore", module="glfw")
                return self._checked(self._env.render())
        except Refusal:
            raise
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._unfit(f"cannot be rendered here ({words}){advice()}") from error

    def _frame(self) -> Frame:
        with self._blamed():
            return self._checked(self._env.render())

    def _checked(self, frame: object) -> Frame:
        if not isinstance(frame, np.ndarray):
            raise self._unfit(f"renders {type(frame).__name__}, not an array of pixels")
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            found = f"of shape {frame.shape} and type {frame.dtype}"
            raise self._unfit(
                f"renders arrays {found}, not [rows, columns, 3] of uint8"
            )
        return frame

    @contextlib.contextmanager
    def _blamed(self) -> Generator[None]:
        """What is raised within it is told as the environment's."""
        try:
            yield
        except Refusal:
            raise
        except Exception as error:
            story = "".join(traceback.format_exception(error)).strip()
            said = f"{self._task} failed at step {self._steps} of its film: {story}"
            raise EnvFailure(said) from error

    def _unfit(self, why: str) -> Refusal:
        return Refusal(f"env is {self._task!r}, which {why}")

    def close(self) -> None:
        """Frees the task and its camera."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _rate(env: Env) -> float:
    """Environment steps per second of real time."""
    said = env.metadata.get("render_fps")
    return float(said) if said else RATE


def _limit(env: Env) -> int | None:
    if isinstance(env.unwrapped, DMCEnv):
        return EPISODE
    return env.spec.max_episode_steps if env.spec else None
