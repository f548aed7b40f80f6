import pytest

from r2r2.bench.end_to_end import Profiler


class Now:
    """A clock that is set by hand."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at

    def later(self, seconds):
        self.at += seconds


class Work:
    def __init__(self, now):
        self.now = now

    def outer(self, seconds):
        self.now.later(seconds)
        self.inner(3.0)
        self.now.later(seconds)
        return "done"

    def inner(self, seconds):
        self.now.later(seconds)

    def fail(self):
        self.now.later(1.0)
        raise KeyError


@pytest.fixture
def now():
    return Now()


def test_a_part_inside_another_counts_for_itself_alone(now):
    work, clock = Work(now), Profiler(["a", "b"], now)
    clock.over("a", work, "outer")
    clock.over("b", work, "inner")
    assert work.outer(2.0) == "done"
    assert clock.seconds == {"a": 4.0, "b": 3.0}


def test_what_is_between_parts_counts_for_none(now):
    work, clock = Work(now), Profiler(["a"], now)
    clock.over("a", work, "inner")
    now.later(10.0)
    work.inner(1.0)
    now.later(10.0)
    work.inner(1.0)
    assert clock.seconds == {"a": 2.0}


def test_a_part_that_raises_is_over(now):
    work, clock = Work(now), Profiler(["a", "b"], now)
    clock.over("a", work, "fail")
    clock.over("b", work, "inner")
    with pytest.raises(KeyError):
        work.fail()
    now.later(5.0)
    work.inner(2.0)
    assert clock.seconds == {"a": 1.0, "b": 2.0}


def test_other_objects_of_the_kind_are_not_timed(now):
    work, clock = Work(now), Profiler(["a"], now)
    clock.over("a", work, "inner")
    Work(now).inner(4.0)
    assert clock.seconds == {"a": 0.0}


def test_a_name_that_is_no_method_is_a_mistake(now):
    with pytest.raises(AttributeError):
        Profiler(["a"], now).over("a", Work(now), "absent")
