"""The paper's lemmas hold for any chain, and the checks can fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import doubly_stochastic, row_stochastic, symmetric

from r2r2 import UserError
from r2r2.theory.chains import absorbing_walk, directed_cycle, examples, grid_world, ring
from r2r2.theory.experiments import DIM
from r2r2.theory.lemmas import (
    centering,
    check_assumptions,
    check_compatibility,
    check_lemmas,
    constant_mode,
    principal_angles,
    spectrum,
    top_eigenspace,
)
from r2r2.theory.losses import redundancy, variance_hinge

some = settings(max_examples=60, deadline=None)


@some
@given(row_stochastic(), st.data())
def test_the_lemmas_hold_for_any_chain(p, data):
    k = data.draw(st.integers(1, len(p)))
    checks = check_lemmas(p, k)
    unit = np.sum(np.abs(np.abs(spectrum(p).eigenvalues) - 1) < 1e-6)
    for check in checks:
        # Where several modes do not decay, the top k need not include the constant one.
        if "lost norm" in check.statement and k < unit:
            continue
        assert check.holds, check


@some
@given(doubly_stochastic())
def test_centring_commutes_with_doubly_stochastic_chains(p):
    assert check_assumptions(p, 1).not_commuting < 1e-12


@some
@given(symmetric())
def test_symmetric_chains_have_orthogonal_real_modes(p):
    outside = check_assumptions(p, 1)
    assert outside.imaginary == 0
    assert outside.not_orthogonal < 1e-9
    assert outside.not_invariant < 1e-9


@some
@given(row_stochastic(), st.data())
def test_centring_erases_a_part_of_norm_one(p, data):
    k = data.draw(st.integers(1, len(p)))
    basis = np.column_stack([constant_mode(len(p)), np.eye(len(p))[:, : k - 1]])
    phi, _ = np.linalg.qr(basis)  # any representation that contains the constant mode
    kept = centering(len(p)) @ phi
    np.testing.assert_allclose(np.linalg.norm(kept) ** 2, phi.shape[1] - 1, atol=1e-9)


def test_every_example_is_within_its_bounds():
    for chain in examples():
        assert all(check.holds for check in check_lemmas(chain.matrix, DIM)), chain.name


@pytest.mark.parametrize(
    ("p", "broken"),
    [
        (1.01 * ring(6), ["P 1 = 1", "is an eigenvalue", "include 1", "spectral radius"]),
        (np.diag([0.5, 1.0]), ["P 1 = 1", "include 1", "lost norm"]),
    ],
)
def test_a_matrix_that_is_no_chain_fails(p, broken):
    failed = [check.statement for check in check_lemmas(p, 1) if not check.holds]
    assert len(failed) == len(broken)
    for part, statement in zip(broken, failed, strict=True):
        assert part in statement


def test_vectors_of_one_eigenvalue_count_as_orthogonal():
    p = grid_world(3, 4)  # 0.6 is an eigenvalue twice
    p[0, 1] = np.nextafter(p[0, 1], 1)  # so the solver for chains without symmetry is used
    assert check_assumptions(p, DIM).not_orthogonal < 1e-6


def test_one_feature_has_no_pairs():
    with pytest.raises(UserError, match="k: expected an integer >= 2, got 1"):
        check_compatibility(grid_world(2, 2), 1)


def test_what_fails_outside_the_assumptions():
    by_name = {chain.name: check_assumptions(chain.matrix, DIM) for chain in examples()}
    assert by_name["absorbing walk"].eigenvalue_one == 2  # the constant mode is not unique
    assert by_name["ring, period 2"].unit_circle == 2  # 1 and -1
    assert by_name["directed cycle"].unit_circle == 12
    assert by_name["directed cycle"].imaginary > 0.9
    assert by_name["random ergodic"].not_commuting > 0.1
    assert by_name["random ergodic"].not_invariant > 0.01
    assert by_name["doubly stochastic"].not_commuting < 1e-12
    assert by_name["doubly stochastic"].not_orthogonal > 0.1


def test_the_top_eigenspace_of_the_grid_world():
    space = top_eigenspace(grid_world(3, 4), 4)
    # (1 + 2 cos(pi i / 3) + 2 cos(pi j / 4)) / 5 for i, j = 0,0; 0,1; 1,0; 1,1.
    expected = [1, (3 + 2**0.5) / 5, 0.8, (2 + 2**0.5) / 5]
    np.testing.assert_allclose(space.eigenvalues.real, expected, atol=1e-12)
    assert space.unique


def test_eigenspaces_are_ordered_by_modulus_and_report_ties():
    assert top_eigenspace(ring(6), 2).eigenvalues.real.round(9).tolist() == [1, -1]
    assert top_eigenspace(ring(6), 2).unique
    assert not top_eigenspace(ring(6), 3).unique
    assert not top_eigenspace(directed_cycle(5), 3).unique
    with pytest.raises(UserError, match="k: expected an integer from 1 to 6, got 7"):
        top_eigenspace(ring(6), 7)


def test_a_pair_spans_a_plane():
    basis = top_eigenspace(directed_cycle(5), 3).basis  # constant, and one pair
    moved = directed_cycle(5) @ basis
    np.testing.assert_allclose(principal_angles(basis, np.linalg.qr(moved)[0]), 0, atol=1e-5)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_r2r2_is_compatible_with_the_constant_mode_and_a_centred_covariance_is_not(k):
    for p in (grid_world(3, 4), absorbing_walk(8)):
        found = check_compatibility(p, k, threshold=0.5)
        assert found.redundancy < 1e-20
        assert found.variance_hinge == 0
        assert found.constant_mode == pytest.approx(1)
        assert found.centred_redundancy >= found.centred_bound > 0


@some
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_the_bound_of_the_centred_term(seed, k):
    # Any features that span the constant mode and meet the hinge.
    rng = np.random.default_rng(seed)
    z = np.column_stack([np.ones(9), rng.normal(size=(9, k - 1))]) @ rng.normal(size=(k, k))
    threshold = float(z.std(axis=0, ddof=1).min())
    assert variance_hinge(z, threshold).value == 0
    value = redundancy(z, zero_centred=True).value
    assert value >= threshold**4 / (k * (k - 1)) * (1 - 1e-9)
