"""Build environments with flat observations and actions in [-1, 1]."""

import contextlib
import importlib
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.wrappers import RescaleAction, TimeLimit

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.envs.dm_control import DMCEnv, suppress_warnings
from r2r2.envs.spec import Spec
from r2r2.envs.suites import find_suite, split_dmc_task

Env = gymnasium.Env[Any, Any]
EnvBuilder = Callable[..., Env]  # an environment class or a function that returns one

# Larger bounds mean "unbounded", such as 1e10 in lqr or the largest float32.
LARGEST_BOUND = 1e6


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeat each action for several steps and sum the rewards.

    Apply it outside the time limit, which counts environment steps. If the episode
    ends during the repeat, the step ends there, with the final observation.
    """

    def __init__(self, env: Env, times: int):
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Act up to `times` times; `info` is that of the last step."""
        total, steps = 0.0, 0
        while True:
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            steps += 1
            if terminated or truncated or steps >= self._times:
                return obs, total, terminated, truncated, info


class BorrowedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that belongs to the caller and is not closed here."""

    def close(self) -> None:
        """Leave the environment open."""


def make_env(task: str, action_repeat: int, render: bool = False) -> Env:
    """Build a task as the agents see it; with `render`, it can be rendered to images.

    The task is a Gymnasium id, `module:Id-v0`, `module:Class`, or a DMC domain-task. Its time limit
    counts environment steps, inside the action repeat. The environment never resets itself.
    """
    return adapt_env(task, make_raw_env(task, render), action_repeat)


def make_raw_env(task: str, render: bool = False) -> Any:
    """Build a task as its author wrote it; it may not even be an environment."""
    if find_suite(task) == "dmc":
        return DMCEnv(*split_dmc_task(task), render=render)
    return _make_gymnasium(task, {"render_mode": "rgb_array"} if render else {})


def adapt_env(
    task: str, env: Any, action_repeat: int, max_steps: int = 0, fallback: int = 0
) -> Env:
    """Check an environment and wrap it as the agents see it; `task` is its name.

    An episode is truncated after `max_steps` environment steps or, without a time limit of
    its own, after `fallback`; 0 means no such limit.
    """
    if not isinstance(env, gymnasium.Env):
        raise invalid_value(f"env {task!r}", "a gymnasium.Env", env)
    _check_spaces(task, env)
    if limit := max_steps or (0 if time_limit_of(env) else fallback):
        env = TimeLimit(env, limit)
    # RescaleAction warns if the bounds have another dtype than the space.
    one = np.ones_like(cast(Box, env.action_space).low)
    return RescaleAction(ActionRepeat(env, action_repeat), -one, one)


def env_builder_of(
    env: EnvBuilder | Env | None, tasks: tuple[str, ...], seeds: int
) -> EnvBuilder | None:
    """Return a function that builds the caller's environment, if any; an instance has one seed."""
    if env is None:
        return None
    if len(tasks) > 1:
        expected = "one name for an environment passed as an object"
        raise invalid_value("env", expected, ", ".join(tasks))
    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            expected = "a gymnasium.Env, its class, or a function that builds one"
            raise invalid_value("env", expected, env)
        return partial(env)  # hashable, and different in every call
    if seeds > 1:
        raise UserError(
            f"seeds: expected one seed for an environment instance, got {seeds};"
            " pass its class or a function that builds it"
        )
    return lambda: BorrowedEnv(env)


def time_limit_of(env: Env) -> int | None:
    """Return the environment's time limit in environment steps; None if it has none."""
    layer: Any = env
    limits: list[float] = [(env.spec and env.spec.max_episode_steps) or math.inf]
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    if isinstance(layer, DMCEnv):
        limits.append(layer.step_limit)
    return None if math.isinf(limit := min(limits)) else round(limit)


def spec_of(env: Env) -> Spec:
    """Return the sizes of an environment that `make_env` built."""
    spaces: Any = env.observation_space, env.action_space
    return Spec(*(space.shape[0] for space in spaces))


def action_bounds(env: Env) -> tuple[Any, Any]:
    """Return the lowest and highest actions, [action], of an environment that can be trained on."""
    space = cast(Box, env.action_space)
    return space.low, space.high


def episode_seed(seed: int, purpose: str, index: int) -> int:
    """Return the reset seed of a member's episode, a function of its identity alone.

    Episodes are numbered within their purpose ('train', 'evaluate', 'eval-command'), so
    that one can be replayed without those before it, and the number of episodes for one
    purpose does not affect those for another. The seed is a 32-bit hash, the most that
    dm_control accepts; two episodes collide with probability 2**-32.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), index))
    return int(sequence.generate_state(1)[0])


def _make_gymnasium(task: str, keywords: dict[str, str]) -> Any:
    module, colon, name = task.rpartition(":")
    build = _import_builder(task, module, name) if colon else None
    build = build or partial(gymnasium.make, name, disable_env_checker=True)
    # Warnings of the user's own package are for the user.
    context = contextlib.nullcontext() if colon else suppress_warnings()
    try:
        with context:
            return build(**keywords)
    except Exception as error:
        raise UserError(f"env {task!r}: cannot be built: {_one_line(error)}") from error


def _import_builder(task: str, module: str, name: str) -> EnvBuilder | None:
    """Import a module; return its class or function, or None for a registered id."""
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"env {task!r}: importing {module!r} failed ({_one_line(error)})"
        ) from error
    if name in gymnasium.registry:
        return None
    if callable(builder := getattr(imported, name, None)):
        return cast(EnvBuilder, builder)
    tasks = [key for key, spec in gymnasium.registry.items() if module in str(spec)]
    raise UserError(
        f"env {task!r}: {module!r} has no task, class or function {name!r}"
        f"{did_you_mean(name, tasks, most=1)}"
    )


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _check_spaces(task: str, env: Env) -> None:
    for name in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, name, None), Space):
            got = "none" if space is None else f"a {type(space).__name__}"
            raise UserError(f"env {task!r}: {name}: expected a gymnasium.spaces.Box, got {got}")
    action = cast(Box, env.action_space)
    if not _is_vector(action) or not np.issubdtype(action.dtype, np.floating):
        raise UserError(
            f"env {task!r}: unsupported action space; expected a bounded 1-D Box of"
            f" floats, got {_describe(action)}"
        )
    largest = np.maximum(np.abs(action.low), np.abs(action.high))
    usable = (action.low < action.high) & (largest <= LARGEST_BOUND)
    for index in np.flatnonzero(~usable):
        raise UserError(
            f"env {task!r}: unsupported bounds of action {index}; expected low < high, both within "
            f"+-{LARGEST_BOUND:g}, got {action.low[index]:g} to {action.high[index]:g}"
        )
    if not _is_vector(env.observation_space):
        raise UserError(
            f"env {task!r}: unsupported observation space; expected a flat vector (1-D Box), got "
            f"{_describe(env.observation_space)}; gymnasium.wrappers.FlattenObservation converts it"
        )


def _is_vector(space: Space[Any]) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0


def _describe(space: Space[Any]) -> str:
    if isinstance(space, Box):
        return f"a Box of shape {space.shape} and type {cast(Box, space).dtype}"
    return f"a {type(space).__name__} space"
