"""Returns of the evaluated policies, on environments of their own."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent, Member
from r2r2.envs.make import episode_seed
from r2r2.envs.pool import EnvPool


class Evaluator:
    """Runs whole episodes without exploration, all those of a member at once.

    Episode `index` of a purpose is seeded by (seed, purpose, index) alone, so an
    evaluation does not depend on who else is evaluated.
    """

    def __init__(
        self, agent: Agent, members: Sequence[Member], action_repeat: int, episodes: int
    ):
        self._members, self._episodes = tuple(members), episodes
        slots = [member for member in members for _ in range(episodes)]
        self._pool = EnvPool(slots, action_repeat)
        self._greedy = jax.jit(jax.vmap(agent.greedy))

    def returns(
        self, policies: Any, members: Sequence[int], first: int, purpose: str
    ) -> NDArray[np.float64]:
        """Undiscounted returns of `members`, [K, episodes].

        Args:
            policies: the evaluated policies of all members, [S, ...].
            members: whom to evaluate.
            first: the index of their first episode within the purpose.
            purpose: as in `episode_seed`.
        """
        size, episodes = len(self._members), self._episodes
        obs = np.zeros((size * episodes, self._pool.spec.obs_dim))
        totals = np.zeros(size * episodes)
        running: list[int] = []
        for member in members:
            for episode in range(episodes):
                slot = member * episodes + episode
                seed = self._members[member].seed
                index = first + episode
                obs[slot] = self._pool.reset(slot, episode_seed(seed, purpose, index))
                running.append(slot)
        while running:
            shaped = obs.reshape(size, episodes, -1)
            actions = np.asarray(self._greedy(policies, shaped))
            step = self._pool.step(
                actions.reshape(size * episodes, -1)[running], running
            )
            obs[running] = step.obs
            totals[running] += step.reward
            over = step.terminated | step.truncated
            running = [
                slot for slot, ended in zip(running, over, strict=True) if not ended
            ]
        return totals.reshape(size, episodes)[list(members)]

    def close(self) -> None:
        """Frees the environments."""
        self._pool.close()
