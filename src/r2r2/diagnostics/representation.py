"""Health of a representation: ranks, spread and norms of latents Z = phi(s), [N, d].

Everything here is float64 on the host. Z is not centered, as in R2R2's redundancy term:
its mean direction is one of the directions that count.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.errors import UserError

Floats = NDArray[np.float64]

# Singular values below this fraction of the largest count as zero (Ni et al., 2024).
TOLERANCE = 0.01
# A coordinate is dead if it deviates by less than this fraction of Z's typical entry,
# which is 1 for TD7, 0.09 on SimbaV2-SPL's sphere and unbounded for Minimalist phi.
DEAD = 0.01
# A representation has collapsed if its effective rank is below 1 + LEAST_RANK times the
# possible directions, if more than MOST_DEAD of its coordinates are dead, or if its
# spread is below LEAST_SPREAD. On seven tasks from Pendulum to dog, untrained encoders
# have at least 2.9 times that rank and a spread of 0.48; see docs/diagnostics.md.
LEAST_RANK = 0.05
MOST_DEAD = 0.5
LEAST_SPREAD = 0.1


class Diagnosis(NamedTuple):
    """The diagnosis of an encoder, from a batch of its latents."""

    singular_values: Floats  # largest first
    effective_rank: float
    rank_99: int  # number of largest singular values that make up 99 % of their sum
    numerical_rank: int
    dead: int  # number of dead coordinates
    deviation: float  # standard deviation of a coordinate, mean over coordinates
    spread: float  # deviation from the mean latent, as a fraction of Z's size
    norm: float  # mean norm of a latent
    least_norm: float
    most_norm: float
    collapsed: bool

    def numbers(self) -> dict[str, float | int | bool]:
        """Return everything but the spectrum, by name."""
        return {name: x for name, x in self._asdict().items() if np.ndim(x) == 0}


def diagnose(latents: ArrayLike, inputs: int | None = None) -> Diagnosis:
    """Return the diagnosis of a batch of latents.

    Args:
        latents: Z, [N, d].
        inputs: size of an observation, which limits the rank that Z can have; by default d.

    Raises:
        UserError: Z has another shape.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(500, 32))
        >>> diagnosis = diagnose(z)
        >>> diagnosis.rank_99, diagnosis.dead, diagnosis.collapsed
        (32, 0, False)
    """
    z = _check_latents(latents)
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite values are results
        spectrum, spread_of_z = singular_values(z), spread(z)
        norms, rank = np.sqrt((z**2).sum(axis=1)), entropy_rank(spectrum)
        dead, directions = dead_coordinates(z), min(z.shape[1], inputs or z.shape[1])
        return Diagnosis(
            singular_values=spectrum,
            effective_rank=rank,
            rank_99=count_at(spectrum, 0.99),
            numerical_rank=numerical_rank(spectrum),
            dead=dead,
            deviation=float(_deviations(z).mean()),
            spread=spread_of_z,
            norm=float(norms.mean()),
            least_norm=float(norms.min()),
            most_norm=float(norms.max()),
            collapsed=collapsed(rank, spread_of_z, dead / z.shape[1], directions),
        )


def _check_latents(latents: ArrayLike) -> Floats:
    """Return a batch of latents in double precision."""
    z = np.asarray(latents, dtype=np.float64)
    if z.ndim != 2 or len(z) < 2 or not z.size:
        raise UserError(f"latents: expected shape [N >= 2, d >= 1], got {z.shape}")
    return z


def _deviations(z: Floats) -> Floats:
    """Return each coordinate's unbiased standard deviation over the batch, [d]."""
    deviations: Floats = z.std(axis=0, ddof=1)
    return deviations


def dead_coordinates(latents: ArrayLike, threshold: float = DEAD) -> int:
    r"""Return the number of coordinates that are nearly constant over the batch.

    $$\#\{j : \mathrm{std}_j \le t \sqrt{\textstyle\sum_{nj} Z_{nj}^2 / Nd}\}$$

    Example:
        >>> dead_coordinates(np.array([[1.0, 1.0, 0.0], [-1.0, 1.001, 0.0]]))
        2
    """
    z = _check_latents(latents)
    return int(np.sum(_deviations(z) <= threshold * np.sqrt(np.mean(z**2))))


