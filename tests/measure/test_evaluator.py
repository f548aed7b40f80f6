import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.envs.members import Member
from r2r2.measure.evaluate import Evaluator


class Hold:
    """An agent whose policy is the action itself."""

    @staticmethod
    def greedy(policy, obs):
        return jnp.broadcast_to(policy, (*obs.shape[:-1], 1))


MEMBERS = (Member("Pendulum-v1", 0), Member("Pendulum-v1", 1))


@pytest.fixture
def evaluator():
    made = Evaluator(Hold, MEMBERS, action_repeat=1, episodes=3)
    yield made
    made.close()


def test_returns_are_functions_of_policy_seed_and_index(evaluator):
    policies = jnp.array([[0.0], [0.5]])
    both = evaluator.returns(policies, [0, 1], first=0, purpose="evaluate")
    assert both.shape == (2, 3)
    assert len(np.unique(both)) == 6
    alone = evaluator.returns(policies, [1], first=0, purpose="evaluate")
    np.testing.assert_array_equal(alone, both[1:])
    later = evaluator.returns(policies, [1], first=1, purpose="evaluate")
    np.testing.assert_array_equal(later[0, :2], both[1, 1:])
    other = evaluator.returns(policies, [1], first=0, purpose="eval-command")
    assert not np.isin(other, both).any()


def test_the_policy_is_the_members_own(evaluator):
    same = evaluator.returns(jnp.array([[0.0], [0.0]]), [0, 1], 0, "evaluate")
    mixed = evaluator.returns(jnp.array([[0.0], [1.0]]), [0, 1], 0, "evaluate")
    np.testing.assert_array_equal(same[0], mixed[0])
    assert not np.isin(mixed[1], same[1]).any()


def test_a_return_is_the_sum_of_rewards_to_the_end():
    import gymnasium

    from r2r2.envs.make import episode_seed

    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=episode_seed(0, "evaluate", 0))
    total, over = 0.0, False
    while not over:
        _, reward, ended, cut, _ = env.step(np.zeros(1, np.float32))
        total, over = total + float(reward), ended or cut
    evaluator = Evaluator(Hold, MEMBERS[:1], action_repeat=1, episodes=1)
    found = evaluator.returns(jnp.zeros((1, 1)), [0], 0, "evaluate")
    evaluator.close()
    assert found[0, 0] == pytest.approx(total, rel=1e-6)
