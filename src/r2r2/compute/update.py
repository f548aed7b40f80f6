"""One update of one member: draw, sample, learn, write the priorities back."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Metric
from r2r2.compute.random_keys import Purpose, step_key
from r2r2.replay import sum_tree as sumtree
from r2r2.replay.buffer import (
    Priorities,
    Replay,
    Rows,
    draw_uniforms,
    fetch,
    refresh_max_priority,
    update_priorities,
)
from r2r2.replay.normalizer import Scales, normalize_batch


class NonFiniteFlag(NamedTuple):
    """Whether a loss was ever not finite, and the first batch in which it was not."""

    raised: Array  # [] bool
    batch: Array  # [B], its rows


class LearnerState(NamedTuple):
    """What updates change, for one member or, with a leading axis, for a group."""

    state: Any
    priorities: Priorities
    metrics: dict[str, Metric]  # summed over the updates since they were last read
    alarm: NonFiniteFlag


class Sample(NamedTuple):
    """What one update learns from."""

    rows: Array  # [B], of the replay
    batch: Batch
    noise: Any  # the agent's draws


class Data(NamedTuple):
    """What updates read and do not change, of the whole fleet."""

    rows: Rows
    scales: Scales | None = None  # [S, ...], for the agents that normalise


class RunLengths(NamedTuple):
    """How far a member's run goes."""

    rows: int  # of its replay
    updates: int  # of the whole run, which learning-rate schedules span


def first_states(agent: Agent, keys: Array, horizon: Array) -> Any:
    """The agents' states before their first update, [S, ...].

    Args:
        agent: the algorithm.
        keys: the members', [S].
        horizon: updates of the whole run, [].
    """
    first = jax.vmap(lambda key: step_key(key, Purpose.INIT, 0))(keys)
    return jax.vmap(agent.init, in_axes=(0, None))(first, horizon)


def init(agent: Agent, states: Any, replay: Replay) -> LearnerState:
    """A fleet before its first update, whose replay holds the first observations."""
    members = len(replay.newest)
    silent = NonFiniteFlag(
        jnp.zeros(members, dtype=bool),
        jnp.zeros((members, agent.batch_size), dtype=int),
    )
    bare = LearnerState(states, replay.priorities, {}, silent)

    def one_update(learner: LearnerState) -> dict[str, Metric]:
        step = jnp.ones((), dtype=int)
        draws = draw(agent, learner.priorities, jax.random.key(0), step)
        found = sample(Data(replay.rows), learner.priorities, step, draws)
        return _update(agent, learner, found, step)[1]

    shapes = jax.eval_shape(jax.vmap(one_update), bare)
    metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return bare._replace(metrics=metrics)


def sample(data: Data, priorities: Priorities, member: Array, draws: Any) -> Sample:
    """The rows that a member learns from.

    Args:
        data: the whole fleet's.
        priorities: the member's.
        member: its place in the fleet.
        draws: the sampler's uniforms [B, levels], and the agent's draws.
    """
    uniforms, noise = draws
    index = sumtree.draw(priorities.tree, uniforms)
    batch = fetch(data.rows, member, index)
    if data.scales is not None:
        batch = normalize_batch(batch, jax.tree.map(lambda x: x[member], data.scales))
    return Sample(index, batch, noise)


def learn(
    agent: Agent, learner: LearnerState, found: Sample, step: Any
) -> LearnerState:
    """One update of one member, with which it has made `step`; priorities included."""
    learner, metrics = _update(agent, learner, found, step)
    return learner._replace(metrics=jax.tree.map(jnp.add, learner.metrics, metrics))


def watched(
    alarm: NonFiniteFlag, metrics: dict[str, Metric], index: Array
) -> NonFiniteFlag:
    """The alarm after an update of the rows `index`: the first one stands."""
    finite = jnp.isfinite(sum(metric.total for metric in metrics.values()))
    first = ~alarm.raised & ~finite
    batch = jnp.where(jnp.broadcast_to(first, index.shape), index, alarm.batch)
    return NonFiniteFlag(alarm.raised | first, batch)


def sync(agent: Agent, learner: LearnerState) -> LearnerState:
    """What happens every `sync_period` updates: the agent's part and LAP's."""
    return learner._replace(
        state=agent.sync(learner.state),
        priorities=refresh_max_priority(learner.priorities),
    )


def draw(agent: Agent, priorities: Priorities, key: Array, step: Array) -> Any:
    """The random numbers of a member's update number `step`."""
    k_sample, k_update = jax.random.split(step_key(key, Purpose.LEARN, step))
    uniforms = draw_uniforms(k_sample, agent.batch_size, priorities.tree)
    return uniforms, agent.update_noise(k_update)


def _update(
    agent: Agent, learner: LearnerState, found: Sample, step: Any
) -> tuple[LearnerState, dict[str, Metric]]:
    state, out = agent.update(learner.state, found.batch, found.noise, step)
    learner = learner._replace(state=state)
    if (out.priorities is not None) != agent.prioritizes:
        raise ValueError("an agent's updates have priorities if it says so, or none")
    if out.priorities is not None:
        new = update_priorities(learner.priorities, found.rows, out.priorities)
        learner = learner._replace(priorities=new)
    alarm = watched(learner.alarm, out.metrics, found.rows)
    return learner._replace(alarm=alarm), out.metrics
