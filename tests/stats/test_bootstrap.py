"""Intervals: exact where resamples can be enumerated, else close to theory."""

import functools
import itertools

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.stats import bootstrap
from r2r2.stats.aggregates import (
    iqm,
    mean_score,
    median_score,
    performance_profile,
    probability_of_improvement,
)
from r2r2.stats.bootstrap import comparison_interval, interval
from r2r2.stats.samples import Sample

SCORES = np.random.default_rng(7).normal(1, 0.3, (5, 11)) + np.arange(11.0) / 5
UNEVEN = {"a": [1.0, 2.0, 4.0], "b": [8.0, 16.0]}


def rng(seed=0):
    return np.random.default_rng(seed)


def value_shares(draws):
    """Return the share of each distinct value among the draws."""
    values, counts = np.unique(draws, return_counts=True)
    return dict(zip(np.round(values, 9), counts / len(draws), strict=True))


def resampled(scores, resampling, statistic=mean_score, samples=40_000):
    """Return the statistics of all resamples."""
    seen = []

    def recording(sample):
        seen.append(statistic(sample))
        return seen[-1]

    interval(recording, scores, rng(), resampling, samples)
    return np.concatenate(seen)


def test_stratified_resamples_have_the_right_probabilities():
    # 27 draws of a with 4 of b each.
    pairs = itertools.product(
        itertools.product(UNEVEN["a"], repeat=3), itertools.product(UNEVEN["b"], repeat=2)
    )
    every = [(np.mean(a) + np.mean(b)) / 2 for a, b in pairs]
    expected, result = (value_shares(every), value_shares(resampled(UNEVEN, "stratified")))
    assert result.keys() == expected.keys()
    for value, share in expected.items():
        assert result[value] == pytest.approx(share, abs=0.01)


def test_pooled_resamples_draw_a_task_and_then_a_run():
    scores = {"a": [1.0, 3.0], "b": [10.0]}
    # A draw is 1 or 3 with probability 1/4 each and 10 with 1/2; the mean is of three.
    expected = {}
    chances = {1.0: 1 / 4, 3.0: 1 / 4, 10.0: 1 / 2}
    for draw in itertools.product(chances, repeat=3):
        value = round(float(np.mean(draw)), 9)
        chance = np.prod([chances[x] for x in draw])
        expected[value] = expected.get(value, 0) + chance
    result = value_shares(resampled(scores, "pooled"))
    assert result.keys() == expected.keys()
    for value, share in expected.items():
        assert result[value] == pytest.approx(share, abs=0.01)


def test_interval_ends_are_quantiles_at_the_level():
    draws = resampled(SCORES, "stratified", iqm, samples=999)
    result = interval(iqm, SCORES, rng(), samples=999, level=0.8)
    np.testing.assert_array_equal(result, np.quantile(draws, [0.1, 0.9]))


def test_interval_widths_agree_with_theory():
    # Variance of a mean of 55: of all scores over 55, against that within tasks.
    within, all_of_it = SCORES.var(axis=0).mean(), SCORES.var()
    for resampling, variance in (("stratified", within), ("pooled", all_of_it)):
        low, high = interval(mean_score, SCORES, rng(), resampling)
        expected = 2 * 1.959964 * np.sqrt(variance / 55)
        assert high - low == pytest.approx(expected, rel=0.02)
        assert low < mean_score(SCORES) < high


@pytest.mark.parametrize("resampling", ["stratified", "pooled"])
def test_same_generator_gives_same_interval(monkeypatch, resampling):
    def result(seed):
        return interval(iqm, SCORES, rng(seed), resampling, samples=3000)

    first = result(3)
    np.testing.assert_array_equal(result(3), first)
    assert not np.array_equal(result(4), first)
    # Other chunks draw other numbers, with about the same result.
    monkeypatch.setattr(bootstrap, "CHUNK_SCORES", 55 * 70)
    np.testing.assert_allclose(result(3), first, atol=0.1 * (first.high - first.low))


def test_resamples_are_drawn_in_chunks(monkeypatch):
    monkeypatch.setattr(bootstrap, "CHUNK_SCORES", 55 * 100)
    rows = []

    def recording(sample):
        rows.append(len(sample.values))
        return mean_score(sample)

    interval(recording, SCORES, rng(), samples=250)
    assert rows == [100, 100, 50]


@pytest.mark.parametrize(("runs", "expected"), [(2, 0.807), (5, 0.913)])
def test_coverage_of_stratified_intervals(runs, expected):
    # The share of Student's t with 11 (N - 1) degrees within 1.96 sqrt((N - 1) / N).
    generator, covered, trials = rng(1), 0, 400
    for _ in range(trials):
        scores = generator.normal(3.0, 1.0, (runs, 11))
        low, high = interval(mean_score, scores, generator, samples=300)
        covered += bool(low <= 3.0 <= high)
    deviation = np.sqrt(expected * (1 - expected) / trials)
    assert covered / trials == pytest.approx(expected, abs=3 * deviation)


def test_profile_has_an_interval_at_each_threshold():
    levels = np.array([-5.0, 2.0, 9.0])
    profile = functools.partial(performance_profile, thresholds=levels)
    low, high = interval(profile, SCORES, rng(), samples=2000)
    middle = performance_profile(SCORES, levels)
    assert low.shape == high.shape == (3,)
    assert low[0] == high[0] == pytest.approx(1)
    assert low[1] < middle[1] < high[1]
    assert low[2] == high[2] == 0


def test_two_sets_of_scores_are_resampled_independently():
    better = SCORES + 0.1
    low, high = comparison_interval(probability_of_improvement, better, SCORES, rng(), samples=4000)
    assert low < probability_of_improvement(better, SCORES) < high
    # Resampled alike, the same scores would always come to 1/2.
    low, high = comparison_interval(probability_of_improvement, SCORES, SCORES, rng(), samples=4000)
    assert low < 0.45
    assert high > 0.55


def test_sets_may_differ_in_numbers_of_runs():
    low, high = comparison_interval(
        probability_of_improvement, SCORES[:3] + 9, SCORES, rng(), samples=100
    )
    assert low == high == 1


def test_single_run_cannot_be_resampled_within_its_task():
    scores = {"a": [1.0, 2.0], "b": [3.0]}
    with pytest.raises(UserError, match="scores of b: expected at least two runs"):
        interval(mean_score, scores, rng())
    low, high = interval(mean_score, scores, rng(), "pooled", samples=500)
    assert low < high


def test_median_has_no_pooled_interval():
    with pytest.raises(UserError, match="expected 'stratified', got 'pooled'"):
        interval(median_score, SCORES, rng(), "pooled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resampling": "both"}, "resampling: expected .*, got 'both'"),
        ({"samples": 0}, "samples: expected an integer >= 1, got 0"),
        ({"level": 95}, "level: expected a number between 0 and 1, got 95"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(UserError, match=message):
        interval(mean_score, SCORES, rng(), **arguments)


@pytest.mark.parametrize("resampling", ["stratified", "pooled"])
def test_intervals_of_leading_axes_equal_separate_ones(resampling):
    values = np.random.default_rng(1).normal(size=(3, 7))  # [steps, runs]
    full = Sample(("a", "b"), (4, 3), values)
    result = interval(iqm, full, rng(), resampling, 200)
    assert result.low.shape == result.high.shape == (3,)
    for step in range(3):
        alone = Sample(("a", "b"), (4, 3), values[step])
        one = interval(iqm, alone, rng(), resampling, 200)
        assert (one.low, one.high) == (result.low[step], result.high[step])
