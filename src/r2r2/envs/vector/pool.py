"""The environments of a fleet, in the main process and in workers."""

import contextlib
import functools
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import NO_ARGS, JsonObject
from r2r2.envs.make import EnvBuilder, spaces_of
from r2r2.envs.spec import EnvFailure, Fault, Spec
from r2r2.envs.vector import ipc
from r2r2.envs.vector.step_types import (
    FAULT,
    NO_EPISODE,
    STREAM,
    EnvFactory,
    EnvSlot,
    SavedState,
    StepRequest,
    StepResult,
    array_to_text,
)
from r2r2.envs.vector.streams import (
    ROWS,
    Actors,
    StreamArrays,
    StreamLayout,
    StreamPlan,
    StreamTable,
    create_streams,
    map_streams,
)
from r2r2.envs.vector.trial import Trial, decode_trial, try_env
from r2r2.envs.vector.worker_main import LocalEnvs, WorkerConfig
from r2r2.envs.vector.worker_process import CLOSE_SECONDS, NotPicklable, WorkerLost, WorkerProcess
from r2r2.policy.spaces import TaskSpaces

RESULTS = StepResult._fields[:-1]  # names of its arrays
FirstObs = tuple[NDArray[np.float64], tuple[Fault, ...]]  # [K, obs], and faults
PLAYERS_PER_CORE = 4  # processes, at most; each takes about 100 MB
NOTICE_SECONDS = 5.0  # after which a slow environment is reported


def available_cores() -> int:
    """Return the number of cores that this process may use; all of them on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(requested: int | None, players: int = 0) -> int:
    """Return the number of worker processes: as requested, by default as many as are allowed.

    Allowed is one per core, or one for each of `players`, slots that do not wait for each other, up
    to `PLAYERS_PER_CORE`. Two slots in one worker would play at half the speed of the others, and
    the run would end with theirs; the operating system shares cores evenly.
    """
    cores = available_cores()
    most = max(cores, min(players, PLAYERS_PER_CORE * cores))
    if requested is None:
        return most
    if requested < 0:
        raise invalid_value("workers", "an integer >= 0", requested)
    return min(requested, most)


def worker_spins(
    slots: Sequence[EnvSlot], workers: int, cores: int, beside_device: bool = False
) -> list[float]:
    """Return the seconds that each worker polls before sleeping; 0 without a training slot."""
    training = sum(slot.purpose == "training" for slot in slots)
    spin = ipc.default_spin(min(workers, training), cores, beside_device)
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
        self._files: tuple[int, ...] = ()  # descriptors of shared memory
        self._streams: StreamArrays | None = None
        self._next_check = 0.0  # of workers that play

    def spaces(self, timeout: float | None) -> dict[str, TaskSpaces]:
        """Return the spaces of all tasks; with a timeout, the user's environments are tried."""
        spaces: dict[str, TaskSpaces] = {}
        for slot, factory in self._factories.items():
            task, local = factory.task, slot < self._local
            if task in spaces:
                continue
            if timeout is not None and not factory.is_builtin:
                trial = try_task(task, factory.builder, timeout, local, factory.args)
                spaces[task] = trial.spaces
                continue
            env = self._envs.env(slot) if local else factory.build()
            spaces[task] = spaces_of(env)
            if not local:
                env.close()
        return spaces

    def start(
        self,
        spec: Spec,
        spins: Sequence[float],
        timeout: float,
        layout: StreamLayout | None = None,
        training: int = 0,
    ) -> None:
        """Start one worker for each element of `spins`, its seconds to poll."""
        count, workers = len(self._factories), len(spins)
        self._files = (ipc.create_memory(count, spec),)
        self.arrays = ipc.map_arrays(self._files[0], count, spec)
        if layout is not None:
            self._files += (create_streams(layout),)
            self._streams = map_streams(self._files[1], layout)
            self._envs.attach(layout, self.arrays, self._streams)
        self._worker_of = assign_slots(range(self._local, count), training, workers)
        self._by_pipe = ipc.BY_PIPE in spins
        self.set_spins(spins)
        for number in range(workers):
            slots = [slot for slot, worker in self._worker_of.items() if worker == number]
            factories = {slot: self._factories[slot] for slot in slots}
            config = WorkerConfig(number, factories, count, spec, layout)
            files = self._files[0], self._files[-1]
            made = partial(self._rows_made, slots)
            self.workers.append(WorkerProcess(config, self.arrays, files, timeout, made))

    def set_spins(self, spins: Sequence[float]) -> None:
        """Set the seconds that each worker polls before sleeping, and the main process for it."""
        self.arrays.spin_seconds[: len(spins)] = spins

    def stream_table(self, layout: StreamLayout) -> StreamTable:
        """Return the main process's side of the streams."""
        if self._streams is None:
            raise ValueError("started without a layout of streams")
        return StreamTable(layout, self.arrays, self._streams)

    def _rows_made(self, slots: list[int]) -> int:
        return 0 if self._streams is None else int(self._streams.made[slots].sum())

    def plays_ahead(self, slot: int) -> bool:
        """Return whether a slot is played by a worker that does not wait for commands."""
        return slot >= self._local and not self._by_pipe

    def wake(self, slots: Iterable[int]) -> None:
        """Wake the workers of slots that may play now."""
        for number in {self._worker_of[slot] for slot in slots if self.plays_ahead(slot)}:
            self.workers[number].wake()

    def wait_rows(self, slots: Sequence[int], is_done: Callable[[int], bool]) -> Outcome:
        """Wait until `is_done` holds for each slot that a worker plays ahead."""
        workers = [self.workers[number] for number in {self._worker_of[slot] for slot in slots}]
        for worker in workers:
            own = [slot for slot in slots if slot in worker.slots]
            worker.expect(partial(_all, is_done, own))
        return _collect(ipc.EMPTY, workers, WorkerProcess.wait)

    def check_rows(self, slots: Sequence[int], is_done: Callable[[int], bool]) -> Outcome:
        """Check from time to time whether the workers of slots are alive."""
        outcome, now = Outcome({}, {}, []), time.monotonic()
        if now < self._next_check:
            return outcome
        self._next_check = now + ipc.POLL_INTERVAL
        for number in {self._worker_of[slot] for slot in slots}:
            worker = self.workers[number]
            own = [slot for slot in slots if slot in worker.slots]
            try:
                worker.check(partial(_all, is_done, own))
            except WorkerLost as lost:
                outcome.lost.append(lost)
                worker.restart()
        return outcome

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
        if self._streams is not None:
            self._streams.allowed[:] = 0  # workers stop playing
        for worker in self.workers:
            worker.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            with _notice("closing the environments", "the results are not affected"):
                self._envs.close()
        finally:
            while self.workers:
                self.workers.pop().join(deadline)
            for file in self._files:
                os.close(file)
            self._files = ()


