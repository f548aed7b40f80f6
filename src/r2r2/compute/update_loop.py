"""Many updates of many members as one fast loop, and which members train together.

Sampling is inside the loop, since LAP's priorities change after every update. Members
may have made different numbers of updates: what happens in every update is unbatched,
and what happens in some (a sync of the targets) happens at boundaries, between which
the loop runs without branches. Where priorities are constant, each update samples the
rows of the next, which XLA can do beside the update's own work.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Agent, Array, Metric
from r2r2.agents.registry import state_shapes
from r2r2.compute.loop_packing import LoopPacking, Packed, packs
from r2r2.compute.precision import add_copies, drop_copies
from r2r2.compute.update import (
    Data,
    LearnerState,
    Sample,
    UpdateGroup,
    learn_group,
    sample_group,
    select,
    sync,
    update_plainly,
)

# Entries of a state up to which a single member runs two updates per turn: a turn costs
# about 10 us (Minimalist phi: 491 us per update instead of 504).
LIGHT = 2**24


def longest_stride(agent: Agent, members: int) -> int:
    """Return updates per turn of the loop: whole policy periods, or 1 if a sync may be inside."""
    period = agent.policy_period
    strides = [period]
    if members == 1 and sum(x.size for x in jax.tree.leaves(state_shapes(agent))) <= LIGHT:
        strides.insert(0, math.lcm(period, 2))
    return next((x for x in strides if not agent.sync_period % x), 1)


class LoopState(NamedTuple):
    """The learners of a fleet as the loop carries them, in arrays [S, ...].

    Fleets hold them in this form between calls, too: it has few arrays and no modules, and each
    array and each module costs time when a program is called.
    """

    packed: Packed
    rest: LearnerState  # without what is packed


class UpdateLoop:
    """Many updates of every member of a group as one loop, for learners of some shapes.

    Without `fast`, the loop carries the learners as they are and makes the plain updates.
    """

    def __init__(self, agent: Agent, shapes: LearnerState, fp16: bool = False, fast: bool = True):
        self._agent, self._fp16, self._fast = agent, fp16 and fast, fast
        carried = jax.eval_shape(lambda learners: _carried(self._with_copies(learners)), shapes)
        self.packs = fast and packs()
        self._packing = LoopPacking(carried, self.packs)

    def _with_copies(self, learners: LearnerState) -> LearnerState:
        return learners._replace(state=add_copies(learners.state)) if self._fp16 else learners

    def pack(self, learners: LearnerState) -> LoopState:
        """Return learners as the loop carries them."""
        return _pack(self._packing, self._with_copies(learners))

    def unpack(self, state: LoopState) -> LearnerState:
        """Return the learners as updates see them: kernels have rows of zeros."""
        return _unpack(self._packing, state)

    def repack(self, learners: LearnerState) -> LoopState:
        """Return learners in the form of `unpack` as the loop carries them."""
        return _pack(self._packing, learners)

    def restore(self, state: LoopState) -> LearnerState:
        """Return the learners in their original shapes."""
        agent_state, metrics = self._packing.restore(state.packed)
        agent_state, clipped = drop_copies(agent_state)
        learners = state.rest._replace(state=agent_state, metrics=metrics)
        if clipped is None or learners.clipped is None:
            return learners
        total, times = learners.clipped
        return learners._replace(clipped=Metric(total + clipped, times))

    def run(self, data: Data, state: LoopState, group: UpdateGroup, stride: int = 1) -> LoopState:
        """Make `group.updates` updates of every member."""
        if not self._fast:
            return self.repack(update_plainly(self._agent, data, self.unpack(state), group))
        # A stride above 1 is whole policy periods that divide `group.updates`, `sync_period` and
        # `group.made`: conditions of an update are then known at trace time, and the loop has no
        # branches.
        agent, packing = self._agent, self._packing
        sample_rows = partial(sample_group, agent, data, group)

        def turn(number: Array, carry: _Carry) -> _Carry:
            for place in range(stride):
                learners, inputs = _unpack(packing, carry.state), carry.ahead
                done = number * stride + place
                step = place + 1 if stride > 1 else (group.made + done + 1)[0]
                ahead = None
                if inputs is None:
                    inputs = sample_rows(learners.priorities, done)
                else:
                    ahead = sample_rows(learners.priorities, done + 1)
                learners = learn_group(agent, learners, inputs, step)
                carry = _separate(_Carry(_pack(packing, learners), ahead))
            return carry

        def run(done: Array, until: Array, carry: _Carry) -> _Carry:
            return cast(_Carry, jax.lax.fori_loop(done // stride, until // stride, turn, carry))

        start = jnp.zeros_like(group.updates)
        first = None if agent.prioritizes else sample_rows(state.rest.priorities, start)
        carry = _Carry(state, first)
        if agent.sync_period:
            carry = _with_syncs(agent, group, packing, run, carry)
        else:
            carry = run(start, group.updates, carry)
        return _count_clipped(carry.state, group.updates)

    def run_one(self, data: Data, state: LoopState, group: UpdateGroup) -> LoopState:
        """Make one update of every member, without a loop and what it computes ahead."""
        agent = self._agent
        learners = _unpack(self._packing, state)
        inputs = sample_group(agent, data, group, learners.priorities, jnp.zeros((), int))
        made = group.made + 1
        learners = learn_group(agent, learners, inputs, made[0])
        if agent.sync_period:
            due = made % agent.sync_period == 0
            synced = jax.vmap(partial(sync, agent))
            learners = jax.lax.cond(
                jnp.any(due), lambda old: select(due, synced(old), old), lambda old: old, learners
            )
        return _count_clipped(_pack(self._packing, learners), 1)


def _count_clipped(state: LoopState, updates: Any) -> LoopState:
    rest = state.rest
    if rest.clipped is None:
        return state
    counted = rest.clipped._replace(times=rest.clipped.times + updates)
    return state._replace(rest=rest._replace(clipped=counted))


class _Carry(NamedTuple):
    """What the loop carries from one update to the next."""

    state: LoopState
    ahead: Sample | None  # inputs of the next update; None: they depend on this one


# Keeps XLA from unpacking the carry between two updates of a turn.
_separate: Callable[[_Carry], _Carry] = jax.lax.optimization_barrier


def _with_syncs(
    agent: Agent,
    group: UpdateGroup,
    packing: LoopPacking,
    run: Callable[[Array, Array, _Carry], _Carry],
    carry: _Carry,
) -> _Carry:
    """Run all updates, in segments that end where a member's sync is due."""
    sync_all = jax.vmap(partial(sync, agent))

    def segment(at: tuple[Array, _Carry]) -> tuple[Array, _Carry]:
        done, carry = at
        left = jnp.min(agent.sync_period - (group.made + done) % agent.sync_period)
        until = jnp.minimum(done + left, group.updates)
        carry = run(done, until, carry)
        due = (group.made + until) % agent.sync_period == 0

        def synced(carry: _Carry) -> _Carry:
            old = _unpack(packing, carry.state)
            return carry._replace(state=_pack(packing, select(due, sync_all(old), old)))

        return until, jax.lax.cond(jnp.any(due), synced, lambda same: same, carry)

    start = jnp.zeros_like(group.updates), carry
    return jax.lax.while_loop(lambda at: at[0] < group.updates, segment, start)[1]


