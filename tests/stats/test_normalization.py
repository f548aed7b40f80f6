"""Normalized scores."""

import math

import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.stats.scores import Method, Override, Results, Shortfall, ShortfallKind, make_cells
from r2r2.stats.suites import normalise_scores, normalize_cells
from r2r2.storage.evaluations import Row

BASE, OURS = Method("td7", 1), Method("td7+r2r2", 20)


def runs(method, returns, task="Hopper-v5"):
    """Return a run with 50 equal points per seed."""
    rows = [
        Row("x", task, seed, "return", point * 10_000, value)
        for seed, value in enumerate(returns)
        for point in range(1, 51)
    ]
    return Results(method, rows)


def normalize(*results, **arguments):
    return normalize_cells(make_cells(results), **arguments)


def test_score_is_relative_to_the_mean_of_the_base():
    base, ours = normalize(
        runs(BASE, [90.0, 110.0, 100.0, 95.0, 105.0]), runs(OURS, [150.0, 100.0, 50.0, 0.0, -100.0])
    )
    np.testing.assert_allclose(base.scores, [0.9, 1.1, 1.0, 0.95, 1.05])
    np.testing.assert_allclose(ours.scores, [1.5, 1.0, 0.5, 0.0, -1.0])
    assert ours.base == base.cell
    assert base.complete
    assert ours.complete


def test_higher_is_better_for_a_negative_base():
    # S / base would be 0.5 for the better one.
    np.testing.assert_allclose(normalise_scores([-50.0, -150.0], [-100.0]), [1.5, 0.5])


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ([1.0, -1.0], "base: expected scores with a finite mean != 0, got 0.0"),
        ([math.nan], "got nan"),
        ([], "base: expected at least one score"),
    ],
)
def test_unusable_base_is_rejected(base, message):
    with pytest.raises(UserError, match=message):
        normalise_scores([1.0], base)


def test_missing_base_is_a_shortfall():
    (ours,) = normalize(runs(OURS, [1.0] * 5))
    assert ours.base is None
    assert len(ours.scores) == 0
    assert ours.shortfalls == (Shortfall(ShortfallKind.NO_BASE, BASE),)


def test_base_on_another_task_does_not_count():
    _, ours = normalize(runs(BASE, [1.0] * 5, "Ant-v5"), runs(OURS, [1.0] * 5))
    assert ours.base is None


def test_base_of_zero_is_a_shortfall():
    _, ours = normalize(runs(BASE, [0.0] * 5), runs(OURS, [1.0] * 5))
    assert len(ours.scores) == 0
    assert ours.shortfalls == (Shortfall(ShortfallKind.UNUSABLE_BASE, "0.0"),)


def test_shortfalls_of_the_base_are_inherited():
    base, ours = normalize(runs(BASE, [1.0] * 2), runs(OURS, [2.0] * 5))
    few = Shortfall(ShortfallKind.FEW_SEEDS, 2, 5)
    assert base.shortfalls == (few,)
    assert ours.shortfalls == (few._replace(of_base=True),)
    assert not ours.complete


def test_base_has_the_same_settings():
    small = (Override("steps", "15000", "500000"),)
    pairs = [(BASE, 100.0), (OURS, 200.0)]
    full = [runs(method, [x]) for method, x in pairs]
    reduced = [runs(m._replace(overrides=small), [x / 4]) for m, x in pairs]
    *_, last = normalize(*full, *reduced)
    np.testing.assert_allclose(last.scores, [2.0])


def test_base_can_be_chosen():
    variant = OURS._replace(overrides=(Override("representation.zero_centred", "True", "False"),))
    one = normalize(runs(OURS, [4.0]), runs(variant, [2.0]), base_of=lambda _: OURS)
    np.testing.assert_allclose(one[1].scores, [0.5])
