"""Singular values of latents, [N, d], and the ranks that are read from them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.errors import UserError

Floats = NDArray[np.float64]

# Singular values up to this part of the largest count as none (Ni et al., 2024).
TOLERANCE = 0.01


def checked(latents: ArrayLike) -> Floats:
    """A batch of latents in double precision.

    Raises:
        UserError: These are no latents.
    """
    z = np.asarray(latents, dtype=np.float64)
    if z.ndim != 2 or len(z) < 2 or not z.size:
        allowed = "[N, d] with N at least 2 and d at least 1"
        raise UserError(f"latents have shape {z.shape}; allowed is {allowed}")
    return z


def singular_values(latents: ArrayLike) -> Floats:
    r"""The singular values of Z, largest first, [min(N, d)]; NaN if Z is not finite.

    $$\sigma_i = \sqrt{\lambda_i(Z^\top Z)}$$

    The Gram matrix costs a tenth of a decomposition of Z at 4096 x 256, and in float64
    is off by 1e-9 of the largest value, less than the rounding of a Z in float32; in
    float32 it would be off by 5e-5, which adds up to whole ranks where Z has collapsed.

    Example:
        >>> singular_values(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])).tolist()
        [4.0, 3.0]
    """
    z = checked(latents)
    if not np.isfinite(z).all():
        return np.full(min(z.shape), np.nan)
    squares = np.linalg.eigvalsh(z.T @ z)[::-1][: min(z.shape)]
    found: Floats = np.sqrt(np.maximum(squares, 0))
    return found


def effective_rank(latents: ArrayLike) -> float:
    """How many directions Z really uses, between 1 and min(N, d); 0 for Z = 0.

    The smooth count of `entropy_rank`: a direction counts by its share of the singular
    values' sum.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(5000, 8))
        >>> round(effective_rank(z), 2), round(effective_rank(z * np.eye(8)[0]), 2)
        (8.0, 1.0)
    """
    return entropy_rank(singular_values(latents))


def entropy_rank(spectrum: Floats) -> float:
    r"""The exponential of the entropy of the normalised singular values.

    $$\exp\Big(-\sum_i p_i \ln p_i\Big), \qquad p_i = \sigma_i / \sum_j \sigma_j$$

    METHOD.md's definition, which is that of Roy and Vetterli (2007); 0 for Z = 0.

    Example:
        >>> round(entropy_rank(np.array([2.0, 2.0, 2.0, 0.0])), 6)
        3.0
    """
    total = spectrum.sum()
    if total == 0:
        return 0.0
    shares = spectrum[spectrum != 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def count_at(spectrum: Floats, share: float) -> int:
    """The fewest singular values, largest first, whose sum is `share` of all of it.

    Of the values themselves and not of their squares, as METHOD.md has it; 0 for Z = 0.

    Example:
        >>> count_at(np.array([90.0, 9.0, 0.9, 0.1]), 0.99)
        2
    """
    sums = np.cumsum(spectrum)
    if not sums[-1] > 0:
        return 0
    # Where the share is met to the last bit, rounding must not ask for one more.
    return int(np.sum(sums < share * sums[-1] * (1 - 1e-12))) + 1


def numerical_rank(spectrum: Floats, tolerance: float = TOLERANCE) -> int:
    r"""The number of singular values above max(tol, tol \sigma_max).

    What Minimalist phi's paper calls the matrix rank; there of 512 latents.

    Example:
        >>> numerical_rank(np.array([50.0, 1.0, 0.4]))
        2
    """
    return int(np.sum(spectrum > tolerance * max(1.0, float(spectrum[0]))))
