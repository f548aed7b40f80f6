"""Build environments with flat observations and actions in [-1, 1]."""

import contextlib
import importlib
import inspect
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box, Dict, Space, Tuple
from gymnasium.wrappers import RescaleAction, TimeLimit
from numpy.typing import NDArray

from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.envs.dm_control import DMCEnv, dm_suite, suppress_warnings
from r2r2.envs.spec import InvalidEnvOutput, Spec
from r2r2.envs.suites import find_suite, split_dmc_task
from r2r2.policy.spaces import (
    ACTION_DTYPES,
    Layout,
    ObservationPart,
    Path,
    TaskSpaces,
    flatten_observation,
    is_part_key,
    part_name,
    scale_action,
)

Env = gymnasium.Env[Any, Any]
EnvBuilder = Callable[..., Env]  # an environment class or a function that returns one

# Larger bounds mean "unbounded", such as 1e10 in lqr or the largest float32.
LARGEST_BOUND = 1e6

RENDER_MODE = "render_mode"  # keyword argument


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


class FlatObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Flattens observations by their layout, to float64."""

    def __init__(self, env: Env, layout: Layout):
        super().__init__(env)
        self._layout = layout
        size = sum(part.size for part in layout)
        self.observation_space = Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def observation(self, observation: Any) -> NDArray[np.float64]:
        """Return an observation as one vector of finite numbers."""
        try:
            flat = flatten_observation(self._layout, observation)
        except ValueError as error:
            raise InvalidEnvOutput(str(error)) from None
        if not np.isfinite(flat).all():
            self._raise_not_finite(flat)
        return flat

    def _raise_not_finite(self, flat: NDArray[np.float64]) -> None:
        begin = 0
        for part in self._layout:
            values = flat[begin : begin + part.size].reshape(part.shape)
            begin += part.size
            for index in np.argwhere(~np.isfinite(values)).tolist():
                place = f"{part.name}{index if index else ''}"
                got = values[tuple(index)]
                raise InvalidEnvOutput(f"{place}: expected a finite number, got {got}")


class UnitAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """Takes flat actions in [-1, 1]; the environment gets its own bounds, shape and type."""

    def __init__(self, env: Env, spaces: TaskSpaces):
        super().__init__(env)
        self._spaces = spaces
        dtype: Any = np.dtype(spaces.action_dtype)
        self.action_space = Box(-1.0, 1.0, (spaces.action_dim,), dtype=dtype)

    def action(self, action: Any) -> NDArray[np.floating]:
        """Return the action that the environment gets."""
        return scale_action(self._spaces, action)


def make_env(
    task: str, action_repeat: int, render: bool = False, args: Mapping[str, Any] | None = None
) -> Env:
    """Build a task as the agents see it; with `render`, it can be rendered to images.

    The task is a Gymnasium id, `module:Id-v0`, `module:Class`, or a DMC domain-task; `args` are
    keyword arguments of its constructor. Its time limit counts environment steps, inside the
    action repeat. The environment never resets itself.
    """
    return adapt_env(task, make_raw_env(task, render, args), action_repeat)


def make_raw_env(
    task: str,
    render: bool = False,
    args: Mapping[str, Any] | None = None,
    builder: EnvBuilder | None = None,
) -> Any:
    """Build a task as its author wrote it; it may not even be an environment.

    A builder is used in place of the task's id.
    """
    args = dict(args or {})
    if RENDER_MODE in args:
        raise UserError(f"env {task!r}: env_args: {RENDER_MODE!r} is set by r2r2, for videos")
    rendered = {RENDER_MODE: "rgb_array"} if render else {}
    if builder is not None:
        return _call(task, partial(builder, **args, **rendered), args, builder)
    if find_suite(task) == "dmc":
        return _make_dmc(task, render, args)
    return _make_gymnasium(task, args, rendered)


def adapt_env(
    task: str, env: Any, action_repeat: int, max_steps: int = 0, fallback: int = 0
) -> Env:
    """Check an environment and wrap it as the agents see it; `task` is its name.

    An episode is truncated after `max_steps` environment steps or, without a time limit of
    its own, after `fallback`; 0 means no such limit.
    """
    if not isinstance(env, gymnasium.Env):
        raise invalid_value(f"env {task!r}", "a gymnasium.Env", env)
    spaces = _check_spaces(task, env)
    if limit := max_steps or (0 if time_limit_of(env) else fallback):
        env = TimeLimit(env, limit)
    env = ActionRepeat(env, action_repeat)
    if _is_of_library(env):
        # RescaleAction warns if the bounds have another dtype than the space.
        one = np.ones_like(cast(Box, env.action_space).low)
        env = RescaleAction(env, -one, one)
    else:
        env = UnitAction(env, spaces)
    is_vector = len(spaces.observation) == 1 and len(env.observation_space.shape or ()) == 1
    return env if is_vector else FlatObservation(env, spaces.observation)


def _is_of_library(env: Env) -> bool:
    """Return whether an environment is one of Gymnasium's or dm_control's.

    They keep getting float64 actions by the formula of RescaleAction, with which all results so
    far were made. It misses the bounds by rounding errors, which they tolerate.
    """
    inner = env.unwrapped
    return isinstance(inner, DMCEnv) or type(inner).__module__.startswith("gymnasium.envs.")


def env_builder_of(
    env: EnvBuilder | Env | None,
    tasks: tuple[str, ...],
    seeds: int,
    args: Mapping[str, Any] | None = None,
) -> EnvBuilder | None:
    """Return a function that builds the caller's environment, if any.

    An instance has one seed, and takes no keyword arguments `args`.
    """
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
    if args:
        raise UserError(
            "not allowed with an environment instance, which is built already; pass its class or "
            "a function that builds it",
            "env_args",
        )
    if seeds > 1:
        raise UserError(
            f"seeds: expected one seed for an environment instance, got {seeds};"
            " pass its class or a function that builds it"
        )
    return lambda **_: BorrowedEnv(env)


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


def spaces_of(env: Env) -> TaskSpaces:
    """Return the spaces that the author of an environment that `make_env` built gave it.

    Example:
        >>> [part.shape for part in spaces_of(make_env("Pendulum-v1", 1)).observation]
        [(3,)]
    """
    layer: Any = env
    while not isinstance(layer, ActionRepeat):  # what is outside of it is ours
        layer = layer.env
    return _spaces(layer)


def episode_seed(seed: int, purpose: str, index: int) -> int:
    """Return the reset seed of a member's episode, a function of its identity alone.

    Episodes are numbered within their purpose ('train', 'evaluate', 'eval-command'), so
    that one can be replayed without those before it, and the number of episodes for one
    purpose does not affect those for another. The seed is a 32-bit hash, the most that
    dm_control accepts; two episodes collide with probability 2**-32.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), index))
    return int(sequence.generate_state(1)[0])


