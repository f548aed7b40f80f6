"""The paper's lemmas and its proposition as numbers: a residual and a bound for each statement.

H = I - 11^T/n is the centering matrix and u = 1/sqrt(n) the constant mode as a unit vector.

- Lemma 1: H annihilates constant vectors.
- Lemma 3: a row-stochastic P has eigenvalue 1 with the right eigenvector 1, and spectral radius 1.
- Proposition 2: centering erases the constant mode from the optimal representation Phi, whose
  columns are an orthonormal basis of the top-k right eigenvectors: u^T H Phi = 0, and what is lost
  has norm 1 of sqrt(k).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.errors import invalid_value
from r2r2.theory.chains import Floats
from r2r2.theory.losses import redundancy, variance_hinge

ALGEBRAIC = 1e-12  # bound on residuals of sums and products
SPECTRAL = 1e-9  # bound on residuals of eigenvalues and eigenvectors
TIE = 1e-6  # eigenvalues, or moduli, that are closer count as equal


class Spectrum(NamedTuple):
    """The right eigenvectors of a chain."""

    eigenvalues: NDArray[np.complex128]  # [n], largest modulus first; of equal ones, nearest 1
    vectors: NDArray[np.complex128]  # [n, n], unit columns


class Check(NamedTuple):
    """One statement about one chain."""

    statement: str
    residual: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the residual is within the bound."""
        return self.residual <= self.bound


def centering(states: int) -> Floats:
    """Return H, the matrix that subtracts the mean from every column."""
    return np.eye(states) - 1 / states


def constant_mode(states: int) -> Floats:
    """Return u, the constant vector of norm 1."""
    return np.full(states, states**-0.5)


def spectrum(p: Floats) -> Spectrum:
    """Return the eigen-decomposition of a chain in float64.

    Example:
        >>> spectrum(np.array([[0.5, 0.5], [0.5, 0.5]])).eigenvalues.real.round(12) + 0.0
        array([1., 0.])
    """
    if np.array_equal(p, p.T):
        values, vectors = np.linalg.eigh(p)
    else:
        values, vectors = np.linalg.eig(p)
    # Rounding must not decide between equal moduli.
    order = np.lexsort((np.abs(values - 1), -np.abs(values).round(9)))
    return Spectrum(values[order].astype(complex), vectors[:, order].astype(complex))


class Eigenspace(NamedTuple):
    """The span of the top-k right eigenvectors, by modulus of the eigenvalue."""

    basis: Floats  # [n, k], orthonormal
    eigenvalues: NDArray[np.complex128]  # [k]
    unique: bool  # False if the next eigenvalue has the same modulus


def top_eigenspace(p: Floats, k: int) -> Eigenspace:
    """Return the real span of the top-k right eigenvectors.

    By modulus, because the trace objective of a symmetric chain is the sum of squared eigenvalues:
    a mode that alternates (eigenvalue near -1) is as predictable as one that persists.

    Example:
        >>> space = top_eigenspace(np.array([[0.5, 0.5], [0.5, 0.5]]), 1)
        >>> np.abs(space.basis[:, 0]).round(6), space.unique
        (array([0.707107, 0.707107]), True)
    """
    if not 1 <= k <= len(p):
        raise invalid_value("k", f"an integer from 1 to {len(p)}", k)
    values, vectors = spectrum(p)
    columns: list[Floats] = []
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value.imag) < TIE:  # a real eigenvalue has a real eigenvector, up to a phase
            columns.append(_real_direction(vector))
        elif value.imag > 0:  # a conjugate pair spans a plane
            columns += [vector.real, vector.imag]
    basis, _ = np.linalg.qr(np.stack(columns[:k], axis=1))
    moduli = np.abs(values)
    unique = k == len(p) or bool(moduli[k - 1] - moduli[k] > TIE)
    return Eigenspace(basis, values[:k], unique)


def _real_direction(vector: NDArray[np.complex128]) -> Floats:
    largest = vector[np.argmax(np.abs(vector))]
    direction: Floats = (vector / largest).real
    return direction


def check_lemmas(p: Floats, k: int) -> list[Check]:
    """Return the residuals of both lemmas and of Proposition 2 for one chain.

    Example:
        >>> from r2r2.theory.chains import ring
        >>> all(check.holds for check in check_lemmas(ring(6), 2))
        True
    """
    states = len(p)
    h, u = centering(states), constant_mode(states)
    values, vectors = spectrum(p)
    of_one = vectors[:, np.abs(values - 1) < TIE]
    optimal = top_eigenspace(p, k).basis
    lost = optimal - h @ optimal
    return [
        Check("Lemma 1: H 1 = 0", _largest(h @ np.ones(states)), ALGEBRAIC),
        Check("Lemma 3: P 1 = 1", _largest(p @ np.ones(states) - 1), ALGEBRAIC),
        Check("Lemma 3: 1 is an eigenvalue", _largest(np.abs(values - 1).min()), SPECTRAL),
        Check("Lemma 3: its eigenvectors include 1", distance(u, of_one), SPECTRAL),
        Check("Lemma 3: spectral radius 1", _largest(np.abs(values).max() - 1), SPECTRAL),
        Check("Proposition 2: u^T H Phi = 0", _largest(u @ h @ optimal), ALGEBRAIC),
        Check("Proposition 2: lost norm = 1", abs(float(np.linalg.norm(lost)) - 1), SPECTRAL),
    ]