def common_spec(spaces: Mapping[str, TaskSpaces]) -> Spec:
    """Return the sizes that all tasks have.

    Their layouts may differ, because members share no parameters.
    """
    specs = {task: Spec(own.obs_dim, own.action_dim) for task, own in spaces.items()}
    if len(set(specs.values())) > 1:
        sizes = ", ".join(
            f"{task!r} (observation {spec.obs_dim}, action {spec.action_dim})"
            for task, spec in specs.items()
        )
        raise UserError(f"tasks trained together must have equal sizes, got {sizes}", "env")
    return next(iter(specs.values()))


def _all(is_done: Callable[[int], bool], slots: Sequence[int]) -> bool:
    return all(map(is_done, slots))


def assign_slots(slots: range, training: int, workers: int) -> dict[int, int]:
    """Return the worker of each slot: in turns, evaluation apart from training if possible."""
    trained = [slot for slot in slots if slot < training]
    rest = [slot for slot in slots if slot >= training]
    free = workers - len(trained)  # workers without a training slot
    worker_of = {slot: index % workers for index, slot in enumerate(trained)}
    if 0 < free and workers <= 4 * free:
        return worker_of | {slot: len(trained) + i % free for i, slot in enumerate(rest)}
    return worker_of | {slot: (len(trained) + i) % workers for i, slot in enumerate(rest)}


