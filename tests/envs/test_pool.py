import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from r2r2.config.refusal import Refusal
from r2r2.envs.make import make_env
from r2r2.envs.members import Member, Spec
from r2r2.envs.pool import EnvPool

COUNT = Member("scripted:Count-v0", 0)
TERMINATES = Member("scripted:Terminates-v0", 1)
ZEROS = np.zeros((2, 2))


@pytest.fixture
def pool():
    with EnvPool([COUNT, TERMINATES], action_repeat=2) as pool:
        pool.starts = [pool.reset(0, seed=5)[0], pool.reset(1, seed=6)[0]]
        yield pool


def test_members_and_sizes(pool):
    assert pool.members == (COUNT, TERMINATES)
    assert pool.spec == Spec(obs_dim=4, action_dim=2)


def test_reset_gives_the_members_own_start(pool):
    for index, seed in [(0, 5), (1, 6)]:
        alone = make_env(pool.members[index].task, 2).reset(seed=seed)[0]
        np.testing.assert_array_equal(pool.reset(index, seed), alone)
    assert pool.starts[0] != pool.starts[1]


def test_a_step_of_all(pool):
    step = pool.step(np.array([[1.0, 1.0], [-1.0, -1.0]]))
    first, second = pool.starts
    np.testing.assert_allclose(step.obs, [[first, 2, 1, 10], [second, 2, -3, 0]])
    np.testing.assert_array_equal(step.reward, [5, 5])
    assert not step.terminated.any()
    assert not step.truncated.any()
    assert [column.dtype for column in step] == [np.float64, np.float64, bool, bool]


def test_an_end_shows_the_observation_it_ended_in(pool):
    pool.step(ZEROS)
    step = pool.step(ZEROS)
    np.testing.assert_array_equal(step.obs[:, :2], np.c_[pool.starts, [4, 3]])
    np.testing.assert_array_equal(step.reward, [25, 9])
    np.testing.assert_array_equal(step.terminated, [False, True])
    np.testing.assert_array_equal(step.truncated, [False, False])


def test_a_time_limit_is_no_termination(pool):
    for _ in range(4):
        step = pool.step(ZEROS[:1], indices=[0])
    np.testing.assert_array_equal(step.obs[:, 1], [7])
    np.testing.assert_array_equal(step.terminated, [False])
    np.testing.assert_array_equal(step.truncated, [True])


def test_rows_follow_the_indices(pool):
    pool.step(ZEROS[:1], indices=[1])
    step = pool.step(np.array([[1.0, 1.0], [-1.0, -1.0]]), indices=[1, 0])
    second_then_first = [[pool.starts[1], 3, 1, 10], [pool.starts[0], 2, -3, 0]]
    np.testing.assert_allclose(step.obs, second_then_first)
    np.testing.assert_array_equal(step.reward, [9, 5])
    np.testing.assert_array_equal(step.terminated, [True, False])


def test_what_was_returned_does_not_change(pool):
    start = pool.reset(0, seed=5)
    first = pool.step(ZEROS)
    kept = [column.copy() for column in first]
    pool.step(np.ones((2, 2)))
    for column, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(column, copy)
    assert start[1] == 0


def test_a_member_is_not_stepped_past_its_end(pool):
    pool.step(ZEROS)
    pool.step(ZEROS)
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        pool.step(ZEROS)
    pool.reset(1, seed=6)
    step = pool.step(ZEROS)
    # The refused step moved nobody: the first is at 6, the second at 2.
    np.testing.assert_array_equal(step.obs[:, 1], [6, 2])


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2,), (3, 2)])
def test_actions_of_another_shape(pool, shape):
    with pytest.raises(ValueError, match=r"needed is \(2, 2\)"):
        pool.step(np.zeros(shape))


def test_members_of_other_sizes_are_refused():
    members = [Member("Hopper-v5", 0), Member("Hopper-v5", 1), Member("Pendulum-v1", 0)]
    with pytest.raises(Refusal) as refusal:
        EnvPool(members, 1)
    assert str(refusal.value) == (
        "env is 'Hopper-v5' (observation 11, action 3) and 'Pendulum-v1'"
        " (observation 3, action 1); tasks trained together must have the same sizes"
    )


def test_single_precision_observations_become_double():
    with EnvPool([Member("Pendulum-v1", 0)], 1) as pool:
        assert pool.reset(0, seed=0).dtype == np.float64
        assert pool.step(np.zeros((1, 1))).obs.dtype == np.float64


def test_close_frees_every_environment_once():
    with EnvPool([COUNT, TERMINATES], 1) as pool:
        inside = [env.unwrapped for env in pool._envs]
    pool.close()
    assert [env.closed for env in inside] == [1, 1]
