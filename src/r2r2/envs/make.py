"""From a task's id to an environment with a flat observation and actions in [-1, 1]."""

import contextlib
import functools
import importlib
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.wrappers import RescaleAction

from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.dm_control import DMCEnv
from r2r2.envs.spec import Spec
from r2r2.envs.suites import dmc_parts, suite_of
from r2r2.envs.wrappers import ActionRepeat, suppress_warnings

Env = gymnasium.Env[Any, Any]
EnvBuilder = Callable[..., Env]  # an environment's class, or a function that builds one

# Beyond this a bound stands for "none": lqr's 1e10, or the largest float32.
LARGEST_BOUND = 1e6


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
    if suite_of(task) == "dmc":
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


def step_limit(task: str, source: EnvBuilder | None = None) -> int | None:
    """Environment steps after which a task cuts an episode off; None if it never does.

    Only the environment knows, so that one is built.

    Example:
        >>> step_limit("Pendulum-v1"), step_limit("cartpole-swingup")
        (200, 1000)
    """
    return _limit_of(source()) if source else _task_limit(task)


@functools.cache
def _task_limit(task: str) -> int | None:
    return _limit_of(make_env(task, action_repeat=1))


def _limit_of(env: Env) -> int | None:
    inner = env.unwrapped
    if isinstance(inner, DMCEnv):
        limit = None if math.isinf(inner.step_limit) else round(inner.step_limit)
    else:
        limit = env.spec.max_episode_steps if env.spec else None
    env.close()
    return limit


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
    if callable(source := getattr(found, name, None)):
        return cast(EnvBuilder, source)
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
