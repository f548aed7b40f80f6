"""Dividing runs into fleets, and the bound that no schedule beats."""

import itertools

import pytest
from hypothesis import example, given, settings
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


def line(start, run, count):
    return tuple(start + run * m for m in range(1, count + 1))


@settings(max_examples=80)
@example([Work(1, 5, line(10.92, 4.17, 5)), Work(3, 5, line(9.46, 5.79, 15))], 3)
@example([Work(3, 3, line(34.5, 9.43, 5))], 2)  # no rectangle of 3 x 3 runs has 5
@given(st.one_of(grids(1, 3), grids(1, 60)), st.integers(1, 64))
def test_the_end_is_near_the_lower_bound(grid, slots):
    end, bound = makespan(durations(grid, divide(grid, slots)), slots), lower_bound(grid, slots)
    assert bound * (1 - 1e-6) <= end <= 1.15 * bound


def test_the_bound_of_few_works_knows_which_fleets_fit_into_slots_together():
    # Fleets of less than 8 and 3 runs leave at least six fleets, of which no two fit into a slot.
    grid = [Work(3, 5, line(109.9, 40.5, 15)), Work(1, 5, line(144.4, 96.85, 5))]
    end = makespan(durations(grid, divide(grid, 5)), 5)
    assert end == grid[0].seconds[8 - 1]
    assert lower_bound(grid, 5) == pytest.approx(end, rel=2e-3)


@settings(max_examples=60)
@given(grids(1, 20), st.integers(1, 64))
def test_every_run_is_in_one_fleet(grid, slots):
    parts = divide(grid, slots)
    for index, work in enumerate(grid):
        chosen = [part for part in parts if part.work == index]
        found = sorted(itertools.chain(*map(runs, chosen)))
        assert found == list(itertools.product(range(work.tasks), range(work.seeds)))
        assert all(part.members <= len(work.seconds) for part in chosen)


def partitions(count, largest):
    """Yield the ways to divide a number of seeds into fleets, as the sizes of the fleets."""
    if not count:
        yield ()
    for size in range(min(count, largest), 0, -1):
        yield from ((size, *rest) for rest in partitions(count - size, size))


def brute_force(grid, slots):
    """Return the earliest end by trying all fleets and all assignments; works have one task."""
    best = float("inf")
    choices = [partitions(work.seeds, len(work.seconds)) for work in grid]
    for sizes in itertools.product(*choices):
        seconds = [work.seconds[x - 1] for work, own in zip(grid, sizes, strict=True) for x in own]
        for places in itertools.product(range(slots), repeat=len(seconds) - 1):
            loads = [0.0] * slots
            for place, x in zip((0, *places), seconds, strict=True):
                loads[place] += x
            best = min(best, max(loads))
    return best


@st.composite
def works_of_one_task(draw):
    """Return a small work; each further member of a fleet takes less time, or the same."""
    seeds = draw(st.integers(1, 3))
    limit = draw(st.integers(1, seeds))
    steps = draw(st.lists(st.integers(1, 9), min_size=limit, max_size=limit))
    seconds = itertools.accumulate(sorted(steps, reverse=True))
    return Work(1, seeds, tuple(map(float, seconds)))


@settings(max_examples=80)
@given(st.lists(works_of_one_task(), min_size=1, max_size=3), st.integers(1, 3))
def test_bound_and_schedule_enclose_the_best_schedule(grid, slots):
    best = brute_force(grid, slots)
    assert lower_bound(grid, slots) <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= makespan(durations(grid, divide(grid, slots)), slots) <= 1.15 * best


def test_the_bound_knows_which_runs_fit_into_a_slot():
    # Fleets of at most 5 take 4 + members: of 20 runs, 3 slots train 7 + 7 + 6 in two fleets each.
    grid = [Work(4, 5, tuple(4.0 + m for m in range(1, 6)))]
    assert lower_bound(grid, 3) == pytest.approx(15, rel=5e-3)
    # Four slots are left to the long runs, so two train all of the short ones.
    grid = [Work(2, 2, (80.0, 120.0, 160.0, 200.0)), Work(1, 15, tuple(range(31, 46)))]
    assert lower_bound(grid, 6) == pytest.approx(80, rel=5e-3)


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
