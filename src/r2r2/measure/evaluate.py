"""Returns of the evaluated policies, on environments of their own."""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent, Array
from r2r2.envs.make import episode_seed
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool, Place, Step, Turn, cores
from r2r2.envs.slots import NO_EPISODE
from r2r2.envs.troupe import Recipe
from r2r2.interact.normalise import Scales
from r2r2.learn.bursts import filled, group_size
from r2r2.learn.targets import pick

Sight = Callable[[NDArray[np.float64]], NDArray[np.float64]]

# Environments of an evaluation per core, at most: more would not be faster, and a dog
# takes 85 MB.
SLOTS_PER_CORE = 32


class Evaluated(NamedTuple):
    """What is evaluated, of all members."""

    policies: Any  # [S, ...]
    scales: Scales | None = None  # [S, ...], where observations are normalised


class Playing(NamedTuple):
    """An episode under way."""

    member: int
    slot: int  # in the pool
    number: int  # of the evaluation's episodes, from 0


def places_for(
    members: Sequence[Member], recipes: Sequence[Recipe], episodes: int
) -> list[Place]:
    """Slots for all episodes of all members at once, or as many as the cores can use.

    Every member has the same number of them, one after the other.
    """
    width = max(1, min(episodes, SLOTS_PER_CORE * cores() // len(members)))
    return [
        Place(member, recipe, "evaluation")
        for member, recipe in zip(members, recipes, strict=True)
        for _ in range(width)
    ]


class Evaluator:
    """Plays whole episodes without exploration, turn by turn, many at once.

    Episode `index` of a purpose is seeded by (seed, purpose, index) alone, so an
    evaluation does not depend on who else is evaluated, nor on how many at once.

    Args:
        agent: the algorithm.
        members: whose policies are evaluated.
        slots: the pool's slots for it, as `places_for` lays them out.
        episodes: episodes per evaluation.
        purpose: as in `episode_seed`.
    """

    def __init__(
        self,
        agent: Agent,
        members: Sequence[Member],
        slots: range,
        episodes: int,
        purpose: str,
    ):
        self._members, self._slots, self._episodes = tuple(members), slots, episodes
        self._purpose = purpose
        self._width = len(slots) // len(members)
        self._greedy = jax.jit(partial(_greedy, agent))
        self._pick = jax.jit(pick)
        # Beside an accelerator too: that one trains meanwhile.
        self._stage = jax.devices("cpu")[0]
        self._policies: Any = None  # [S, ...], as of each member's evaluation
        self._obs: dict[int, NDArray[np.float64]] = {}  # by slot
        self._playing: list[Playing] = []
        self._returns: dict[int, NDArray[np.float64]] = {}  # by member
        self._seeds: dict[int, list[int]] = {}
        self._sight: dict[int, Sight] = {}

    @property
    def busy(self) -> list[int]:
        """The members under evaluation."""
        return list(self._returns)

    def begin(
        self,
        pool: EnvPool,
        members: Sequence[int],
        evaluated: Evaluated,
        first: Sequence[int],
    ) -> None:
        """Starts evaluating `members`, who are not busy, as they are now.

        Args:
            pool: its slots are reset.
            members: whom to evaluate.
            evaluated: of all members.
            first: the index of each one's first episode within the purpose.
        """
        self._keep(members, evaluated.policies)
        for member, start in zip(members, first, strict=True):
            seed, numbers = self._members[member].seed, range(self._episodes)
            self._returns[member] = np.zeros(self._episodes)
            self._sight[member] = sight_of(evaluated.scales, member)
            self._seeds[member] = [
                episode_seed(seed, self._purpose, start + number) for number in numbers
            ]
        new = [
            Playing(member, self._slots[member * self._width + place], place)
            for member in members
            for place in range(self._width)
        ]
        slots = [playing.slot for playing in new]
        obs = pool.reset(slots, [self._seeds[p.member][p.number] for p in new])
        self._obs.update(zip(slots, obs, strict=True))
        self._playing += new

    def _keep(self, members: Sequence[int], policies: Any) -> None:
        # A copy: the originals are donated to the next update.
        there = jax.device_put(policies, self._stage, may_alias=False)
        if self._policies is None:
            self._policies = there
        else:
            mask = np.isin(np.arange(len(self._members)), list(members))
            self._policies = self._pick(mask, there, self._policies)

    def turn(self) -> Turn:
        """The next step of every episode under way; there must be one."""
        rows: dict[int, list[int]] = collections.defaultdict(list)
        for place, playing in enumerate(self._playing):
            rows[playing.member].append(place)
        who = filled(tuple(rows), group_size(len(rows), len(self._members), growth=2))
        obs = np.zeros((len(who), self._width, len(self._obs[self._playing[0].slot])))
        where = np.zeros((len(self._playing), 2), dtype=int)
        for row, places in enumerate(rows.values()):
            for column, place in enumerate(places):
                obs[row, column] = self._obs[self._playing[place].slot]
                where[place] = row, column
            obs[row] = self._sight[self._playing[places[0]].member](obs[row])
        arguments = jax.device_put((who, obs), self._stage)
        actions = np.asarray(self._greedy(self._policies, *arguments))
        slots = [playing.slot for playing in self._playing]
        return Turn(
            slots, actions[tuple(where.T)], list(map(self._after, self._playing))
        )

    def take(self, step: Step) -> list[tuple[int, NDArray[np.float64]]]:
        """Books a turn; gives the members that are done, with their returns."""
        going: list[Playing] = []
        rows = zip(self._playing, step.reward, step.ended, step.obs, strict=True)
        for playing, reward, ended, obs in rows:
            self._returns[playing.member][playing.number] += reward
            self._obs[playing.slot] = obs
            if not ended:
                going.append(playing)
            elif (number := playing.number + self._width) < self._episodes:
                going.append(playing._replace(number=number))
        self._playing = going
        still = {playing.member for playing in going}
        done = [member for member in self._returns if member not in still]
        return [(member, self._returns.pop(member)) for member in done]

    def _after(self, playing: Playing) -> int:
        """The seed of the episode that follows in a slot."""
        number = playing.number + self._width
        return (
            self._seeds[playing.member][number]
            if number < self._episodes
            else NO_EPISODE
        )


def sight_of(scales: Scales | None, member: int) -> Sight:
    """How a member sees observations, [..., obs]."""
    if scales is None:
        return lambda obs: obs
    mean, deviation = np.asarray(scales.mean[member]), scales.deviation[member]
    return lambda obs: (obs - mean) / np.asarray(deviation)


def _greedy(agent: Agent, policies: Any, who: Array, obs: Array) -> Array:
    chosen = jax.tree.map(lambda leaf: leaf[who], policies)
    actions: Array = jax.vmap(agent.greedy)(chosen, obs)
    return actions


def play_out(evaluator: Evaluator, pool: EnvPool) -> dict[int, NDArray[np.float64]]:
    """Plays every episode under way to its end; returns by member."""
    found: dict[int, NDArray[np.float64]] = {}
    while evaluator.busy:
        found.update(evaluator.take(pool.step(evaluator.turn())))
    return found


def deviation(returns: NDArray[np.float64]) -> float:
    """Standard deviation over episodes, unbiased; NaN for one episode.

    Example:
        >>> deviation(np.array([1.0, 3.0]))
        1.4142135623730951
    """
    return float(returns.std(ddof=1)) if len(returns) > 1 else float("nan")
