"""A fleet on the device: networks, replay and behavior policies of all members.

Updates run in their own thread, since an accelerator's program blocks its thread until
the last kernel is launched. Meanwhile members act on copies of their policies, and new
steps wait on the host.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Agent, Array, Metric
from r2r2.compute import compiled, update
from r2r2.compute.compiled import CompiledUpdates, ProgramKey, run_compiled, x64_enabled
from r2r2.compute.precision import DEFAULT_OPTIONS, ComputeOptions, apply_precision, uses_fp16
from r2r2.compute.update import Data, LearnerState, RunLengths, UpdateGroup, member_key
from r2r2.compute.update_loop import (
    UpdateCall,
    choose_stride,
    group_size,
    longest_stride,
    pad_members,
)
from r2r2.envs.spec import Spec
from r2r2.replay import buffer
from r2r2.replay.buffer import HostRows, Replay, fetch_rows, put_rows
from r2r2.replay.normalizer import Scales
from r2r2.training.rollout import HostTransition

STEPS = 32  # stored by one program; a transfer of each would cost more


class StackedSteps(NamedTuple):
    """Several steps, the oldest first."""

    members: NDArray[np.int_]  # [T, S], those who made each, the first repeated
    packed: NDArray[np.floating]  # [T, S, fields of HostTransition side by side]
    opened: NDArray[np.int_]  # [T, S], rows that each opens in every replay


class PendingSteps:
    """A queue of steps of a fleet of `size`, each with `fields` numbers per member."""

    def __init__(self, size: int, fields: int):
        self._size, self._fields = size, fields
        self._steps: list[Any] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, members: Sequence[int], step: HostTransition) -> None:
        """Append a step of `members`, whose fields are [K, ...]."""
        index = pad_members(tuple(range(len(members))), self._size)
        opened = np.zeros(self._size, dtype=int)
        opened[list(members)] = 1 + step.ended
        packed = np.column_stack(step)[index]
        self._steps.append((np.asarray(members)[index], packed, opened))

    def take(self) -> tuple[StackedSteps, int]:
        """Remove and return the oldest steps, at most `STEPS`, and how many."""
        # Several are padded to `STEPS` with others, which must not be stored.
        steps, self._steps = self._steps[:STEPS], self._steps[STEPS:]
        count = len(steps)
        steps += steps[:1] * (STEPS - count if count > 1 else 0)
        return StackedSteps(*map(np.stack, zip(*steps, strict=True))), count

    @property
    def steps(self) -> StackedSteps:
        """All steps, to be saved."""
        if self._steps:
            return StackedSteps(*map(np.stack, zip(*self._steps, strict=True)))
        empty = np.zeros((0, self._size), dtype=int)
        return StackedSteps(empty, np.zeros((0, self._size, self._fields)), empty)

    @steps.setter
    def steps(self, steps: StackedSteps) -> None:
        self._steps = list(zip(*steps, strict=True))


class FleetSnapshot(NamedTuple):
    """Everything of a fleet but the rows of its replay."""

    learners: LearnerState
    policies: Any  # that act, [S, ...]
    newest: Array  # [S], as in `Replay`
    waiting: StackedSteps  # not in the replay yet
    opened: NDArray[np.int_]  # [S], rows ever opened in every replay, after its first
    kept: NDArray[np.bool_]  # [S], whose policy is to become its checkpoint


class Fleet:
    """Members that train in one program, each on its own data.

    With `act_on_cpu` members act on the CPU beside an accelerator, so that those that collect do
    not wait for those that train.

    Attributes:
        agent: the algorithm, in the precision of `options`.
        async_updates: whether members act while others train.
        update_period: calls make a multiple of this many updates, where they can.
        opened: rows ever opened in every member's replay, after its first, [S].
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        seeds: Sequence[int],
        lengths: RunLengths,
        act_on_cpu: bool,
        options: ComputeOptions = DEFAULT_OPTIONS,
    ):
        agent = self.agent = apply_precision(agent, options.precision)
        self.size, self._options = len(seeds), options
        self._keys = jnp.stack([member_key(seed) for seed in seeds])
        device = jax.devices()[0]
        self._act_device = jax.devices("cpu")[0] if act_on_cpu else device
        self.async_updates = self._act_device != device
        self._act_keys = jax.device_put(self._keys, self._act_device)
        zeros = np.zeros((self.size, spec.obs_dim))
        replay: Replay = jax.jit(partial(buffer.init, lengths.rows, spec))(zeros)
        self._rows, self._newest = replay.rows, replay.newest
        self._learners = self._initial_learners(replay, lengths, device)
        accelerated = device.platform != "cpu"  # launches and branches take time
        self._growth = 4 if accelerated else 2  # padding members are then almost free
        strides = accelerated and options.fast
        self._stride = longest_stride(agent, self.size) if strides else 1
        self.update_period = max(agent.policy_period, self._stride)
        fields = spec.action_dim + 2 * spec.obs_dim + len(HostTransition._fields) - 3
        self._pending = PendingSteps(self.size, fields)
        self.opened = np.zeros(self.size, dtype=int)
        self._to_checkpoint: set[int] = set()
        self._trainer = ThreadPoolExecutor(1)
        self._in_flight: Future[LearnerState] | None = None
        self._compile()
        if self.async_updates:
            self.compile_ahead()
        self._policies = self._copy(agent.behavior_policy(self._learners.state))

    def _initial_learners(self, replay: Replay, lengths: RunLengths, device: Any) -> LearnerState:
        # On the act device: a GPU takes long to compile orthogonal initialization.
        states = jax.jit(partial(update.initial_states, self.agent))(
            self._act_keys, np.asarray(lengths.updates)
        )
        learners: LearnerState = jax.jit(partial(update.init, self.agent))(
            jax.device_put(states, device), replay
        )
        if self._options.fp16 and uses_fp16(learners.state):
            zeros = Metric(jnp.zeros(self.size), jnp.zeros(self.size))
            learners = learners._replace(clipped=zeros)
        return learners

    def _compile(self) -> None:
        agent = self.agent
        self._act = jax.jit(partial(compiled.act, agent))
        self._first = jax.jit(buffer.set_first_obs, donate_argnums=0)
        self._store = jax.jit(compiled.store, donate_argnums=0)
        self._checkpoint = jax.jit(partial(compiled.checkpoint_policies, agent), donate_argnums=0)
        self._gather = jax.jit(lambda tree, who: jax.tree.map(lambda x: x[who], tree))
        self._scatter = jax.jit(compiled.scatter, donate_argnums=0)
        members, _, obs = self._rows.obs.shape
        scales = Scales(*map(jnp.zeros, ((members, obs), (members, obs), members)))
        data = self.data(scales if agent.normalizes else None)
        example = data, self._learners, self._keys
        self._updates = CompiledUpdates(agent, example, self._options)

    def compile_ahead(self) -> CompiledUpdates:
        """Request every program that updates may need; the result can be waited for."""
        return self._updates.request(self.size, self._growth, self._stride)

    def close(self) -> None:
        """Cancel what has not begun; the threads end after what is running."""
        self._trainer.shutdown(wait=False, cancel_futures=True)
        self._updates.close()

    @property
    def replay_rows(self) -> int:
        """Rows of every member's replay."""
        return int(self._rows.reward.shape[1])

    @property
    def ready(self) -> bool:
        """Whether all updates started so far are done."""
        return self._in_flight is None or self._in_flight.done()

    def wait(self) -> None:
        """Wait for all updates started so far."""
        if self._in_flight is not None:
            self._learners = self._in_flight.result()
            self._in_flight = None

    @property
    def learners(self) -> LearnerState:
        """All that updates change, [S, ...]; waits for those started so far."""
        self._catch_up()
        return self._learners

    @property
    def states(self) -> Any:
        """The agents' states, [S, ...]; waits for all updates started so far."""
        return self.learners.state

    def set_first_obs(self, obs: NDArray[np.floating]) -> None:
        """Store the first observations of all members, [S, obs]."""
        self._rows = self._first(self._rows, obs)

    def act(
        self, obs: NDArray[np.floating], steps: np.ndarray, warm: np.ndarray
    ) -> NDArray[np.floating]:
        """Return actions [S, action] of all members, uniform ones during warm-up."""
        args = jax.device_put((obs, steps, warm), self._act_device)
        return np.asarray(self._act(self._policies, self._act_keys, *args))

    def add(self, members: Sequence[int], step: HostTransition) -> None:
        """Store a step of `members`, whose fields are [K, ...]."""
        self._pending.add(members, step)
        if len(self._pending) >= STEPS and self._in_flight is None:
            self._catch_up()

    def checkpoint_policies(self, members: Sequence[int]) -> None:
        """Copy the behavior policies of `members` to their policy checkpoints."""
        self._to_checkpoint |= set(members)

    def train(self, call: UpdateCall, made: np.ndarray, scales: Scales | None = None) -> None:
        """Start `call.updates` updates of `call.members`; made and scales are [S]."""
        self._catch_up()
        members, is_fleet = call.members, len(call.members) == self.size
        who = pad_members(members, group_size(len(members), self.size, self._growth))
        keys = self._keys if is_fleet else self._keys[who]  # which takes 2 ms
        # Padding members are written beyond the fleet's end, which drops them.
        place = np.where(np.arange(len(who)) < len(members), who, self.size)
        # Left on the host: a separate transfer takes as long as half an update.
        group = UpdateGroup(who, keys, made[who], np.asarray(call.updates))
        stride = choose_stride(call, made, self._stride)
        program = self._updates.program(ProgramKey(len(who), is_fleet, stride))
        args = self.data(scales), self._learners, (group, place)
        self._in_flight = self._trainer.submit(run_compiled, program, x64_enabled(), *args)

    def _catch_up(self) -> None:
        """Apply to the device what had to wait for the updates in flight."""
        self.wait()
        if self._to_checkpoint:
            chosen = np.isin(np.arange(self.size), list(self._to_checkpoint))
            self._learners = self._checkpoint(self._learners, chosen)
            self._to_checkpoint = set()
        while self._pending:
            (members, packed, opened), count = self._pending.take()
            self.opened += opened[:count].sum(axis=0)
            stores = self._rows, self._newest, self._learners.priorities
            stored = self._store(stores, members, packed, count)
            self._rows, self._newest, priorities = stored
            self._learners = self._learners._replace(priorities=priorities)

    def refresh(self, members: Sequence[int]) -> None:
        """Copy the trained policies of `members` to their behavior policies."""
        self.wait()
        trained = self.agent.behavior_policy(self._learners.state)
        if len(members) == self.size:
            self._policies = self._copy(trained)
            return
        size = group_size(len(members), self.size, self._growth)
        who = pad_members(tuple(members), size)
        part = jax.device_put(self._gather(trained, who), self._act_device)
        self._policies = self._scatter(self._policies, who, part)

    def read_metrics(self) -> dict[str, NDArray[np.floating]]:
        """Return means per member since the last call, NaN if nothing was computed."""
        self.wait()
        metrics, clipped = self._learners.metrics, self._learners.clipped
        sums = jax.device_get(metrics)
        if clipped is not None:
            sums["precision/saturated"] = jax.device_get(clipped)
        zeros = jax.tree.map(jnp.zeros_like, (metrics, clipped))
        self._learners = self._learners._replace(metrics=zeros[0], clipped=zeros[1])
        with np.errstate(invalid="ignore"):
            return {name: metric.total / metric.times for name, metric in sums.items()}

    def nonfinite_members(self) -> list[int]:
        """Return members with a non-finite loss, as of the updates that are done."""
        return np.flatnonzero(np.asarray(self._learners.alarm.raised)).tolist()

    def nonfinite_batch(self, member: int) -> HostRows:
        """Return the transitions in which a member's loss was first non-finite."""
        index = self._learners.alarm.batch[member]
        batch = jax.jit(buffer.fetch)(self._rows, jnp.asarray(member), index)
        return {name: np.asarray(x) for name, x in batch._asdict().items()}

    def fetch_rows(self, member: int, first: int) -> HostRows:
        """Return a member's rows from number `first` to the newest, on the host."""
        return fetch_rows(self._rows, member, first, int(self.opened[member]))

    def put_rows(self, member: int, first: int, rows: HostRows) -> None:
        """Restore the rows that `fetch_rows` returned."""
        self._rows = put_rows(self._rows, member, first, rows)

    def snapshot(self) -> FleetSnapshot:
        """Copy all but the rows to the host; no updates may be in flight."""
        kept = np.isin(np.arange(self.size), list(self._to_checkpoint))
        learners = self._learners._replace(clipped=None)
        parts = learners, self._policies, self._newest
        learners, policies, newest = jax.tree.map(np.array, jax.device_get(parts))
        rest = self._pending.steps, self.opened.copy(), kept
        return FleetSnapshot(learners, policies, newest, *rest)

    def restore(self, snapshot: FleetSnapshot) -> None:
        """Continue from a snapshot, except for the rows."""
        learners = jax.tree.map(jnp.asarray, snapshot.learners)
        self._learners = learners._replace(clipped=self._learners.clipped)
        self._policies = self._copy(snapshot.policies)
        self._newest = jnp.asarray(snapshot.newest)
        self._pending.steps = snapshot.waiting
        self.opened = snapshot.opened.copy()
        self._to_checkpoint = {int(member) for member in np.flatnonzero(snapshot.kept)}

    def data(self, scales: Scales | None) -> Data:
        """Return what updates read of the fleet, at these scales."""
        dtype = self._rows.obs.dtype
        cast = scales and Scales(*(np.array(part, dtype) for part in scales))
        return Data(self._rows, cast)

    def _copy(self, policies: Any) -> Any:
        # The originals are donated to the next update.
        return jax.device_put(policies, self._act_device, may_alias=False)
