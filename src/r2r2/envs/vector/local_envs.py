"""Environments stepped in one process, in a worker or in the main process."""

import contextlib
import math
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import Env
from r2r2.envs.vector.ipc import EMPTY, LOAD, SAVE, STEP, Message, SharedArrays
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, SavedState


class InvalidEnvOutput(ValueError):
    """An environment returned an invalid observation or reward."""


class LocalEnvs:
    """The environments of some slots, each built when it is first needed."""

    def __init__(self, factories: Mapping[int, EnvFactory]):
        self._factories = factories
        self._envs: dict[int, Env] = {}

    def env(self, slot: int) -> Env:
        """Return the environment of a slot."""
        if slot not in self._envs:
            self._envs[slot] = self._factories[slot].build()
        return self._envs[slot]

    def run(
        self,
        commands: Mapping[int, int],
        arrays: SharedArrays,
        worker: int,
        states: Mapping[int, SavedState],
    ) -> Message:
        """Run the commands of slots, one after the other.

        `states` are those of slots to load; `worker` is the index in `current_slot`. An
        environment that fails is closed, and built again at its next reset.
        """
        errors: dict[int, str] = {}
        saved: dict[int, SavedState] = {}
        for slot, command in commands.items():
            arrays.current_slot[worker] = slot
            try:
                if command == STEP:
                    self._step(slot, arrays)
                elif command == SAVE:
                    if (state := save_env_state(self.env(slot))) is not None:
                        saved[slot] = state
                else:
                    self._reset(slot, arrays)
                    if command == LOAD:
                        restore_env_state(self.env(slot), states[slot])
            except Exception as error:
                errors[slot] = _format_fault(error)
                if command != SAVE:  # a failure to save does not end the episode
                    with contextlib.suppress(Exception):  # it may not exist
                        self._envs.pop(slot).close()
        return Message(errors, saved) if errors or saved else EMPTY

    def _reset(self, slot: int, arrays: SharedArrays) -> None:
        obs, _ = self.env(slot).reset(seed=int(arrays.seed[slot]))
        arrays.obs[slot] = _check_obs(obs, arrays)

    def _step(self, slot: int, arrays: SharedArrays) -> None:
        action = arrays.action[slot].copy()
        next_obs, reward, terminated, truncated, _ = self.env(slot).step(action)
        # `obs` is written last: after a failure it holds the last valid observation.
        arrays.next_obs[slot] = _check_obs(next_obs, arrays)
        if not math.isfinite(reward := float(reward)):
            raise InvalidEnvOutput(f"reward: expected a finite number, got {reward}")
        arrays.reward[slot] = reward
        arrays.terminated[slot], arrays.truncated[slot] = terminated, truncated
        if (terminated or truncated) and arrays.seed[slot] != NO_EPISODE:
            self._reset(slot, arrays)
        else:
            arrays.obs[slot] = arrays.next_obs[slot]

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        while self._envs:
            self._envs.popitem()[1].close()


def _check_obs(obs: Any, arrays: SharedArrays) -> NDArray[np.float64]:
    shape, expected = np.shape(obs), arrays.obs.shape[1:]
    if shape != expected:
        raise InvalidEnvOutput(f"observation: expected shape {expected}, got {shape}")
    numbers = np.asarray(obs, np.float64)
    # Takes a quarter of the time of `np.all`, which matters in every step.
    index = np.isfinite(numbers).tobytes().find(b"\0")
    if index >= 0:
        raise InvalidEnvOutput(
            f"observation[{index}]: expected a finite number, got {numbers[index]}"
        )
    return numbers


def _format_fault(error: Exception) -> str:
    """Return an exception as text with its message, on one line, at the end."""
    if isinstance(error, InvalidEnvOutput):
        return str(error)
    message = "".join(traceback.format_exception_only(error))
    stack = "".join(traceback.format_exception(error)).removesuffix(message)
    return f"{stack}{' '.join(message.split())}"
