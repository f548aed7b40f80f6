"""Many updates of many members as one compiled call.

Sampling is inside, since LAP's priorities change after every update. Members may have
made different numbers of updates: what falls on every update is unbatched, and what
falls on some (a sync of the targets) happens at boundaries, between which the loop
runs without asking.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from r2r2.core import Agent, Array, Metric
from r2r2.interact import sumtree
from r2r2.interact.keys import Purpose, step_key
from r2r2.interact.normalise import Scales, normalised
from r2r2.interact.replay import (
    Priorities,
    Replay,
    Rows,
    draw_uniforms,
    fetch,
    refresh_highest,
    reprioritise,
)
from r2r2.learn.targets import pick, when


class Alarm(NamedTuple):
    """Whether a loss was ever not finite, and the first batch in which it was not."""

    raised: Array  # [] bool
    batch: Array  # [B], its rows


class Learner(NamedTuple):
    """What updates change, for one member or, with a leading axis, for a group."""

    state: Any
    priorities: Priorities
    metrics: dict[str, Metric]  # summed over the updates since they were last read
    alarm: Alarm


class Data(NamedTuple):
    """What updates read and do not change, of the whole fleet."""

    rows: Rows
    scales: Scales | None = None  # [S, ...], for the agents that normalise


class Group(NamedTuple):
    """Which members are updated, in the fleet's numbering, and how far they are."""

    member: Array  # [K]
    key: Array  # [K], the members' keys
    made: Array  # [K], updates each has made; equal modulo the agent's phase


def init(agent: Agent, keys: Array, replay: Replay, horizon: Array) -> Learner:
    """A fleet before its first update.

    Args:
        agent: the algorithm.
        keys: the members', [S].
        replay: holds their first observations.
        horizon: updates of the whole run, [].
    """
    first = jax.vmap(lambda key: step_key(key, Purpose.INIT, 0))(keys)
    states = jax.vmap(agent.init, in_axes=(0, None))(first, horizon)
    members = len(replay.newest)
    silent = Alarm(
        jnp.zeros(members, dtype=bool),
        jnp.zeros((members, agent.batch_size), dtype=int),
    )
    bare = Learner(states, replay.priorities, {}, silent)

    def one_update(learner: Learner, key: Array) -> dict[str, Metric]:
        step = jnp.ones((), dtype=int)
        draws = draw(agent, learner.priorities, key, step)
        return _update(agent, Data(replay.rows), learner, step, draws, step)[1]

    shapes = jax.eval_shape(jax.vmap(one_update), bare, keys)
    metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return bare._replace(metrics=metrics)


def update_once(
    agent: Agent, data: Data, learner: Learner, member: Array, draws: Any, step: Array
) -> Learner:
    """Sample, update, write the priorities back: one member, one update.

    Args:
        agent: the algorithm.
        data: the whole fleet's.
        learner: what of this member changes.
        member: its place in the fleet.
        draws: the sampler's uniforms [B, levels], and the agent's draws.
        step: updates made with this one.
    """
    learner, metrics = _update(agent, data, learner, member, draws, step)
    return learner._replace(metrics=jax.tree.map(jnp.add, learner.metrics, metrics))


def watched(alarm: Alarm, metrics: dict[str, Metric], index: Array) -> Alarm:
    """The alarm after an update of the rows `index`: the first one stands."""
    finite = jnp.isfinite(sum(metric.total for metric in metrics.values()))
    first = ~alarm.raised & ~finite
    batch = jnp.where(jnp.broadcast_to(first, index.shape), index, alarm.batch)
    return Alarm(alarm.raised | first, batch)


def sync(agent: Agent, learner: Learner) -> Learner:
    """What happens every `sync_period` updates: the agent's part and LAP's."""
    return learner._replace(
        state=agent.sync(learner.state),
        priorities=refresh_highest(learner.priorities),
    )


def draw(agent: Agent, priorities: Priorities, key: Array, step: Array) -> Any:
    """The random numbers of a member's update number `step`."""
    k_sample, k_update = jax.random.split(step_key(key, Purpose.LEARN, step))
    uniforms = draw_uniforms(k_sample, agent.batch_size, priorities.tree)
    return uniforms, agent.draw(k_update)


def update_many(
    agent: Agent, data: Data, learners: Learner, group: Group, count: Array
) -> Learner:
    """`count` updates of every member of a group; `count` may change between calls."""
    advance = partial(_advance, agent, data, group)
    if not agent.sync_period:
        return cast(Learner, jax.lax.fori_loop(0, count, advance, learners))
    sync_all = jax.vmap(partial(sync, agent))

    def segment(carry: tuple[Array, Learner]) -> tuple[Array, Learner]:
        done, learners = carry
        ahead = jnp.min(agent.sync_period - (group.made + done) % agent.sync_period)
        until = jnp.minimum(done + ahead, count)
        learners = jax.lax.fori_loop(done, until, advance, learners)
        due = (group.made + until) % agent.sync_period == 0
        return until, when(
            jnp.any(due), lambda old: pick(due, sync_all(old), old), learners
        )

    start = jnp.zeros_like(count), learners
    return jax.lax.while_loop(lambda carry: carry[0] < count, segment, start)[1]


def _advance(
    agent: Agent, data: Data, group: Group, done: Array, learners: Learner
) -> Learner:
    step = group.made + done + 1
    draws = jax.vmap(partial(draw, agent))(learners.priorities, group.key, step)
    each = jax.vmap(partial(update_once, agent, data), in_axes=(0, 0, 0, None))
    # The members agree modulo the phase: the first one's step stands for all, and has
    # no member axis, so the agent's conditions stay branches.
    return each(learners, group.member, draws, step[0])


def _update(
    agent: Agent, data: Data, learner: Learner, member: Array, draws: Any, step: Array
) -> tuple[Learner, dict[str, Metric]]:
    uniforms, noise = draws
    index = sumtree.draw(learner.priorities.tree, uniforms)
    batch = fetch(data.rows, member, index)
    if data.scales is not None:
        batch = normalised(batch, jax.tree.map(lambda x: x[member], data.scales))
    state, out = agent.update(learner.state, batch, noise, step)
    learner = learner._replace(state=state)
    if out.priorities is not None:
        priorities = reprioritise(learner.priorities, index, out.priorities)
        learner = learner._replace(priorities=priorities)
    alarm = watched(learner.alarm, out.metrics, index)
    return learner._replace(alarm=alarm), out.metrics