class Outside(NamedTuple):
    """What depends on assumptions about a chain; a float is 0 if the property holds."""

    eigenvalue_one: int  # multiplicity of eigenvalue 1; 1 if the constant mode is unique
    unit_circle: int  # eigenvalues of modulus 1; more than of eigenvalue 1 if periodic
    imaginary: float  # largest imaginary part of an eigenvalue
    not_orthogonal: float  # largest inner product of two different unit eigenvectors
    not_commuting: float  # norm of H P - P H
    not_invariant: float  # how far P moves H Phi out of its span; NaN if the top k split a pair


def check_assumptions(p: Floats, k: int) -> Outside:
    """Return what else the argument uses, measured; all floats of a symmetric chain are 0."""
    values, vectors = spectrum(p)
    h = centering(len(p))
    gram = np.abs(vectors.conj().T @ vectors) - np.eye(len(p))
    # Vectors of one eigenvalue can be chosen orthogonal.
    different = np.abs(values[:, None] - values[None]) > TIE
    basis = top_eigenspace(p, k).basis
    whole = leaves_span(p, basis) < SPECTRAL  # else the top-k cut a plane of a pair in two
    return Outside(
        eigenvalue_one=int(np.sum(np.abs(values - 1) < TIE)),
        unit_circle=int(np.sum(np.abs(np.abs(values) - 1) < TIE)),
        imaginary=float(np.abs(values.imag).max()),
        not_orthogonal=float((gram * different).max()),
        not_commuting=float(np.linalg.norm(h @ p - p @ h, 2)),
        not_invariant=leaves_span(p, orthonormal(h @ basis)) if whole else float("nan"),
    )


def leaves_span(p: Floats, basis: Floats) -> float:
    """Return how far P moves a unit vector out of the span of an orthonormal basis, at most."""
    moved = p @ basis
    left = moved - basis @ (basis.T @ moved)
    return float(np.linalg.norm(left, 2)) if left.size else 0.0


class Compatibility(NamedTuple):
    """R2R2's terms, and their centered form, on a representation with the constant mode."""

    redundancy: float  # L_RR, not centered
    variance_hinge: float
    centred_redundancy: float
    centred_bound: float  # no representation with the constant mode is below it, if the hinge is 0
    constant_mode: float  # share of the constant mode that the features span, 1 if all of it


def check_compatibility(p: Floats, k: int, threshold: float = 1.0) -> Compatibility:
    """Return the terms on features that span the top-k eigenspace and have enough variance.

    The features are a rotation of the eigenvectors that gives each feature the same part of the
    constant mode. Both of R2R2's terms are 0. With a centered covariance C this is impossible: the
    k features then span k - 1 directions besides the constant one, so C w = 0 for a unit vector w,
    and C = D + O with a diagonal D >= threshold^2 gives |O| >= |O w| = |D w| >= threshold^2.
    """
    if k < 2:
        raise invalid_value("k", "an integer >= 2", k)
    basis, states = top_eigenspace(p, k).basis, len(p)
    u = constant_mode(states)
    # The constant mode first, then the others; then the same share of it for every feature.
    first, _ = np.linalg.qr(np.column_stack([basis.T @ u, np.eye(k)]))
    even, _ = np.linalg.qr(np.column_stack([np.full(k, k**-0.5), np.eye(k)]))
    scale = threshold * np.sqrt((states - 1) * k / (k - 1)) * (1 + 1e-12)
    z = scale * basis @ first[:, :k] @ even[:, :k].T
    return Compatibility(
        redundancy=float(redundancy(z).value),
        variance_hinge=float(variance_hinge(z, threshold).value),
        centred_redundancy=float(redundancy(z, zero_centred=True).value),
        centred_bound=threshold**4 / (k * (k - 1)),
        constant_mode=float(np.sum((u @ orthonormal(z)) ** 2)),
    )


def distance(unit: Floats, columns: NDArray[Any]) -> float:
    """Return the distance of a unit vector from the span of columns; 1 without columns."""
    if not columns.size:
        return 1.0
    basis = orthonormal(columns)
    return float(np.linalg.norm(unit - basis @ (basis.conj().T @ unit)))


def orthonormal(columns: NDArray[Any]) -> NDArray[Any]:
    """Return an orthonormal basis of the span of columns of norm 1 or more, or of their rests.

    Directions that are left by rounding alone are not part of it.
    """
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > SPECTRAL * max(values[0], 1.0)]


def principal_angles(a: Floats, b: Floats) -> Floats:
    """Return the angles in degrees between the spans of two orthonormal bases, smallest first.

    Example:
        >>> principal_angles(np.eye(3)[:, :2], np.eye(3)[:, 1:]).round(6)
        array([ 0., 90.])
    """
    cosines = np.linalg.svd(a.T @ b, compute_uv=False)
    angles: Floats = np.degrees(np.arccos(np.clip(cosines, 0, 1)))
    return angles


def _largest(values: ArrayLike) -> float:
    return float(np.max(np.abs(values)))
