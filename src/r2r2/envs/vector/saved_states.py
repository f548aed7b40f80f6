"""Environments saved in the middle of an episode, and continued to the bit.

What is saved are plain arrays. They are laid over an environment that has just been
reset with the seed of the same episode, perhaps in another process: whatever a reset
makes (a goal, a model's sizes) is there already, and only what steps change is saved.

Known are Gymnasium's MuJoCo tasks, Pendulum and MountainCarContinuous, the DeepMind
Control Suite, and the wrappers around them that change nothing or count steps. Of any
other environment, be it a subclass of these, it cannot be known what a step reads. It
says so itself, in two methods: `save_state` gives what steps change, as arrays, and
`load_state` takes it back. A wrapper that has them speaks for what it wraps too. For a
simulation in MuJoCo, `r2r2.envs.vector.mujoco_state.Simulation` gives the arrays and
takes them. The generator `np_random` is saved with every environment.

Example:
    >>> import gymnasium
    >>> class Walk(gymnasium.Env):
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed)
    ...         self.place = np.zeros(2)
    ...         return self.place, {}
    ...     def step(self, action):
    ...         self.place = self.place + self.np_random.normal(size=2)
    ...         return self.place, 0.0, False, False, {}
    ...     def save_state(self):
    ...         return {"place": self.place}
    ...     def load_state(self, saved):
    ...         self.place = saved["place"]
    >>> first, second = Walk(), Walk()
    >>> for env in (first, second):
    ...     start, _ = env.reset(seed=7)
    >>> after_one, *_ = first.step(0)
    >>> restore_env_state(second, save_env_state(first))
    >>> bool(np.all(first.step(0)[0] == second.step(0)[0]))
    True
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

NAME = re.compile(r"[a-z0-9_/.]+")
WORD = 64  # bits
MERSENNE_WORDS = 624
IMPOSSIBLE = "its generator is in a state that cannot be"


class Part(Protocol):
    """Something of an environment that steps change."""

    def save(self) -> SavedState:
        """A copy of it."""
        ...

    def load(self, saved: SavedState) -> None:
        """Takes it back, or raises; the arrays are its to keep.

        Names, shapes and kinds are those of `save`, except for `Own`.
        """
        ...


class Own:
    """What an environment saves by its own two methods."""

    def __init__(self, layer: Any):
        self._layer = layer

    def save(self) -> SavedState:
        """Copies what it gives: it may hand out arrays that it goes on writing."""
        given: dict[str, ArrayLike] = self._layer.save_state()
        saved = {name: np.array(value) for name, value in given.items()}
        for name, array in saved.items():
            if not NAME.fullmatch(name) or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"save_state of {type(self._layer).__name__} gives {name!r}, "
                    f"{array.dtype}; allowed are arrays of numbers or truth values, "
                    "with names of lower-case letters, digits, '_', '/' and '.'"
                )
        return saved

    def load(self, saved: SavedState) -> None:
        """Hands everything over; only the environment knows what fits."""
        self._layer.load_state(saved)


class Elapsed:
    """The steps that a time limit has counted."""

    def __init__(self, limit: Any):
        self._limit = limit

    def save(self) -> SavedState:
        """As one number."""
        return {"steps": np.array(self._limit._elapsed_steps, np.int64)}

    def load(self, saved: SavedState) -> None:
        """From one number."""
        self._limit._elapsed_steps = int(saved["steps"])


class Classic:
    """Gymnasium's Pendulum and MountainCarContinuous, which have a `state`."""

    def __init__(self, env: Any):
        self._env = env

    def save(self) -> SavedState:
        """In the precision it has, which is another after a reset than after steps."""
        return {"state": np.array(self._env.state)}

    def load(self, saved: SavedState) -> None:
        """In the precision it had."""
        self._env.state = saved["state"]


class Control:
    """A task of dm_control: its simulation, where it is in its episode, its draws."""

    def __init__(self, env: DMCEnv):
        self._env = env
        self._inside = cast(Any, env)._env
        physics = self._inside.physics
        self.simulation = Simulation(physics.model.ptr, physics.data.ptr)

    def save(self) -> SavedState:
        """The arrays of the simulation, and a few more."""
        drawn = self._inside.task.random.get_state(legacy=False)
        inside, state = self._inside, drawn["state"]
        return self.simulation.save() | {
            "step_count": np.array(inside._step_count, np.int64),
            "running": np.array(self._env._running),
            "random": np.array([*state["key"], state["pos"]], np.uint64),
            "random_gauss": np.array([drawn["has_gauss"], drawn["gauss"]], np.float64),
        }

    def load(self, saved: SavedState) -> None:
        """Lays all of it over the task as it stands.

        Raises:
            ValueError: The generator would read past its end, or the simulation's
                state does not fit.
        """
        *key, position = (int(word) for word in saved["random"])
        if position > MERSENNE_WORDS or max(key) >= 2**32:
            raise ValueError(IMPOSSIBLE)
        self.simulation.load(saved)
        has_gauss, gauss = saved["random_gauss"]
        self._inside.task.random.set_state(
            ("MT19937", np.array(key, np.uint32), position, int(has_gauss == 1), gauss)
        )
        self._inside._step_count = int(saved["step_count"])
        self._env._running = bool(saved["running"])
        self._inside._reset_next_step = not self._env._running


