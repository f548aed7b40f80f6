"""What critics expected of episodes, against what these gave."""

import json

import numpy as np

from r2r2.training.evaluation import Playing
from r2r2.training.value_bias import ValueBiases

FIRST, SECOND, THIRD = (Playing(member=3, slot=9 + n, number=n) for n in range(3))


def begun(discount=0.5):
    biases = ValueBiases(discount)
    biases.begin(3, np.array([1.0, 2.0]))
    return biases


def test_rewards_are_discounted_from_each_episodes_own_start():
    biases = begun()
    for reward in (8.0, 8.0, 8.0):
        biases.book(FIRST, reward)
    biases.book(SECOND, 2.0)
    assert biases.done(3) == {
        "expected": 1.5,
        "discounted_return": (14 + 2) / 2,
        "bias": 1.5 - 8,
        "episodes": 2,
    }
    assert biases.done(3) is None


def test_an_account_of_an_episode_that_began_again_begins_again():
    biases = begun()
    biases.book(SECOND, 100.0)
    biases.begun(SECOND, same=True)
    biases.book(SECOND, 4.0)
    biases.book(SECOND, 4.0)
    assert biases.done(3)["discounted_return"] == 3


def test_an_episode_that_began_from_another_state_does_not_count():
    """Nobody asked the critics about that state."""
    biases = begun()
    biases.begun(FIRST, same=False)
    biases.book(FIRST, 100.0)
    biases.book(SECOND, 4.0)
    found = biases.done(3)
    assert (found["episodes"], found["expected"], found["bias"]) == (1, 2, -2)
    biases = begun()
    for one in (FIRST, SECOND):
        biases.begun(one, same=False)
    assert biases.done(3) is None


def test_an_episode_that_follows_in_a_slot_does_not_count():
    biases = begun()
    biases.book(THIRD, 5.0)
    biases.begun(THIRD, same=True)
    assert biases.done(3)["discounted_return"] == 0


def test_accounts_go_on_where_they_were_noted():
    biases, other = ValueBiases(0.9), ValueBiases(0.9)
    biases.begin(3, np.array([0.1, 0.2], np.float32))
    biases.book(FIRST, 0.3)
    biases.begun(FIRST, same=True)
    biases.book(FIRST, 0.3)
    other.restore(json.loads(json.dumps(biases.notes())), again=False)
    for each in (biases, other):
        each.book(FIRST, 0.7)
    assert other.done(3) == biases.done(3)


def test_accounts_of_evaluations_that_begin_again_do_too():
    biases = begun()
    biases.book(FIRST, 9.0)
    biases.restore(biases.notes(), again=True)
    assert biases.done(3) == begun().done(3)
