"""The DeepMind Control Suite as Gymnasium environments with flat observations."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from numpy.typing import NDArray

from r2r2.envs.dm_suite import TimeStep, dm_suite, outdated
from r2r2.envs.quiet import quiet

Vector = NDArray[np.floating]


class DMCEnv(gymnasium.Env[Vector, Vector]):
    """A dm_control task whose episodes are functions of their reset's seed.

    The observation is the concatenation of the task's parts in dm_control's order.

    Example:
        >>> env = DMCEnv("cartpole", "swingup")
        >>> env.observation_space.shape, env.action_space.shape
        ((5,), (1,))
    """

    def __init__(self, domain: str, task: str):
        suite = dm_suite()
        with quiet():
            self._env = suite.load(domain, task)
        self._running = False
        self.step_limit: float = self._env._step_limit  # infinite where there is none
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape)
            for bound in (action.minimum, action.maximum)
        )
        with outdated():
            parts = self._env.observation_spec().values()
        size = sum(int(np.prod(part.shape)) for part in parts)
        self.action_space = Box(low, high, dtype=np.float64)
        self.observation_space = Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Starts an episode; with a seed, whatever happened before is forgotten."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._env.task.random.seed(seed)
        self._running = True
        with outdated():
            return _flat(self._env.reset()), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Acts once; only an end of discount 0 is a termination.

        Raises:
            ResetNeeded: The episode is over. dm_control would reset in silence, and
                the reset's observation would pass for the action's outcome.
        """
        if not self._running:
            raise ResetNeeded("the episode is over: reset before the next step")
        with outdated():
            timestep = self._env.step(action)
        last = timestep.last()
        self._running = not last
        terminated = last and timestep.discount == 0
        truncated = last and not terminated
        return _flat(timestep), float(timestep.reward), terminated, truncated, {}

    def close(self) -> None:
        """Frees the simulation."""
        self._env.close()


def _flat(timestep: TimeStep) -> Vector:
    """The parts of an observation as one vector; scalars have length 1."""
    return np.concatenate([np.ravel(part) for part in timestep.observation.values()])
