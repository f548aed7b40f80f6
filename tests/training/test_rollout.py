"""Episodes that are given up, and where a member stands afterwards."""

import numpy as np
import pytest

from r2r2.envs.make import episode_seed
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.step_types import StepResult
from r2r2.training.rollout import Episode, Rollout

MEMBERS = (Member("A-v0", 3), Member("A-v0", 5))


def stepped(rollout, members, reward, ended=False):
    """A step of members, each of which reaches what it was rewarded with."""
    turn = rollout.request(members, np.zeros((len(members), 1)))
    obs, flags = np.full((len(members), 2), reward), np.full(len(members), ended)
    step = StepResult(obs, np.full(len(members), reward), flags & False, flags, obs)
    return turn, *rollout.record(members, turn, step)


@pytest.fixture
def rollout():
    made = Rollout(MEMBERS, Spec(obs_dim=2, action_dim=1))
    stepped(made, [0, 1], 2.0)
    stepped(made, [0, 1], 4.0)
    return made


def test_a_dropped_episode_is_followed_by_the_next_number_and_its_seed(rollout):
    assert rollout.drop(1) == Episode(member=1, number=0, length=2, total=6.0)
    assert rollout.seed(1) == episode_seed(5, "train", 1)
    assert rollout.seed(0) == episode_seed(3, "train", 0)
    rollout.begin(1, np.array([7.0, 8.0]))
    turn, _, (ended,) = stepped(rollout, [1], 1.0, ended=True)
    assert turn.seeds == [episode_seed(5, "train", 2)]
    assert ended == Episode(member=1, number=1, length=1, total=1.0)


def test_the_steps_of_a_dropped_episode_stay_made(rollout):
    rollout.drop(1)
    assert rollout.steps.tolist() == [2, 2]


def test_after_a_drop_there_is_no_reward_to_collect_and_an_end(rollout):
    rollout.drop(1)
    assert rollout.reward.tolist() == [4.0, 0.0]
    assert rollout.ended.tolist() == [False, True]


def test_replay_is_told_that_a_row_was_lost_and_what_is_acted_on_next(rollout):
    rollout.drop(1)
    seen = rollout.begin(1, np.array([7.0, 8.0]))
    np.testing.assert_array_equal(rollout.obs, [[4.0, 4.0], [7.0, 8.0]])
    assert seen.lost.tolist() == [True]
    assert seen.ended.tolist() == seen.terminated.tolist() == [False]
    np.testing.assert_array_equal(seen.obs, [[7.0, 8.0]])
    _, kept, _ = stepped(rollout, [1], 1.0)
    assert kept.lost.tolist() == [False]


def test_a_rollout_stands_where_a_saved_one_stood(rollout):
    rollout.drop(0)
    saved = {name: array.copy() for name, array in rollout.arrays().items()}
    other = Rollout(MEMBERS, Spec(obs_dim=2, action_dim=1))
    other.restore(saved)
    assert [other.seed(m) for m in (0, 1)] == [rollout.seed(m) for m in (0, 1)]
    ours, theirs = (stepped(x, [0, 1], 3.0, ended=True) for x in (other, rollout))
    assert ours[0].seeds == theirs[0].seeds
    assert ours[2] == theirs[2]
