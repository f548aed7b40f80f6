"""Returns of the evaluated policies, on environments of their own."""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array
from r2r2.agents.tree_ops import select
from r2r2.compute.update_grouping import group_size, pad_members
from r2r2.envs.errors import Fault
from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool, available_cores
from r2r2.envs.vector.step_types import (
    NO_EPISODE,
    EnvFactory,
    EnvSlot,
    StepRequest,
    StepResult,
)
from r2r2.replay.normalizer import Scales


class Playing(NamedTuple):
    """An episode under way."""

    member: int
    slot: int  # in the pool
    number: int  # of the evaluation's episodes, from 0


class Underway(NamedTuple):
    """Evaluations under way, to be saved."""

    obs: dict[int, NDArray[np.float64]]  # by slot
    playing: list[Playing]
    returns: dict[int, list[float]]  # by member
    first: dict[int, int]  # by member, the index of its first episode
    failed: dict[tuple[int, int], int]  # by member and number, how often


class Episodes:
    """Counts evaluations through their episodes.

    Episode `index` of a purpose is seeded by (seed, purpose, index) alone, so an
    evaluation does not depend on who else is evaluated, nor on how many at once.

    Args:
        members: who may be evaluated.
        slots: the pool's slots for it, as `places_for` lays them out.
        episodes: episodes per evaluation.
        purpose: as in `episode_seed`.
    """

    def __init__(
        self, members: Sequence[Member], slots: range, episodes: int, purpose: str
    ):
        self._members, self._slots, self._episodes = tuple(members), slots, episodes
        self._purpose = purpose
        self.width = len(slots) // len(members)  # slots of each member
        self.obs: dict[int, NDArray[np.float64]] = {}  # acted on next, by slot
        self.playing: list[Playing] = []
        self._returns: dict[int, NDArray[np.float64]] = {}  # by member
        self._first: dict[int, int] = {}  # the index of each one's first episode
        self._seeds: dict[int, list[int]] = {}
        self._failed: dict[tuple[int, int], int] = {}  # by member and number

    @property
    def busy(self) -> list[int]:
        """The members under evaluation."""
        return list(self._returns)

    def begin(self, member: int, first: int) -> list[Playing]:
        """Starts a member's evaluation, its episodes counted from index `first` on."""
        self._returns[member] = np.zeros(self._episodes)
        self._name(member, first)
        places = range(self.width)
        slots = self._slots[member * self.width :]
        new = [Playing(member, slots[place], place) for place in places]
        self.playing += new
        return new

    def seed(self, playing: Playing) -> int:
        """The seed of an episode."""
        return self._seeds[playing.member][playing.number]

    def seed_after(self, playing: Playing) -> int:
        """The seed of the episode that follows in its slot."""
        number = playing.number + self.width
        more = number < self._episodes
        return self._seeds[playing.member][number] if more else NO_EPISODE

    def seed_again(self, playing: Playing) -> int:
        """The seed of an episode that failed: its own once more, then others.

        What failed by accident is repeated as it was. What fails from one start alone
        would fail for ever.
        """
        member, number = playing.member, playing.number
        times = self._failed[member, number] = self._failed.get((member, number), 0) + 1
        self._reseed(member, number, times)
        return self.seed(playing)

    def replaced(self, playing: Playing) -> bool:
        """Whether another start took the place of its own, since that one failed."""
        return self._failed.get((playing.member, playing.number), 0) > 1

    def _reseed(self, member: int, number: int, times: int) -> None:
        if times > 1:
            seed, index = self._members[member].seed, self._first[member] + number
            purpose = f"{self._purpose}-{times}"
            self._seeds[member][number] = episode_seed(seed, purpose, index)

    def at(self, slot: int) -> Playing | None:
        """The episode that runs in a slot, if one does."""
        return next((one for one in self.playing if one.slot == slot), None)

    def standing(self, member: int) -> NDArray[np.float64]:
        """What a member's episodes under way are acted on next, [E, obs]."""
        own = [self.obs[one.slot] for one in self.playing if one.member == member]
        return np.array(own)

    def begun(self, slot: int, obs: NDArray[np.float64]) -> None:
        """A slot's episode had to begin again, with `obs`: what it gave is void."""
        if one := self.at(slot):
            self._returns[one.member][one.number] = 0
            self.obs[slot] = obs

    def take(self, step: StepResult) -> list[tuple[int, NDArray[np.float64]]]:
        """Books a turn; gives the members that are done, with their returns."""
        going: list[Playing] = []
        rows = zip(self.playing, step.reward, step.ended, step.obs, strict=True)
        for playing, reward, ended, obs in rows:
            self._returns[playing.member][playing.number] += reward
            self.obs[playing.slot] = obs
            if not ended:
                going.append(playing)
            elif (number := playing.number + self.width) < self._episodes:
                going.append(playing._replace(number=number))
        self.playing = going
        still = {playing.member for playing in going}
        done = [member for member in self._returns if member not in still]
        return [(member, self._returns.pop(member)) for member in done]

    def forget(self, member: int) -> None:
        """Gives a member's evaluation up, if one is under way."""
        self.playing = [one for one in self.playing if one.member != member]
        self._returns.pop(member, None)

    def underway(self) -> Underway:
        """All that is under way."""
        return Underway(
            obs={playing.slot: self.obs[playing.slot] for playing in self.playing},
            playing=list(self.playing),
            returns={member: x.tolist() for member, x in self._returns.items()},
            first={member: self._first[member] for member in self._returns},
            failed={x: n for x, n in self._failed.items() if x[0] in self._returns},
        )

    def go_on(self, underway: Underway) -> None:
        """Goes on with what `underway` gave."""
        self.playing, self.obs = list(underway.playing), dict(underway.obs)
        for member, returns in underway.returns.items():
            self._returns[member] = np.array(returns)
            self._name(member, underway.first[member])
        self._failed |= underway.failed
        for (member, number), times in underway.failed.items():
            self._reseed(member, number, times)

    def _name(self, member: int, first: int) -> None:
        seed, indices = self._members[member].seed, range(first, first + self._episodes)
        self._first[member] = first
        self._failed = {x: n for x, n in self._failed.items() if x[0] != member}
        self._seeds[member] = [episode_seed(seed, self._purpose, i) for i in indices]