def _make_dmc(task: str, render: bool, args: Mapping[str, Any]) -> Env:
    tables = ("task_kwargs", "environment_kwargs")  # of dm_control's suite.load
    for name, value in args.items():
        if name not in tables:
            near = did_you_mean(name, tables, most=1)
            expected = f"expected {' or '.join(tables)}, as in dm_control's suite.load"
            raise UserError(f"env {task!r}: env_args: {expected}, got {name!r}{near}")
        if not isinstance(value, dict):
            raise UserError(f"env {task!r}: env_args: {name}: expected an object, got {value!r}")
    domain, name = split_dmc_task(task)
    if not args:
        return DMCEnv(domain, name, render=render)
    names = {key for table in args.values() for key in table}
    functions: Any = (
        dm_suite()._DOMAINS[domain].SUITE[name],
        importlib.import_module("dm_control.rl.control").Environment,
    )
    try:
        build = partial(DMCEnv, domain, name, render, args)
        return cast(Env, _call(task, build, names, *functions))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"env {task!r}: cannot be built: {_one_line(error)}") from error


def _make_gymnasium(task: str, args: Mapping[str, Any], rendered: Mapping[str, str]) -> Any:
    module, colon, name = task.rpartition(":")
    own = _import_builder(task, module, name) if colon else None
    build = own or partial(gymnasium.make, name, disable_env_checker=True)
    # Warnings of the user's own package are for the user.
    context = contextlib.nullcontext() if colon else suppress_warnings()
    try:
        with context:
            return _call(task, partial(build, **args, **rendered), args, own or _creator(name))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"env {task!r}: cannot be built: {_one_line(error)}") from error


def _creator(name: str) -> EnvBuilder | None:
    """Return the class or function of a registered id, if it can be imported."""
    with contextlib.suppress(Exception):
        entry_point: Any = gymnasium.spec(name).entry_point
        is_name = isinstance(entry_point, str)
        return cast(EnvBuilder, load_env_creator(entry_point) if is_name else entry_point)
    return None


