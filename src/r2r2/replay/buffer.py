"""A ring buffer on the device that stores each observation once; pure functions.

Row t holds (observation, action, reward, terminated) of step t, and s' is row t + 1. An
episode of T steps takes T + 1 rows: the last holds the final observation and is dead,
that is, it has weight zero and is never sampled. The newest row is dead until its
successor exists. With uniform sampling the weights of live rows all stay 1.

Recorded transitions can be the first rows of the ring. A share of every batch can also be
drawn from `OfflineData`, rows that all members share, with a sum tree for each member.

Buffers are the whole fleet's, [S, N, ...], and are indexed in place by (member, row):
slicing a member out would copy gigabytes.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.base import Array, Batch
from r2r2.envs.spec import Spec
from r2r2.replay import sum_tree
from r2r2.replay.sum_tree import FANOUT, SumTree

HostRows = Mapping[str, NDArray[Any]]  # the fields of `Rows`, each [rows, ...]

BLOCK = 2048  # rows that one program transfers


class Rows(NamedTuple):
    """Stored data, which no update changes."""

    obs: Array  # [S, N, obs]
    action: Array  # [S, N, action]
    reward: Array  # [S, N]
    terminated: Array  # [S, N] bool


class Priorities(NamedTuple):
    """Sampling weights of the rows; every update with LAP changes them."""

    tree: SumTree
    highest: Array  # the weight of a new row
    offline: SumTree | None = None  # of the rows of `OfflineData`, where there are any


class Replay(NamedTuple):
    """The replay of a fleet."""

    rows: Rows
    priorities: Priorities
    newest: Array  # [S], the row whose action is not known yet


class OfflineData(NamedTuple):
    """Recorded transitions that all members share, and that no step overwrites."""

    rows: Rows  # [P, ...], without the axis of members
    places: Array  # [B] bool, the rows of every batch that are drawn from here


class Transition(NamedTuple):
    """One decision step of each of K members, as it is stored."""

    action: Array  # [K, action]
    reward: Array  # [K]
    terminated: Array  # [K] bool
    ended: Array  # [K] bool; terminated, or truncated by a time limit
    next_obs: Array  # [K, obs], the true one, also at the end of an episode
    obs: Array  # [K, obs], acted on next: `next_obs`, or the next episode's first
    lost: Array  # [K] bool; the step failed: its row stays dead, `obs` starts anew


class StepBlock(NamedTuple):
    """Several steps on the host with their places in the replay; some may occur twice."""

    places: Any  # [K, 5]: member, row acted in, next row, row opened, whether the member's last
    packed: Any  # [K, fields of `Transition` side by side]


def init(size: int, spec: Spec, obs: Array, fanout: int = FANOUT) -> Replay:
    """Return a replay of `size` rows per member with first observations [S, obs]."""
    members = obs.shape[0]
    rows = Rows(
        obs=jnp.zeros((members, size, spec.obs_dim)).at[:, 0].set(obs),
        action=jnp.zeros((members, size, spec.action_dim)),
        reward=jnp.zeros((members, size)),
        terminated=jnp.zeros((members, size), dtype=bool),
    )
    trees = jax.vmap(lambda _: sum_tree.init(size, fanout))(obs)
    priorities = Priorities(trees, jnp.ones(members))
    return Replay(rows, priorities, jnp.zeros(members, dtype=int))


def set_first_obs(rows: Rows, obs: Array, row: int = 0) -> Rows:
    """Return the rows of a fleet that acts first on `obs`, [S, obs], in this row."""
    return rows._replace(obs=rows.obs.at[:, row].set(obs))


def add(replay: Replay, member: Array, step: Transition) -> Replay:
    """Complete the newest row of members [K], which becomes live, and open the next."""
    # At the end of an episode two rows are opened: one for the final observation, which stays dead,
    # and one for the next episode's first. Otherwise both writes go to one row. The ring is written
    # in order, so a row whose successor is overwritten has been overwritten itself. A member may
    # occur in `member` twice, with the same step. Rows of an episode before a lost step stay; only
    # the row acted on last stays dead.
    rows, priorities, newest = replay
    size = rows.reward.shape[1]
    here = newest[member]
    opened = (here + 1 + step.ended) % size
    last = jnp.ones_like(step.ended)
    places = member, here, (here + 1) % size, opened, last
    rows, priorities = _write(rows, priorities, places, step)
    return Replay(rows, priorities, newest.at[member].set(opened))


def add_block(rows: Rows, priorities: Priorities, block: StepBlock) -> tuple[Rows, Priorities]:
    """Do the same as `add` for several steps of each member at once, which reach no row twice."""
    *places, last = jnp.unstack(block.places, axis=1)
    step = unpack_steps(block.packed, rows)
    return _write(rows, priorities, (*places, last > 0), step)


def unpack_steps(packed: Array, rows: Rows) -> Transition:
    """Return steps [K] whose fields are side by side, [K, fields]."""
    actions, obs = rows.action.shape[-1], rows.obs.shape[-1]
    ends = np.cumsum([actions, 1, 1, 1, obs, obs])
    action, reward, terminated, ended, next_obs, first, lost = jnp.split(packed, ends, axis=1)
    return Transition(
        action=action,
        reward=reward[:, 0],
        terminated=terminated[:, 0] > 0,
        ended=ended[:, 0] > 0,
        next_obs=next_obs,
        obs=first,
        lost=lost[:, 0] > 0,
    )


def _write(
    rows: Rows, priorities: Priorities, places: tuple[Array, ...], step: Transition
) -> tuple[Rows, Priorities]:
    member, here, after, opened, last = places
    obs = rows.obs.at[member, after].set(step.next_obs)
    rows = Rows(
        obs=obs.at[member, opened].set(step.obs),
        action=rows.action.at[member, here].set(step.action),
        reward=rows.reward.at[member, here].set(step.reward),
        terminated=rows.terminated.at[member, here].set(step.terminated),
    )
    highest = priorities.highest[member]
    dead = jnp.zeros_like(highest)
    live = jnp.where(step.lost, dead, highest)
    # A row that is opened is acted in by the member's next step, if that is here as well. Then
    # only that step sets its weight: this one repeats its own.
    final = jnp.where(step.ended, after, here), jnp.where(last, opened, here)
    weights = jnp.where(step.ended, dead, live), jnp.where(last, dead, live)
    tree = sum_tree.assign(
        priorities.tree,
        jnp.stack([here, *final], axis=-1),
        jnp.stack([live, *weights], axis=-1),
        member=(jnp.broadcast_to(member[:, None], (*member.shape, 3)),),
    )
    return rows, priorities._replace(tree=tree)


def sampling_uniforms(key: Array, batch_size: int, tree: SumTree) -> Array:
    """Return the numbers that `sum_tree.sample` needs, [B, levels], in (0, 1]."""
    return 1 - jax.random.uniform(key, (batch_size, len(tree.levels)))


def sample_mixed(priorities: Priorities, uniforms: tuple[Array, Array], places: Array) -> Array:
    """Return rows [B] of one member; -1 - n is row n of the offline data.

    While a member has no transitions of its own, all rows are offline data.
    """
    own, recorded = uniforms
    if priorities.offline is None:
        raise ValueError("there are no weights of offline data")
    empty = jnp.sum(priorities.tree.levels[-1]) == 0
    from_data = places | jnp.broadcast_to(empty, places.shape)
    offline = -1 - sum_tree.sample(priorities.offline, recorded)
    return jnp.where(from_data, offline, sum_tree.sample(priorities.tree, own))


def fetch_mixed(rows: Rows, offline: OfflineData, member: Array, index: Array) -> Batch:
    """Return the transitions at rows `index` [B], which are those of `sample_mixed`."""
    recorded = index < 0
    own = fetch(rows, member, jnp.where(recorded, 0, index))
    here = jnp.where(recorded, -1 - index, 0)
    data = offline.rows
    first = data.obs[here], data.action[here], data.reward[here]
    other = Batch(*first, data.obs[here + 1], data.terminated[here])

    def choose(theirs: Array, ours: Array) -> Array:
        mask = recorded.reshape(recorded.shape + (1,) * (ours.ndim - 1))
        return jnp.where(jnp.broadcast_to(mask, ours.shape), theirs, ours)

    return Batch(*map(choose, other, own))


def fetch(rows: Rows, member: Array, index: Array) -> Batch:
    """Return the transitions at rows `index` [B] of one member."""
    after = (index + 1) % rows.reward.shape[1]
    return Batch(
        obs=rows.obs[member, index],
        action=rows.action[member, index],
        reward=rows.reward[member, index],
        next_obs=rows.obs[member, after],
        terminated=rows.terminated[member, index],
    )


def update_priorities(priorities: Priorities, index: Array, new: Array) -> Priorities:
    """Set one member's priorities at `index` [B], and raise the highest if needed."""
    highest = jnp.maximum(priorities.highest, jnp.max(new))
    if priorities.offline is None:
        return Priorities(sum_tree.assign(priorities.tree, index, new), highest)
    beyond = np.iinfo(index.dtype).max  # the end of a tree: nothing is written
    tree = sum_tree.assign(priorities.tree, jnp.where(index < 0, beyond, index), new)
    recorded = jnp.where(index < 0, -1 - index, beyond)
    return Priorities(tree, highest, sum_tree.assign(priorities.offline, recorded, new))


