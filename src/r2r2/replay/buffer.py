"""A ring of rows on the device, each observation stored once; pure functions.

Row t holds (observation, action, reward, terminated) of step t, and s' is row t + 1. An
episode of T steps takes T + 1 rows: the last one holds the final observation and is
dead, which is to say of weight zero and never drawn. The newest row is dead until its
successor exists. Uniform sampling is the case in which the weights of live rows all
stay 1.

Rings are the whole fleet's, [S, N, ...], and are indexed in place by (member, row):
slicing a member out would copy gigabytes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from r2r2.agents.base import Array, Batch
from r2r2.envs.spec import Spec
from r2r2.replay import sum_tree as sumtree
from r2r2.replay.sum_tree import FANOUT, SumTree


class Rows(NamedTuple):
    """What was seen; no update changes it."""

    obs: Array  # [S, N, obs]
    action: Array  # [S, N, action]
    reward: Array  # [S, N]
    terminated: Array  # [S, N] bool


class Priorities(NamedTuple):
    """How likely each row is drawn; every update with LAP changes it."""

    tree: SumTree
    highest: Array  # what a new row gets


class Replay(NamedTuple):
    """The replay of a fleet."""

    rows: Rows
    priorities: Priorities
    newest: Array  # [S], the row whose action is not known yet


class Transition(NamedTuple):
    """One decision step of each of K members, as it is stored."""

    action: Array  # [K, action]
    reward: Array  # [K]
    terminated: Array  # [K] bool
    ended: Array  # [K] bool; terminated, or cut off by a time limit
    next_obs: Array  # [K, obs], the true one, at an episode's end too
    obs: Array  # [K, obs], acted on next: `next_obs`, or the next episode's first
    lost: Array  # [K] bool; the step failed: its row stays dead, `obs` begins anew


def init(size: int, spec: Spec, obs: Array, fanout: int = FANOUT) -> Replay:
    """A replay of `size` rows per member, holding the first observations [S, obs]."""
    members = obs.shape[0]
    rows = Rows(
        obs=jnp.zeros((members, size, spec.obs_dim)).at[:, 0].set(obs),
        action=jnp.zeros((members, size, spec.action_dim)),
        reward=jnp.zeros((members, size)),
        terminated=jnp.zeros((members, size), dtype=bool),
    )
    trees = jax.vmap(lambda _: sumtree.init(size, fanout))(obs)
    priorities = Priorities(trees, jnp.ones(members))
    return Replay(rows, priorities, jnp.zeros(members, dtype=int))


def begin(rows: Rows, obs: Array) -> Rows:
    """The rings of a fleet that acts first on `obs`, [S, obs]."""
    return rows._replace(obs=rows.obs.at[:, 0].set(obs))


def add(replay: Replay, member: Array, seen: Transition) -> Replay:
    """Completes the newest row of members [K], which comes alive, and opens the next.

    At an episode's end two rows are opened: the final observation's, which stays dead,
    and the next episode's first. Both writes meet in one row otherwise. The ring is
    written in order, so a row whose successor is overwritten was overwritten itself.
    A member may stand in `member` twice, with the same experience. What an episode saw
    before a step of it was lost stays: the row acted on last only never comes alive.
    """
    rows, priorities, newest = replay
    size = rows.reward.shape[1]
    here = newest[member]
    after = (here + 1) % size
    opened = (here + 1 + seen.ended) % size
    obs = rows.obs.at[member, after].set(seen.next_obs)
    rows = Rows(
        obs=obs.at[member, opened].set(seen.obs),
        action=rows.action.at[member, here].set(seen.action),
        reward=rows.reward.at[member, here].set(seen.reward),
        terminated=rows.terminated.at[member, here].set(seen.terminated),
    )
    highest = priorities.highest[member]
    dead = jnp.zeros_like(highest)
    alive = jnp.where(seen.lost, dead, highest)
    tree = sumtree.assign(
        priorities.tree,
        jnp.stack([here, after, opened], axis=-1),
        jnp.stack([alive, dead, dead], axis=-1),
        of=(jnp.broadcast_to(member[:, None], (*member.shape, 3)),),
    )
    return Replay(rows, priorities._replace(tree=tree), newest.at[member].set(opened))


def draw_uniforms(key: Array, batch_size: int, tree: SumTree) -> Array:
    """The numbers `sumtree.draw` needs for one batch, [B, levels], in (0, 1]."""
    return 1 - jax.random.uniform(key, (batch_size, len(tree.levels)))


def fetch(rows: Rows, member: Array, index: Array) -> Batch:
    """The transitions at rows `index` [B] of one member."""
    after = (index + 1) % rows.reward.shape[1]
    return Batch(
        obs=rows.obs[member, index],
        action=rows.action[member, index],
        reward=rows.reward[member, index],
        next_obs=rows.obs[member, after],
        terminated=rows.terminated[member, index],
    )


def update_priorities(priorities: Priorities, index: Array, new: Array) -> Priorities:
    """Writes one member's priorities at `index` [B]; raises the highest if need be."""
    tree = sumtree.assign(priorities.tree, index, new)
    return Priorities(tree, jnp.maximum(priorities.highest, jnp.max(new)))


def refresh_max_priority(priorities: Priorities) -> Priorities:
    """Sets one member's highest priority to the one present: a pass, made rarely."""
    return priorities._replace(highest=jnp.max(priorities.tree.weights))
