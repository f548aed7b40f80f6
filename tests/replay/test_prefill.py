"""Recorded transitions as rows, and batches that are partly drawn from them."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from r2r2.compute import update
from r2r2.compute.update import Data
from r2r2.envs.spec import Spec
from r2r2.replay import buffer, sum_tree
from r2r2.replay.buffer import OfflineData, Priorities, Rows
from r2r2.replay.prefill import RecordedSteps, lay_out, offline_places

RING, MEMBERS = 12, 2


def steps(count: int, seed: int = 0, jumps: int = 0) -> RecordedSteps:
    """Return steps of which some end an episode, and others do not follow the one before."""
    rng = np.random.default_rng(seed)
    path = rng.normal(size=(count + 1, 3))
    obs, next_obs = path[:-1].copy(), path[1:].copy()
    terminated, truncated = rng.random((2, count)) < 0.2
    for place in rng.integers(count, size=jumps):
        obs[place] += 1
    rest = rng.uniform(-1, 1, (count, 2)), rng.normal(size=count)
    return RecordedSteps(obs, *rest, next_obs, terminated, terminated | truncated)


@given(st.integers(1, 30), st.integers(0, 99), st.integers(0, 5))
def test_rows_hold_every_transition_once_and_in_order(count, seed, jumps):
    recorded = steps(count, seed, jumps)
    rows, live = lay_out(recorded)
    here = np.flatnonzero(live)
    assert not live[-1]
    for name, column in (("obs", recorded.obs), ("action", recorded.action)):
        np.testing.assert_array_equal(rows[name][here], column)
    np.testing.assert_array_equal(rows["reward"][here], recorded.reward)
    np.testing.assert_array_equal(rows["terminated"][here], recorded.terminated)
    np.testing.assert_array_equal(rows["obs"][here + 1], recorded.next_obs)


def test_steps_that_follow_each_other_share_a_row():
    recorded = steps(9)._replace(ended=np.arange(9) == 4)
    rows, live = lay_out(recorded)
    assert live.tolist() == [True] * 5 + [False] + [True] * 4 + [False]
    np.testing.assert_array_equal(lay_out(recorded).ended, np.isin(np.arange(9), [4, 8]))
    assert len(rows["reward"]) == 11
    recorded.obs[3] += 1
    assert len(lay_out(recorded).live) == 12


@pytest.mark.parametrize(
    ("share", "batch", "expected"), [(0.5, 256, 128), (0.1, 256, 26), (0.25, 6, 2), (0.9, 7, 6)]
)
def test_places_of_offline_rows_are_a_rounded_share_and_spread_evenly(share, batch, expected):
    places = offline_places(share, batch)
    assert places.sum() == expected
    halves = [part.sum() for part in np.array_split(places, 2)]
    assert abs(halves[0] - halves[1]) <= 1


def offline_data(count: int, share: float, batch: int) -> tuple[OfflineData, np.ndarray]:
    rows, live = lay_out(steps(count))
    columns = (jnp.asarray(rows[name]) for name in Rows._fields)
    return OfflineData(Rows(*columns), jnp.asarray(offline_places(share, batch))), live


def mixed_replay(live, own: int) -> buffer.Replay:
    """Return the replay of two members with `own` transitions each, with small trees."""
    rng = np.random.default_rng(1)
    replay = buffer.init(RING, Spec(3, 2), jnp.zeros((MEMBERS, 3)), fanout=4)
    levels = sum_tree.build_levels(live[None].astype(float), fanout=4)
    tree = sum_tree.SumTree(tuple(jnp.asarray(np.repeat(x, MEMBERS, 0)) for x in levels))
    replay = replay._replace(priorities=replay.priorities._replace(offline=tree))
    for _ in range(own):
        obs = jnp.asarray(rng.normal(size=(MEMBERS, 3)))
        step = buffer.Transition(
            action=jnp.asarray(rng.normal(size=(MEMBERS, 2))),
            reward=jnp.asarray(rng.normal(size=MEMBERS)),
            terminated=jnp.zeros(MEMBERS, bool),
            ended=jnp.zeros(MEMBERS, bool),
            next_obs=obs,
            obs=obs,
            lost=jnp.zeros(MEMBERS, bool),
        )
        replay = buffer.add(replay, jnp.arange(MEMBERS), step)
    return replay


class TwoTrees:
    """The part of an agent that `update.draw` needs."""

    batch_size = 40

    @staticmethod
    def update_noise(key):
        return key


def draw_batches(replay, offline, count=200):
    """Return the rows and batches of updates 1 to `count` of member 1."""
    priorities = jax.tree.map(lambda x: x[1], replay.priorities)
    data = Data(replay.rows, None, offline)

    def one(step):
        draws = update.draw(TwoTrees, priorities, update.member_key(3), step)
        inputs = update.sample(data, priorities, jnp.asarray(1), draws)
        return inputs.rows, inputs.batch

    return jax.jit(jax.vmap(one))(jnp.arange(1, count + 1))


def test_every_batch_has_exactly_its_share_of_recorded_transitions():
    offline, live = offline_data(30, 0.25, 40)
    replay = mixed_replay(live, own=20)  # the ring has been overwritten
    rows, batch = draw_batches(replay, offline)
    np.testing.assert_array_equal(rows < 0, np.broadcast_to(offline.places, rows.shape))
    recorded = steps(30)
    index = np.flatnonzero(live)
    drawn, places = -1 - np.asarray(rows[rows < 0]), {row: n for n, row in enumerate(index)}
    assert set(drawn.tolist()) == set(index.tolist())  # all of them, and no dead row
    number = np.array([places[row] for row in drawn.tolist()])
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        ours = np.asarray(getattr(batch, name))[np.asarray(rows) < 0]
        np.testing.assert_allclose(ours, getattr(recorded, name)[number], rtol=1e-6)
    own = np.asarray(rows[rows >= 0])
    assert set(own.tolist()) == set(range(RING)) - {int(replay.newest[1])}
    shares = np.unique(drawn, return_counts=True)[1] / len(drawn)
    assert abs(shares - 1 / 30).max() < 0.02  # uniform, before any update


def test_without_own_transitions_all_rows_are_recorded_ones():
    offline, live = offline_data(30, 0.25, 40)
    rows, _ = draw_batches(mixed_replay(live, own=0), offline)
    assert (rows < 0).all()


def test_priorities_are_written_to_the_tree_that_a_row_was_drawn_from():
    _, live = offline_data(30, 0.25, 40)
    priorities = jax.tree.map(lambda x: x[0], mixed_replay(live, own=5).priorities)
    index, new = jnp.array([-1, 2, -31, 4]), jnp.array([3.0, 5.0, 7.0, 2.0])
    changed = jax.jit(buffer.update_priorities)(priorities, index, new)
    assert float(changed.highest) == 7
    own, data = (np.asarray(x.weights) for x in (changed.tree, changed.offline))
    before = np.asarray(priorities.tree.weights), np.asarray(priorities.offline.weights)
    expected = before[0].copy(), before[1].copy()
    expected[0][[2, 4]] = 5, 2
    expected[1][[0, 30]] = 3, 7
    np.testing.assert_array_equal(own, expected[0])
    np.testing.assert_array_equal(data, expected[1])
    for tree in (changed.tree, changed.offline):
        assert float(tree.levels[-1].sum()) == pytest.approx(float(tree.weights.sum()))
    lower = changed._replace(highest=jnp.asarray(99.0))
    assert float(buffer.refresh_max_priority(lower).highest) == 7
    only = lower._replace(offline=jax.tree.map(jnp.zeros_like, changed.offline))
    assert float(buffer.refresh_max_priority(only).highest) == 5


def test_priorities_of_recorded_rows_decide_how_often_they_are_drawn():
    offline, live = offline_data(30, 0.5, 40)
    replay = mixed_replay(live, own=5)
    index, new = -1 - jnp.asarray(np.flatnonzero(live)[:1]), jnp.array([29.0])

    def raise_first(priorities: Priorities) -> Priorities:
        return buffer.update_priorities(priorities, index, new)

    replay = replay._replace(priorities=jax.vmap(raise_first)(replay.priorities))
    rows, _ = draw_batches(replay, offline)
    drawn = np.asarray(rows[rows < 0])
    assert abs((drawn == -1).mean() - 0.5) < 0.05
