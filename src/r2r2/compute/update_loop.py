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


def update_many(
    agent: Agent,
    data: Data,
    learners: LearnerState,
    group: UpdateGroup,
    stride: int = 1,
    fp16: bool = False,
) -> LearnerState:
    """Make `group.updates` updates of every member of a group."""
    # A stride above 1 is whole policy periods that divide `group.updates`, `sync_period` and
    # `group.made`: conditions of an update are then known at trace time, and the loop has no
    # branches.
    if fp16:
        learners = learners._replace(state=add_copies(learners.state))
    packing = LoopPacking(_carried(learners), packs())
    sample_rows = partial(sample_group, agent, data, group)

    def turn(number: Array, carry: _Carry) -> _Carry:
        for place in range(stride):
            learners, inputs = _unpack(packing, carry), carry.ahead
            done = number * stride + place
            step = place + 1 if stride > 1 else (group.made + done + 1)[0]
            ahead = None
            if inputs is None:
                inputs = sample_rows(learners.priorities, done)
            else:
                ahead = sample_rows(learners.priorities, done + 1)
            learners = learn_group(agent, learners, inputs, step)
            carry = _separate(_pack(packing, learners, ahead))
        return carry

    def run(done: Array, until: Array, carry: _Carry) -> _Carry:
        return cast(_Carry, jax.lax.fori_loop(done // stride, until // stride, turn, carry))

    start = jnp.zeros_like(group.updates)
    first = None if agent.prioritizes else sample_rows(learners.priorities, start)
    carry = _pack(packing, learners, first)
    if agent.sync_period:
        carry = _with_syncs(agent, group, packing, run, carry)
    else:
        carry = run(start, group.updates, carry)
    state, metrics = packing.restore(carry.packed)
    state, clipped = drop_copies(state)
    learners = carry.rest._replace(state=state, metrics=metrics)
    if clipped is None or learners.clipped is None:
        return learners
    total, times = learners.clipped
    return learners._replace(clipped=Metric(total + clipped, times + group.updates))


class _Carry(NamedTuple):
    """What the loop carries from one update to the next."""

    packed: Packed
    rest: LearnerState  # without what is packed
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
            old = _unpack(packing, carry)
            return _pack(packing, select(due, sync_all(old), old), carry.ahead)

        return until, jax.lax.cond(jnp.any(due), synced, lambda same: same, carry)

    start = jnp.zeros_like(group.updates), carry
    return jax.lax.while_loop(lambda at: at[0] < group.updates, segment, start)[1]


def _carried(learners: LearnerState) -> Any:
    return learners.state, learners.metrics


def _pack(packing: LoopPacking, learners: LearnerState, ahead: Sample | None) -> _Carry:
    packed = packing.pack(_carried(learners))
    return _Carry(packed, learners._replace(state=None, metrics={}), ahead)


def _unpack(packing: LoopPacking, carry: _Carry) -> LearnerState:
    state, metrics = packing.unpack(carry.packed)
    return carry.rest._replace(state=state, metrics=metrics)


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
