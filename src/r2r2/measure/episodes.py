"""Which episodes of which evaluations run in which slots, and what they gave so far."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.envs.make import episode_seed
from r2r2.envs.members import Member
from r2r2.envs.slots import NO_EPISODE
from r2r2.envs.turns import Step


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

    def take(self, step: Step) -> list[tuple[int, NDArray[np.float64]]]:
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
