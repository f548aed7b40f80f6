"""The environments of a fleet: some in this process, the others in workers."""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from r2r2.config.refusal import Refusal
from r2r2.envs.crew import PATIENCE, Memory, Trouble, Worker
from r2r2.envs.failure import EnvFailure, Raised
from r2r2.envs.make import spec_of
from r2r2.envs.members import Member, Spec
from r2r2.envs.slots import slots_over
from r2r2.envs.troupe import RESET, STEP, Recipe, Troupe
from r2r2.envs.waiting import looking_time
from r2r2.envs.worker import Post


class Place(NamedTuple):
    """What one slot of a pool is for."""

    member: Member
    recipe: Recipe
    purpose: str  # 'training' or 'evaluation'


class Step(NamedTuple):
    """What one step gave, a row for each slot stepped; the arrays are fresh."""

    reached: NDArray[np.float64]  # [K, obs]; at an episode's end the one it ended in
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]; a time limit
    obs: NDArray[np.float64]  # [K, obs], acted on next

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whose episode is over, [K]."""
        return self.terminated | self.truncated

    def part(self, begin: int, end: int) -> "Step":
        """Some of the rows."""
        return Step(*cast(Any, [column[begin:end] for column in self]))


class Turn(NamedTuple):
    """What some slots are to do."""

    slots: Sequence[int]
    actions: NDArray[np.floating]  # [K, action], in [-1, 1]
    seeds: Sequence[int]  # of the episodes to begin where one ends, or NO_EPISODE


def joined(turns: Sequence[Turn]) -> Turn:
    """Several turns, of different slots, as one."""
    return Turn(
        slots=[slot for turn in turns for slot in turn.slots],
        actions=np.concatenate([turn.actions for turn in turns]),
        seeds=[seed for turn in turns for seed in turn.seeds],
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def crew_size(wanted: int | None) -> int:
    """How many worker processes: so many as wanted, or one per core.

    Example:
        >>> crew_size(0), crew_size(None) == cores()
        (0, True)
    """
    if wanted is None:
        return cores()
    if wanted < 0:
        raise Refusal(f"workers is {wanted}; allowed is a whole number from 0 on")
    return min(wanted, cores())


class EnvPool:
    """An environment for each place, stepped together; all have the same sizes.

    No episode begins but with a seed that the caller chose, so that every one is the
    caller's to name. Environments are built when they are first reset.

    Args:
        places: what the slots are for.
        workers: processes that step them, at most; 0: none.
        here: how many of the first places are stepped in this process all the same.

    Raises:
        Refusal: A task cannot be used, or the tasks differ in their sizes.

    Example:
        >>> member, recipe = Member("Pendulum-v1", 0), Recipe("Pendulum-v1", 1)
        >>> with EnvPool([Place(member, recipe, "training")], workers=0) as pool:
        ...     first = pool.reset([0], seeds=[7])
        ...     pool.step(Turn([0], np.zeros((1, 1)), [8])).obs.shape
        (1, 3)
    """

    def __init__(self, places: Sequence[Place], workers: int, here: int = 0):
        self.places = tuple(places)
        self._here = here if workers else len(self.places)
        away = range(self._here, len(self.places))
        recipes = {slot: place.recipe for slot, place in enumerate(self.places)}
        self._troupe = Troupe({slot: recipes[slot] for slot in range(self._here)})
        self._workers: list[Worker] = []
        self._memory: Memory | None = None
        try:
            self._build(recipes, min(workers, len(away)))
        except BaseException:
            self.close()
            raise

    def _build(self, recipes: dict[int, Recipe], crew: int) -> None:
        self.spec, count = _shared(self._sizes(recipes)), len(self.places)
        self._steps = np.zeros(count, dtype=int)
        self._running = np.zeros(count, dtype=bool)
        self._memory = Memory(count, self.spec)
        self._rows = slots_over(self._memory.map, count, self.spec)
        away = range(self._here, count)
        self._home = {slot: place % crew for place, slot in enumerate(away)}
        # Only who has a member to train is asked at every turn.
        training = [slot for slot in away if self.places[slot].purpose == "training"]
        looking = looking_time(min(crew, len(training)), cores())
        for number in range(crew):
            own = {slot: recipes[slot] for slot in away[number::crew]}
            looks = looking if number < len(training) else 0.0
            post = Post(number, own, count, self.spec, looks)
            self._workers.append(Worker(post, self._rows, self._memory))

    def _sizes(self, recipes: dict[int, Recipe]) -> dict[str, Spec]:
        """The sizes of each task, from one environment of each."""
        sizes: dict[str, Spec] = {}
        for slot, recipe in recipes.items():
            if recipe.task in sizes:
                continue
            if slot < self._here:
                sizes[recipe.task] = spec_of(self._troupe.env(slot))
            else:
                env = recipe.build()
                sizes[recipe.task] = spec_of(env)
                env.close()
        return sizes

    def reset(self, slots: Sequence[int], seeds: Sequence[int]) -> NDArray[np.float64]:
        """Begins an episode in each slot; gives the first observations, [K, obs]."""
        where = list(slots)
        self._rows.seed[where] = seeds
        self._run(RESET, where)
        self._running[where] = True
        return self._rows.obs[where]

    def step(self, turn: Turn) -> Step:
        """Acts once in each slot of a turn.

        Raises:
            ResetNeeded: A slot has no episode running; nothing was stepped then.
            EnvFailure: An environment raised, or the process that steps it died.
        """
        where = list(turn.slots)
        rows, shape = self._rows, (len(where), self.spec.action_dim)
        if turn.actions.shape != shape:
            raise ValueError(
                f"actions have shape {turn.actions.shape}; needed is {shape}"
            )
        if not self._running[where].all():
            over = [slot for slot in where if not self._running[slot]]
            raise ResetNeeded(f"slots {over} have no episode running: reset them")
        rows.action[where], rows.seed[where] = turn.actions, turn.seeds
        self._steps[where] += 1
        self._run(STEP, where)
        names = Step._fields
        step = Step(*(getattr(rows, name)[where] for name in names))
        self._running[where] = ~step.ended | (rows.seed[where] >= 0)
        return step

    def _run(self, order: int, slots: list[int]) -> None:
        self._rows.order[slots] = order
        numbers = list({self._home[s] for s in slots if s >= self._here})
        crew = [self._workers[number] for number in numbers]
        self._rows.asked[numbers] += 1  # all at once: who looks begins now
        for worker in crew:
            worker.nudge()
        troubles = [self._run_here([slot for slot in slots if slot < self._here])]
        # Nobody is left at work, so that no answer is taken for the next order's.
        troubles += [worker.finish() for worker in crew]
        for trouble in filter(None, troubles):
            raise self._failure(trouble)

    def _run_here(self, slots: list[int]) -> Trouble | None:
        try:
            # The last worker's cells are no worker's where a slot is stepped here.
            self._troupe.run(slots, self._rows, worker=-1)
        except Raised as raised:
            return Trouble(raised.slot, raised.story)
        return None

    def _failure(self, trouble: Trouble) -> EnvFailure:
        place, step = self.places[trouble.slot], int(self._steps[trouble.slot])
        return EnvFailure(
            f"{place.member.task} of member {place.member.name} failed at its"
            f" {place.purpose} step {step}: {trouble.story}"
        )

    def close(self) -> None:
        """Frees environments, processes and memory; a second call does nothing."""
        for worker in self._workers:
            worker.close()
        until = time.monotonic() + PATIENCE
        try:
            self._troupe.close()
        finally:
            while self._workers:
                self._workers.pop().join(until)
            if self._memory is not None:
                self._memory.close()

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
