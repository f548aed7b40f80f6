"""The environments of a fleet, in the main process and in workers."""

import contextlib
import functools
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from r2r2.config.errors import UserError, invalid_value
from r2r2.envs.make import EnvBuilder, spec_of
from r2r2.envs.spec import EnvFailure, Fault, Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.step_types import EnvFactory, EnvSlot, SavedState, StepRequest, StepResult
from r2r2.envs.vector.trial import Trial, try_env
from r2r2.envs.vector.worker_main import LocalEnvs, WorkerConfig
from r2r2.envs.vector.worker_process import CLOSE_SECONDS, NotPicklable, WorkerLost, WorkerProcess

RESULTS = StepResult._fields[:-1]  # names of its arrays
FirstObs = tuple[NDArray[np.float64], tuple[Fault, ...]]  # [K, obs], and faults
NOTICE_SECONDS = 5.0  # after which a slow environment is reported


def available_cores() -> int:
    """Return the number of cores that this process may use; all of them on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(requested: int | None) -> int:
    """Return the number of worker processes: as requested, at most one per core."""
    if requested is None:
        return available_cores()
    if requested < 0:
        raise invalid_value("workers", "an integer >= 0", requested)
    return min(requested, available_cores())


def worker_spins(slots: Sequence[EnvSlot], workers: int, cores: int) -> list[float]:
    """Return the seconds that each worker polls before sleeping; 0 without a training slot."""
    training = sum(slot.purpose == "training" for slot in slots)
    spin = ipc.default_spin(min(workers, training), cores)
    # Slots are distributed round-robin; only training slots are needed in every step.
    return [spin if number < training else min(spin, 0.0) for number in range(workers)]


class Outcome(NamedTuple):
    """The outcome of commands."""

    errors: dict[int, str]  # by slot whose environment failed
    states: dict[int, SavedState]  # by slot that was saved
    lost: list[WorkerLost]


class CommandRunner:
    """Runs commands in the processes of their slots, the first `local` in the main process."""

    def __init__(self, factories: Mapping[int, EnvFactory], local: int):
        self._factories, self._local = factories, local
        self._envs = LocalEnvs({slot: factories[slot] for slot in range(local)})
        self.workers: list[WorkerProcess] = []
        self._memory_file: int | None = None

    def spec(self, timeout: float | None) -> Spec:
        """Return the sizes of all tasks; with a timeout, the user's environments are tried."""
        specs: dict[str, Spec] = {}
        for slot, factory in self._factories.items():
            task, local = factory.task, slot < self._local
            if task in specs:
                continue
            if timeout is not None and not factory.is_builtin:
                specs[task] = try_task(task, factory.builder, timeout, local).spec
                continue
            env = self._envs.env(slot) if local else factory.build()
            specs[task] = spec_of(env)
            if not local:
                env.close()
        if len(set(specs.values())) > 1:
            sizes = ", ".join(
                f"{task!r} (observation {spec.obs_dim}, action {spec.action_dim})"
                for task, spec in specs.items()
            )
            raise UserError(f"tasks trained together must have equal sizes, got {sizes}", "env")
        return next(iter(specs.values()))

    def start(self, spec: Spec, spins: Sequence[float], timeout: float) -> None:
        """Start one worker for each element of `spins`, its seconds to poll."""
        count, workers = len(self._factories), len(spins)
        self._memory_file = ipc.create_memory(count, spec)
        self.arrays = ipc.map_arrays(self._memory_file, count, spec)
        remote = range(self._local, count)
        self._worker_of = {slot: i % workers for i, slot in enumerate(remote)}
        for number, spin in enumerate(spins):
            factories = {slot: self._factories[slot] for slot in remote[number::workers]}
            config = WorkerConfig(number, factories, count, spec, spin)
            self.workers.append(WorkerProcess(config, self.arrays, self._memory_file, timeout))

    def run(self, commands: Mapping[int, int], states: Mapping[int, SavedState]) -> Outcome:
        """Run commands, by slot; `states` are those of slots to be loaded."""
        self.arrays.command[list(commands)] = list(commands.values())
        remote = (slot for slot in commands if slot >= self._local)
        numbers = list({self._worker_of[slot] for slot in remote})
        workers = [self.workers[number] for number in numbers]
        for worker in workers if states else ():
            if part := {slot: states[slot] for slot in worker.slots if slot in states}:
                worker.send(ipc.encode(ipc.Message(states=part)))
        self.arrays.requested[numbers] += 1  # polling workers begin now
        for worker in workers:
            worker.begin()
        message = ipc.EMPTY
        if self._local:
            local = {slot: c for slot, c in commands.items() if slot < self._local}
            # With local slots there are fewer workers than slots: the last is unused.
            message = self._envs.run(local, self.arrays, worker=-1, states=states)
        return _collect(message, workers)

    def close(self) -> None:
        """Free environments, processes and memory; a second call does nothing."""
        for worker in self.workers:
            worker.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            with _notice("closing the environments", "the results are not affected"):
                self._envs.close()
        finally:
            while self.workers:
                self.workers.pop().join(deadline)
            if self._memory_file is not None:
                os.close(self._memory_file)
                self._memory_file = None


