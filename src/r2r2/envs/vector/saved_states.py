"""Save environments in the middle of an episode and continue them bit-exactly.

A saved state consists of plain arrays. It is loaded into an environment that has just
been reset with the seed of the same episode, possibly in another process. The reset
restores everything that steps do not change, such as a goal.

Supported are Gymnasium's MuJoCo tasks, Pendulum and MountainCarContinuous, the DeepMind
Control Suite, and wrappers that are stateless or count steps. Any other environment,
including subclasses of these, can support it with two methods: `save_state` returns
what steps change, as arrays, and `load_state` takes it back. A wrapper with these
methods is responsible for what it wraps. For a simulation in MuJoCo,
`r2r2.envs.vector.mujoco_state.Simulation` provides the arrays. The generator
`np_random` is always saved.
"""

import re
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import wrappers
from numpy.typing import ArrayLike, NDArray

from r2r2.envs.dm_control import DMCEnv
from r2r2.envs.make import ActionRepeat, BorrowedEnv, Env
from r2r2.envs.vector.mujoco_state import Simulation
from r2r2.envs.vector.step_types import SavedState

ARRAY_NAME = re.compile(r"[a-z0-9_/.]+")
WORD = 64  # bits
MERSENNE_WORDS = 624
INVALID_GENERATOR = "its random generator is in an impossible state"


class _Component(Protocol):
    """A part of an environment that steps change."""

    def save(self) -> SavedState: ...

    # Takes ownership of the arrays; their names, shapes and kinds are those of `save`,
    # except for `_CustomState`.
    def load(self, saved: SavedState) -> None: ...


class _CustomState:
    """The state that an environment saves with its own two methods."""

    def __init__(self, env: Any):
        self._env = env

    def save(self) -> SavedState:
        state: dict[str, ArrayLike] = self._env.save_state()
        saved = {name: np.array(value) for name, value in state.items()}  # copies
        for name, array in saved.items():
            if not ARRAY_NAME.fullmatch(name) or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"{type(self._env).__name__}.save_state: expected numeric or "
                    "boolean arrays with names of lower-case letters, digits, '_', '/' "
                    f"and '.', got {name!r} of type {array.dtype}"
                )
        return saved

    def load(self, saved: SavedState) -> None:
        self._env.load_state(saved)


class _AttributeState:
    """An attribute that holds all of the state, in its current precision."""

    def __init__(self, env: Any, attribute: str, key: str):
        self._env, self._attribute, self._key = env, attribute, key

    def save(self) -> SavedState:
        return {self._key: np.array(getattr(self._env, self._attribute))}

    def load(self, saved: SavedState) -> None:
        value = saved[self._key]
        setattr(self._env, self._attribute, value if value.ndim else value.item())


class _DMControlState:
    """Simulation, step count and random generator of a dm_control task."""

    def __init__(self, env: DMCEnv):
        self._env = env
        self._inner = cast(Any, env)._env
        physics = self._inner.physics
        self.simulation = Simulation(physics.model.ptr, physics.data.ptr)

    def save(self) -> SavedState:
        generator = self._inner.task.random.get_state(legacy=False)
        state = generator["state"]
        gauss = [generator["has_gauss"], generator["gauss"]]
        return self.simulation.save() | {
            "step_count": np.array(self._inner._step_count, np.int64),
            "running": np.array(self._env._running),
            "random": np.array([*state["key"], state["pos"]], np.uint64),
            "random_gauss": np.array(gauss, np.float64),
        }

    def load(self, saved: SavedState) -> None:
        *key, position = (int(word) for word in saved["random"])
        if position > MERSENNE_WORDS or max(key) >= 2**32:
            raise ValueError(INVALID_GENERATOR)
        self.simulation.load(saved)
        has_gauss, gauss = saved["random_gauss"]
        self._inner.task.random.set_state(
            ("MT19937", np.array(key, np.uint32), position, int(has_gauss == 1), gauss)
        )
        self._inner._step_count = int(saved["step_count"])
        self._env._running = bool(saved["running"])
        self._inner._reset_next_step = not self._env._running