def _call(
    task: str, build: Callable[[], Any], args: Collection[str], *functions: EnvBuilder | None
) -> Any:
    """Build an environment; name the keyword argument that it does not have, with a near match.

    The parameters of `functions` are those that exist.
    """
    try:
        return build()
    except TypeError as error:
        match = re.search(r"got an unexpected keyword argument '([^']*)'", str(error))
        if match is None or (name := match[1]) not in args:
            raise
    known = {x for function in functions for x in _parameters(function)} - {RENDER_MODE}
    near = did_you_mean(name, known, most=1)
    raise UserError(f"env {task!r}: env_args: unknown keyword argument {name!r}{near}")


def _parameters(builder: Any) -> Iterator[str]:
    """Yield the names of the parameters of a class or a function, as far as known."""
    while isinstance(builder, partial):
        builder = cast(Any, builder).func
    functions = [builder]
    if isinstance(builder, type):  # whose **kwargs usually go to its base class
        functions = [vars(base)["__init__"] for base in builder.__mro__ if "__init__" in vars(base)]
    for function in functions:
        with contextlib.suppress(TypeError, ValueError):  # of C
            for name, parameter in inspect.signature(function).parameters.items():
                if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    yield name


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


def _check_spaces(task: str, env: Env) -> TaskSpaces:
    """Return the spaces of an environment, if they are supported."""
    for name in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, name, None), Space):
            got = "none" if space is None else f"a {type(space).__name__}"
            raise UserError(f"env {task!r}: {name}: expected a gymnasium.spaces.Box, got {got}")
    action = cast(Box, env.action_space)
    if not _is_box(action, "f") or str(action.dtype) not in ACTION_DTYPES:
        raise UserError(
            f"env {task!r}: unsupported action space; expected a bounded Box of floats, got "
            f"{_describe(action)}"
        )
    lowest, highest = (bound.astype(np.float64) for bound in (action.low, action.high))
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    usable = (lowest < highest) & (largest <= LARGEST_BOUND)
    for index in np.argwhere(~usable).tolist():
        low, high = (bound[tuple(index)] for bound in (action.low, action.high))
        place = index[0] if len(index) == 1 else index
        raise UserError(
            f"env {task!r}: unsupported bounds of action {place}; expected low < high, both within "
            f"+-{LARGEST_BOUND:g}, got {low:g} to {high:g}"
        )
    for path, space in _leaves((), env.observation_space):
        _check_part(f"env {task!r}: {part_name(path)}", path, space)
    return _spaces(env)


def _check_part(where: str, path: Path, space: Space[Any]) -> None:
    """Raise an error for a part of an observation that cannot be flattened."""
    if bad := [key for key in path if not is_part_key(key)]:
        expected = "keys that are strings or integers >= 0"
        raise UserError(f"{where}: expected {expected}, got {bad[0]!r}")
    if not _is_box(space, "fiub"):
        raise UserError(
            f"{where}: unsupported space; expected a Box of floats or integers, or a Dict or Tuple "
            f"of them, got {_describe(space)}"
        )
    if cast(Box, space).dtype == np.uint8 and len(space.shape or ()) >= 3:
        raise UserError(
            f"{where}: pixels are not supported; expected measurements such as positions and "
            f"velocities, got {_describe(space)}"
        )


def _leaves(path: tuple[Any, ...], space: Space[Any]) -> Iterator[tuple[Path, Space[Any]]]:
    """Yield the parts of an observation in the order in which they are flattened."""
    members: Any = ()
    if isinstance(space, Dict):
        members = space.spaces.items()
    elif isinstance(space, Tuple):
        members = list(enumerate(cast(Any, space).spaces))
    for key, member in members:
        yield from _leaves((*path, key), member)
    if not members:  # also an empty Dict or Tuple, which is then refused
        yield path, space


def _spaces(env: Env) -> TaskSpaces:
    """Return the spaces of an environment that has supported ones."""
    action = cast(Box, env.action_space)
    layout = tuple(
        ObservationPart(path, tuple(map(int, space.shape or ())))
        for path, space in _leaves((), env.observation_space)
    )
    low, high = (np.ravel(bound).astype(np.float64) for bound in (action.low, action.high))
    return TaskSpaces(layout, low, high, str(action.dtype), tuple(map(int, action.shape)))


def _is_box(space: Space[Any], kinds: str) -> bool:
    return (
        isinstance(space, Box)
        and math.prod(space.shape) > 0
        and cast(Box, space).dtype.kind in kinds
    )


def _describe(space: Space[Any]) -> str:
    if isinstance(space, Box):
        return f"a Box of shape {space.shape} and type {cast(Box, space).dtype}"
    if isinstance(space, Dict | Tuple) and not cast(Any, space).spaces:
        return f"an empty {type(space).__name__} space"
    return f"a {type(space).__name__} space"
