"""One update of one member: draw noise, sample replay, learn, write priorities.

Random keys are functions of (seed, the member's own step, purpose) and nothing else.
"""

import enum
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch, Metric
from r2r2.replay import sum_tree
from r2r2.replay.buffer import (
    OfflineData,
    Priorities,
    Replay,
    Rows,
    fetch,
    fetch_mixed,
    refresh_max_priority,
    sample_mixed,
    sampling_uniforms,
    update_priorities,
)
from r2r2.replay.normalizer import Scales, normalize_batch

Tree = TypeVar("Tree")


class Purpose(enum.IntEnum):
    """What a random key is for; two purposes never share numbers."""

    INIT = 0
    ACT = 1
    LEARN = 2


def member_key(seed: int) -> Array:
    """Return the key from which all keys of a member are derived."""
    # Threefry is JAX's default: with the faster generators the numbers of a vmapped seed depend on
    # the other seeds.
    return jax.random.key(seed, impl="threefry2x32")


def step_key(key: Array, purpose: Purpose, step: Array | int) -> Array:
    """Return the key of one action (a decision step) or one update."""
    return jax.random.fold_in(jax.random.fold_in(key, int(purpose)), step)


class NonFiniteFlag(NamedTuple):
    """Whether a metric was ever non-finite, and the first batch in which it was."""

    raised: Array  # [] bool
    batch: Array  # [B], rows of the replay, as in `Sample`


class LearnerState(NamedTuple):
    """What updates change, for one member or, with a leading axis, for several."""

    state: Any
    priorities: Priorities
    metrics: dict[str, Metric]  # summed over the updates since they were last read
    alarm: NonFiniteFlag
    clipped: Metric | None = None  # 16-bit operands, where they are used; never saved


class Sample(NamedTuple):
    """The inputs of one update."""

    rows: Array  # [B], of the replay; below 0 those of `OfflineData`
    batch: Batch
    noise: Any  # of the agent


class Data(NamedTuple):
    """What updates read and do not change, of the whole fleet."""

    rows: Rows
    scales: Scales | None = None  # [S, ...], for agents that normalize
    offline: OfflineData | None = None  # recorded data in every batch


class UpdateGroup(NamedTuple):
    """Which members are updated, how far they are, and how many updates to make."""

    member: Any  # [K], indices in the fleet
    key: Array  # [K], the members' keys
    made: Any  # [K], updates each has made; equal modulo the agent's policy period
    updates: Any  # [], to make


class RunLengths(NamedTuple):
    """Lengths of a member's replay and run."""

    rows: int  # of its replay
    updates: int  # of the whole run, for learning-rate schedules


def initial_states(agent: Agent, keys: Array, horizon: Array) -> Any:
    """Return agent states [S, ...] before the first update; horizon is in updates."""
    keys = jax.vmap(lambda key: step_key(key, Purpose.INIT, 0))(keys)
    return jax.vmap(agent.init, in_axes=(0, None))(keys, horizon)


def init(
    agent: Agent, states: Any, replay: Replay, offline: OfflineData | None = None
) -> LearnerState:
    """Return a fleet before its first update; replay holds the first observations."""
    members = len(replay.newest)
    alarm = NonFiniteFlag(
        jnp.zeros(members, dtype=bool), jnp.zeros((members, agent.batch_size), dtype=int)
    )
    learners = LearnerState(states, replay.priorities, {}, alarm)

    def one_update(learner: LearnerState) -> dict[str, Metric]:
        step = jnp.ones((), dtype=int)
        noise = draw(agent, learner.priorities, jax.random.key(0), step)
        inputs = sample(Data(replay.rows, None, offline), learner.priorities, step, noise)
        return _update(agent, learner, inputs, step)[1]

    shapes = jax.eval_shape(jax.vmap(one_update), learners)
    metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return learners._replace(metrics=metrics)


def draw(agent: Agent, priorities: Priorities, key: Array, step: Array) -> Any:
    """Return the random numbers of a member's update number `step`."""
    k_sample, k_update = jax.random.split(step_key(key, Purpose.LEARN, step))
    if priorities.offline is None:
        uniforms: Any = sampling_uniforms(k_sample, agent.batch_size, priorities.tree)
    else:
        pairs = zip(jax.random.split(k_sample), (priorities.tree, priorities.offline), strict=True)
        uniforms = tuple(sampling_uniforms(key, agent.batch_size, tree) for key, tree in pairs)
    return uniforms, agent.update_noise(k_update)


