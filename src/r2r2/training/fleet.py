"""A fleet on the device: networks, replay and behavior policies of all members.

Updates are started in their own thread, since an accelerator's program blocks its thread until
the last kernel is launched, and another thread waits for their results. Meanwhile members act on
copies of their policies, and new steps wait on the host.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array, Metric
from r2r2.compute import compiled, update
from r2r2.compute.compiled import (
    CompiledUpdates,
    GroupCall,
    GroupInputs,
    LockstepInputs,
    LockstepPrograms,
    ProgramKey,
    TraceSettings,
    UpdateSeconds,
    run_calls,
    trace_settings,
    use_settings,
    with_options,
)
from r2r2.compute.devices import host_device, training_device
from r2r2.compute.policy_copy import PolicyCopy, acting_leaves
from r2r2.compute.precision import DEFAULT_OPTIONS, ComputeOptions, apply_precision, uses_fp16
from r2r2.compute.update import Data, LearnerState, RunLengths, member_key
from r2r2.compute.update_loop import (
    LoopState,
    UpdateCall,
    choose_stride,
    group_size,
    longest_stride,
    pad_members,
)
from r2r2.envs.spec import Spec
from r2r2.replay import buffer
from r2r2.replay.buffer import HostRows, OfflineData, Priorities, Replay, Rows, fetch_rows, put_rows
from r2r2.replay.normalizer import Scales
from r2r2.replay.prefill import RecordedRows, offline_places
from r2r2.replay.sum_tree import SumTree, build_levels
from r2r2.training.rollout import HostTransition

FINE_GROWTH = 2  # from one size of groups to the next, when all programs are compiled
# Steps of all members together that one program stores: each transfer takes time.
STEPS, MANY_STEPS = 128, 1024
# How long before updates are expected to end the next ones are started. Starting them took about
# 2 ms in a trace of an H200 machine.
START_SECONDS = 3e-3


class StackedSteps(NamedTuple):
    """Several steps, the oldest first, as checkpoints hold them."""

    members: NDArray[np.int_]  # [T, S], those who made each, the first repeated
    packed: NDArray[np.floating]  # [T, S, fields of HostTransition side by side]
    opened: NDArray[np.int_]  # [T, S], rows that each opens in every replay


class PendingSteps:
    """A queue of steps, each with `fields` numbers: those of `HostTransition` side by side."""

    def __init__(self, fields: int):
        self._members = np.zeros(0, dtype=int)
        self._packed: NDArray[np.floating] = np.zeros((0, fields))
        self._blocks: list[tuple[NDArray[np.int_], NDArray[np.floating]]] = []  # newer ones
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, members: NDArray[np.int_], step: HostTransition) -> None:
        """Append steps; the fields are [K, ...]."""
        self._blocks.append((members, np.column_stack(step)))
        self._count += len(members)

    def take(self, most: int) -> tuple[NDArray[np.int_], NDArray[np.floating]]:
        """Remove and return the oldest steps, at most `most`: members [K], and [K, fields]."""
        members, packed = self.peek()
        self._members, self._packed = members[most:], packed[most:]
        self._count = len(self._members)
        return members[:most], packed[:most]

    def peek(self) -> tuple[NDArray[np.int_], NDArray[np.floating]]:
        """Return all steps, as `take` would."""
        if self._blocks:
            old = [(self._members, self._packed)] if len(self._members) else []
            members, packed = zip(*old, *self._blocks, strict=True)
            single = len(members) == 1  # as in lockstep, where a copy would cost more than the rest
            self._members = members[0] if single else np.concatenate(members)
            self._packed = packed[0] if single else np.concatenate(packed)
            self._blocks = []
        return self._members, self._packed

    def is_one_of(self, size: int) -> bool:
        """Return whether exactly one step of every member of a fleet is waiting."""
        # Fused calls assume the order.
        return len(self) == size and self.peek()[0].tolist() == list(range(size))


class FleetSnapshot(NamedTuple):
    """Everything of a fleet but the rows of its replay."""

    learners: LearnerState
    policies: Any  # that act, [S, ...]
    newest: Array  # [S], as in `Replay`
    waiting: StackedSteps  # not in the replay yet
    opened: NDArray[np.int_]  # [S], rows ever opened in every replay, after its first
    kept: NDArray[np.bool_]  # [S], whose policy is to become its checkpoint


def place_steps(
    members: NDArray[np.int_],
    packed: NDArray[np.floating],
    ended: int,
    opened: NDArray[np.int_],
    rows: int,
) -> buffer.StepBlock:
    """Return steps with their rows in the replay, and count the rows they open in `opened`.

    Args:
        members: who made each step, [K].
        packed: the steps, [K, fields].
        ended: the column that says whether an episode ended.
        opened: rows ever opened in every member's replay, [S].
        rows: of every replay.
    """
    steps = 1 + packed[:, ended].astype(int)
    here, last = np.zeros(len(members), dtype=int), np.zeros(len(members), dtype=bool)
    for member in np.unique(members):
        index = np.flatnonzero(members == member)
        ends = opened[member] + np.cumsum(steps[index])
        here[index] = ends - steps[index]
        last[index[-1]], opened[member] = True, ends[-1]
    places = np.stack([members, here % rows, (here + 1) % rows, (here + steps) % rows, last], 1)
    return buffer.StepBlock(places, packed)


class MixedData(NamedTuple):
    """Recorded transitions that a share of every batch is drawn from."""

    data: RecordedRows
    share: float


def _cast(recorded: HostRows, rows: Rows) -> HostRows:
    """Return recorded rows in the types of a replay."""
    return {name: recorded[name].astype(x.dtype) for name, x in rows._asdict().items()}


def _offline_data(mixed: MixedData, rows: Rows, batch_size: int) -> OfflineData:
    cast = _cast(mixed.data.rows, rows)
    columns = (jnp.asarray(cast[name]) for name in Rows._fields)
    return OfflineData(Rows(*columns), jnp.asarray(offline_places(mixed.share, batch_size)))


class FetchedPolicies(NamedTuple):
    """Trained policies on the host, as `PolicyCopy` fetches them."""

    members: tuple[int, ...]
    parts: dict[str, NDArray[Any]]


class UpdateResult(NamedTuple):
    """What the host reads after calls of updates."""

    raised: NDArray[np.bool_]  # [S], whose loss was ever not finite
    policies: FetchedPolicies | None
    seconds: float  # that the updates took


class WaitingChanges(NamedTuple):
    """Changes that the device makes before the next updates."""

    checkpointed: NDArray[np.bool_] | None  # [S], whose policy becomes its checkpoint
    blocks: list[buffer.StepBlock]


class UpdateTask(NamedTuple):
    """Calls of updates that were started together."""

    members: frozenset[int]
    result: Future[UpdateResult]
    work: Mapping[int, int]  # updates by the size of their program


class UpdateTimes:
    """Estimates when updates end, from how long earlier ones took."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # per update, by the size of the program

    def estimate(self, work: Mapping[int, int]) -> float:
        """Return the seconds that updates take, or infinity if that is unknown."""
        return sum(self._seconds.get(size, math.inf) * count for size, count in work.items())

    def record(self, work: Mapping[int, int], seconds: float) -> None:
        """Learn from updates that took so long."""
        expected = self.estimate(work)
        for size in work:
            if math.isinf(expected):
                self._seconds.setdefault(size, seconds / sum(work.values()))
            else:  # halfway to what would have been right
                self._seconds[size] *= (1 + seconds / expected) / 2


