"""Environments stepped in one process, be it a worker or the main one."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from r2r2.envs.failure import Raised
from r2r2.envs.make import Env, Source, adapted, make_env
from r2r2.envs.slots import NO_EPISODE, Slots

RESET, STEP = 1, 2  # orders


class Recipe(NamedTuple):
    """How to build one environment, in whichever process.

    Example:
        >>> Recipe("Pendulum-v1", action_repeat=1).build().action_space.shape
        (1,)
    """

    task: str
    action_repeat: int
    source: Source | None = None  # builds it in place of the task's id

    def build(self) -> Env:
        """The environment as agents see it."""
        if self.source is None:
            return make_env(self.task, self.action_repeat)
        return adapted(self.task, self.source(), self.action_repeat)


class Troupe:
    """The environments of some slots, each built when it is first needed."""

    def __init__(self, recipes: Mapping[int, Recipe]):
        self._recipes = recipes
        self._envs: dict[int, Env] = {}

    def env(self, slot: int) -> Env:
        """The slot's environment."""
        if slot not in self._envs:
            self._envs[slot] = self._recipes[slot].build()
        return self._envs[slot]

    def run(self, slots: Sequence[int], rows: Slots, worker: int) -> None:
        """Carries out the orders of slots, one after the other.

        Raises:
            Raised: An environment did; those after it were not reached.
        """
        for slot in slots:
            rows.busy[worker] = slot
            act = self._reset if rows.order[slot] == RESET else self._step
            try:
                act(slot, rows)
            except Exception as error:
                raise Raised(slot) from error

    def _reset(self, slot: int, rows: Slots) -> None:
        obs, _ = self.env(slot).reset(seed=int(rows.seed[slot]))
        rows.obs[slot] = _fitting(obs, rows)

    def _step(self, slot: int, rows: Slots) -> None:
        reached, reward, terminated, truncated, _ = self.env(slot).step(
            rows.action[slot].copy()
        )
        rows.reached[slot] = rows.obs[slot] = _fitting(reached, rows)
        rows.reward[slot] = reward
        rows.terminated[slot], rows.truncated[slot] = terminated, truncated
        if (terminated or truncated) and rows.seed[slot] != NO_EPISODE:
            self._reset(slot, rows)

    def close(self) -> None:
        """Frees the environments; a second call does nothing."""
        while self._envs:
            self._envs.popitem()[1].close()


def _fitting(obs: Any, rows: Slots) -> Any:
    """An observation, if it has the shape that its space said."""
    found, said = np.shape(obs), rows.obs.shape[1:]
    if found != said:
        raise ValueError(f"the observation has shape {found}; its space says {said}")
    return obs
