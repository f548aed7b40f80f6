import pytest

from r2r2.bench.end_to_end import Profiler


class Clock:
    """A clock that is set by the test."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at

    def advance(self, seconds):
        self.at += seconds


class Work:
    def __init__(self, clock):
        self.clock = clock

    def outer(self, seconds):
        self.clock.advance(seconds)
        self.inner(3.0)
        self.clock.advance(seconds)
        return "done"

    def inner(self, seconds):
        self.clock.advance(seconds)

    def fail(self):
        self.clock.advance(1.0)
        raise KeyError


@pytest.fixture
def clock():
    return Clock()


def test_nested_part_counts_only_for_itself(clock):
    work, profiler = Work(clock), Profiler(["a", "b"], clock)
    profiler.wrap("a", work, "outer")
    profiler.wrap("b", work, "inner")
    assert work.outer(2.0) == "done"
    assert profiler.seconds == {"a": 4.0, "b": 3.0}


def test_time_between_parts_is_not_counted(clock):
    work, profiler = Work(clock), Profiler(["a"], clock)
    profiler.wrap("a", work, "inner")
    clock.advance(10.0)
    work.inner(1.0)
    clock.advance(10.0)
    work.inner(1.0)
    assert profiler.seconds == {"a": 2.0}


def test_part_ends_when_it_raises(clock):
    work, profiler = Work(clock), Profiler(["a", "b"], clock)
    profiler.wrap("a", work, "fail")
    profiler.wrap("b", work, "inner")
    with pytest.raises(KeyError):
        work.fail()
    clock.advance(5.0)
    work.inner(2.0)
    assert profiler.seconds == {"a": 1.0, "b": 2.0}


def test_other_objects_are_not_timed(clock):
    work, profiler = Work(clock), Profiler(["a"], clock)
    profiler.wrap("a", work, "inner")
    Work(clock).inner(4.0)
    assert profiler.seconds == {"a": 0.0}


def test_missing_method_is_an_error(clock):
    with pytest.raises(AttributeError):
        Profiler(["a"], clock).wrap("a", Work(clock), "absent")