def spread(latents: ArrayLike) -> float:
    r"""Return the spread of latents, from 0 (all equal) to 1 (their mean is 0).

    $$\sqrt{\textstyle\sum_n \|z_n - \bar z\|^2 / \sum_n \|z_n\|^2}$$

    The effective rank alone detects a complete collapse late, because the remains of the other
    directions count by their root: it is still 1.7 where the spread is 0.06. 0 for Z = 0.
    """
    z = _check_latents(latents)
    size = float(np.mean(z**2))
    return float(np.sqrt(z.var(axis=0).mean() / size)) if size else 0.0


def collapsed(rank: float, spread: float, dead: float, directions: int) -> bool:
    """Return whether a representation has collapsed; non-finite numbers count as such.

    Args:
        rank: its effective rank; healthy from 1 + 0.05 `directions` on.
        spread: its spread; healthy from 0.1 on.
        dead: fraction of its coordinates that are dead; healthy up to one half.
        directions: the smaller of its own and the observation's number of coordinates.
    """
    healthy = rank >= 1 + LEAST_RANK * directions and spread >= LEAST_SPREAD
    return not (healthy and dead <= MOST_DEAD)


def singular_values(latents: ArrayLike) -> Floats:
    r"""Return the singular values of Z, largest first, [min(N, d)].

    $$\sigma_i = \sqrt{\lambda_i(Z^\top Z)}$$

    They are NaN if Z is not finite. The Gram matrix costs a tenth of a decomposition of Z at 4096 x
    256; in float64 its error is 1e-9 of the largest value, less than the rounding of a float32 Z.
    In float32 it would be 5e-5, which adds up to whole ranks where Z has collapsed.

    Example:
        >>> singular_values(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])).tolist()
        [4.0, 3.0]
    """
    z = _check_latents(latents)
    if not np.isfinite(z).all():
        return np.full(min(z.shape), np.nan)
    squares = np.linalg.eigvalsh(z.T @ z)[::-1][: min(z.shape)]
    values: Floats = np.sqrt(np.maximum(squares, 0))
    return values


def effective_rank(latents: ArrayLike) -> float:
    """Return how many directions Z uses, between 1 and min(N, d); 0 for Z = 0.

    This is the smooth count of `entropy_rank`, where a direction counts by its share of
    the sum of singular values.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(5000, 8))
        >>> round(effective_rank(z), 2), round(effective_rank(z * np.eye(8)[0]), 2)
        (8.0, 1.0)
    """
    return entropy_rank(singular_values(latents))


def entropy_rank(spectrum: Floats) -> float:
    r"""Return the exponential of the entropy of the normalized singular values.

    $$\exp\Big(-\sum_i p_i \ln p_i\Big), \qquad p_i = \sigma_i / \sum_j \sigma_j$$

    This is the definition of Roy and Vetterli (2007); 0 for Z = 0.
    """
    total = spectrum.sum()
    if total == 0:
        return 0.0
    shares = spectrum[spectrum != 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def count_at(spectrum: Floats, share: float) -> int:
    """Return the number of largest singular values that make up `share` of their sum.

    The values count themselves, not their squares; 0 for Z = 0.
    """
    sums = np.cumsum(spectrum)
    if not sums[-1] > 0:
        return 0
    # Where the share is met to the last bit, rounding must not require one more.
    return int(np.sum(sums < share * sums[-1] * (1 - 1e-12))) + 1


def numerical_rank(spectrum: Floats, tolerance: float = TOLERANCE) -> int:
    r"""Return the number of singular values above max(tol, tol \sigma_max).

    This is the matrix rank of Minimalist phi's paper, there of 512 latents.
    """
    return int(np.sum(spectrum > tolerance * max(1.0, float(spectrum[0]))))
