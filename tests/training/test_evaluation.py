"""Evaluations: returns, policies and scales of members."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool
from r2r2.envs.vector.step_types import EnvFactory
from r2r2.replay.normalizer import Scales
from r2r2.training.evaluation import (
    EvalEpisodes,
    EvalPolicies,
    Evaluator,
    eval_slots,
    normalize_obs,
    play_to_end,
)
from small_policies import greedy_actors


def hold(policy, obs):
    """Return the action of a policy that is its action."""
    return policy


MEMBERS = (Member("Pendulum-v1", 0), Member("Pendulum-v1", 1))


class Player:
    """An evaluator with its own pool."""

    def __init__(self, members=MEMBERS, episodes=3, purpose="evaluate", workers=0):
        factories = [EnvFactory(member.task, 1) for member in members]
        places = eval_slots(members, factories, episodes)
        actors = greedy_actors(hold, jnp.zeros(1), [member.seed for member in members])
        self.pool = EnvPool(places, workers, actors=actors)
        slots = range(len(places))
        plan = EvalEpisodes(members, slots, episodes, purpose)
        self.evaluator = Evaluator(plan, len(members))

    def returns(self, policies, members, first):
        firsts = [first] * len(members)
        self.evaluator.begin(self.pool, members, EvalPolicies(policies), firsts)
        returns = play_to_end(self.evaluator, self.pool)
        return np.stack([returns[member] for member in members])

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.pool.close()


@pytest.fixture
def player():
    with Player() as made:
        yield made


def test_returns_depend_on_policy_seed_and_index_alone(player):
    policies = jnp.array([[0.0], [0.5]])
    both = player.returns(policies, [0, 1], first=0)
    assert both.shape == (2, 3)
    assert len(np.unique(both)) == 6
    alone = player.returns(policies, [1], first=0)
    np.testing.assert_array_equal(alone, both[1:])
    later = player.returns(policies, [1], first=1)
    np.testing.assert_array_equal(later[0, :2], both[1, 1:])
    with Player(purpose="eval-command") as other:
        assert not np.isin(other.returns(policies, [1], first=0), both).any()


def test_fewer_slots_give_the_same_returns(player, monkeypatch):
    policies = jnp.array([[0.0], [0.5]])
    monkeypatch.setattr("r2r2.training.evaluation.SLOTS_PER_CORE", 2)
    monkeypatch.setattr("r2r2.training.evaluation.available_cores", lambda: 2)
    with Player() as narrow:
        assert len(narrow.pool.slots) == 4
        actual = narrow.returns(policies, [0, 1], first=0)
    np.testing.assert_array_equal(actual, player.returns(policies, [0, 1], first=0))


def test_workers_give_the_same_returns(player):
    policies = jnp.array([[0.0], [0.5]])
    with Player(workers=2) as away:
        actual = away.returns(policies, [0, 1], first=0)
    np.testing.assert_array_equal(actual, player.returns(policies, [0, 1], first=0))


def test_all_episodes_run_at_once(player):
    both = EvalPolicies(jnp.zeros((2, 1)))
    player.evaluator.begin(player.pool, [0, 1], both, [0, 0])
    player.evaluator.play(player.pool)
    slots = [episode.slot for episode in player.evaluator.episodes.running]
    assert player.pool.take(slots, wait=True).slots.tolist() == [0, 1, 2, 3, 4, 5]


def test_each_member_uses_its_own_policy(player):
    same = player.returns(jnp.array([[0.0], [0.0]]), [0, 1], 0)
    mixed = player.returns(jnp.array([[0.0], [1.0]]), [0, 1], 0)
    np.testing.assert_array_equal(same[0], mixed[0])
    assert not np.isin(mixed[1], same[1]).any()


def test_running_evaluation_keeps_its_policy(player):
    evaluator, pool = player.evaluator, player.pool
    expected = player.returns(jnp.array([[0.0], [0.5]]), [0, 1], first=0)
    evaluator.begin(pool, [0], EvalPolicies(jnp.array([[0.0], [9.0]])), [0])
    for _ in range(7):
        evaluator.play(pool)
        assert not evaluator.episodes.record(pool.take([0, 1, 2], wait=True))
    evaluator.begin(pool, [1], EvalPolicies(jnp.array([[9.0], [0.5]])), [0])
    assert evaluator.episodes.busy == [0, 1]
    actual = play_to_end(evaluator, pool)
    np.testing.assert_array_equal(np.stack([actual[0], actual[1]]), expected)


def test_return_is_the_sum_of_rewards():
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=episode_seed(0, "evaluate", 0))
    total, over = 0.0, False
    while not over:
        _, reward, ended, cut, _ = env.step(np.zeros(1, np.float32))
        total, over = total + float(reward), ended or cut
    with Player(MEMBERS[:1], episodes=1) as player:
        actual = player.returns(jnp.zeros((1, 1)), [0], 0)
    assert actual[0, 0] == pytest.approx(total, rel=1e-6)


def test_observations_are_normalized_by_the_members_scales():
    scales = Scales(np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 1.0], [2, 4]]), 0)
    seen = normalize_obs(scales, 1, np.array([[3.0, 6.0]]))
    np.testing.assert_array_equal(seen, [[1.0, 1.0]])
    np.testing.assert_array_equal(normalize_obs(None, 1, np.ones((1, 2))), [[1, 1]])