def _carried(learners: LearnerState) -> Any:
    return learners.state, learners.metrics


def _pack(packing: LoopPacking, learners: LearnerState) -> LoopState:
    return LoopState(packing.pack(_carried(learners)), learners._replace(state=None, metrics={}))


def _unpack(packing: LoopPacking, state: LoopState) -> LearnerState:
    agent_state, metrics = packing.unpack(state.packed)
    return state.rest._replace(state=agent_state, metrics=metrics)


class UpdateCall(NamedTuple):
    """One compiled call: members, and updates of each."""

    members: tuple[int, ...]
    updates: int


def next_update_call(made: np.ndarray, pending: np.ndarray, period: int, most: int) -> UpdateCall:
    """Return the next call of at most `most` updates; some of the pending [S] must be positive."""
    # Its members agree modulo `period`. Members that are out of step catch up first; then all
    # members with pending updates train until the first of them is done, in whole periods, which
    # have the fastest program. The choice never changes a member's own sequence of updates.
    active = np.flatnonzero(pending)
    late = made[active] % period
    if late.any():
        active = active[late == late.max()]
        most = min(most, period - late.max())
    count = int(min(most, pending[active].min()))
    if count > period:
        count -= count % period
    return UpdateCall(tuple(int(member) for member in active), count)


def next_update_calls(
    made: np.ndarray, pending: np.ndarray, period: int, most: int
) -> list[UpdateCall]:
    """Return the next calls, which can run one after another without a wait between them.

    They end when the first of their members is done, and make at most `most` updates in all.
    """
    made, pending = made.copy(), pending.copy()
    calls = [next_update_call(made, pending, period, most)]
    members, left = set[int](), most
    while True:
        chosen = list(calls[-1].members)
        made[chosen] += calls[-1].updates
        pending[chosen] -= calls[-1].updates
        members |= {*chosen}
        left -= calls[-1].updates
        if left < period or (pending[list(members)] == 0).any():
            return calls
        calls.append(next_update_call(made, pending, period, left))


def choose_stride(call: UpdateCall, made: np.ndarray, longest: int) -> int:
    """Return `longest` if a call starts and ends at multiples of it, else 1."""
    ends = np.append(made[list(call.members)], call.updates)
    return 1 if (ends % longest).any() else longest


def pad_members(members: tuple[int, ...], size: int) -> np.ndarray:
    """Repeat the first member until `size`: one program thus serves every smaller group."""
    return np.asarray(members + members[:1] * (size - len(members)))


def group_sizes(fleet: int, growth: int) -> list[int]:
    """Return the sizes to which groups are padded, smallest first."""
    sizes = [fleet]
    while sizes[0] > growth // 2:
        sizes.insert(0, -(-sizes[0] // growth))
    return sizes


def group_size(members: int, fleet: int, growth: int) -> int:
    """Return the size to which a group of members is padded."""
    return next(size for size in group_sizes(fleet, growth) if size >= members)
