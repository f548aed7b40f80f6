"""Where the time of a run goes."""

import numpy as np
import pytest

from r2r2.training.time_account import PARTS, BusySeconds, TimeAccount, describe_event, summarize


class Clock:
    """A clock that is set by the test."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at

    def advance(self, seconds):
        self.at += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(clock):
    return TimeAccount(clock)


def spent(times):
    return {name: seconds for name, seconds in times.seconds().items() if seconds}


def test_nested_part_counts_only_for_itself(clock, times):
    with times.part("updates"):
        clock.advance(2.0)
        with times.part("transfer"):
            clock.advance(3.0)
        clock.advance(2.0)
    assert spent(times) == {"updates": 4.0, "transfer": 3.0}


def test_time_between_parts_is_the_rest(clock, times):
    for _ in range(2):
        clock.advance(10.0)
        with times.part("acting"):
            clock.advance(1.0)
    assert spent(times) == {"acting": 2.0, "rest": 20.0}


def test_time_counts_while_a_part_lasts(clock, times):
    with times.part("acting"):
        clock.advance(1.0)
        assert spent(times) == {"acting": 1.0}
        clock.advance(2.0)
    assert spent(times) == {"acting": 3.0}


def test_part_ends_when_it_raises(clock, times):
    def fail():
        clock.advance(1.0)
        raise KeyError

    with pytest.raises(KeyError), times.part("updates"):
        fail()
    clock.advance(5.0)
    assert spent(times) == {"updates": 1.0, "rest": 5.0}


@pytest.mark.parametrize(
    ("parts", "workers", "bound"),
    [
        ({"updates": 8, "environments": 1}, [3, 4], "updates"),
        ({"updates": 1, "environments": 8}, [9, 4], "environments"),
        ({"updates": 1, "environments": 8}, [], "environments"),
        ({"updates": 1, "environments": 1, "transfer": 3, "rest": 4}, [3], "the main process"),
    ],
)
def test_summary_names_what_bounds_the_speed(parts, workers, bound):
    slots = np.array([1.0, 3, 2, 2])  # two of training, two of evaluation
    busy = BusySeconds(2.0, 0.5, slots, 2 * slots, np.array(workers, float))
    summary = summarize(dict.fromkeys(PARTS, 0.0) | parts, busy, members=2)
    assert summary.bound == bound
    assert summary.wall == sum(parts.values())
    assert (summary.physics, summary.acting, summary.evaluation) == (4.0, 2.0, 6.0)
    assert describe_event(summary.fields()).endswith(f"bound by {bound}")


def test_waiting_for_programs_does_not_count_as_updates():
    slots, parts = np.zeros(2), dict.fromkeys(PARTS, 0.0) | {"updates": 10.0, "rest": 1.0}
    summary = summarize(parts, BusySeconds(0.5, 9.0, slots, slots, np.zeros(1)), members=1)
    assert (summary.updates, summary.compiling, summary.bound) == (1.0, 9.0, "compiling")