def sample(data: Data, priorities: Priorities, member: Array, draws: Any) -> Sample:
    """Return the rows that a member learns from; draws are those of `draw`."""
    uniforms, noise = draws
    if data.offline is None:
        rows = sum_tree.sample(priorities.tree, uniforms)
        batch = fetch(data.rows, member, rows)
    else:
        rows = sample_mixed(priorities, uniforms, data.offline.places)
        batch = fetch_mixed(data.rows, data.offline, member, rows)
    if data.scales is not None:
        batch = normalize_batch(batch, jax.tree.map(lambda x: x[member], data.scales))
    return Sample(rows, batch, noise)


def learn(agent: Agent, learner: LearnerState, inputs: Sample, step: Any) -> LearnerState:
    """Make update number `step` of one member."""
    learner, metrics = _update(agent, learner, inputs, step)
    return learner._replace(metrics=jax.tree.map(jnp.add, learner.metrics, metrics))


def _update(
    agent: Agent, learner: LearnerState, inputs: Sample, step: Any
) -> tuple[LearnerState, dict[str, Metric]]:
    state, out = agent.update(learner.state, inputs.batch, inputs.noise, step)
    learner = learner._replace(state=state)
    if (out.priorities is not None) != agent.prioritizes:
        raise ValueError("Agent.update must return priorities if it prioritizes")
    if out.priorities is not None:
        new = update_priorities(learner.priorities, inputs.rows, out.priorities)
        learner = learner._replace(priorities=new)
    alarm = check_finite(learner.alarm, out.metrics, inputs.rows)
    return learner._replace(alarm=alarm), out.metrics


def check_finite(alarm: NonFiniteFlag, metrics: dict[str, Metric], rows: Array) -> NonFiniteFlag:
    """Return the flag after an update on `rows`; the first non-finite batch is kept."""
    finite = jnp.isfinite(sum(metric.total for metric in metrics.values()))
    first = ~alarm.raised & ~finite
    batch = jnp.where(jnp.broadcast_to(first, rows.shape), rows, alarm.batch)
    return NonFiniteFlag(alarm.raised | first, batch)


def sync(agent: Agent, learner: LearnerState) -> LearnerState:
    """Move the targets and recompute LAP's maximum, every `sync_period` updates."""
    return learner._replace(
        state=agent.sync(learner.state), priorities=refresh_max_priority(learner.priorities)
    )


def sample_group(
    agent: Agent, data: Data, group: UpdateGroup, priorities: Priorities, done: Array
) -> Sample:
    """Return the inputs of every member's next update, after `done` of this call."""

    def one(priorities: Priorities, member: Array, key: Array, made: Array) -> Sample:
        draws = draw(agent, priorities, key, made + done + 1)
        return sample(data, priorities, member, draws)

    return jax.vmap(one)(priorities, group.member, group.key, group.made)


def learn_group(agent: Agent, learners: LearnerState, inputs: Sample, step: Any) -> LearnerState:
    """Make one update of every member."""
    # Members agree modulo the policy period, so one step without a member axis stands for all, and
    # the agent's conditions stay branches.
    return jax.vmap(partial(learn, agent), in_axes=(0, 0, None))(learners, inputs, step)


def update_plainly(
    agent: Agent, data: Data, learners: LearnerState, group: UpdateGroup
) -> LearnerState:
    """Make `group.updates` updates of every member of a group, one after the other."""

    def one(done: Array, learners: LearnerState) -> LearnerState:
        inputs = sample_group(agent, data, group, learners.priorities, done)
        made = group.made + done + 1
        learners = learn_group(agent, learners, inputs, made[0])
        if not agent.sync_period:
            return learners
        due = made % agent.sync_period == 0

        def synced() -> LearnerState:
            return select(due, jax.vmap(partial(sync, agent))(learners), learners)

        return cast(LearnerState, jax.lax.cond(jnp.any(due), synced, lambda: learners))

    return cast(LearnerState, jax.lax.fori_loop(0, group.updates, one, learners))


def select(condition: Array, new: Tree, old: Tree) -> Tree:
    """Return per member the leaves of `new` where `condition` [S] holds, else `old`."""

    def leaf(a: Array, b: Array) -> Array:
        mask = condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim))
        return jnp.where(jnp.broadcast_to(mask, a.shape), a, b)

    return cast(Tree, jax.tree.map(leaf, new, old))
