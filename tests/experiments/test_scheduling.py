"""Dividing runs into fleets, and the bound that no schedule beats."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.experiments.scheduling import Part, Work, divide, lower_bound, makespan

SHAPES = st.sampled_from([(1, 1), (1, 3), (1, 5), (2, 2), (3, 5), (4, 5)])


@st.composite
def works(draw):
    """Return a random work: seconds are a start and a part for each member."""
    tasks, seeds = draw(SHAPES)
    run = 10 ** draw(st.floats(0, 2))
    start = run * draw(st.floats(0, 4))
    limit = draw(st.sampled_from([tasks * seeds, tasks * seeds, min(5, tasks * seeds)]))
    return Work(tasks, seeds, tuple(start + run * m for m in range(1, limit + 1)))


def grids(least, most):
    return st.lists(works(), min_size=least, max_size=most)


def durations(grid, parts):
    return [grid[part.work].seconds[part.members - 1] for part in parts]


def runs(part: Part):
    tasks = range(part.first_task, part.first_task + part.tasks)
    return itertools.product(tasks, range(part.first_seed, part.first_seed + part.seeds))


# With few runs, rectangles do not always fill all slots, and the bound is not tight.
@pytest.mark.parametrize(("least", "most", "ratio"), [(8, 60, 1.15), (1, 7, 1.5)])
def test_the_end_is_near_the_lower_bound(least, most, ratio):
    @settings(max_examples=60)
    @given(grids(least, most), st.integers(1, 64))
    def check(grid, slots):
        end, bound = makespan(durations(grid, divide(grid, slots)), slots), lower_bound(grid, slots)
        assert bound * (1 - 1e-6) <= end <= ratio * bound

    check()


@settings(max_examples=60)
@given(grids(1, 20), st.integers(1, 64))
def test_every_run_is_in_one_fleet(grid, slots):
    parts = divide(grid, slots)
    for index, work in enumerate(grid):
        chosen = [part for part in parts if part.work == index]
        found = sorted(itertools.chain(*map(runs, chosen)))
        assert found == list(itertools.product(range(work.tasks), range(work.seeds)))
        assert all(part.members <= len(work.seconds) for part in chosen)


def brute_force(seconds, slots):
    """Return the earliest end of single runs, by trying all assignments."""
    best = float("inf")
    for places in itertools.product(range(slots), repeat=len(seconds)):
        loads = [
            sum(s for s, p in zip(seconds, places, strict=True) if p == n) for n in range(slots)
        ]
        best = min(best, max(loads))
    return best


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_bound_and_schedule_enclose_the_best_schedule(seconds, slots):
    grid = [Work(1, 1, (float(x),)) for x in seconds]
    best = brute_force(seconds, slots)
    assert lower_bound(grid, slots) <= best * (1 + 1e-6)
    assert best <= makespan(durations(grid, divide(grid, slots)), slots) <= 1.15 * best


def test_one_slot_takes_the_largest_fleets():
    work = Work(4, 5, tuple(100.0 + m for m in range(20)))
    assert [part.members for part in divide([work], 1)] == [20]
    assert lower_bound([work], 1) == pytest.approx(119)


def test_limits_of_memory_are_kept():
    work = Work(4, 5, tuple(100.0 + m for m in range(7)))
    parts = divide([work], 1)
    assert len(parts) == 4
    assert max(part.members for part in parts) <= 7


def test_large_fleets_are_divided_among_slots():
    work = Work(4, 5, tuple(163.0 + 45.0 * m for m in range(1, 21)))
    parts = divide([work], 8)
    assert len(parts) == 8
    assert sorted({part.members for part in parts}) == [2, 3]


def test_the_longest_fleets_start_first():
    grid = [Work(1, 1, (x,)) for x in (1.0, 5.0, 3.0, 4.0, 2.0)]
    assert [part.work for part in divide(grid, 1)] == [1, 3, 2, 4, 0]


def test_slots_are_filled_with_unequal_parts():
    grid = [Work(1, 5, tuple(1.0 + m for m in range(1, 6)))] * 2
    parts = divide(grid, 3)  # four runs of each on a slot, one of each on the third
    assert makespan(durations(grid, parts), 3) == 5
    assert sorted(part.members for part in parts) == [1, 1, 4, 4]


def test_nothing_to_do():
    assert divide([], 4) == []
    assert lower_bound([], 4) == 0