def refresh_max_priority(priorities: Priorities) -> Priorities:
    """Set one member's highest priority to the highest present one."""
    highest = jnp.max(priorities.tree.weights)
    if priorities.offline is not None:
        highest = jnp.maximum(highest, jnp.max(priorities.offline.weights))
    return priorities._replace(highest=highest)


@jax.jit
def _take(rows: Rows, member: Array, index: Array) -> Rows:
    return Rows(*(field[member, index] for field in rows))


@partial(jax.jit, donate_argnums=0)
def _put(rows: Rows, member: Array, index: Array, block: Rows) -> Rows:
    pairs = zip(rows, block, strict=True)
    return Rows(*(x.at[member, index].set(new, mode="drop") for x, new in pairs))


def fetch_rows(rows: Rows, member: int, first: int, last: int) -> HostRows:
    """Copy a member's rows `first` to `last`, unless overwritten, to the host."""
    size = rows.reward.shape[1]
    numbers = np.arange(max(first, last - size + 1), last + 1)
    parts: list[Rows] = []
    for start in range(0, len(numbers), BLOCK):
        part = numbers[start : start + BLOCK]
        index = jnp.asarray(np.resize(part, BLOCK) % size)
        block = jax.device_get(_take(rows, jnp.asarray(member), index))
        parts.append(Rows(*(field[: len(part)] for field in block)))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return dict(zip(Rows._fields, columns, strict=True))


def put_rows(rows: Rows, member: int, first: int, saved: HostRows) -> Rows:
    """Return rows with saved ones at their places; `rows` itself is donated."""
    size, count = rows.reward.shape[1], len(saved["reward"])
    for start in range(0, count, BLOCK):
        part = np.arange(start, min(start + BLOCK, count))
        index = np.full(BLOCK, size)  # beyond the end: dropped
        index[: len(part)] = (first + part) % size
        block = Rows(*(_pad_block(saved[name][part]) for name in Rows._fields))
        rows = _put(rows, jnp.asarray(member), jnp.asarray(index), block)
    return rows


def _pad_block(field: NDArray[Any]) -> Array:
    padding = np.zeros((BLOCK - len(field), *field.shape[1:]), field.dtype)
    return jnp.asarray(np.concatenate([field, padding]))