def _collect(local: ipc.Message, workers: Sequence[WorkerProcess]) -> Outcome:
    """Wait for all workers, restart the lost ones, and merge their messages."""

    def poll_all() -> None:
        for worker in workers:
            worker.poll()

    outcome = Outcome(dict(local.errors), dict(local.states), [])
    for worker in workers:
        try:
            message = worker.finish(poll_all)
        except WorkerLost as lost:
            outcome.lost.append(lost)
            worker.restart()
        else:
            outcome.errors.update(message.errors)
            outcome.states.update(message.states)
    return outcome


@contextlib.contextmanager
def _notice(what: str, remark: str) -> Generator[None]:
    """Print after some seconds that something is still in progress."""
    text = f"r2r2: {what} takes more than {NOTICE_SECONDS:g} seconds; {remark}\n"
    timer = threading.Timer(NOTICE_SECONDS, sys.stderr.write, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.lru_cache(maxsize=16)
def try_task(task: str, builder: EnvBuilder | None, timeout: float, local: bool = False) -> Trial:
    """Try a user's environment once, and return its sizes and its time limit.

    The trial is in a worker process, where a call may take `timeout` seconds. It is in
    this process, without a time limit, if `local` or if the builder cannot be pickled.
    Tasks that come with Gymnasium or dm_control are only built.

    Raises:
        UserError: The environment failed, hung, or its process died.
    """
    factory = EnvFactory(task, 1, builder)
    if factory.is_builtin:
        return try_env(factory, steps=0)
    with _notice(f"trying env {task!r}", f"the limit is {timeout:g} (--env-timeout)"):
        try:
            return _try_here(factory) if local else _try_in_worker(factory, timeout)
        except NotPicklable:
            return _try_here(factory)


def _try_here(factory: EnvFactory) -> Trial:
    """Try an environment in this process, without changing its global random numbers."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        return try_env(factory)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _try_in_worker(factory: EnvFactory, timeout: float) -> Trial:
    runner = CommandRunner({0: factory}, local=0)
    try:
        runner.start(Spec(1, 1), [ipc.default_spin(1, cores=0)], timeout)
        outcome = runner.run({0: ipc.TRY}, {})
    finally:
        runner.close()
    for lost in outcome.lost:
        hint = "; --env-timeout sets the limit" if "no response" in lost.detail else ""
        raise UserError(f"env {factory.task!r}: {lost.detail}{hint}")
    for detail in outcome.errors.values():
        text = detail.splitlines()[-1]
        prefix = "" if text.startswith("env ") else f"env {factory.task!r}: "
        raise UserError(f"{prefix}{text}{Fault(0, detail).location}")
    obs_dim, action_dim, limit = map(int, outcome.states[0]["sizes"])
    return Trial(Spec(obs_dim, action_dim), None if limit < 0 else limit)


class EnvPool:
    """Environments of equal sizes that are stepped together, one per slot.

    Every episode starts with a seed that the caller chooses. Environments are built
    when they are first reset.

    If an environment raises, returns invalid output, hangs, or its process dies, the
    pool reports a `Fault`: the slot has lost its episode. Its next reset builds a new
    environment; a lost process has been replaced by then.

    Args:
        slots: what each slot is for.
        workers: number of worker processes, at most one per slot; 0: none.
        local: number of slots, the first ones, that are stepped in this process.
            If one of them hangs, so does the caller.
        timeout: seconds that an environment in a worker may take for one command,
            including its construction.
        spin_seconds: time that workers poll for commands before sleeping; None chooses
            it from the number of cores.
        trial: whether the user's environments are tried first, by `try_task`.
    """

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        workers: int,
        local: int = 0,
        timeout: float = 60.0,
        spin_seconds: float | None = None,
        trial: bool = False,
    ):
        self.slots = tuple(slots)
        local = local if workers else len(self.slots)
        remote = self.slots[local:]
        workers = min(workers, len(remote))
        spins = worker_spins(remote, workers, available_cores())
        if spin_seconds is not None:
            spins = [spin_seconds] * workers
        factories = {slot: entry.factory for slot, entry in enumerate(self.slots)}
        self._runner = CommandRunner(factories, local)
        self._steps = np.zeros(len(self.slots), dtype=int)
        self._running = np.zeros(len(self.slots), dtype=bool)
        self._pending_faults: list[Fault] = []  # to be reported by the next call
        try:
            self.spec = self._runner.spec(timeout if trial else None)
            self._runner.start(self.spec, spins, timeout)
        except BaseException:
            self.close()
            raise
        self._arrays = self._runner.arrays

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._runner.workers]

    def reset(self, slots: Sequence[int], seeds: Sequence[int]) -> NDArray[np.float64]:
        """Start an episode in each slot and return the first observations, [K, obs]."""
        obs, faults = self.try_reset(slots, seeds)
        if faults:
            raise self.to_error(faults[0])
        return obs

    def try_reset(self, slots: Sequence[int], seeds: Sequence[int]) -> FirstObs:
        """Do the same as `reset`, but return faults instead of raising."""
        return self._start_episodes(dict.fromkeys(slots, ipc.RESET), seeds, {})

    def load_states(
        self, slots: Sequence[int], seeds: Sequence[int], states: Sequence[SavedState | None]
    ) -> FirstObs:
        """Reset each slot and load its saved state, if any; one that does not fit is a fault."""
        pairs = zip(slots, states, strict=True)
        saved = {slot: state for slot, state in pairs if state is not None}
        commands = {slot: ipc.LOAD if slot in saved else ipc.RESET for slot in slots}
        return self._start_episodes(commands, seeds, saved)

    def _start_episodes(
        self, commands: dict[int, int], seeds: Sequence[int], states: Mapping[int, SavedState]
    ) -> FirstObs:
        slots = list(commands)
        self._arrays.seed[slots] = seeds
        self._pending_faults = [one for one in self._pending_faults if one.slot not in commands]
        outcome = self._runner.run(commands, states)
        self._running[slots] = True
        return self._arrays.obs[slots], self._faults(outcome, commands)

    def save_states(self, slots: Sequence[int]) -> list[SavedState | None]:
        """Return the states of running episodes, or None; the next call reports new faults."""
        commands = {slot: ipc.SAVE for slot in slots if self._running[slot]}
        outcome = self._runner.run(commands, {})
        for slot, detail in outcome.errors.items():
            problem = f"state not saved: {detail.splitlines()[-1]}"
            warnings.warn(f"{self._describe(slot)}: {problem}", stacklevel=2)
        self._pending_faults = list(self._faults(outcome._replace(errors={}), commands))
        return [outcome.states.get(slot) for slot in slots]

    def step(self, request: StepRequest) -> StepResult:
        """Act once in each slot of a request, or raise ResetNeeded if an episode is not running."""
        slots = list(request.slots)
        arrays, shape = self._arrays, request.actions.shape
        if shape != (expected := (len(slots), self.spec.action_dim)):
            raise ValueError(f"actions: expected shape {expected}, got {shape}")
        commands = dict.fromkeys(slots, ipc.STEP)
        for fault in self._pending_faults:
            commands.pop(fault.slot, None)
        if not self._running[list(commands)].all():
            ended = [slot for slot in commands if not self._running[slot]]
            raise ResetNeeded(f"slots {ended} have no running episode; reset them")
        arrays.action[slots], arrays.seed[slots] = request.actions, request.seeds
        self._steps[slots] += 1
        outcome = self._runner.run(commands, {})
        result = StepResult(*(getattr(arrays, name)[slots] for name in RESULTS))
        self._running[slots] = ~result.ended | (arrays.seed[slots] >= 0)
        faults = self._faults(outcome, commands)
        return result.with_faults(slots, faults) if faults else result

    def _faults(self, outcome: Outcome, commands: Mapping[int, int]) -> tuple[Fault, ...]:
        """Return new and pending faults, and end the episodes of their slots."""
        if not (self._pending_faults or outcome.errors or outcome.lost):
            return ()
        faults = self._pending_faults + [Fault(*e) for e in outcome.errors.items()]
        for lost in outcome.lost:
            # All slots that had an episode or a command in the worker.
            slots = [s for s in lost.slots if s in commands or self._running[s]]
            others = f"lost with {self._describe(lost.slot)}: {lost.detail}"
            for slot in slots:
                is_cause = slot == lost.slot
                faults.append(Fault(slot, lost.detail if is_cause else others, is_cause))
        self._pending_faults = []
        self._running[[fault.slot for fault in faults]] = False
        return tuple(sorted(faults, key=lambda one: (not one.own_failure, one.slot)))

    def _describe(self, slot: int) -> str:
        member = self.slots[slot].member
        return f"env {member.task!r} of member {member.name}"

    def to_error(self, fault: Fault) -> EnvFailure:
        """Return a fault as an exception that names the member and the step."""
        when = f"{self.slots[fault.slot].purpose} step {self._steps[fault.slot]}"
        return EnvFailure(f"{self._describe(fault.slot)}: failed at {when}: {fault.detail}")

    def close(self) -> None:
        """Free environments, processes and memory; a second call does nothing."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
