"""The environments of a fleet: some in this process, the others in workers."""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from r2r2.config.errors import UserError
from r2r2.envs.errors import EnvFailure, Fault
from r2r2.envs.make import spec_of
from r2r2.envs.spec import Spec
from r2r2.envs.vector.local_envs import LOAD, RESET, SAVE, STEP, LocalEnvs
from r2r2.envs.vector.messages import NOTHING, Parcel
from r2r2.envs.vector.shared_arrays import slots_over
from r2r2.envs.vector.spin_wait import spin_seconds
from r2r2.envs.vector.step_types import (
    EnvFactory,
    EnvSlot,
    SavedState,
    StepRequest,
    StepResult,
)
from r2r2.envs.vector.worker_main import WorkerConfig
from r2r2.envs.vector.worker_process import CLOSING, Lost, Memory, Worker


class Outcome(NamedTuple):
    """How orders went."""

    stories: dict[int, str]  # by slot whose environment failed
    states: dict[int, SavedState]  # by slot that was asked for it
    lost: list[Lost]  # workers


class Company:
    """Carries out the orders of slots, each where it lives.

    Args:
        factories: by slot, from 0 on.
        here: how many of the first slots live in this process.
    """

    def __init__(self, factories: Mapping[int, EnvFactory], here: int):
        self._recipes, self._here = factories, here
        self.troupe = LocalEnvs({slot: factories[slot] for slot in range(here)})
        self.workers: list[Worker] = []
        self._memory: Memory | None = None

    def spec(self) -> Spec:
        """The one spec of all tasks: the members' updates are one array program.

        Raises:
            UserError: They differ in their sizes.
        """
        first, *others = self._sizes().items()
        for task, spec in others:
            if spec != first[1]:
                raise UserError(
                    f"env is {first[0]!r} {_said(first[1])} and {task!r} {_said(spec)};"
                    " tasks trained together must have the same sizes"
                )
        return first[1]

    def _sizes(self) -> dict[str, Spec]:
        """The sizes of each task, from one environment of each."""
        sizes: dict[str, Spec] = {}
        for slot, factory in self._recipes.items():
            if factory.task in sizes:
                continue
            if slot < self._here:
                sizes[factory.task] = spec_of(self.troupe.env(slot))
            else:
                env = factory.build()
                sizes[factory.task] = spec_of(env)
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
            post = WorkerConfig(number, own, count, spec, looks)
            self.workers.append(Worker(post, self.rows, self._memory, patience))

    def run(
        self, orders: Mapping[int, int], states: Mapping[int, SavedState]
    ) -> Outcome:
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


def _hand_out(states: Mapping[int, SavedState], crew: Sequence[Worker]) -> None:
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


COLUMNS = StepResult._fields[:-1]
Begun = tuple[NDArray[np.float64], tuple[Fault, ...]]  # first observations, [K, obs]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def worker_count(wanted: int | None) -> int:
    """How many worker processes: so many as wanted, or one per core.

    Example:
        >>> worker_count(0), worker_count(None) == available_cores()
        (0, True)
    """
    if wanted is None:
        return available_cores()
    if wanted < 0:
        raise UserError(f"workers is {wanted}; allowed is a whole number from 0 on")
    return min(wanted, available_cores())


