"""Scores relative to a base, and suites that are whole or refused."""

import math

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.stats.normalization import normalise_scores, normalised, suite_scores
from r2r2.stats.scores import Method, Results, cells_of
from r2r2.storage.evaluations import Row

BASE, OURS = Method("td7", 1), Method("td7+r2r2", 20)


def runs(method, returns, task="Hopper-v5"):
    """One run of 50 equal points per seed, with these returns."""
    rows = [
        Row("x", task, seed, "return", point * 10_000, value)
        for seed, value in enumerate(returns)
        for point in range(1, 51)
    ]
    return Results(method, rows)


def found(*results, **arguments):
    return normalised(cells_of(results), **arguments)


def test_a_score_is_relative_to_the_bases_mean():
    base, ours = found(
        runs(BASE, [90.0, 110.0, 100.0, 95.0, 105.0]),
        runs(OURS, [150.0, 100.0, 50.0, 0.0, -100.0]),
    )
    np.testing.assert_allclose(base.scores, [0.9, 1.1, 1.0, 0.95, 1.05])
    np.testing.assert_allclose(ours.scores, [1.5, 1.0, 0.5, 0.0, -1.0])
    assert ours.base == base.cell
    assert base.complete
    assert ours.complete


def test_a_base_below_zero_is_beaten_from_above():
    # S / base would be 0.5 for the better one.
    np.testing.assert_allclose(normalise_scores([-50.0, -150.0], [-100.0]), [1.5, 0.5])


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ([1.0, -1.0], "base has a mean of 0.0"),
        ([math.nan], "base has a mean of nan"),
        ([], "base has no scores"),
    ],
)
def test_without_a_level_there_is_nothing_to_be_relative_to(base, said):
    with pytest.raises(UserError, match=said):
        normalise_scores([1.0], base)


def test_a_missing_base_is_named_and_the_cell_stays():
    (ours,) = found(runs(OURS, [1.0] * 5))
    assert ours.base is None
    assert len(ours.scores) == 0
    assert ours.shortfalls == ("its base, td7, UTD 1, is missing",)


def test_a_base_on_another_task_is_none():
    _, ours = found(runs(BASE, [1.0] * 5, "Ant-v5"), runs(OURS, [1.0] * 5))
    assert ours.base is None


def test_a_base_at_zero_is_named():
    _, ours = found(runs(BASE, [0.0] * 5), runs(OURS, [1.0] * 5))
    assert len(ours.scores) == 0
    assert ours.shortfalls[0].startswith("its base has a mean of 0.0")


def test_what_the_base_lacks_is_said_once():
    base, ours = found(runs(BASE, [1.0] * 2), runs(OURS, [2.0] * 5))
    assert base.shortfalls == ("2 of 5 seeds",)
    assert ours.shortfalls == ("its base: 2 of 5 seeds",)
    assert not ours.complete


def test_a_small_study_has_a_base_of_its_own_size():
    small = ("steps is 15000, not 500000",)
    pairs = [(BASE, 100.0), (OURS, 200.0)]
    whole = [runs(method, [x]) for method, x in pairs]
    reduced = [runs(m._replace(departures=small), [x / 4]) for m, x in pairs]
    *_, last = found(*whole, *reduced)
    np.testing.assert_allclose(last.scores, [2.0])


def test_a_base_can_be_named():
    variant = OURS._replace(
        departures=("representation.zero_centred is True, not False",)
    )
    one = found(runs(OURS, [4.0]), runs(variant, [2.0]), base_of=lambda _: OURS)
    np.testing.assert_allclose(one[1].scores, [0.5])


def test_a_suite_has_all_its_tasks_and_says_what_they_lack():
    cells = found(
        runs(BASE, [1.0] * 5, "Ant-v5"),
        runs(BASE, [2.0] * 3, "Hopper-v5"),
        runs(OURS, [9.0] * 5, "Walker2d-v5"),
    )
    suite = suite_scores(cells, BASE, ["Hopper-v5", "Ant-v5"])
    assert list(suite.scores) == ["Hopper-v5", "Ant-v5"]
    assert [len(scores) for scores in suite.scores.values()] == [3, 5]
    assert suite.shortfalls == ("Hopper-v5: 3 of 5 seeds",)
    assert not suite.complete
    with pytest.raises(UserError, match="td7, UTD 1 has no scores on Walker2d-v5;"):
        suite_scores(cells, BASE, ["Hopper-v5", "Ant-v5", "Walker2d-v5"])
    with pytest.raises(UserError, match="has no scores on Walker2d-v5"):
        # It is there, but without a base.
        suite_scores(cells, OURS, ["Walker2d-v5"])