def _collect(
    local: ipc.Message,
    workers: Sequence[WorkerProcess],
    finish: Callable[[WorkerProcess, Callable[[], None]], ipc.Message] = WorkerProcess.finish,
) -> Outcome:
    """Wait for all workers, restart the lost ones, and merge their messages."""

    def poll_all() -> None:
        for worker in workers:
            worker.poll()

    outcome = Outcome(dict(local.errors), dict(local.states), [])
    for worker in workers:
        try:
            message = finish(worker, poll_all)
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
def try_task(
    task: str,
    builder: EnvBuilder | None,
    timeout: float,
    local: bool = False,
    args: JsonObject = NO_ARGS,
) -> Trial:
    """Try a user's environment once, and return its spaces and its time limit.

    The trial is in a worker process, where a call may take `timeout` seconds. It is in
    this process, without a time limit, if `local` or if the builder cannot be pickled.
    Tasks that come with Gymnasium or dm_control are only built.

    Raises:
        UserError: The environment failed, hung, or its process died.
    """
    factory = EnvFactory(task, 1, builder, args=args)
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
    return decode_trial(outcome.states[0])


class TakenRows(NamedTuple):
    """Rows of slots that play, those of a slot in order, and new faults."""

    slots: NDArray[np.int_]  # [K]
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    action: NDArray[np.float64]  # [K, action], empty for evaluation
    next_obs: NDArray[np.float64]  # [K, obs], empty for evaluation
    obs: NDArray[np.float64]  # [K, obs], empty for evaluation
    faults: tuple[Fault, ...]


def merge(*outcomes: Outcome) -> Outcome:
    """Return the outcomes as one."""
    errors = {slot: text for outcome in outcomes for slot, text in outcome.errors.items()}
    states = {slot: state for outcome in outcomes for slot, state in outcome.states.items()}
    return Outcome(errors, states, [lost for outcome in outcomes for lost in outcome.lost])


class SavedStream(NamedTuple):
    """What a checkpoint holds of a slot that plays."""

    seed: int  # of the episode that the environment is in
    obs: NDArray[np.float64]  # [obs], to act on
    rows: dict[str, NDArray[Any]]  # that were not taken yet
    failed: bool  # the environment failed after these rows, which was not reported yet


