import numpy as np
import pytest

from r2r2.config.errors import UserError
from r2r2.diagnostics.representation import (
    DEAD,
    collapsed,
    count_at,
    dead_coordinates,
    diagnose,
    effective_rank,
    entropy_rank,
    numerical_rank,
    singular_values,
    spread,
)
from r2r2.diagnostics.value_bias import value_bias


def with_spectrum(spectrum, rows: int = 300, seed: int = 0):
    """A Z whose singular values are these."""
    rng, d = np.random.default_rng(seed), len(spectrum)
    left = np.linalg.qr(rng.normal(size=(rows, d)))[0]
    right = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return left * spectrum @ right.T


@pytest.mark.parametrize("decay", [0, 3, 7])
def test_singular_values_are_those_of_a_decomposition_in_double_precision(decay):
    z = with_spectrum(np.logspace(1, 1 - decay, 64)).astype(np.float32) + np.float32(1)
    expected = np.linalg.svd(z.astype(np.float64), compute_uv=False)
    found = singular_values(z)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-8 * expected[0])
    ours, theirs = entropy_rank(found), entropy_rank(expected)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_collapse_is_not_hidden_by_rounding():
    ones = np.ones((4096, 256), np.float32)
    constant = np.linspace(0.3, 1.7, 256, dtype=np.float32) * ones
    assert effective_rank(constant) == pytest.approx(1, abs=1e-3)


def test_more_coordinates_than_rows_give_as_many_values_as_rows():
    z = np.random.default_rng(0).normal(size=(5, 12))
    expected = np.linalg.svd(z, compute_uv=False)
    np.testing.assert_allclose(singular_values(z), expected, rtol=1e-7)


def test_effective_rank_is_the_exponential_of_the_entropy():
    # Shares 1/2, 1/4, 1/4: an entropy of 1.5 ln 2.
    assert entropy_rank(np.array([2.0, 1.0, 1.0])) == pytest.approx(2**1.5)
    assert entropy_rank(np.array([7.0, 0.0, 0.0])) == 1
    assert entropy_rank(np.zeros(3)) == 0
    assert entropy_rank(1e9 * np.ones(5)) == pytest.approx(5)


def test_the_count_is_of_values_and_not_of_their_squares():
    values = np.array([10.0, 1.0, 1.0])
    assert count_at(values, 0.99) == 3
    assert count_at(values, 0.9) == 2
    assert count_at(values**2, 0.9) == 1
    assert [count_at(np.ones(100), share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert count_at(np.zeros(3), 0.99) == 0


def test_numerical_rank_has_a_threshold_relative_above_1_and_absolute_below():
    assert numerical_rank(np.array([100.0, 1.1, 0.9])) == 2
    assert numerical_rank(np.array([0.5, 0.011, 0.009])) == 2


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_a_coordinate_is_dead_below_its_part_of_the_typical_entry(scale):
    rng = np.random.default_rng(0)
    z = np.stack([rng.choice([-1.0, 1.0], 2000) for _ in range(4)], axis=1)
    z[:, 0] = 1 + 0.9 * DEAD * z[:, 0]
    z[:, 1] = 1 + 1.1 * DEAD * z[:, 1]
    assert dead_coordinates(scale * z) == 1
    z[:, 2] = 1
    assert dead_coordinates(scale * z) == 2
    assert dead_coordinates(np.zeros((4, 3))) == 3


def test_a_diagnosis_says_norms_and_deviation():
    found = diagnose(np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]), inputs=2)
    assert (found.norm, found.least_norm, found.most_norm) == (16 / 3, 1, 10)
    assert found.deviation == pytest.approx((3 + np.sqrt(37 / 3)) / 2)
    assert "singular_values" not in found.numbers()
    assert set(found.numbers()) | {"singular_values"} == set(found._fields)


def spectrum_of_rank(rank: float, d: int):
    """One value among d - 1 equal smaller ones, of this effective rank."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rest = (low + high) / 2
        found = entropy_rank(np.array([1.0, *[rest] * (d - 1)]))
        low, high = (rest, high) if found < rank else (low, rest)
    return np.array([1.0, *[low] * (d - 1)])


@pytest.mark.parametrize(
    ("rank", "expected"), [(1.5, True), (2.95, True), (3.05, False), (38, False)]
)
def test_collapse_is_an_effective_rank_below_its_threshold(rank, expected):
    """At 40 of 67 directions the threshold is 3."""
    z = with_spectrum(spectrum_of_rank(rank, 40))
    found = diagnose(z, inputs=67)
    assert found.spread > 0.9
    assert found.effective_rank == pytest.approx(rank, rel=1e-6)
    assert found.collapsed is expected


def test_little_is_asked_for_where_observations_say_little():
    z = with_spectrum(spectrum_of_rank(1.5, 40))
    assert not diagnose(z, inputs=3).collapsed


def test_dead_coordinates_are_a_collapse_from_more_than_half_on():
    z = np.random.default_rng(0).normal(size=(500, 40))
    z[:, :20] = 0.5
    assert diagnose(z, inputs=67).dead == 20
    assert not diagnose(z, inputs=67).collapsed
    z[:, 20] = 0.5
    assert diagnose(z, inputs=67).collapsed
    assert diagnose(z, inputs=67).effective_rank > 10


def test_what_is_not_finite_has_collapsed():
    z = np.ones((4, 3))
    z[1, 1] = np.nan
    found = diagnose(z, inputs=3)
    assert found.collapsed
    assert np.isnan(found.effective_rank)
    assert collapsed(float("nan"), 0.9, 0.0, directions=4)
    assert collapsed(4.0, float("nan"), 0.0, directions=4)


def test_an_infinite_latent_is_diagnosed_without_a_warning():
    z = np.ones((4, 3))
    z[1, 1] = np.inf
    assert diagnose(z).collapsed
    assert diagnose(z).most_norm == np.inf


@pytest.mark.parametrize(("share", "lost"), [(0.12, False), (0.08, True)])
def test_latents_that_are_nearly_one_point_have_collapsed(share, lost):
    """Though directions are left that would do for their effective rank."""
    rng = np.random.default_rng(0)
    z = 1 + share * rng.choice([-1.0, 1.0], (4096, 64))
    found = diagnose(z, inputs=3)
    assert found.spread == pytest.approx(share, rel=0.02)
    assert found.effective_rank > 5
    assert found.dead == 0
    assert found.collapsed is lost


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_spread_is_deviation_from_the_mean_latent_by_size(scale):
    z = scale * np.array([[3.0, 1.0], [3.0, -1.0]])
    assert spread(z) == pytest.approx(np.sqrt(1 / 10))
    assert spread(z - z.mean(axis=0)) == 1
    assert spread(np.zeros((3, 2))) == 0


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 0), (2, 3, 4)])
def test_what_is_no_batch_of_latents_is_refused(shape):
    named = f"latents: expected shape [N >= 2, d >= 1], got {shape}"
    for asked in (diagnose, singular_values, effective_rank, dead_coordinates, spread):
        with pytest.raises(UserError) as refusal:
            asked(np.ones(shape))
        assert str(refusal.value).startswith(named)


def test_value_bias_is_positive_where_the_critics_expect_too_much():
    assert value_bias(np.array([2.0, 1.0]), np.array([1.0, 0.5])) == 0.75
