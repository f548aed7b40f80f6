"""From a task's id to an environment with a flat observation and actions in [-1, 1]."""

import contextlib
import functools
import importlib
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.wrappers import RescaleAction

from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.dm_control import DMCEnv, suppress_warnings
from r2r2.envs.spec import Spec
from r2r2.envs.suites import dmc_parts, find_suite

Env = gymnasium.Env[Any, Any]
EnvBuilder = Callable[..., Env]  # an environment's class, or a function that builds one

# Beyond this a bound stands for "none": lqr's 1e10, or the largest float32.
LARGEST_BOUND = 1e6


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


class BorrowedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is the caller's: it is not closed here."""

    def close(self) -> None:
        """Leaves it open."""


def make_env(task: str, action_repeat: int, render: bool = False) -> Env:
    """Builds a task as the agents see it.

    The task's time limit counts environment steps, inside the repeat. Nothing resets
    itself: the last observation of an episode is the one it ended in.

    Args:
        task: a Gymnasium id, `module:Id-v0`, `module:Class`, or a DMC domain-task.
        action_repeat: environment steps per action.
        render: whether `render` is to give pictures.

    Raises:
        UserError: The task is unknown, cannot be built, or has no flat observation or
            no bounded continuous action.

    Example:
        >>> spec_of(make_env("Pendulum-v1", action_repeat=1))
        Spec(obs_dim=3, action_dim=1)
    """
    if find_suite(task) == "dmc":
        return adapt_env(task, DMCEnv(*dmc_parts(task), render=render), action_repeat)
    keywords = {"render_mode": "rgb_array"} if render else {}
    return adapt_env(task, _make_gymnasium(task, keywords), action_repeat)


def adapt_env(task: str, env: Any, action_repeat: int) -> Env:
    """An environment as the agents see it, if it can be used; task is its name.

    Raises:
        UserError: It has no flat observation or no bounded continuous action.
    """
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"env is {task!r}, which is {env!r} and no gymnasium.Env")
    _check_action(task, env.action_space)
    _check_observation(task, env.observation_space)
    # Bounds of another type than the space's own would draw a warning.
    one = np.ones_like(cast(Box, env.action_space).low)
    return RescaleAction(ActionRepeat(env, action_repeat), -one, one)


def env_builder_of(
    env: EnvBuilder | Env | None, tasks: tuple[str, ...], seeds: int
) -> EnvBuilder | None:
    """What builds the environments in place of the task's id, if anything does.

    Args:
        env: what the caller gave.
        tasks: the names in the config; a caller's own environment has one.
        seeds: how many members would use it.

    Example:
        >>> from gymnasium.envs.classic_control import PendulumEnv
        >>> env_builder_of(PendulumEnv, ("my-arm",), seeds=5) is PendulumEnv
        True
    """
    if env is None:
        return None
    if len(tasks) > 1:
        raise UserError(
            f"env is {', '.join(tasks)}; allowed with an environment of your own is "
            "one name for it"
        )
    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            raise UserError(
                f"env is {env!r}; allowed are a gymnasium.Env, its class, or a "
                "function that builds one"
            )
        return env
    if seeds > 1:
        raise UserError(
            f"seeds is a list of {seeds}; allowed with an environment that is built "
            "already is one: give its class or a function that builds it"
        )
    return lambda: BorrowedEnv(env)


def step_limit(task: str, builder: EnvBuilder | None = None) -> int | None:
    """Environment steps after which a task cuts an episode off; None if it never does.

    Only the environment knows, so that one is built.

    Example:
        >>> step_limit("Pendulum-v1"), step_limit("cartpole-swingup")
        (200, 1000)
    """
    return _limit_and_close(builder()) if builder else _task_limit(task)


@functools.cache
def _task_limit(task: str) -> int | None:
    return _limit_and_close(make_env(task, action_repeat=1))


def _limit_and_close(env: Env) -> int | None:
    limit = time_limit_of(env)
    env.close()
    return limit


def time_limit_of(env: Env) -> int | None:
    """Return the environment's time limit in environment steps; None if it has none."""
    inner = env.unwrapped
    if isinstance(inner, DMCEnv):
        return None if math.isinf(inner.step_limit) else round(inner.step_limit)
    return env.spec.max_episode_steps if env.spec else None


def spec_of(env: Env) -> Spec:
    """The sizes of an environment that `make_env` built."""
    observation = cast(Box, env.observation_space)
    action = cast(Box, env.action_space)
    return Spec(observation.shape[0], action.shape[0])


def episode_seed(seed: int, purpose: str, index: int) -> int:
    """The reset seed of one episode, from what names it alone.

    So an episode can be replayed without those before it, and how often one purpose
    draws never shifts another's stream. It is a hash into 32 bits, all that
    dm_control takes: two episodes share a start once in 4e9 pairs.

    Args:
        seed: The member's seed.
        purpose: Who resets: 'train', 'evaluate', 'eval-command'.
        index: The number of the episode within its purpose.

    Example:
        >>> episode_seed(0, "train", 0) == episode_seed(0, "evaluate", 0)
        False
    """
    stream = zlib.crc32(purpose.encode())
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, index))
    return int(sequence.generate_state(1)[0])


def _make_gymnasium(task: str, keywords: dict[str, str]) -> Any:
    module, colon, name = task.rpartition(":")
    if not colon:
        build: EnvBuilder = partial(gymnasium.make, name, disable_env_checker=True)
    else:
        build = _found(task, module, name)
    # What a user's own package says while it is built is for the user to hear.
    silence = contextlib.nullcontext() if colon else suppress_warnings()
    try:
        with silence:
            return build(**keywords)
    except (ImportError, TypeError, gymnasium.error.Error) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"env is {task!r}, which cannot be built: {reason}") from error


def _found(task: str, module: str, name: str) -> EnvBuilder:
    """A registered id of a module or, where there is none, its class or function."""
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"env is {task!r}, but importing {module!r} failed"
            f" ({type(error).__name__}: {reason})"
        ) from error
    if name in gymnasium.registry:
        return partial(gymnasium.make, name, disable_env_checker=True)
    if callable(builder := getattr(found, name, None)):
        return cast(EnvBuilder, builder)
    own = [key for key, spec in gymnasium.registry.items() if module in str(spec)]
    near = did_you_mean(name, own, most=1)
    raise UserError(
        f"env is {task!r}, but {module!r} has no task, class or function {name!r}{near}"
    )


def _check_action(task: str, space: Space[Any]) -> None:
    if not _is_vector(space) or not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"env is {task!r}, whose actions are {_described(space)}; supported is"
            " a bounded 1-D Box of floats"
        )
    box = cast(Box, space)
    farthest = np.maximum(np.abs(box.low), np.abs(box.high))
    usable = (box.low < box.high) & (farthest <= LARGEST_BOUND)
    for index in np.flatnonzero(~usable):
        raise UserError(
            f"env is {task!r}, whose action {index} goes from {box.low[index]:g} to"
            f" {box.high[index]:g}; supported are bounds of at most"
            f" {LARGEST_BOUND:g}, the low below the high"
        )


def _check_observation(task: str, space: Space[Any]) -> None:
    if not _is_vector(space):
        raise UserError(
            f"env is {task!r}, whose observations are {_described(space)}; supported"
            " is a flat vector, a 1-D Box (gymnasium.wrappers.FlattenObservation"
            " makes one)"
        )


def _is_vector(space: Space[Any]) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0


def _described(space: Space[Any]) -> str:
    if isinstance(space, Box):
        return f"a Box of shape {space.shape} and type {cast(Box, space).dtype}"
    return f"a {type(space).__name__} space"