class EnvPool:
    """An environment for each place, stepped together; all have the same sizes.

    No episode begins but with a seed that the caller chose, so that every one is the
    caller's to name. Environments are built when they are first reset.

    An environment that raises, gives what cannot be used, hangs, or whose process dies
    is a `Fault`: its slot has no episode any more. When it is reset, it gets a new
    environment; the process that was lost has been replaced by then.

    Args:
        slots: what the slots are for.
        workers: processes that step them, at most; 0: none.
        local: how many of the first slots are stepped in this process all the same.
            They cannot be cut off: if one hangs, so does the caller.
        timeout: seconds that an environment in a worker may take for one order, or to
            be built.

    Raises:
        UserError: A task cannot be used, or the tasks differ in their sizes.

    Example:
        >>> from r2r2.envs.spec import Member
        >>> from r2r2.envs.vector.local_envs import EnvFactory
        >>> member, factory = Member("Pendulum-v1", 0), EnvFactory("Pendulum-v1", 1)
        >>> with EnvPool([EnvSlot(member, factory, "training")], workers=0) as pool:
        ...     first = pool.reset([0], seeds=[7])
        ...     pool.step(StepRequest([0], np.zeros((1, 1)), [8])).obs.shape
        (1, 3)
    """

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        workers: int,
        local: int = 0,
        timeout: float = 60.0,
    ):
        self.slots = tuple(slots)
        here = local if workers else len(self.slots)
        factories = {slot: place.factory for slot, place in enumerate(self.slots)}
        self._company = Company(factories, here)
        self._steps = np.zeros(len(self.slots), dtype=int)
        self._running = np.zeros(len(self.slots), dtype=bool)
        self._late: list[Fault] = []  # found when nobody could be told
        try:
            self.spec = self._company.spec()
            looking = self._looking(min(workers, len(self.slots) - here), here)
            self._company.start(self.spec, looking, timeout)
        except BaseException:
            self.close()
            raise
        self._rows = self._company.rows

    def _looking(self, crew: int, here: int) -> list[float]:
        """Seconds to look for orders, by worker.

        Only who has a member to train is asked at every turn.
        """
        away = self.slots[here:]
        training = sum(place.purpose == "training" for place in away)
        looking = spin_seconds(min(crew, training), available_cores())
        return [looking if number < training else 0.0 for number in range(crew)]

    def reset(self, slots: Sequence[int], seeds: Sequence[int]) -> NDArray[np.float64]:
        """Begins an episode in each slot; gives the first observations, [K, obs].

        Raises:
            EnvFailure: An environment failed.
        """
        obs, faults = self.try_reset(slots, seeds)
        self.raise_for(faults)
        return obs

    def try_reset(self, slots: Sequence[int], seeds: Sequence[int]) -> Begun:
        """As `reset`, for who goes on without those that failed."""
        return self._begin(dict.fromkeys(slots, RESET), seeds, {})

    def load_states(
        self,
        slots: Sequence[int],
        seeds: Sequence[int],
        states: Sequence[SavedState | None],
    ) -> Begun:
        """Begins an episode in each slot, and goes on where a state was saved in it.

        Args:
            slots: where.
            seeds: of the episodes.
            states: as `save` gave them; None to play an episode from its beginning.

        Returns:
            The episodes' first observations, and who failed: also whose state does not
            fit.
        """
        given = zip(slots, states, strict=True)
        saved = {slot: state for slot, state in given if state is not None}
        orders = {slot: LOAD if slot in saved else RESET for slot in slots}
        return self._begin(orders, seeds, saved)

    def _begin(
        self,
        orders: dict[int, int],
        seeds: Sequence[int],
        states: Mapping[int, SavedState],
    ) -> Begun:
        where = list(orders)
        self._rows.seed[where] = seeds
        self._late = [fault for fault in self._late if fault.slot not in orders]
        outcome = self._company.run(orders, states)
        self._running[where] = True
        return self._rows.obs[where], self._faults(outcome, orders)

    def save_states(self, slots: Sequence[int]) -> list[SavedState | None]:
        """The states of the episodes that run in slots; None: there is none to have.

        Slots found to be lost are among the faults of what is asked for next.
        """
        orders = {slot: SAVE for slot in slots if self._running[slot]}
        outcome = self._company.run(orders, {})
        for slot, story in outcome.stories.items():
            what = story.splitlines()[-1]
            warnings.warn(f"{self._whose(slot)} gave no state: {what}", stacklevel=2)
        self._late = list(self._faults(outcome._replace(stories={}), orders))
        return [outcome.states.get(slot) for slot in slots]

    def step(self, turn: StepRequest) -> StepResult:
        """Acts once in each slot of a turn; who fails does not keep the others from it.

        Raises:
            ResetNeeded: A slot has no episode running; nothing was stepped then.
        """
        where = list(turn.slots)
        rows, shape = self._rows, (len(where), self.spec.action_dim)
        if turn.actions.shape != shape:
            raise ValueError(
                f"actions have shape {turn.actions.shape}; needed is {shape}"
            )
        orders = dict.fromkeys(where, STEP)
        for fault in self._late:
            orders.pop(fault.slot, None)
        if not self._running[list(orders)].all():
            over = [slot for slot in orders if not self._running[slot]]
            raise ResetNeeded(f"slots {over} have no episode running: reset them")
        rows.action[where], rows.seed[where] = turn.actions, turn.seeds
        self._steps[where] += 1
        outcome = self._company.run(orders, {})
        step = StepResult(*(getattr(rows, name)[where] for name in COLUMNS))
        self._running[where] = ~step.ended | (rows.seed[where] >= 0)
        faults = self._faults(outcome, orders)
        return step.without(where, faults) if faults else step

    def _faults(self, outcome: Outcome, orders: Mapping[int, int]) -> tuple[Fault, ...]:
        """What is to be told now, with what was found earlier."""
        if not (self._late or outcome.stories or outcome.lost):
            return ()
        found = self._late + [Fault(*story) for story in outcome.stories.items()]
        for lost in outcome.lost:
            found += self._residents(lost, orders)
        self._late = []
        self._running[[fault.slot for fault in found]] = False
        return tuple(
            sorted(found, key=lambda fault: (not fault.own_failure, fault.slot))
        )

    def _residents(self, lost: Lost, orders: Mapping[int, int]) -> list[Fault]:
        """All who had or were given an episode in a worker that is no more."""
        gone = [slot for slot in lost.slots if slot in orders or self._running[slot]]
        cause = f"{self._whose(lost.slot)}: {lost.story}"
        shared = f"it was lost with another environment, that of {cause}"
        own = [slot == lost.slot for slot in gone]
        return [
            Fault(slot, lost.story if mine else shared, mine)
            for slot, mine in zip(gone, own, strict=True)
        ]

    def _whose(self, slot: int) -> str:
        member = self.slots[slot].member
        return f"{member.task} of member {member.name}"

    def to_error(self, fault: Fault) -> EnvFailure:
        """A fault as an exception, which says whose it is and when it came."""
        purpose, step = self.slots[fault.slot].purpose, self._steps[fault.slot]
        return EnvFailure(
            f"{self._whose(fault.slot)} failed at its {purpose} step {step}:"
            f" {fault.detail}"
        )

    def raise_for(self, faults: Sequence[Fault]) -> None:
        """For who cannot go on without an environment.

        Raises:
            EnvFailure: There is a fault.
        """
        if faults:
            raise self.to_error(faults[0])

    def close(self) -> None:
        """Frees environments, processes and memory; a second call does nothing."""
        self._company.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()