class _GeneratorState:
    """Gymnasium's random generator of an environment, which may not exist yet."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        self._generator = env._np_random

    def is_supported(self) -> bool:
        if self._generator is None:
            return True
        return type(self._generator.bit_generator) is np.random.PCG64

    def save(self) -> SavedState:
        """Return two 128-bit numbers, low words first, and the spare 32 bits."""
        if self._generator is None:
            return {}
        state = cast(dict[str, Any], self._generator.bit_generator.state)
        numbers = state["state"]["state"], state["state"]["inc"]
        words = [number >> shift for number in numbers for shift in (0, WORD)]
        low = [word % 2**WORD for word in words]
        spare = [state["has_uint32"], state["uinteger"]]
        return {"pcg64": np.array([*low, *spare], np.uint64)}

    def load(self, saved: SavedState) -> None:
        if self._generator is None:
            return
        low, high, inc_low, inc_high, has_spare, spare = map(int, saved["pcg64"])
        if has_spare > 1 or spare >= 2**32:
            raise ValueError(INVALID_GENERATOR)
        self._generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": low + (high << WORD),
                "inc": inc_low + (inc_high << WORD),
            },
            "has_uint32": has_spare,
            "uinteger": spare,
        }


# Wrappers without state. Their subclasses are not included.
STATELESS = (
    ActionRepeat,
    BorrowedEnv,
    wrappers.ClipAction,
    wrappers.ClipReward,
    wrappers.DtypeObservation,
    wrappers.FlattenObservation,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RescaleAction,
    wrappers.RescaleObservation,
    wrappers.ReshapeObservation,
)
# Module names, because importing the classes requires optional packages.
MUJOCO = "gymnasium.envs.mujoco."
CLASSIC = (
    "gymnasium.envs.classic_control.continuous_mountain_car",
    "gymnasium.envs.classic_control.pendulum",
)


def save_env_state(env: Env) -> SavedState | None:
    """Return everything that later steps read, or None if that is not supported.

    Args:
        env: an environment that has been reset.

    Raises:
        ValueError: Its own `save_state` returned something else than named arrays.
    """
    components = _components(env)
    if components is None:
        return None
    return {
        f"{prefix}/{name}": array
        for prefix, component in components.items()
        for name, array in component.save().items()
    }


def restore_env_state(env: Env, saved: SavedState) -> None:
    """Continue a saved episode.

    Args:
        env: an environment that has just been reset with the seed of that episode.
        saved: the state of an environment built in the same way.

    Raises:
        ValueError: The state does not fit; reset the environment before using it.
    """
    components = _components(env)
    if components is None:
        raise ValueError("saved state: not supported by this environment")
    states: dict[str, SavedState] = {prefix: {} for prefix in components}
    for key, array in saved.items():
        prefix, _, name = key.partition("/")
        if prefix not in states:
            raise ValueError(f"saved state: unexpected array {key!r}")
        states[prefix][name] = np.array(array)
    for prefix, component in components.items():
        if not isinstance(component, _CustomState):
            _check_arrays(prefix, states[prefix], component.save())
    for prefix, component in components.items():
        try:
            component.load(states[prefix])
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"saved state: cannot be loaded: {reason}") from error


def _check_arrays(prefix: str, saved: SavedState, current: SavedState) -> None:
    """Compare saved arrays with those that the environment itself would save.

    Kinds are compared, not types: MountainCarContinuous changes its precision.
    """
    if saved.keys() != current.keys():
        name = min(saved.keys() ^ current.keys())
        problem = "unexpected" if name in saved else "missing"
        raise ValueError(f"saved state: {problem} array {f'{prefix}/{name}'!r}")
    for name, array in current.items():
        expected, got = _describe(array), _describe(saved[name])
        if expected != got:
            key = f"{prefix}/{name}"
            raise ValueError(f"saved state: {key!r}: expected {expected}, got {got}")


def _describe(array: NDArray[Any]) -> str:
    return f"kind {array.dtype.kind!r} and shape {array.shape}"


def _components(env: Env) -> dict[str, _Component] | None:
    """Return all parts that steps change, outermost first; None if not supported."""
    components: dict[str, _Component] = {}
    layer: Any = env
    while not _has_custom_state(layer):
        if type(layer) is wrappers.TimeLimit:
            components[f"limit{len(components)}"] = _AttributeState(
                layer, "_elapsed_steps", "steps"
            )
        elif type(layer) not in STATELESS:
            break
        layer = layer.env
    task = _CustomState(layer) if _has_custom_state(layer) else _task_state(layer)
    generator = _GeneratorState(env.unwrapped)
    if task is None or not generator.is_supported():
        return None
    return components | {"task": task, "np_random": generator}


def _has_custom_state(env: Env) -> bool:
    """Check the class: a wrapper may forward attributes of the instance."""
    return hasattr(type(env), "save_state") and hasattr(type(env), "load_state")


def _task_state(env: Env) -> _Component | None:
    if type(env) is DMCEnv:
        state = _DMControlState(env)
        return state if state.simulation.is_supported() else None
    module = type(env).__module__
    if module in CLASSIC:
        return _AttributeState(env, "state", "state")
    if module.startswith(MUJOCO):
        task = cast(Any, env)
        simulation = Simulation(task.model, task.data)
        return simulation if simulation.is_supported() else None
    return None