class EnvPool:
    """Environments of equal sizes that are stepped together, one per slot.

    Every episode starts with a seed that the caller chooses. Environments are built
    when they are first reset. `spaces` are those that their authors gave them, by task;
    `spec` are the sizes of the flat observations and actions that the pool uses.

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
        actors: returns the policies that can be played in the slots, for environments of
            these sizes; None if only `step` is used.
    """

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        workers: int,
        local: int = 0,
        timeout: float = 60.0,
        spin_seconds: float | None = None,
        trial: bool = False,
        actors: Callable[[Spec], Actors] | None = None,
    ):
        self.slots = tuple(slots)
        local = local if workers else len(self.slots)
        self._remote = self.slots[local:]
        workers = min(workers, len(self._remote))
        self._spin_is_given = spin_seconds is not None
        if spin_seconds is None:
            spins = worker_spins(self._remote, workers, available_cores())
        else:
            spins = [spin_seconds] * workers
        factories = {slot: entry.factory for slot, entry in enumerate(self.slots)}
        self._runner = CommandRunner(factories, local)
        self._steps = np.zeros(len(self.slots), dtype=int)
        self._running = np.zeros(len(self.slots), dtype=bool)
        self._pending_faults: list[Fault] = []  # to be reported by the next call
        self.streams: Any = None  # a StreamTable, with actors
        try:
            self.spaces = self._runner.spaces(timeout if trial else None)
            self.spec = common_spec(self.spaces)
            layout = self._layout(actors(self.spec)) if actors else None
            training = sum(slot.purpose == "training" for slot in self.slots)
            self._runner.start(self.spec, spins, timeout, layout, training)
        except BaseException:
            self.close()
            raise
        self._arrays = self._runner.arrays
        if layout is not None:
            self.streams = self._runner.stream_table(layout)

    def _layout(self, actors: Actors) -> StreamLayout:
        members = list(dict.fromkeys(slot.member for slot in self.slots))
        owners = tuple(members.index(slot.member) for slot in self.slots)
        training = sum(slot.purpose == "training" for slot in self.slots)
        return StreamLayout(owners, training, self.spec, actors)

    def expect_device_calls(self) -> None:
        """Let workers poll for the duration of a device call, if there are cores for it.

        For runs whose steps alternate with calls of a device that leave the cores free.
        """
        if not self._spin_is_given:
            cores, workers = available_cores(), len(self._runner.workers)
            spins = worker_spins(self._remote, workers, cores, beside_device=True)
            self._runner.set_spins(spins)

    def busy_seconds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return seconds of acting and physics, of each slot [N, 2] and each worker [W]."""
        seconds = self.streams.seconds()
        workers = [seconds[worker.slots].sum() for worker in self._runner.workers]
        return seconds, np.array(workers)

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
        self,
        slots: Sequence[int],
        seeds: Sequence[int],
        states: Sequence[SavedState | None],
        obs_of: Mapping[int, NDArray[np.float64]] | None = None,
    ) -> FirstObs:
        """Reset each slot and load its saved state, if any; one that does not fit is a fault.

        States of earlier versions lack the observation to act on; `obs_of` has it, by slot.
        """
        pairs = zip(slots, states, strict=True)
        saved = {slot: dict(state) for slot, state in pairs if state is not None}
        streamed = {
            slot: x for slot, state in saved.items() if (x := self._pop_stream(slot, state))
        }
        commands = {slot: ipc.LOAD if slot in saved else ipc.RESET for slot in slots}
        ahead = {slot: x.seed for slot, x in streamed.items()}
        seeds = [ahead.get(slot, seed) for slot, seed in zip(slots, seeds, strict=True)]
        obs, faults = self._start_episodes(commands, seeds, saved)
        for slot in streamed.keys() - {fault.slot for fault in faults}:
            self._arrays.obs[slot] = streamed[slot].obs
            self.streams.put_rows(slot, streamed[slot].rows)
            if streamed[slot].failed:
                self.streams.set_failed(slot)
        for slot in saved.keys() - streamed.keys() - {fault.slot for fault in faults}:
            self._arrays.obs[slot] = (obs_of or {}).get(slot, self._arrays.obs[slot])
        return obs, faults

    def _pop_stream(self, slot: int, state: SavedState) -> "SavedStream | None":
        """Remove and return what a saved state holds of a slot that plays.

        The reason of a failure stays: the process of the slot reports it after the rows.
        """
        names = [name for name in state if name.startswith(STREAM)]
        rows = {name.removeprefix(STREAM): state.pop(name) for name in names}
        if not rows or self.streams is None:  # of an earlier version
            return None
        missing = np.zeros((0, 0))
        seed, obs, _ = (rows.pop(name, missing) for name in ("seed", "current_obs", "made"))
        fault = rows.pop("fault", None)
        is_seed = seed.shape == () and seed.dtype.kind == "i" and 0 <= int(seed) < 2**62
        if not is_seed or obs.shape != (self.spec.obs_dim,) or obs.dtype != np.float64:
            raise UserError(f"the arrays of '{slot}/stream/' are not those of a slot of this run")
        self.streams.check_rows(slot, rows)
        if fault is not None:
            state[FAULT] = fault
            try:
                array_to_text(fault)
            except (ValueError, OverflowError) as error:
                raise UserError(f"array '{slot}/{FAULT}': {error}") from None
        return SavedStream(int(seed), obs, rows, fault is not None)

    def _start_episodes(
        self, commands: dict[int, int], seeds: Sequence[int], states: Mapping[int, SavedState]
    ) -> FirstObs:
        slots = list(commands)
        self._arrays.seed[slots] = seeds
        self._pending_faults = [one for one in self._pending_faults if one.slot not in commands]
        outcome = self._runner.run(commands, states)
        self._running[slots] = True
        for slot in slots if self.streams else ():
            self.streams.clear(slot)
        return self._arrays.obs[slots], self._faults(outcome, commands)

    def save_states(self, slots: Sequence[int]) -> list[SavedState | None]:
        """Return the states of running episodes, or None; the next call reports new faults."""
        commands = {slot: ipc.SAVE for slot in slots if self._running[slot]}
        outcome = self._runner.run(commands, {})
        for slot, detail in outcome.errors.items():
            problem = f"state not saved: {detail.splitlines()[-1]}"
            warnings.warn(f"{self._describe(slot)}: {problem}", stacklevel=2)
        self._pending_faults = list(self._faults(outcome._replace(errors={}), commands))
        for slot, state in outcome.states.items():
            if (made := state.get(STREAM + "made")) is not None:
                rows = self.streams.rows_until(slot, int(made))
                state |= {STREAM + name: values for name, values in rows.items()}
        return [outcome.states.get(slot) for slot in slots]

    def play(self, plans: Mapping[int, StreamPlan]) -> None:
        """Have slots play, from where their environments are."""
        for slot, plan in plans.items():
            self.streams.start(slot, plan)
        self._runner.wake(plans)

    def plays_ahead(self, slots: Iterable[int]) -> bool:
        """Return whether all slots make rows by themselves, and not only when they are taken."""
        return all(map(self._runner.plays_ahead, slots))

    def should_take(self, slots: Sequence[int]) -> bool:
        """Return whether rows of slots that play should be taken now, and not a little later."""
        waits = self.plays_ahead(slots) and not self._pending_faults
        return not waits or self.streams.should_take(np.asarray(slots))

    def take(
        self, slots: Sequence[int], wait: bool, most: Callable[[int], int] = lambda _: 1
    ) -> TakenRows:
        """Return the next row of each slot that plays.

        Without `wait`, return those that have been made, of one episode and at most
        `most(slot)` of each slot. The slots are all for training, or all for evaluation.
        """
        streams, runner = self.streams, self._runner
        lost = {fault.slot for fault in self._pending_faults}
        missing = [slot for slot in slots if slot not in lost and not streams.has_row(slot)]
        ahead = [slot for slot in missing if runner.plays_ahead(slot)]
        now = {  # a failure is from a checkpoint: otherwise it is reported at once
            slot: ipc.REPORT if streams.has_failed(slot) else ipc.PLAY
            for slot in missing
            if not runner.plays_ahead(slot)
        }
        outcome = runner.run(now, {}) if now else Outcome({}, {}, [])

        def is_done(slot: int) -> bool:
            return bool(streams.has_row(slot) or streams.has_failed(slot))

        if ahead:
            part = (runner.wait_rows if wait else runner.check_rows)(ahead, is_done)
            gone = {slot for lost in part.lost for slot in lost.slots}
            failed = {
                s: ipc.REPORT
                for s in ahead
                if streams.has_failed(s) and not streams.has_row(s) and s not in gone
            }
            reported = runner.run(failed, {}) if failed else Outcome({}, {}, [])
            outcome = merge(outcome, part, reported)
        ready = [slot for slot in slots if streams.has_row(slot) and slot not in lost]
        blocks, woken = list[tuple[Any, ...]](), list[int]()
        for slot in ready:
            block, wake = streams.take(slot, 1 if wait else most(slot))
            blocks.append(block)
            if wake:
                woken.append(slot)
            self._steps[slot] += len(block[0])
            if block[1][-1] or block[2][-1]:
                self._running[slot] = self._arrays.seed[slot] != NO_EPISODE
        runner.wake(woken)
        faults = self._faults(outcome, now)
        for slot in outcome.errors:
            self._steps[slot] += 1
        for fault in faults:
            streams.clear(fault.slot)
        return self._rows(ready, blocks, faults)

    def _rows(
        self, slots: list[int], blocks: list[tuple[Any, ...]], faults: tuple[Fault, ...]
    ) -> TakenRows:
        owners = np.repeat(np.array(slots, dtype=int), [len(block[0]) for block in blocks])
        columns = dict(zip(ROWS, map(np.concatenate, zip(*blocks, strict=True)), strict=False))
        none, empty = np.zeros(0, dtype=bool), np.zeros((len(owners), 0))
        return TakenRows(
            owners,
            columns.get("reward", np.zeros(0)),
            columns.get("terminated", none),
            columns.get("truncated", none),
            columns.get("action", empty),
            columns.get("next_obs", empty),
            columns.get("obs", empty),
            faults,
        )

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
        index = np.array(slots, dtype=int)
        arrays.action[index], arrays.seed[index] = request.actions, request.seeds
        outcome = self._runner.run(commands, {})
        self._steps[index] += 1
        result = StepResult(*(getattr(arrays, name)[index] for name in RESULTS))
        self._running[index] = ~result.ended | (arrays.seed[index] >= 0)
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
