"""Statistics against numbers computed by hand, and their invariances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2r2.config.errors import UserError
from r2r2.stats.aggregates import (
    iqm,
    mean_score,
    median_score,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from r2r2.stats.samples import as_sample

# Four runs of two tasks with distinct scores: every likely mistake changes the result.
EVEN = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 10.0], [5.0, 100.0]])
UNEVEN = {"a": [1.0, 2.0, 3.0, 4.0], "b": [10.0, 20.0], "c": [0.5]}

NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 3))
RUNS = st.lists(NUMBERS, min_size=1, max_size=6)
TABLES = st.dictionaries(st.sampled_from("abcdefg"), RUNS, min_size=1, max_size=5)
LOCATIONS = {"mean": mean_score, "median": median_score, "iqm": iqm}


def test_mean_is_the_mean_of_task_means():
    # Task means 11/4 and 114/4.
    assert mean_score(EVEN) == (11 / 4 + 114 / 4) / 2
    # Task means 2.5, 15 and 0.5. All scores alike would give 40.5 / 7 = 5.79.
    assert mean_score(UNEVEN) == pytest.approx(18 / 3)


def test_median_is_over_tasks_and_not_over_scores():
    # Of 2.5, 15 and 0.5. The median score would be 3.
    assert median_score(UNEVEN) == 2.5
    # Of two task means it is their mean, 15.625; the median score would be 3.5.
    assert median_score(EVEN) == 15.625


def test_iqm_is_the_mean_of_the_middle_half():
    # 0 1 | 2 3 4 5 | 10 100
    assert iqm(EVEN) == 3.5
    # Of 6 scores one goes from either end, not one and a half: 2 3 4 5.
    assert iqm([[1.0], [2.0], [3.0], [4.0], [5.0], [60.0]]) == pytest.approx(3.5)
    # Of 3 none goes.
    assert iqm([[1.0], [2.0], [6.0]]) == pytest.approx(3)


def test_iqm_of_11_tasks_and_5_runs_cuts_13_from_either_end():
    scores = np.random.default_rng(0).normal(size=(5, 11))
    ordered = np.sort(scores, axis=None)
    assert iqm(scores) == pytest.approx(ordered[13:-13].mean(), rel=1e-12)


def test_iqm_gives_scores_of_tasks_with_fewer_runs_more_weight():
    # Weights in 24ths: a 2 each, b 4 each, c 8. In order: 0.5 (8), 1, 2, 3, 4 (2 each),
    # 10, 20 (4 each). A quarter is 6: 0.5 weighs more, and stays; 20 goes (4), as 10
    # would make it 8.
    middle = 8 * 0.5 + 2 * (1 + 2 + 3 + 4) + 4 * 10
    assert iqm(UNEVEN) == pytest.approx(middle / 20)


def test_iqm_of_ties_does_not_depend_on_the_order_of_tasks():
    scores = {"a": [0.0, 0.0, 0.0, 0.0, 9.0], "b": [0.0, 7.0], "c": [0.0, 5.0, 6.0]}
    backwards = dict(reversed(scores.items()))
    assert iqm(scores) == pytest.approx(iqm(backwards), rel=1e-12)


def test_optimality_gap_clips_scores_at_the_target():
    # Below 4 at most: task a 0, 2, 4, 4 (mean 2.5), b 1, 3, 4, 4 (mean 3).
    assert optimality_gap(EVEN, target=4.0) == 4 - 2.75
    assert optimality_gap(EVEN) == 1 - (3 / 4 + 4 / 4) / 2
    assert optimality_gap(EVEN + 100) == 0


def test_profile_is_the_share_above_each_threshold():
    result = performance_profile(EVEN, [4.0, -1.0, 200.0, 3.5])
    # Above 4 are 5, 10, 100; 4 itself is not.
    np.testing.assert_allclose(result, [3 / 8, 1.0, 0.0, 4 / 8], atol=1e-15)


def test_profile_weights_tasks_equally():
    # Above 3: of a one in four, of b all, of c none.
    result = performance_profile(UNEVEN, [3.0])
    np.testing.assert_allclose(result, [(1 / 4 + 1 + 0) / 3])


def test_probability_of_improvement_is_within_tasks():
    ours = {"a": [1.0, 4.0], "b": [100.0]}
    theirs = {"b": [200.0, 100.0], "a": [1.0, 2.0, 3.0]}
    # a: 1 ties with 1 and loses twice, 4 wins three times: 3.5 of 6.
    # b: 100 loses once and ties once: 0.5 of 2. Over all pairs it would be 5.5 of 15.
    expected = (3.5 / 6 + 0.5 / 2) / 2
    assert probability_of_improvement(ours, theirs) == pytest.approx(expected)
    assert probability_of_improvement(theirs, ours) == pytest.approx(1 - expected)


def test_different_tasks_are_rejected():
    with pytest.raises(UserError, match=r"the second: .* got missing a and unexpected c"):
        probability_of_improvement({"a": [1.0], "b": [1.0]}, {"b": [1.0], "c": [2.0]})


@pytest.mark.parametrize("name", LOCATIONS)
@settings(max_examples=40, deadline=None)
@given(table=TABLES, shift=NUMBERS, scale=st.floats(0.01, 100))
def test_location_statistics_are_equivariant(name, table, shift, scale):
    statistic = LOCATIONS[name]
    # In integer steps, so that ties stay ties.
    moved = {t: np.array(x) * 2.0 ** round(np.log2(scale)) for t, x in table.items()}
    expected = statistic(table) * 2.0 ** round(np.log2(scale))
    assert statistic(moved) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    full = {t: np.round(x) for t, x in table.items()}
    moved = {t: x + round(shift) for t, x in full.items()}
    expected = statistic(full) + round(shift)
    assert statistic(moved) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(table=TABLES, rng=st.randoms(use_true_random=False))
def test_order_of_runs_and_tasks_does_not_matter(table, rng):
    tasks = list(table)
    rng.shuffle(tasks)
    mixed = {task: rng.sample(table[task], len(table[task])) for task in tasks}
    for statistic in (*LOCATIONS.values(), optimality_gap):
        assert statistic(mixed) == pytest.approx(statistic(table), rel=1e-9, abs=1e-9)
    levels = [-50.0, 0.0, 0.5]
    profiles = [performance_profile(x, levels) for x in (mixed, table)]
    np.testing.assert_allclose(*profiles, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(table=TABLES)
def test_location_statistics_lie_within_the_scores(table):
    low, high = min(map(min, table.values())), max(map(max, table.values()))
    for statistic in LOCATIONS.values():
        assert low - 1e-9 <= statistic(table) <= high + 1e-9
    assert probability_of_improvement(table, table) == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(table=TABLES, levels=st.lists(NUMBERS, min_size=1, max_size=8))
def test_profile_equals_mean_of_comparisons(table, levels):
    result = performance_profile(table, levels)
    above = [{t: np.array(x) > y for t, x in table.items()} for y in levels]
    np.testing.assert_allclose(result, [mean_score(x) for x in above], atol=1e-12)


def test_statistics_accept_leading_axes():
    one = as_sample(UNEVEN)
    values = np.stack([one.values, -one.values, one.values + 1])
    many = one._replace(values=values)
    parts = [one._replace(values=row) for row in values]

    def profile(scores):
        return performance_profile(scores, [2.0, 1.0])

    for statistic in (*LOCATIONS.values(), optimality_gap, profile):
        expected = [statistic(part) for part in parts]
        np.testing.assert_allclose(statistic(many), expected, rtol=1e-12)
    result = probability_of_improvement(many, many._replace(values=values[::-1]))
    pairs = zip(parts, reversed(parts), strict=True)
    expected = [probability_of_improvement(*pair) for pair in pairs]
    np.testing.assert_allclose(result, expected)


def test_thresholds_must_be_a_row():
    with pytest.raises(UserError, match=r"thresholds: expected a row, got shape \(\)"):
        performance_profile(EVEN, 1.0)
