"""Returns of the evaluated policies, on environments of their own."""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.core import Agent, Array
from r2r2.envs.failure import Fault
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool, cores
from r2r2.envs.troupe import Recipe
from r2r2.envs.turns import Place, Step, Turn
from r2r2.interact.normalise import Scales
from r2r2.learn.bursts import filled, group_size
from r2r2.learn.targets import pick
from r2r2.measure.episodes import Episodes, Playing, Underway

Sight = Callable[[NDArray[np.float64]], NDArray[np.float64]]

# Environments of an evaluation per core, at most: more would not be faster, and a dog
# takes 85 MB.
SLOTS_PER_CORE = 32


class Evaluated(NamedTuple):
    """What is evaluated, of all members."""

    policies: Any  # [S, ...]
    scales: Scales | None = None  # [S, ...], where observations are normalised


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

    Args:
        agent: the algorithm.
        episodes: which there are to play.
        size: of the fleet.
    """

    def __init__(self, agent: Agent, episodes: Episodes, size: int):
        self.episodes, self._size = episodes, size
        self._greedy = jax.jit(partial(_greedy, agent))
        self._pick = jax.jit(pick)
        # Beside an accelerator too: that one trains meanwhile.
        self._stage = jax.devices("cpu")[0]
        self._policies: Any = None  # [S, ...], as of each member's evaluation
        self._scales: dict[int, Scales | None] = {}

    @property
    def busy(self) -> list[int]:
        """The members under evaluation."""
        return self.episodes.busy

    def begin(
        self,
        pool: EnvPool,
        members: Sequence[int],
        evaluated: Evaluated,
        first: Sequence[int],
    ) -> tuple[Fault, ...]:
        """Starts evaluating `members`, who are not busy, as they are now.

        Args:
            pool: its slots are reset.
            members: whom to evaluate.
            evaluated: of all members.
            first: the index of each one's first episode within the purpose.

        Returns:
            The slots that failed, whose episodes are to be `begun` yet.
        """
        self._keep(members, evaluated)
        new: list[Playing] = []
        for member, start in zip(members, first, strict=True):
            new += self.episodes.begin(member, start)
        slots = [playing.slot for playing in new]
        obs, faults = pool.begin(slots, list(map(self.episodes.seed, new)))
        self.episodes.obs.update(zip(slots, obs, strict=True))
        return faults

    def _keep(self, members: Sequence[int], evaluated: Evaluated) -> None:
        self._scales |= dict.fromkeys(members, evaluated.scales)
        # A copy: the originals are donated to the next update.
        there = jax.device_put(evaluated.policies, self._stage, may_alias=False)
        if self._policies is None:
            self._policies = there
        else:
            mask = np.isin(np.arange(self._size), list(members))
            self._policies = self._pick(mask, there, self._policies)

    def turn(self) -> Turn:
        """The next step of every episode under way; there must be one."""
        episodes, rows = self.episodes, collections.defaultdict[int, list[int]](list)
        playing = episodes.playing
        for place, one in enumerate(playing):
            rows[one.member].append(place)
        who = filled(tuple(rows), group_size(len(rows), self._size, growth=2))
        obs = np.zeros((len(who), episodes.width, len(episodes.obs[playing[0].slot])))
        where = np.zeros((len(playing), 2), dtype=int)
        for row, (member, places) in enumerate(rows.items()):
            for column, place in enumerate(places):
                obs[row, column] = episodes.obs[playing[place].slot]
                where[place] = row, column
            obs[row] = sight_of(self._scales[member], member)(obs[row])
        arguments = jax.device_put((who, obs), self._stage)
        actions = np.asarray(self._greedy(self._policies, *arguments))
        slots = [one.slot for one in playing]
        seeds = list(map(episodes.seed_after, playing))
        return Turn(slots, actions[tuple(where.T)], seeds)

    def take(self, step: Step) -> list[tuple[int, NDArray[np.float64]]]:
        """Books a turn; gives the members that are done, with their returns."""
        return self.episodes.take(step)

    def kept(self) -> Evaluated:
        """What the evaluations under way evaluate, on the host."""
        busy = {m: scales for m in self.busy if (scales := self._scales[m])}
        policies = jax.device_get(self._policies)
        if not busy:
            return Evaluated(policies)
        parts = [np.zeros_like(part) for part in next(iter(busy.values()))]
        for member, scales in busy.items():
            for part, own in zip(parts, scales, strict=True):
                part[member] = own[member]
        return Evaluated(policies, Scales(*parts))

    def go_on(self, evaluated: Evaluated, underway: Underway) -> None:
        """Goes on with evaluations; the pool's slots must be as they were then."""
        self.episodes.go_on(underway)
        self._keep(self.busy, evaluated)


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


def play_out(
    evaluator: Evaluator, pool: EnvPool, mend: Callable[[Fault], None] | None = None
) -> dict[int, NDArray[np.float64]]:
    """Plays every episode under way to its end; returns by member.

    Args:
        evaluator: whose episodes.
        pool: where they run.
        mend: called with every slot that failed; by default it raises.
    """
    found: dict[int, NDArray[np.float64]] = {}
    while evaluator.busy:
        step = pool.step(evaluator.turn())
        found.update(evaluator.take(step))
        for fault in step.faults:
            if mend is None:
                raise pool.failure(fault)
            mend(fault)
    return found


def deviation(returns: NDArray[np.float64]) -> float:
    """Standard deviation over episodes, unbiased; NaN for one episode.

    Example:
        >>> deviation(np.array([1.0, 3.0]))
        1.4142135623730951
    """
    return float(returns.std(ddof=1)) if len(returns) > 1 else float("nan")
