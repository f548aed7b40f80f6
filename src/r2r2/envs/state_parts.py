"""The parts of an environment that its steps change, each saved and loaded."""

import re
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from r2r2.envs.dmc import DMCEnv
from r2r2.envs.mujoco_state import Saved, Simulation

NAME = re.compile(r"[a-z0-9_/.]+")
WORD = 64  # bits
MERSENNE_WORDS = 624
IMPOSSIBLE = "its generator is in a state that cannot be"


class Part(Protocol):
    """Something of an environment that steps change."""

    def save(self) -> Saved:
        """A copy of it."""
        ...

    def load(self, saved: Saved) -> None:
        """Takes it back, or raises; the arrays are its to keep.

        Names, shapes and kinds are those of `save`, except for `Own`.
        """
        ...


class Own:
    """What an environment saves by its own two methods."""

    def __init__(self, layer: Any):
        self._layer = layer

    def save(self) -> Saved:
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

    def load(self, saved: Saved) -> None:
        """Hands everything over; only the environment knows what fits."""
        self._layer.load_state(saved)


class Elapsed:
    """The steps that a time limit has counted."""

    def __init__(self, limit: Any):
        self._limit = limit

    def save(self) -> Saved:
        """As one number."""
        return {"steps": np.array(self._limit._elapsed_steps, np.int64)}

    def load(self, saved: Saved) -> None:
        """From one number."""
        self._limit._elapsed_steps = int(saved["steps"])


class Classic:
    """Gymnasium's Pendulum and MountainCarContinuous, which have a `state`."""

    def __init__(self, env: Any):
        self._env = env

    def save(self) -> Saved:
        """In the precision it has, which is another after a reset than after steps."""
        return {"state": np.array(self._env.state)}

    def load(self, saved: Saved) -> None:
        """In the precision it had."""
        self._env.state = saved["state"]


class Control:
    """A task of dm_control: its simulation, where it is in its episode, its draws."""

    def __init__(self, env: DMCEnv):
        self._env = env
        self._inside = cast(Any, env)._env
        physics = self._inside.physics
        self.simulation = Simulation(physics.model.ptr, physics.data.ptr)

    def save(self) -> Saved:
        """The arrays of the simulation, and a few more."""
        drawn = self._inside.task.random.get_state(legacy=False)
        inside, state = self._inside, drawn["state"]
        return self.simulation.save() | {
            "step_count": np.array(inside._step_count, np.int64),
            "running": np.array(self._env._running),
            "random": np.array([*state["key"], state["pos"]], np.uint64),
            "random_gauss": np.array([drawn["has_gauss"], drawn["gauss"]], np.float64),
        }

    def load(self, saved: Saved) -> None:
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

    def save(self) -> Saved:
        """The state's two numbers of 128 bits, low words first, and a spare half."""
        if self._generator is None:
            return {}
        state = cast(dict[str, Any], self._generator.bit_generator.state)
        numbers = state["state"]["state"], state["state"]["inc"]
        words = [number >> shift for number in numbers for shift in (0, WORD)]
        low = [word % 2**WORD for word in words]
        spare = [state["has_uint32"], state["uinteger"]]
        return {"pcg64": np.array([*low, *spare], np.uint64)}

    def load(self, saved: Saved) -> None:
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
