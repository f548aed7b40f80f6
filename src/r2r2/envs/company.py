"""All environments of a pool, wherever they live: a troupe here, the others in workers.

Who fails is told, and a worker that is lost is replaced, while everybody else goes on.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from r2r2.config.refusal import Refusal
from r2r2.envs.crew import CLOSING, Lost, Memory, Worker
from r2r2.envs.make import spec_of
from r2r2.envs.members import Spec
from r2r2.envs.parcels import NOTHING, Parcel
from r2r2.envs.slots import slots_over
from r2r2.envs.state import Saved
from r2r2.envs.troupe import Recipe, Troupe
from r2r2.envs.worker import Post


class Outcome(NamedTuple):
    """How orders went."""

    stories: dict[int, str]  # by slot whose environment failed
    states: dict[int, Saved]  # by slot that was asked for it
    lost: list[Lost]  # workers


class Company:
    """Carries out the orders of slots, each where it lives.

    Args:
        recipes: by slot, from 0 on.
        here: how many of the first slots live in this process.
    """

    def __init__(self, recipes: Mapping[int, Recipe], here: int):
        self._recipes, self._here = recipes, here
        self.troupe = Troupe({slot: recipes[slot] for slot in range(here)})
        self.workers: list[Worker] = []
        self._memory: Memory | None = None

    def spec(self) -> Spec:
        """The one spec of all tasks: the members' updates are one array program.

        Raises:
            Refusal: They differ in their sizes.
        """
        first, *others = self._sizes().items()
        for task, spec in others:
            if spec != first[1]:
                raise Refusal(
                    f"env is {first[0]!r} {_said(first[1])} and {task!r} {_said(spec)};"
                    " tasks trained together must have the same sizes"
                )
        return first[1]

    def _sizes(self) -> dict[str, Spec]:
        """The sizes of each task, from one environment of each."""
        sizes: dict[str, Spec] = {}
        for slot, recipe in self._recipes.items():
            if recipe.task in sizes:
                continue
            if slot < self._here:
                sizes[recipe.task] = spec_of(self.troupe.env(slot))
            else:
                env = recipe.build()
                sizes[recipe.task] = spec_of(env)
                env.close()
        return sizes

    def start(self, spec: Spec, looking: Sequence[float], patience: float) -> None:
        """Starts a worker for each of `looking`, its seconds to look for orders.

        Args:
            spec: of all tasks.
            looking: the slots that do not live here go round the workers.
            patience: seconds that a worker may be at one slot.
        """
        count, crew = len(self._recipes), len(looking)
        self._memory = Memory(count, spec)
        self.rows = slots_over(self._memory.map, count, spec)
        away = range(self._here, count)
        self._home = {slot: place % crew for place, slot in enumerate(away)}
        for number, looks in enumerate(looking):
            own = {slot: self._recipes[slot] for slot in away[number::crew]}
            post = Post(number, own, count, spec, looks)
            self.workers.append(Worker(post, self.rows, self._memory, patience))

    def run(self, orders: Mapping[int, int], states: Mapping[int, Saved]) -> Outcome:
        """Has orders carried out, by slot; `states` are of those that need one."""
        self.rows.order[list(orders)] = list(orders.values())
        numbers = list({self._home[slot] for slot in orders if slot >= self._here})
        crew = [self.workers[number] for number in numbers]
        if states:
            _hand_out(states, crew)
        self.rows.asked[numbers] += 1  # all at once: who looks begins now
        for worker in crew:
            worker.ask()
        parcel = NOTHING
        if self._here:
            here = {slot: order for slot, order in orders.items() if slot < self._here}
            # No worker has these cells where a slot is stepped here.
            parcel = self.troupe.run(here, self.rows, worker=-1, states=states)
        # Nobody is left at work, so that no answer is taken for the next order's.
        return _gathered(parcel, crew)

    def close(self) -> None:
        """Frees environments, processes and memory; a second call does nothing."""
        for worker in self.workers:
            worker.close()
        until = time.monotonic() + CLOSING
        try:
            self.troupe.close()
        finally:
            while self.workers:
                self.workers.pop().join(until)
            if self._memory is not None:
                self._memory.close()


def _hand_out(states: Mapping[int, Saved], crew: Sequence[Worker]) -> None:
    for worker in crew:
        own = {slot: states[slot] for slot in worker.slots if slot in states}
        if own:
            worker.hand(Parcel(states=own))


def _gathered(first: Parcel, crew: Sequence[Worker]) -> Outcome:
    """What was done here and what the workers did, when all are done."""

    def glance() -> None:
        for worker in crew:
            worker.glance()

    parcels, lost = [first], []
    for worker in crew:
        try:
            parcels.append(worker.finish(glance))
        except Lost as loss:
            lost.append(loss)
            worker.replace()
    outcome = Outcome({}, {}, lost)
    for parcel in parcels:
        outcome.stories.update(parcel.stories)
        outcome.states.update(parcel.states)
    return outcome


def _said(spec: Spec) -> str:
    return f"(observation {spec.obs_dim}, action {spec.action_dim})"
