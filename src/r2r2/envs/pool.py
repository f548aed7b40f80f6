"""The environments of a fleet, one per member, stepped together."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from r2r2.config.refusal import Refusal
from r2r2.envs.make import make_env, spec_of
from r2r2.envs.members import Member, Spec


class Step(NamedTuple):
    """What one step gave, a row for each member stepped."""

    obs: NDArray[np.float64]  # [S, obs]; at an episode's end the one it ended in
    reward: NDArray[np.float64]  # [S]
    terminated: NDArray[np.bool_]  # [S]
    truncated: NDArray[np.bool_]  # [S]; a time limit


class EnvPool:
    """One environment per member; members differ in task and seed, not in sizes.

    It never resets by itself: the caller does, with the seed it chose, so that every
    episode is the caller's to name.

    Raises:
        Refusal: A task cannot be used, or the tasks differ in their sizes.

    Example:
        >>> with EnvPool([Member("Pendulum-v1", 0)], action_repeat=1) as pool:
        ...     first = pool.reset(0, seed=7)
        ...     pool.step(np.zeros((1, 1))).obs.shape
        (1, 3)
    """

    def __init__(self, members: Sequence[Member], action_repeat: int):
        self.members = tuple(members)
        self._envs = [make_env(member.task, action_repeat) for member in self.members]
        self._running = [False] * len(self._envs)
        specs = {
            member.task: spec_of(env)
            for member, env in zip(self.members, self._envs, strict=True)
        }
        self.spec = _shared(specs)

    def reset(self, index: int, seed: int) -> NDArray[np.float64]:
        """Starts an episode of one member and gives its first observation."""
        obs, _ = self._envs[index].reset(seed=seed)
        self._running[index] = True
        return np.array(obs, dtype=np.float64)

    def step(
        self, actions: NDArray[np.floating], indices: Sequence[int] | None = None
    ) -> Step:
        """Acts once in every member, or in those of `indices`; the arrays are fresh.

        Args:
            actions: In [-1, 1], a row for each member stepped.
            indices: The members to step, for when episodes end at different times.

        Raises:
            ResetNeeded: A member's episode is over.
        """
        rows = range(len(self._envs)) if indices is None else indices
        shape = (len(rows), self.spec.action_dim)
        if actions.shape != shape:
            raise ValueError(f"actions have shape {actions.shape}; needed is {shape}")
        over = [index for index in rows if not self._running[index]]
        if over:
            raise ResetNeeded(f"members {over} have no episode running: reset them")
        outcome = Step(
            obs=np.empty((len(rows), self.spec.obs_dim)),
            reward=np.empty(len(rows)),
            terminated=np.empty(len(rows), dtype=np.bool_),
            truncated=np.empty(len(rows), dtype=np.bool_),
        )
        for row, index in enumerate(rows):
            *parts, _ = self._envs[index].step(actions[row])
            for column, part in zip(outcome, parts, strict=True):
                column[row] = part
            ended = outcome.terminated[row] or outcome.truncated[row]
            self._running[index] = not ended
        return outcome

    def close(self) -> None:
        """Frees the environments; a second call does nothing."""
        while self._envs:
            self._envs.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()


def _shared(specs: dict[str, Spec]) -> Spec:
    """The one spec of all tasks: the members' updates are one array program."""
    first, *others = specs.items()
    for task, spec in others:
        if spec != first[1]:
            raise Refusal(
                f"env is {first[0]!r} {_sizes(first[1])} and {task!r} {_sizes(spec)};"
                " tasks trained together must have the same sizes"
            )
    return first[1]


def _sizes(spec: Spec) -> str:
    return f"(observation {spec.obs_dim}, action {spec.action_dim})"