class Generator:
    """Gymnasium's generator of an environment; there may be none yet."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        self._generator = env._np_random

    def offered(self) -> bool:
        """Whether it is of the kind that Gymnasium makes."""
        if self._generator is None:
            return True
        return type(self._generator.bit_generator) is np.random.PCG64

    def save(self) -> SavedState:
        """The state's two numbers of 128 bits, low words first, and a spare half."""
        if self._generator is None:
            return {}
        state = cast(dict[str, Any], self._generator.bit_generator.state)
        numbers = state["state"]["state"], state["state"]["inc"]
        words = [number >> shift for number in numbers for shift in (0, WORD)]
        low = [word % 2**WORD for word in words]
        spare = [state["has_uint32"], state["uinteger"]]
        return {"pcg64": np.array([*low, *spare], np.uint64)}

    def load(self, saved: SavedState) -> None:
        """The same numbers, into the generator that the environment holds.

        Raises:
            ValueError: The spare half is more than half a word.
        """
        if self._generator is None:
            return
        low, high, inc_low, inc_high, has_spare, spare = map(int, saved["pcg64"])
        if has_spare > 1 or spare >= 2**32:
            raise ValueError(IMPOSSIBLE)
        self._generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": low + (high << WORD),
                "inc": inc_low + (inc_high << WORD),
            },
            "has_uint32": has_spare,
            "uinteger": spare,
        }


# What a step passes through without a trace in them. Subclasses are not among them.
TRANSPARENT = (
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
# By name, since importing the classes needs what these tasks need.
MUJOCO = "gymnasium.envs.mujoco."
CLASSIC = (
    "gymnasium.envs.classic_control.continuous_mountain_car",
    "gymnasium.envs.classic_control.pendulum",
)


def save_env_state(env: Env) -> SavedState | None:
    """What a later step of an environment reads, or None if it does not offer that.

    Args:
        env: Has been reset.

    Raises:
        ValueError: What its own `save_state` gives are not arrays with plain names.
    """
    parts = _parts(env)
    if parts is None:
        return None
    return {
        f"{place}/{name}": array
        for place, part in parts.items()
        for name, array in part.save().items()
    }


def restore_env_state(env: Env, saved: SavedState) -> None:
    """Continues an episode that was saved.

    Args:
        env: Has just been reset with the seed of that episode.
        saved: Of an environment built in the same way.

    Raises:
        ValueError: It does not fit; the environment is to be reset before it is used.
    """
    parts = _parts(env)
    if parts is None:
        raise ValueError("the environment takes no saved state")
    given: dict[str, SavedState] = {place: {} for place in parts}
    for name, array in saved.items():
        place, _, own = name.partition("/")
        if place not in given:
            raise ValueError(f"the saved state has {name!r}, which is not of this task")
        given[place][own] = np.array(array)
    for place, part in parts.items():
        if not isinstance(part, Own):
            _compare(place, given[place], part.save())
    for place, part in parts.items():
        try:
            part.load(given[place])
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"the saved state does not fit: {reason}") from error


def _compare(place: str, given: SavedState, fresh: SavedState) -> None:
    """Refuses what the environment itself would not have saved.

    Kinds and not types are compared: MountainCarContinuous changes its precision.
    """
    if given.keys() != fresh.keys():
        odd = sorted(given.keys() ^ fresh.keys())[0]
        has = "has" if odd in given else "lacks"
        raise ValueError(f"the saved state {has} {f'{place}/{odd}'!r}")
    for name, array in fresh.items():
        here, there = _described(array), _described(given[name])
        if here != there:
            raise ValueError(
                f"the saved state's {f'{place}/{name}'!r} is {there}, not {here}"
            )


def _described(array: NDArray[Any]) -> str:
    return f"of kind {array.dtype.kind!r} and shape {array.shape}"


def _parts(env: Env) -> dict[str, Part] | None:
    """All that steps change, from the outermost layer in; None if that is not known."""
    parts: dict[str, Part] = {}
    layer: Any = env
    # Classes are asked: a wrapper may hand on what is asked of the instance.
    while not _speaks(type(layer)):
        if type(layer) is wrappers.TimeLimit:
            parts[f"limit{len(parts)}"] = Elapsed(layer)
        elif type(layer) not in TRANSPARENT:
            break
        layer = layer.env
    innermost = Own(layer) if _speaks(type(layer)) else _innermost(layer)
    generator = Generator(env.unwrapped)
    if innermost is None or not generator.offered():
        return None
    return parts | {"task": innermost, "np_random": generator}


def _speaks(kind: type) -> bool:
    return hasattr(kind, "save_state") and hasattr(kind, "load_state")


def _innermost(env: Env) -> Part | None:
    if type(env) is DMCEnv:
        control = Control(env)
        return control if control.simulation.offered() else None
    module = type(env).__module__
    if module in CLASSIC:
        return Classic(env)
    if module.startswith(MUJOCO):
        known = cast(Any, env)
        simulation = Simulation(known.model, known.data)
        return simulation if simulation.offered() else None
    return None
