"""Many updates of many members as one compiled call.

Sampling is inside, since LAP's priorities change after every update. Members may have
made different numbers of updates: what falls on every update is unbatched, and what
falls on some (a sync of the targets) happens at boundaries, between which the loop
runs without asking. Where priorities stay as they are, each update draws the rows of
the next beside its own work, which does not need them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array
from r2r2.agents.tree_ops import cond_apply, select
from r2r2.compute.loop_packing import LoopPacking, Packed, packs
from r2r2.compute.update import Data, LearnerState, Sample, draw, learn, sample, sync
from r2r2.replay.buffer import Priorities


class UpdateGroup(NamedTuple):
    """Which members are updated, in the fleet's numbering, and how far they are."""

    member: Any  # [K]
    key: Array  # [K], the members' keys
    made: Any  # [K], updates each has made; equal modulo the agent's phase


def longest_stride(agent: Agent, members: int) -> int:
    """Updates to a turn of the loop: whole phases, or 1 if a sync would fall inside.

    A turn has a cost of its own, some 10 us. One member alone may notice: an agent says
    by `lone_stride` over how many updates it is best spread.
    """
    lone = math.lcm(agent.policy_period, agent.lone_stride)
    strides = (lone, agent.policy_period) if members == 1 else (agent.policy_period,)
    return next((x for x in strides if not agent.sync_period % x), 1)


def update_many(
    agent: Agent,
    data: Data,
    learners: LearnerState,
    group: UpdateGroup,
    count: Array,
    stride: int = 1,
) -> LearnerState:
    """`count` updates of every member of a group; `count` may change between calls.

    In between, states are as `agent.enter` makes them.

    Args:
        agent: the algorithm.
        data: the whole fleet's.
        learners: what of the group changes.
        group: who they are.
        count: updates of each.
        stride: 1, or whole phases of the agent, which then divide `count`,
            `sync_period` and what everybody has made: what is due in an update is then
            known while tracing, and the loop is without branches.
    """
    learners = learners._replace(state=agent.enter(learners.state))
    layout = LoopPacking(_carried(learners), packs())
    draw_rows = partial(_sampled, agent, data, group)

    def advance(turn: Array, carry: _Carry) -> _Carry:
        for one in range(stride):
            learners, found = _unpacked(layout, carry), carry.ahead
            done = turn * stride + one
            step = one + 1 if stride > 1 else (group.made + done + 1)[0]
            ahead = None
            if found is None:
                found = draw_rows(learners.priorities, done)
            else:
                ahead = draw_rows(learners.priorities, done + 1)
            learners = _learned(agent, learners, found, step)
            carry = _settled(_packed(layout, learners, ahead))
        return carry

    def many(done: Array, until: Array, carry: _Carry) -> _Carry:
        turns = done // stride, until // stride
        result: _Carry = jax.lax.fori_loop(*turns, advance, carry)
        return result

    start = jnp.zeros_like(count)
    first = None if agent.prioritizes else draw_rows(learners.priorities, start)
    carry = _packed(layout, learners, first)
    if agent.sync_period:
        carry = _with_syncs(agent, group, count, layout, many, carry)
    else:
        carry = many(start, count, carry)
    state, metrics = layout.restore(carry.packed)
    return carry.rest._replace(state=agent.leave(state), metrics=metrics)


class _Carry(NamedTuple):
    """What goes from one update to the next."""

    packed: Packed
    rest: LearnerState  # without what is in the former
    ahead: Sample | None  # for the next update; None: it depends on this one


# Keeps XLA from taking the carry apart again between two updates of a stride.
_settled: Callable[[_Carry], _Carry] = jax.lax.optimization_barrier


def _with_syncs(
    agent: Agent,
    group: UpdateGroup,
    count: Array,
    layout: LoopPacking,
    many: Callable[[Array, Array, _Carry], _Carry],
    carry: _Carry,
) -> _Carry:
    """`count` updates by `many`, from the nearest boundary of anybody to the next."""
    sync_all = jax.vmap(partial(sync, agent))

    def segment(at: tuple[Array, _Carry]) -> tuple[Array, _Carry]:
        done, carry = at
        left = jnp.min(agent.sync_period - (group.made + done) % agent.sync_period)
        until = jnp.minimum(done + left, count)
        carry = many(done, until, carry)
        due = (group.made + until) % agent.sync_period == 0

        def synced(carry: _Carry) -> _Carry:
            old = _unpacked(layout, carry)
            return _packed(layout, select(due, sync_all(old), old), carry.ahead)

        return until, cond_apply(jnp.any(due), synced, carry)

    start = jnp.zeros_like(count), carry
    result: tuple[Array, _Carry] = jax.lax.while_loop(
        lambda at: at[0] < count, segment, start
    )
    return result[1]


def _carried(learners: LearnerState) -> Any:
    return learners.state, learners.metrics


def _packed(
    layout: LoopPacking, learners: LearnerState, ahead: Sample | None
) -> _Carry:
    packed = layout.pack(_carried(learners))
    return _Carry(packed, learners._replace(state=None, metrics={}), ahead)


def _unpacked(layout: LoopPacking, carry: _Carry) -> LearnerState:
    state, metrics = layout.unpack(carry.packed)
    return carry.rest._replace(state=state, metrics=metrics)


def _sampled(
    agent: Agent, data: Data, group: UpdateGroup, priorities: Priorities, done: Array
) -> Sample:
    """What everybody's next update learns from, after `done` of this call."""

    def one(priorities: Priorities, member: Array, key: Array, made: Array) -> Sample:
        draws = draw(agent, priorities, key, made + done + 1)
        return sample(data, priorities, member, draws)

    return jax.vmap(one)(priorities, group.member, group.key, group.made)


def _learned(
    agent: Agent, learners: LearnerState, found: Sample, due: Any
) -> LearnerState:
    # The members agree modulo the phase: one step stands for all, and has no member
    # axis, so the agent's conditions stay branches.
    def one(learner: LearnerState, found: Sample) -> LearnerState:
        return learn(agent, learner, found, due)

    return jax.vmap(one)(learners, found)