class FleetOptions(NamedTuple):
    """How a fleet acts and trains."""

    act_on_cpu: bool = False  # beside an accelerator: who collects does not wait for who trains
    compute: ComputeOptions = DEFAULT_OPTIONS
    utd: int = 1
    fuse_steps: bool = True  # otherwise, updates can run beside the next actions


DEFAULT_FLEET_OPTIONS = FleetOptions()


class Fleet:
    """Members that train in one program, each on its own data.

    A share of every batch is drawn from `mixed`, if given.

    Attributes:
        agent: the algorithm, in the precision of `options`.
        accelerated: whether there is an accelerator.
        async_updates: whether members act while others train.
        update_period: calls make a multiple of this many updates, where they can.
        opened: rows ever opened in every member's replay, after its first, [S].
        update_seconds: how long updates took so far.
        policies: the behavior policies, [S, ...]; with `act_on_cpu` on the host, where leaves that
            no action depends on keep their first values.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        seeds: Sequence[int],
        lengths: RunLengths,
        options: FleetOptions = DEFAULT_FLEET_OPTIONS,
        mixed: MixedData | None = None,
    ):
        compute, act_on_cpu, fuse_steps = options.compute, options.act_on_cpu, options.fuse_steps
        agent = self.agent = apply_precision(agent, compute.precision)
        self.size, self._options, self._utd = len(seeds), compute, options.utd
        self._keys = jnp.stack([member_key(seed) for seed in seeds])
        device = training_device()
        self._act_device = host_device() if act_on_cpu else device
        self.async_updates = self._act_device != device
        self._act_keys = jax.device_put(self._keys, self._act_device)
        zeros = np.zeros((self.size, spec.obs_dim))
        replay: Replay = jax.jit(partial(buffer.init, lengths.rows, spec))(zeros)
        self._offline = None
        if mixed is not None:
            self._offline = _offline_data(mixed, replay.rows, agent.batch_size)
            tree = self._tree(mixed.data.live[None], replay.rows)
            replay = replay._replace(priorities=replay.priorities._replace(offline=tree))
        self._rows = replay.rows
        learners = self._initial_learners(replay, lengths, device)
        accelerated = self.accelerated = device.platform != "cpu"  # launches take time
        # On a GPU programs take long to compile: the first updates wait for few sizes only.
        self._growth = 4 if accelerated else FINE_GROWTH
        strides = accelerated and compute.fast
        self._stride = longest_stride(agent, self.size) if strides else 1
        self.update_period = max(agent.policy_period, self._stride)
        fields = spec.action_dim + 2 * spec.obs_dim + len(HostTransition._fields) - 3
        self._pending, self._fields = PendingSteps(fields), fields
        ends = [spec.action_dim, 1, 1, 1, spec.obs_dim, spec.obs_dim]
        self._columns = np.cumsum(ends)  # at which the packed fields of a step end
        self._ended = int(self._columns[2])
        self.opened = np.zeros(self.size, dtype=int)
        self._to_checkpoint: set[int] = set()
        self.update_seconds = UpdateSeconds()
        self._starter, self._fetcher = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._tasks = deque[UpdateTask]()  # in flight, the oldest first
        self._times, self._oldest_began = UpdateTimes(), 0.0
        self._raised = np.zeros(self.size, dtype=bool)  # whose loss was ever not finite
        self._fetched: FetchedPolicies | None = None  # from the updates that are done
        self._stale_policies = False  # `policies` are older than the learners
        fuses = fuse_steps and not self.async_updates
        self.fuses_steps = accelerated and compute.fast and fuses
        self._compile(learners)
        self._set_learners(learners)
        if self.async_updates or self.fuses_steps or (accelerated and not fuse_steps):
            self.compile_ahead()
        self._acts_on_host = act_on_cpu
        self.policies = self._copy(agent.behavior_policy(learners.state))
        used = acting_leaves(agent, self.policies, spec.obs_dim)
        self._copy_to_host = PolicyCopy(self._trained_policies, used, packed=accelerated)

    def _initial_learners(self, replay: Replay, lengths: RunLengths, device: Any) -> LearnerState:
        # On the act device: a GPU takes long to compile orthogonal initialization.
        states = jax.jit(partial(update.initial_states, self.agent))(
            self._act_keys, np.asarray(lengths.updates)
        )
        learners: LearnerState = jax.jit(partial(update.init, self.agent))(
            jax.device_put(states, device), replay, self._offline
        )
        if self._options.fp16 and uses_fp16(learners.state):
            zeros = Metric(jnp.zeros(self.size), jnp.zeros(self.size))
            learners = learners._replace(clipped=zeros)
        return learners

    def _compile(self, learners: LearnerState) -> None:
        agent = self.agent
        self._act = jax.jit(partial(compiled.act, agent))
        self._first = jax.jit(buffer.set_first_obs, donate_argnums=0, static_argnums=2)
        self._store = jax.jit(compiled.store, donate_argnums=0)
        self._store_programs: dict[int, Any] = {}  # by the number of steps
        self._gather = jax.jit(lambda tree, who: jax.tree.map(lambda x: x[who], tree))
        self._scatter = jax.jit(compiled.scatter, donate_argnums=0)
        members, _, obs = self._rows.obs.shape
        scales = Scales(*map(jnp.zeros, ((members, obs), (members, obs), members)))
        data = self.data(scales if agent.normalizes else None)
        example = data, learners, self._keys
        self._updates = CompiledUpdates(agent, example, self._options)
        checkpoint = partial(compiled.checkpoint_policies, agent, self._updates.loop)
        self._checkpoint = jax.jit(checkpoint, donate_argnums=0)
        read = with_options(partial(compiled.read_metrics, self._updates.loop), self._options)
        self._read_metrics = jax.jit(read, donate_argnums=0)
        self._lockstep = LockstepPrograms(agent, example[:2], self._keys, self._options)

    def compile_ahead(self) -> CompiledUpdates | LockstepPrograms:
        """Request the programs that most updates need; the result can be waited for."""
        if self.fuses_steps:
            return self._lockstep.request(self._utd)
        updates = self._updates.request(self.size, self._growth, self._stride)
        if self.async_updates:
            updates.request_optional(self.size, FINE_GROWTH, self._stride)
        return updates

    def close(self) -> None:
        """Cancel what has not begun; the threads end after what is running."""
        self._starter.shutdown(wait=False, cancel_futures=True)
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._updates.close()
        self._lockstep.close()

    @property
    def replay_rows(self) -> int:
        """Rows of every member's replay."""
        return int(self._rows.reward.shape[1])

    @property
    def ready(self) -> bool:
        """Whether the oldest updates in flight are done, or none are in flight."""
        return not self._tasks or self._tasks[0].result.done()

    @property
    def ends_soon(self) -> bool:
        """Whether one task is in flight, and it is time to start the next.

        The device then does not wait for it.
        """
        if len(self._tasks) != 1:
            return False
        end = self._oldest_began + self._times.estimate(self._tasks[0].work)
        return self.ready or time.perf_counter() > end - START_SECONDS

    def wait(self) -> None:
        """Wait for all updates started so far."""
        while self._tasks:
            self.finish_oldest()

    def finish_oldest(self) -> None:
        """Wait for the oldest updates in flight, if there are any."""
        if not self._tasks:
            return
        task = self._tasks[0]
        result = task.result.result()
        self._tasks.popleft()
        self._times.record(task.work, result.seconds)
        self._oldest_began = time.perf_counter()
        self._raised, self._fetched = result.raised, result.policies

    def _set_state(self, state: LoopState) -> None:
        self._state = state
        self._restored: LearnerState | None = None

    def _set_learners(self, learners: LearnerState) -> None:
        self._set_state(self._updates.pack(learners))

    def _set_priorities(self, priorities: Priorities) -> None:
        self._set_state(self._state._replace(rest=self._state.rest._replace(priorities=priorities)))

    @property
    def learners(self) -> LearnerState:
        """All that updates change, [S, ...]; waits for those started so far."""
        self.catch_up()
        return self._restore()

    def _restore(self) -> LearnerState:
        if self._restored is None:
            self._restored = self._updates.restore(self._state)
        return self._restored

    def _trained_policies(self, state: LoopState) -> Any:
        return self.agent.behavior_policy(self._updates.loop.restore(state).state)

    @property
    def states(self) -> Any:
        """The agents' states, [S, ...]; waits for all updates started so far."""
        return self.learners.state

    def set_first_obs(self, obs: NDArray[np.floating]) -> None:
        """Store the first observations of all members, [S, obs], after recorded transitions."""
        self._rows = self._first(self._rows, obs, int(self.opened[0]))

    def prefill(self, data: RecordedRows) -> None:
        """Make recorded transitions the first rows of every member's replay."""
        count, weights = len(data.live), np.zeros((1, self.replay_rows))
        weights[:, :count] = data.live
        rows = _cast(data.rows, self._rows)
        for member in range(self.size):
            self._rows = put_rows(self._rows, member, 0, rows)
        tree = self._tree(weights, self._rows)
        self._set_priorities(self._state.rest.priorities._replace(tree=tree))
        self.opened[:] = count

    def _tree(self, weights: NDArray[Any], rows: Rows) -> SumTree:
        """Return every member's sum tree over weights [1, rows]."""
        levels = build_levels(weights.astype(rows.obs.dtype))
        return SumTree(tuple(jnp.asarray(np.repeat(x, self.size, axis=0)) for x in levels))

    def set_states(self, states: Any) -> None:
        """Replace the agents' states, [S, ...], before the first update."""
        self._set_learners(self.learners._replace(state=jax.tree.map(jnp.asarray, states)))
        self.policies = self._copy(self.agent.behavior_policy(self.states))

    def act(self, obs: NDArray[np.floating], steps: np.ndarray) -> NDArray[np.floating]:
        """Return actions [S, action] of all members."""
        if self._stale_policies:
            self.refresh(range(self.size))
        args = jax.device_put((obs, steps), self._act_device)
        return np.asarray(self._act(self.policies, self._act_keys, *args))

    def update_and_act(
        self,
        updates: int,
        made: np.ndarray,
        steps: np.ndarray,
        scales: Scales | None,
        obs: NDArray[np.floating],
    ) -> NDArray[np.floating]:
        """Do the same as `train`, `refresh` and `act` for all members, in one call.

        Exactly one step of all members may be waiting to be stored.
        """
        self.wait()
        _, packed = self._pending.take(self.size)
        newest = self.opened % self.replay_rows
        self.opened += 1 + packed[:, self._ended].astype(int)
        dtype = self._rows.obs.dtype
        parts = [packed, obs, *(scales[:2] if scales else (obs, obs))]
        reward = scales.reward if scales else made
        floats = np.concatenate([*parts, np.asarray(reward)[:, None]], axis=1).astype(dtype)
        inputs = LockstepInputs(floats, made, steps, newest)
        self._restored = None
        program = self.update_seconds.wait_for(self._lockstep.program(updates))
        start = time.perf_counter()
        result = self._lockstep.step(program, self._rows, self._state, inputs)
        output = np.asarray(result.output)
        self.update_seconds.add(start)
        self._rows = result.rows
        self._set_state(result.learners)
        self._stale_policies = True
        self._raised = output[:, -1] > 0
        return output[:, :-1]

    @property
    def has_one_step(self) -> bool:
        """Whether exactly one step of every member is not stored yet."""
        return self._pending.is_one_of(self.size)

    def add(self, members: Sequence[int] | NDArray[np.int_], step: HostTransition) -> None:
        """Store steps of `members`, whose fields are [K, ...]; a member's own are in order."""
        self._pending.add(np.asarray(members), step)
        if len(self._pending) >= STEPS and not self._tasks and not self._stale_policies:
            self.catch_up()

    def checkpoint_policies(self, members: Sequence[int]) -> None:
        """Copy the behavior policies of `members` to their policy checkpoints."""
        self._to_checkpoint |= set(members)

    def train(
        self,
        calls: Sequence[UpdateCall],
        made: np.ndarray,
        scales: Scales | None = None,
        finished: Sequence[int] = (),
    ) -> None:
        """Start calls of updates, one after another; made and scales are [S].

        The policies of `finished` are copied for `refresh` as soon as the updates are done.
        """
        groups, work, made = list[GroupCall](), Counter[int](), made.copy()
        for call in calls:
            groups.append(self._group_call(call, made))
            work[groups[-1].inputs.shape[1]] += call.updates
            made[list(call.members)] += call.updates
        fetched = tuple(finished) if self._acts_on_host and self.accelerated else ()
        args = trace_settings(), self._take_waiting(), groups, self._cast_scales(scales), fetched
        if not self._tasks:
            self._oldest_began = time.perf_counter()
        started = self._starter.submit(self._start, *args)
        result = self._fetcher.submit(self._fetch, started, fetched)
        members = frozenset(member for call in calls for member in call.members)
        self._tasks.append(UpdateTask(members, result, work))

    def _group_call(self, call: UpdateCall, made: np.ndarray) -> GroupCall:
        """Return a call of members that have made so many updates, [S]."""
        members, stride = call.members, choose_stride(call, made, self._stride)
        size = group_size(len(members), self.size, self._growth)
        if len(members) == self.size:
            program = self._updates.program(ProgramKey(size, True, stride))
        elif self.async_updates:
            size, program = self._updates.program_for(len(members), size, stride)
        else:
            program = self._updates.program(ProgramKey(size, False, stride))
        who = pad_members(members, size)
        # Padding members are written beyond the fleet's end, which drops them.
        place = np.where(np.arange(size) < len(members), who, self.size)
        # Left on the host, in one array: each transfer takes as long as half an update.
        inputs = GroupInputs(who, made[who], place, np.full(size, call.updates))
        return GroupCall(program, self._keys, np.stack(inputs))

    def _start(
        self,
        settings: TraceSettings,
        waiting: WaitingChanges,
        calls: Sequence[GroupCall],
        scales: Scales | None,
        finished: tuple[int, ...],
    ) -> tuple[float, tuple[Array, dict[str, Array] | None]]:
        """Start updates, in a thread of its own, after the changes that wait for them.

        Return when, and what the host reads: the flags of losses, and policies, packed behind the
        updates.
        """
        self._apply(waiting, settings)
        for call in calls:
            self.update_seconds.wait_for(call.program)
        start = time.perf_counter()
        with use_settings(settings):
            data = Data(self._rows, scales, self._offline)
            self._set_state(run_calls(calls, data, self._state))
            # Not of the state: the next updates may overwrite its arrays before they are read.
            raised = jnp.copy(self._state.rest.alarm.raised)
            parts = None
            if finished:
                parts = self._copy_to_host.pack(self._state, self._padded(finished))
            for leaf in jax.tree.leaves((raised, parts)):
                leaf.copy_to_host_async()
        return start, (raised, parts)

    def _fetch(self, started: Future[Any], finished: tuple[int, ...]) -> UpdateResult:
        """Wait for updates, in a thread of its own."""
        start, outputs = started.result()
        raised, parts = jax.device_get(outputs)
        policies = None if parts is None else FetchedPolicies(finished, parts)
        return UpdateResult(raised, policies, self.update_seconds.add(start))

    def _padded(self, members: Sequence[int]) -> NDArray[np.int_]:
        return pad_members(tuple(members), group_size(len(members), self.size, self._growth))

    def catch_up(self) -> None:
        """Apply to the device what had to wait for the updates in flight."""
        self.wait()
        self._apply(self._take_waiting(), trace_settings())

    def _take_waiting(self) -> WaitingChanges:
        """Return the changes that wait, and forget them."""
        checkpointed, blocks = None, list[buffer.StepBlock]()
        if self._to_checkpoint:
            checkpointed = np.isin(np.arange(self.size), list(self._to_checkpoint))
            self._to_checkpoint = set()
        while self._pending:
            # Three programs: for one step of the fleet, for a block of steps, and for many.
            sizes = self.size, max(STEPS, self.size), max(MANY_STEPS, self.size)
            most = next((x for x in sizes if x >= len(self._pending)), sizes[-1])
            most = min(most, max(1, (self.replay_rows - 1) // 2))  # no row is written twice
            members, packed = self._pending.take(most)
            block = place_steps(members, packed, self._ended, self.opened, self.replay_rows)
            blocks.append(buffer.StepBlock(*(np.resize(x, (most, *x.shape[1:])) for x in block)))
        return WaitingChanges(checkpointed, blocks)

    def _apply(self, waiting: WaitingChanges, settings: TraceSettings) -> None:
        """Make changes, with the same settings in every thread: others mean other programs."""
        with use_settings(settings):
            if waiting.checkpointed is not None:
                self._set_state(self._checkpoint(self._state, waiting.checkpointed))
            for block in waiting.blocks:
                self._store_block(block)

    def _store_block(self, block: buffer.StepBlock) -> None:
        """Store steps, with one program for every number of steps.

        `jax.jit` would compile it again for arrays that are not committed to their device, as they
        are at first and after updates.
        """
        stores, steps = (self._rows, self._state.rest.priorities), len(block.places)
        if steps not in self._store_programs:
            self._store_programs[steps] = self._store.lower(stores, block).compile()
        self._rows, priorities = self._store_programs[steps](stores, block)
        self._set_priorities(priorities)

    def refresh(self, members: Sequence[int]) -> None:
        """Copy the trained policies of `members` to their behavior policies.

        Updates of other members may be in flight if these policies were fetched by `train`.
        """
        if self._acts_on_host:
            if any(not task.members.isdisjoint(members) for task in self._tasks):
                self.wait()
            if missing := self._write_fetched(members):
                self.wait()
                padded = self._padded(missing)
                with use_settings(trace_settings()):
                    self._copy_to_host(self.policies, self._state, padded, len(missing))
            return
        self.wait()  # without storing steps: one may be left for the next fused call
        trained = self.agent.behavior_policy(self._restore().state)
        if len(members) == self.size or self._stale_policies:
            self.policies, self._stale_policies = self._copy(trained), False
        else:
            who = self._padded(members)
            self.policies = self._scatter(self.policies, who, self._gather(trained, who))

    def _write_fetched(self, members: Sequence[int]) -> list[int]:
        """Write the policies that the last updates have fetched; return the missing members."""
        fetched, self._fetched = self._fetched, None  # later, they may be older than the learners
        if fetched is None:
            return list(members)
        if rows := [row for row, who in enumerate(fetched.members) if who in members]:
            self._copy_to_host.write(
                self.policies, fetched.parts, self._padded(fetched.members), rows
            )
        return [member for member in members if member not in fetched.members]

    def read_metrics(self) -> dict[str, NDArray[np.floating]]:
        """Return means per member since the last call, NaN if nothing was computed."""
        self.wait()  # without storing steps: one may be left for the next fused call
        stacked, state = self._read_metrics(self._state)
        self._set_state(state)
        totals, times = np.split(np.asarray(stacked), 2)
        with np.errstate(invalid="ignore"):
            return dict(zip(self._updates.metric_names, totals / times, strict=True))

    def nonfinite_members(self) -> list[int]:
        """Return members with a non-finite loss, as of the updates that are done."""
        return np.flatnonzero(self._raised).tolist()

    def nonfinite_batch(self, member: int) -> HostRows:
        """Return the transitions in which a member's loss was first non-finite."""
        index = self.learners.alarm.batch[member]
        who = jnp.asarray(member)
        if self._offline is None:
            batch = jax.jit(buffer.fetch)(self._rows, who, index)
        else:
            batch = jax.jit(buffer.fetch_mixed)(self._rows, self._offline, who, index)
        return {name: np.asarray(x) for name, x in batch._asdict().items()}

    def fetch_rows(self, member: int, first: int) -> HostRows:
        """Return a member's rows from number `first` to the newest, on the host."""
        return fetch_rows(self._rows, member, first, int(self.opened[member]))

    def put_rows(self, member: int, first: int, rows: HostRows) -> None:
        """Restore the rows that `fetch_rows` returned."""
        self._rows = put_rows(self._rows, member, first, rows)

    def snapshot(self) -> FleetSnapshot:
        """Copy all but the rows to the host; no updates may be in flight."""
        self.settle()
        if self._stale_policies:
            self.refresh(range(self.size))
        kept = np.isin(np.arange(self.size), list(self._to_checkpoint))
        learners = self._restore()._replace(clipped=None)
        parts = learners, self.policies, jnp.asarray(self.opened % self.replay_rows)
        learners, policies, newest = jax.tree.map(np.array, jax.device_get(parts))
        rest = self._waiting(), self.opened.copy(), kept
        return FleetSnapshot(learners, policies, newest, *rest)

    def settle(self) -> None:
        """Store what is waiting, except the one step that the next fused call stores."""
        if self.has_one_step:
            self.wait()
        else:
            self.catch_up()

    def _waiting(self) -> StackedSteps:
        """Return the steps that are not stored yet: none, or one of every member."""
        members, packed = self._pending.peek()
        count = 1 if len(members) else 0
        opened = np.zeros((count, self.size), dtype=int)
        opened[:, members] = 1 + packed[:, self._ended].astype(int)
        steps = packed.reshape(count, self.size, self._fields)
        return StackedSteps(members.reshape(count, self.size), steps, opened)

    def restore(self, snapshot: FleetSnapshot) -> None:
        """Continue from a snapshot, except for the rows."""
        learners = jax.tree.map(jnp.asarray, snapshot.learners)
        self._raised = np.array(snapshot.learners.alarm.raised)
        self._set_learners(learners._replace(clipped=self._state.rest.clipped))
        self.policies = self._copy(snapshot.policies)
        self.opened = snapshot.opened.copy()
        for members, packed, _ in zip(*snapshot.waiting, strict=True):  # of an earlier version
            _, first = np.unique(members, return_index=True)
            columns = np.split(packed[first], self._columns, axis=1)
            self._pending.add(members[first], HostTransition(*columns))
        self._to_checkpoint = {int(member) for member in np.flatnonzero(snapshot.kept)}

    def data(self, scales: Scales | None) -> Data:
        """Return what updates read of the fleet, at these scales."""
        return Data(self._rows, self._cast_scales(scales), self._offline)

    def _cast_scales(self, scales: Scales | None) -> Scales | None:
        dtype = self._rows.obs.dtype
        return scales and Scales(*(np.array(part, dtype) for part in scales))

    def _copy(self, policies: Any) -> Any:
        # The originals are donated to the next update.
        if self._acts_on_host:
            return jax.tree.map(np.array, jax.device_get(policies))
        return jax.device_put(policies, self._act_device, may_alias=False)
