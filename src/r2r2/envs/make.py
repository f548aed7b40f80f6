"""From a task's id to an environment with a flat observation and actions in [-1, 1]."""

import contextlib
import functools
import importlib
import math
import zlib
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.wrappers import RescaleAction

from r2r2.config.refusal import Refusal, did_you_mean
from r2r2.envs.dmc import DMCEnv
from r2r2.envs.members import Spec
from r2r2.envs.quiet import quiet
from r2r2.envs.suites import dmc_parts, suite_of
from r2r2.envs.wrappers import ActionRepeat

Env = gymnasium.Env[Any, Any]

# Beyond this a bound stands for "none": lqr's 1e10, or the largest float32.
LARGEST_BOUND = 1e6


def make_env(task: str, action_repeat: int) -> Env:
    """Builds a task as the agents see it.

    The task's time limit counts environment steps, inside the repeat. Nothing resets
    itself: the last observation of an episode is the one it ended in.

    Raises:
        Refusal: The task is unknown, cannot be built, or has no flat observation or
            no bounded continuous action.

    Example:
        >>> spec_of(make_env("Pendulum-v1", action_repeat=1))
        Spec(obs_dim=3, action_dim=1)
    """
    if suite_of(task) == "dmc":
        env: Env = DMCEnv(*dmc_parts(task))
    else:
        env = _make_gymnasium(task)
    _check_action(task, env.action_space)
    _check_observation(task, env.observation_space)
    # Bounds of another type than the space's own would draw a warning.
    one = np.ones_like(cast(Box, env.action_space).low)
    return RescaleAction(ActionRepeat(env, action_repeat), -one, one)


@functools.cache
def step_limit(task: str) -> int | None:
    """Environment steps after which a task cuts an episode off; None if it never does.

    Only the environment knows, so that one is built.

    Example:
        >>> step_limit("Pendulum-v1"), step_limit("cartpole-swingup")
        (200, 1000)
    """
    env = make_env(task, action_repeat=1)
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


def _make_gymnasium(task: str) -> Env:
    module, colon, name = task.rpartition(":")
    if colon:
        _register(task, module, name)
    # What a user's own package says while it is built is for the user to hear.
    silence = contextlib.nullcontext() if colon else quiet()
    try:
        with silence:
            return gymnasium.make(name, disable_env_checker=True)
    except (ImportError, gymnasium.error.Error) as error:
        reason = " ".join(str(error).split())
        raise Refusal(f"env is {task!r}, which cannot be built: {reason}") from error


def _register(task: str, module: str, name: str) -> None:
    """Imports the module that registers a task, as Gymnasium's `module:Id` asks."""
    try:
        importlib.import_module(module)
    except Exception as error:
        raise Refusal(
            f"env is {task!r}, but importing {module!r} failed"
            f" ({type(error).__name__}: {error})"
        ) from error
    if name not in gymnasium.registry:
        near = did_you_mean(name, gymnasium.registry, most=1)
        raise Refusal(f"env is {task!r}, but {module!r} registers no {name!r}{near}")


def _check_action(task: str, space: Space[Any]) -> None:
    if not _is_vector(space) or not np.issubdtype(space.dtype, np.floating):
        raise Refusal(
            f"env is {task!r}, whose actions are {_described(space)}; supported is"
            " a bounded 1-D Box of floats"
        )
    box = cast(Box, space)
    farthest = np.maximum(np.abs(box.low), np.abs(box.high))
    usable = (box.low < box.high) & (farthest <= LARGEST_BOUND)
    for index in np.flatnonzero(~usable):
        raise Refusal(
            f"env is {task!r}, whose action {index} goes from {box.low[index]:g} to"
            f" {box.high[index]:g}; supported are bounds of at most"
            f" {LARGEST_BOUND:g}, the low below the high"
        )


def _check_observation(task: str, space: Space[Any]) -> None:
    if not _is_vector(space):
        raise Refusal(
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