Sight = Callable[[NDArray[np.float64]], NDArray[np.float64]]

# Environments of an evaluation per core, at most: more would not be faster, and a dog
# takes 85 MB.
SLOTS_PER_CORE = 32


class EvalPolicies(NamedTuple):
    """What is evaluated, of all members."""

    policies: Any  # [S, ...]
    scales: Scales | None = None  # [S, ...], where observations are normalised


def eval_slots(
    members: Sequence[Member], factories: Sequence[EnvFactory], episodes: int
) -> list[EnvSlot]:
    """Slots for all episodes of all members at once, or as many as the cores can use.

    Every member has the same number of them, one after the other.
    """
    width = max(1, min(episodes, SLOTS_PER_CORE * available_cores() // len(members)))
    return [
        EnvSlot(member, factory, "evaluation")
        for member, factory in zip(members, factories, strict=True)
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
        self._pick = jax.jit(select)
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
        evaluated: EvalPolicies,
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
        obs, faults = pool.try_reset(slots, list(map(self.episodes.seed, new)))
        self.episodes.obs.update(zip(slots, obs, strict=True))
        return faults

    def _keep(self, members: Sequence[int], evaluated: EvalPolicies) -> None:
        self._scales |= dict.fromkeys(members, evaluated.scales)
        # A copy: the originals are donated to the next update.
        there = jax.device_put(evaluated.policies, self._stage, may_alias=False)
        if self._policies is None:
            self._policies = there
        else:
            mask = np.isin(np.arange(self._size), list(members))
            self._policies = self._pick(mask, there, self._policies)

    def turn(self) -> StepRequest:
        """The next step of every episode under way; there must be one."""
        episodes, rows = self.episodes, collections.defaultdict[int, list[int]](list)
        playing = episodes.playing
        for place, one in enumerate(playing):
            rows[one.member].append(place)
        who = pad_members(tuple(rows), group_size(len(rows), self._size, growth=2))
        obs = np.zeros((len(who), episodes.width, len(episodes.obs[playing[0].slot])))
        where = np.zeros((len(playing), 2), dtype=int)
        for row, (member, places) in enumerate(rows.items()):
            for column, place in enumerate(places):
                obs[row, column] = episodes.obs[playing[place].slot]
                where[place] = row, column
            obs[row] = obs_normalizer(self._scales[member], member)(obs[row])
        arguments = jax.device_put((who, obs), self._stage)
        actions = np.asarray(self._greedy(self._policies, *arguments))
        slots = [one.slot for one in playing]
        seeds = list(map(episodes.seed_after, playing))
        return StepRequest(slots, actions[tuple(where.T)], seeds)

    def take(self, step: StepResult) -> list[tuple[int, NDArray[np.float64]]]:
        """Books a turn; gives the members that are done, with their returns."""
        return self.episodes.take(step)

    def kept(self) -> EvalPolicies:
        """What the evaluations under way evaluate, on the host."""
        busy = {m: scales for m in self.busy if (scales := self._scales[m])}
        policies = jax.device_get(self._policies)
        if not busy:
            return EvalPolicies(policies)
        parts = [np.zeros_like(part) for part in next(iter(busy.values()))]
        for member, scales in busy.items():
            for part, own in zip(parts, scales, strict=True):
                part[member] = own[member]
        return EvalPolicies(policies, Scales(*parts))

    def go_on(self, evaluated: EvalPolicies, underway: Underway) -> None:
        """Goes on with evaluations; the pool's slots must be as they were then."""
        self.episodes.go_on(underway)
        self._keep(self.busy, evaluated)


def obs_normalizer(scales: Scales | None, member: int) -> Sight:
    """How a member sees observations, [..., obs]."""
    if scales is None:
        return lambda obs: obs
    mean, deviation = np.asarray(scales.mean[member]), scales.deviation[member]
    return lambda obs: (obs - mean) / np.asarray(deviation)


def _greedy(agent: Agent, policies: Any, who: Array, obs: Array) -> Array:
    chosen = jax.tree.map(lambda leaf: leaf[who], policies)
    actions: Array = jax.vmap(agent.greedy)(chosen, obs)
    return actions


def play_to_end(
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
                raise pool.to_error(fault)
            mend(fault)
    return found


def deviation(returns: NDArray[np.float64]) -> float:
    """Standard deviation over episodes, unbiased; NaN for one episode.

    Example:
        >>> deviation(np.array([1.0, 3.0]))
        1.4142135623730951
    """
    return float(returns.std(ddof=1)) if len(returns) > 1 else float("nan")
