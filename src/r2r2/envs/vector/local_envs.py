"""Environments stepped in one process, be it a worker or the main one."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.errors import InvalidEnvOutput, story_of
from r2r2.envs.make import Env
from r2r2.envs.vector.messages import NOTHING, Parcel
from r2r2.envs.vector.saved_states import restore_env_state, save_env_state
from r2r2.envs.vector.shared_arrays import Slots
from r2r2.envs.vector.step_types import NO_EPISODE, EnvFactory, SavedState

RESET, STEP, SAVE, LOAD = 1, 2, 3, 4  # orders


class LocalEnvs:
    """The environments of some slots, each built when it is first needed."""

    def __init__(self, factories: Mapping[int, EnvFactory]):
        self._recipes = factories
        self._envs: dict[int, Env] = {}

    def env(self, slot: int) -> Env:
        """The slot's environment."""
        if slot not in self._envs:
            self._envs[slot] = self._recipes[slot].build()
        return self._envs[slot]

    def run(
        self,
        orders: Mapping[int, int],
        rows: Slots,
        worker: int,
        states: Mapping[int, SavedState],
    ) -> Parcel:
        """Carries out the orders of slots, one after the other.

        An environment that fails is closed, and built anew when it is next reset; the
        slots after it are not concerned.

        Args:
            orders: by slot.
            rows: what the orders say more, and what they give.
            worker: whose cell says which slot is at work.
            states: of the slots whose order is LOAD.
        """
        stories: dict[int, str] = {}
        saved: dict[int, SavedState] = {}
        for slot, order in orders.items():
            rows.busy[worker] = slot
            try:
                if order == STEP:
                    self._step(slot, rows)
                elif order == SAVE:
                    saved |= self._saved(slot)
                else:
                    self._reset(slot, rows)
                    if order == LOAD:
                        restore_env_state(self.env(slot), states[slot])
            except Exception as error:
                stories[slot] = story_of(error)
                if order != SAVE:  # it may still be stepped
                    self._drop(slot)
        return Parcel(stories, saved) if stories or saved else NOTHING

    def _reset(self, slot: int, rows: Slots) -> None:
        obs, _ = self.env(slot).reset(seed=int(rows.seed[slot]))
        rows.obs[slot] = _fitting(obs, rows)

    def _step(self, slot: int, rows: Slots) -> None:
        reached, reward, terminated, truncated, _ = self.env(slot).step(
            rows.action[slot].copy()
        )
        # The row of what is acted on next is written last: it shows the last good one.
        rows.next_obs[slot] = _fitting(reached, rows)
        rows.reward[slot] = _finite(reward)
        rows.terminated[slot], rows.truncated[slot] = terminated, truncated
        if (terminated or truncated) and rows.seed[slot] != NO_EPISODE:
            self._reset(slot, rows)
        else:
            rows.obs[slot] = rows.next_obs[slot]

    def _saved(self, slot: int) -> dict[int, SavedState]:
        state = save_env_state(self.env(slot))
        return {} if state is None else {slot: state}

    def _drop(self, slot: int) -> None:
        if env := self._envs.pop(slot, None):
            with contextlib.suppress(Exception):  # it has failed already
                env.close()

    def close(self) -> None:
        """Frees the environments; a second call does nothing."""
        while self._envs:
            self._envs.popitem()[1].close()


def _fitting(obs: Any, rows: Slots) -> NDArray[np.float64]:
    """An observation, if it is of finite numbers and in the shape its space said."""
    found, said = np.shape(obs), rows.obs.shape[1:]
    if found != said:
        raise InvalidEnvOutput(
            f"the observation has shape {found}; its space says {said}"
        )
    numbers = np.asarray(obs, np.float64)
    # A quarter of the time of `all`, at every step.
    first = np.isfinite(numbers).tobytes().find(b"\0")
    if first >= 0:
        raise InvalidEnvOutput(
            f"observation {first} of {len(numbers)} is {numbers[first]}"
        )
    return numbers


def _finite(reward: Any) -> float:
    """A reward, if it is a finite number."""
    number = float(reward)
    if not math.isfinite(number):
        raise InvalidEnvOutput(f"the reward is {number}")
    return number
