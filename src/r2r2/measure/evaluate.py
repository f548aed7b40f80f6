"""Returns of the evaluated policies, on environments of their own."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent
from r2r2.envs.make import episode_seed
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool

# Environments of an evaluation, at most: a dog takes 85 MB and a third of a second.
SLOTS = 64


class Evaluator:
    """Runs whole episodes without exploration, many at once.

    Episode `index` of a purpose is seeded by (seed, purpose, index) alone, so an
    evaluation does not depend on who else is evaluated, nor on how many at once.
    """

    def __init__(
        self, agent: Agent, members: Sequence[Member], action_repeat: int, episodes: int
    ):
        self._members, self._episodes = tuple(members), episodes
        self._width = max(1, min(episodes, SLOTS // len(members)))
        slots = [member for member in members for _ in range(self._width)]
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
        waves = [
            self._wave(policies, members, range(begin, end), purpose)
            for begin in range(first, first + self._episodes, self._width)
            for end in [min(begin + self._width, first + self._episodes)]
        ]
        return np.concatenate(waves, axis=1)

    def _wave(
        self, policies: Any, members: Sequence[int], episodes: range, purpose: str
    ) -> NDArray[np.float64]:
        shape = len(self._members), self._width
        obs = np.zeros((*shape, self._pool.spec.obs_dim))
        totals = np.zeros(shape)
        running: list[tuple[int, int]] = []
        for member in members:
            for place, index in enumerate(episodes):
                seed = episode_seed(self._members[member].seed, purpose, index)
                obs[member, place] = self._pool.reset(self._slot(member, place), seed)
                running.append((member, place))
        while running:
            actions = np.asarray(self._greedy(policies, obs))
            where = tuple(np.transpose(running))
            slots = [self._slot(*pair) for pair in running]
            step = self._pool.step(actions[where], slots)
            obs[where] = step.obs
            totals[where] += step.reward
            over = step.terminated | step.truncated
            running = [
                pair for pair, ended in zip(running, over, strict=True) if not ended
            ]
        return totals[list(members), : len(episodes)]

    def _slot(self, member: int, place: int) -> int:
        return member * self._width + place

    def close(self) -> None:
        """Frees the environments."""
        self._pool.close()


def deviation(returns: NDArray[np.float64]) -> float:
    """Standard deviation over episodes, unbiased; NaN for one episode.

    Example:
        >>> deviation(np.array([1.0, 3.0]))
        1.4142135623730951
    """
    return float(returns.std(ddof=1)) if len(returns) > 1 else float("nan")
