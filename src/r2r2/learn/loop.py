"""Many updates of many members as one compiled call.

Sampling is inside, since LAP's priorities change after every update. Members may have
made different numbers of updates: what falls on every update is unbatched, and what
falls on some (a sync of the targets) happens at boundaries, between which the loop
runs without asking.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.core import Agent, Array
from r2r2.learn.carry import Layout, Packed, packs
from r2r2.learn.targets import pick, when
from r2r2.learn.update import Data, Learner, draw, sync, update_once


class Group(NamedTuple):
    """Which members are updated, in the fleet's numbering, and how far they are."""

    member: Array  # [K]
    key: Array  # [K], the members' keys
    made: Array  # [K], updates each has made; equal modulo the agent's phase


def longest_stride(agent: Agent) -> int:
    """The agent's phase, where every sync falls between two of them, or 1."""
    return 1 if agent.sync_period % agent.phase else agent.phase


def update_many(
    agent: Agent,
    data: Data,
    learners: Learner,
    group: Group,
    count: Array,
    stride: int = 1,
) -> Learner:
    """`count` updates of every member of a group; `count` may change between calls.

    Args:
        agent: the algorithm.
        data: the whole fleet's.
        learners: what of the group changes.
        group: who they are.
        count: updates of each.
        stride: 1, or the agent's phase, which then divides `count`, `sync_period` and
            what everybody has made: what is due in an update is then known while
            tracing, and the loop is without branches.
    """
    layout = Layout(_carried(learners), packs())

    def advance(turn: Array, carry: _Carry) -> _Carry:
        for one in range(stride):
            learners = _unpacked(layout, carry)
            done = turn * stride + one
            step = one + 1 if stride > 1 else (group.made + done + 1)[0]
            learners = _advance(agent, data, group, done, learners, step)
            carry = _settled(_packed(layout, learners))
        return carry

    sync_all = jax.vmap(partial(sync, agent))

    def segment(carry: tuple[Array, _Carry]) -> tuple[Array, _Carry]:
        done, packed = carry
        ahead = jnp.min(agent.sync_period - (group.made + done) % agent.sync_period)
        until = jnp.minimum(done + ahead, count)
        packed = jax.lax.fori_loop(done // stride, until // stride, advance, packed)
        due = (group.made + until) % agent.sync_period == 0

        def synced(packed: _Carry) -> _Carry:
            old = _unpacked(layout, packed)
            return _packed(layout, pick(due, sync_all(old), old))

        return until, when(jnp.any(due), synced, packed)

    packed = _packed(layout, learners)
    if agent.sync_period:
        start = jnp.zeros_like(count), packed
        packed = jax.lax.while_loop(lambda at: at[0] < count, segment, start)[1]
    else:
        packed = jax.lax.fori_loop(0, count // stride, advance, packed)
    state, metrics = layout.restore(packed[0])
    return _unpacked(layout, packed)._replace(state=state, metrics=metrics)


_Carry = tuple[Packed, Learner]  # the latter without what is in the former
# Keeps XLA from taking the carry apart again between two updates of a stride.
_settled: Callable[[_Carry], _Carry] = jax.lax.optimization_barrier


def _carried(learners: Learner) -> Any:
    return learners.state, learners.metrics


def _packed(layout: Layout, learners: Learner) -> _Carry:
    packed = layout.pack(_carried(learners))
    return packed, learners._replace(state=None, metrics={})


def _unpacked(layout: Layout, carry: _Carry) -> Learner:
    state, metrics = layout.unpack(carry[0])
    return carry[1]._replace(state=state, metrics=metrics)


def _advance(
    agent: Agent,
    data: Data,
    group: Group,
    done: Array,
    learners: Learner,
    due: Array | int,
) -> Learner:
    step = group.made + done + 1
    draws = jax.vmap(partial(draw, agent))(learners.priorities, group.key, step)

    # The members agree modulo the phase: one step stands for all, and has no member
    # axis, so the agent's conditions stay branches.
    def one(learner: Learner, member: Array, draws: Any) -> Learner:
        return update_once(agent, data, learner, member, draws, due)

    return jax.vmap(one)(learners, group.member, draws)
