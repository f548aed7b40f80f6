"""Ranks, spread, dead coordinates and collapse of latents."""

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


def with_spectrum(spectrum, rows: int = 300, seed: int = 0):
    """Return latents with these singular values."""
    rng, d = np.random.default_rng(seed), len(spectrum)
    left = np.linalg.qr(rng.normal(size=(rows, d)))[0]
    right = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return left * spectrum @ right.T


@pytest.mark.parametrize("decay", [0, 3, 7])
def test_singular_values_agree_with_svd(decay):
    z = with_spectrum(np.logspace(1, 1 - decay, 64)).astype(np.float32) + np.float32(1)
    expected = np.linalg.svd(z.astype(np.float64), compute_uv=False)
    result = singular_values(z)
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-8 * expected[0])
    ours, theirs = entropy_rank(result), entropy_rank(expected)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_rounding_does_not_hide_a_collapse():
    ones = np.ones((4096, 256), np.float32)
    constant = np.linspace(0.3, 1.7, 256, dtype=np.float32) * ones
    assert effective_rank(constant) == pytest.approx(1, abs=1e-3)


def test_there_are_as_many_values_as_rows_if_fewer_than_coordinates():
    z = np.random.default_rng(0).normal(size=(5, 12))
    expected = np.linalg.svd(z, compute_uv=False)
    np.testing.assert_allclose(singular_values(z), expected, rtol=1e-7)


def test_effective_rank_is_the_exponential_of_entropy():
    # Shares 1/2, 1/4, 1/4: an entropy of 1.5 ln 2.
    assert entropy_rank(np.array([2.0, 1.0, 1.0])) == pytest.approx(2**1.5)
    assert entropy_rank(np.array([7.0, 0.0, 0.0])) == 1
    assert entropy_rank(np.zeros(3)) == 0
    assert entropy_rank(1e9 * np.ones(5)) == pytest.approx(5)


def test_rank_counts_values_not_squares():
    values = np.array([10.0, 1.0, 1.0])
    assert count_at(values, 0.99) == 3
    assert count_at(values, 0.9) == 2
    assert count_at(values**2, 0.9) == 1
    assert [count_at(np.ones(100), share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert count_at(np.zeros(3), 0.99) == 0


def test_numerical_rank_threshold_is_relative_above_one():
    assert numerical_rank(np.array([100.0, 1.1, 0.9])) == 2
    assert numerical_rank(np.array([0.5, 0.011, 0.009])) == 2


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_dead_coordinates_are_relative_to_the_typical_entry(scale):
    rng = np.random.default_rng(0)
    z = np.stack([rng.choice([-1.0, 1.0], 2000) for _ in range(4)], axis=1)
    z[:, 0] = 1 + 0.9 * DEAD * z[:, 0]
    z[:, 1] = 1 + 1.1 * DEAD * z[:, 1]
    assert dead_coordinates(scale * z) == 1
    z[:, 2] = 1
    assert dead_coordinates(scale * z) == 2
    assert dead_coordinates(np.zeros((4, 3))) == 3


def test_diagnosis_has_norms_and_deviation():
    result = diagnose(np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]), inputs=2)
    assert (result.norm, result.least_norm, result.most_norm) == (16 / 3, 1, 10)
    assert result.deviation == pytest.approx((3 + np.sqrt(37 / 3)) / 2)
    assert "singular_values" not in result.numbers()
    assert set(result.numbers()) | {"singular_values"} == set(result._fields)


def spectrum_of_rank(rank: float, d: int):
    """Return one value and d - 1 equal smaller ones, of this effective rank."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rest = (low + high) / 2
        result = entropy_rank(np.array([1.0, *[rest] * (d - 1)]))
        low, high = (rest, high) if result < rank else (low, rest)
    return np.array([1.0, *[low] * (d - 1)])


@pytest.mark.parametrize(
    ("rank", "expected"), [(1.5, True), (2.95, True), (3.05, False), (38, False)]
)
def test_collapse_depends_on_effective_rank(rank, expected):
    """At 40 of 67 directions the threshold is 3."""
    z = with_spectrum(spectrum_of_rank(rank, 40))
    result = diagnose(z, inputs=67)
    assert result.spread > 0.9
    assert result.effective_rank == pytest.approx(rank, rel=1e-6)
    assert result.collapsed is expected


def test_small_observations_lower_the_threshold():
    z = with_spectrum(spectrum_of_rank(1.5, 40))
    assert not diagnose(z, inputs=3).collapsed


def test_more_than_half_dead_coordinates_are_a_collapse():
    z = np.random.default_rng(0).normal(size=(500, 40))
    z[:, :20] = 0.5
    assert diagnose(z, inputs=67).dead == 20
    assert not diagnose(z, inputs=67).collapsed
    z[:, 20] = 0.5
    assert diagnose(z, inputs=67).collapsed
    assert diagnose(z, inputs=67).effective_rank > 10


def test_nonfinite_latents_are_a_collapse():
    z = np.ones((4, 3))
    z[1, 1] = np.nan
    result = diagnose(z, inputs=3)
    assert result.collapsed
    assert np.isnan(result.effective_rank)
    assert collapsed(float("nan"), 0.9, 0.0, directions=4)
    assert collapsed(4.0, float("nan"), 0.0, directions=4)


def test_infinite_latent_causes_no_numpy_warning():
    z = np.ones((4, 3))
    z[1, 1] = np.inf
    assert diagnose(z).collapsed
    assert diagnose(z).most_norm == np.inf


@pytest.mark.parametrize(("share", "lost"), [(0.12, False), (0.08, True)])
def test_nearly_equal_latents_are_a_collapse(share, lost):
    """Even if their effective rank is high enough."""
    rng = np.random.default_rng(0)
    z = 1 + share * rng.choice([-1.0, 1.0], (4096, 64))
    result = diagnose(z, inputs=3)
    assert result.spread == pytest.approx(share, rel=0.02)
    assert result.effective_rank > 5
    assert result.dead == 0
    assert result.collapsed is lost


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_spread_is_deviation_relative_to_size(scale):
    z = scale * np.array([[3.0, 1.0], [3.0, -1.0]])
    assert spread(z) == pytest.approx(np.sqrt(1 / 10))
    assert spread(z - z.mean(axis=0)) == 1
    assert spread(np.zeros((3, 2))) == 0


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 0), (2, 3, 4)])
def test_invalid_shape_is_refused(shape):
    text = f"latents: expected shape [N >= 2, d >= 1], got {shape}"
    for function in (diagnose, singular_values, effective_rank, dead_coordinates, spread):
        with pytest.raises(UserError) as error:
            function(np.ones(shape))
        assert str(error.value).startswith(text)
