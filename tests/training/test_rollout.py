"""Dropped episodes, and the state of a member afterwards."""

import numpy as np
import pytest

from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.step_types import StepResult
from r2r2.training.rollout import Episode, Rollout

MEMBERS = (Member("A-v0", 3), Member("A-v0", 5))


def stepped(rollout, members, reward, ended=False):
    """Step members whose next observation equals their reward."""
    request = rollout.request(members, np.zeros((len(members), 1)))
    obs, flags = np.full((len(members), 2), reward), np.full(len(members), ended)
    step = StepResult(obs, np.full(len(members), reward), flags & False, flags, obs)
    return request, *rollout.record(np.array(members), request.actions, step)


@pytest.fixture
def rollout():
    made = Rollout(MEMBERS, Spec(obs_dim=2, action_dim=1))
    stepped(made, [0, 1], 2.0)
    stepped(made, [0, 1], 4.0)
    return made


def test_steps_of_a_member_may_be_recorded_together(rollout):
    """Here three of member 1, the last of which ends its episode, and one of member 0."""
    members, reward = np.array([1, 1, 0, 1]), np.array([1.0, 2, 5, 3])
    ended, obs = np.array([False, False, False, True]), np.c_[reward, -reward]
    step = StepResult(obs, reward, ended & False, ended, 10 * obs)
    transition, episodes = rollout.record(members, np.zeros((4, 1)), step)
    assert episodes == [Episode(member=1, number=0, length=5, total=12.0)]
    assert rollout.steps.tolist() == [3, 5]
    np.testing.assert_array_equal(rollout.obs, [[50, -50], [30, -30]])
    assert (rollout.reward.tolist(), rollout.ended.tolist()) == ([5, 3], [False, True])
    np.testing.assert_array_equal(transition.reward, reward)
    assert stepped(rollout, [0, 1], 1.0, ended=True)[2] == [
        Episode(member=0, number=0, length=4, total=12.0),
        Episode(member=1, number=1, length=1, total=1.0),
    ]


def test_dropped_episode_is_followed_by_the_next_number_and_seed(rollout):
    assert rollout.drop(1) == Episode(member=1, number=0, length=2, total=6.0)
    assert rollout.seed(1) == episode_seed(5, "train", 1)
    assert rollout.seed(0) == episode_seed(3, "train", 0)
    rollout.begin(1, np.array([7.0, 8.0]))
    request, _, (ended,) = stepped(rollout, [1], 1.0, ended=True)
    assert request.seeds == [episode_seed(5, "train", 2)]
    assert ended == Episode(member=1, number=1, length=1, total=1.0)


def test_steps_of_a_dropped_episode_count(rollout):
    rollout.drop(1)
    assert rollout.steps.tolist() == [2, 2]


def test_drop_counts_as_an_end_without_reward(rollout):
    rollout.drop(1)
    assert rollout.reward.tolist() == [4.0, 0.0]
    assert rollout.ended.tolist() == [False, True]


def test_begin_after_a_drop_marks_the_row_as_lost(rollout):
    rollout.drop(1)
    transition = rollout.begin(1, np.array([7.0, 8.0]))
    np.testing.assert_array_equal(rollout.obs, [[4.0, 4.0], [7.0, 8.0]])
    assert transition.lost.tolist() == [True]
    assert transition.ended.tolist() == transition.terminated.tolist() == [False]
    np.testing.assert_array_equal(transition.obs, [[7.0, 8.0]])
    _, kept, _ = stepped(rollout, [1], 1.0)
    assert kept.lost.tolist() == [False]


def test_restored_rollout_equals_the_saved_one(rollout):
    rollout.drop(0)
    saved = {name: array.copy() for name, array in rollout.arrays().items()}
    other = Rollout(MEMBERS, Spec(obs_dim=2, action_dim=1))
    other.restore(saved)
    assert [other.seed(m) for m in (0, 1)] == [rollout.seed(m) for m in (0, 1)]
    ours, theirs = (stepped(x, [0, 1], 3.0, ended=True) for x in (other, rollout))
    assert ours[0].seeds == theirs[0].seeds
    assert ours[2] == theirs[2]
