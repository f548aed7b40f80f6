"""How healthy a representation is: numbers of Z = phi(s) on a large batch, [N, d].

Everything here is float64 on the host. Z is taken as it is, not centred, as R2R2's
redundancy term takes it: its mean direction is one of the directions that count.

    >>> healthy = np.random.default_rng(0).normal(size=(512, 8))
    >>> found = diagnose(healthy, inputs=8)
    >>> found.rank_99, found.dead, found.collapsed
    (8, 0, False)
    >>> diagnose(healthy[:, :1] * np.ones((1, 8)), inputs=8).collapsed
    True
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2r2.config.refusal import Refusal

Floats = NDArray[np.float64]

# A coordinate is dead if it deviates by less than this part of Z's typical entry,
# which is 1 for TD7, 0.09 on SimbaV2-SPL's sphere and free for Minimalist phi.
DEAD = 0.01
# Singular values up to this part of the largest count as none (Ni et al., 2024).
TOLERANCE = 0.01
# A representation has collapsed below an effective rank of 1 and this part of the
# directions there could be. Untrained encoders have at least 1.5 times as much, on
# observations that themselves vary in an eighth of their directions only.
LEAST_RANK = 0.05
MOST_DEAD = 0.5  # or with more than this part of its coordinates dead


class Diagnosis(NamedTuple):
    """What a batch says of an encoder."""

    singular_values: Floats  # largest first
    effective_rank: float
    rank_99: int  # the fewest singular values that make 99 % of their sum
    numerical_rank: int
    dead: int  # coordinates
    deviation: float  # of a coordinate, the mean over coordinates
    norm: float  # of a latent: mean, smallest and largest
    least_norm: float
    most_norm: float
    collapsed: bool

    def numbers(self) -> dict[str, float | int | bool]:
        """All but the spectrum, by name."""
        return {name: x for name, x in self._asdict().items() if np.ndim(x) == 0}


def diagnose(latents: ArrayLike, inputs: int | None = None) -> Diagnosis:
    """All of a batch's numbers.

    Args:
        latents: Z, [N, d].
        inputs: coordinates of an observation, which bound what Z can be asked for; as
            many as Z has, if not given.

    Raises:
        Refusal: These are no latents.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(500, 32))
        >>> found = diagnose(z)
        >>> found.rank_99, found.dead, found.collapsed
        (32, 0, False)
    """
    z = _checked(latents)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite says so
        return _diagnosed(z, z.shape[1] if inputs is None else inputs)


def _checked(latents: ArrayLike) -> Floats:
    z = np.asarray(latents, dtype=np.float64)
    if z.ndim != 2 or len(z) < 2 or not z.size:
        allowed = "[N, d] with N at least 2 and d at least 1"
        raise Refusal(f"latents have shape {z.shape}; allowed is {allowed}")
    return z


def _diagnosed(z: Floats, inputs: int) -> Diagnosis:
    spectrum, spread = singular_values(z), deviations(z)
    norms, rank = np.sqrt((z**2).sum(axis=1)), entropy_rank(spectrum)
    dead = dead_coordinates(z)
    return Diagnosis(
        singular_values=spectrum,
        effective_rank=rank,
        rank_99=count_at(spectrum, 0.99),
        numerical_rank=numerical_rank(spectrum),
        dead=dead,
        deviation=float(spread.mean()),
        norm=float(norms.mean()),
        least_norm=float(norms.min()),
        most_norm=float(norms.max()),
        collapsed=collapsed(rank, dead, z.shape[1], inputs),
    )


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
    z = _checked(latents)
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


def deviations(z: Floats) -> Floats:
    """Each coordinate's standard deviation over the batch, unbiased, [d]."""
    spread: Floats = z.std(axis=0, ddof=1)
    return spread


def dead_coordinates(latents: ArrayLike, threshold: float = DEAD) -> int:
    r"""The number of coordinates that are all but constant over the batch.

    $$\#\{j : \mathrm{std}_j \le t \sqrt{\textstyle\sum_{nj} Z_{nj}^2 / Nd}\}$$

    Example:
        >>> dead_coordinates(np.array([[1.0, 1.0, 0.0], [-1.0, 1.001, 0.0]]))
        2
    """
    z = _checked(latents)
    return int(np.sum(deviations(z) <= threshold * np.sqrt(np.mean(z**2))))


def collapsed(rank: float, dead: int, dim: int, inputs: int) -> bool:
    r"""Whether a representation has lost what it could tell observations apart by.

    Its effective rank is below $1 + 0.05 \min(d, \text{inputs})$, or more than half of
    its coordinates are dead, or it is not finite.

    Example:
        >>> [collapsed(rank, dead=0, dim=256, inputs=67) for rank in (76.5, 4.36, 4.34)]
        [False, False, True]
    """
    least = 1 + LEAST_RANK * min(dim, inputs)
    return not rank >= least or dead > MOST_DEAD * dim


def value_bias(values: NDArray[Any], returns: NDArray[Any]) -> float:
    r"""How much more the critics expect of an episode than it gave.

    $$\frac{1}{E} \sum_e \Big(Q(s_0, \pi(s_0)) - \sum_t \gamma^t r_t\Big)_e$$

    Args:
        values: of the first states of episodes under the policy, [E].
        returns: what these episodes gave, discounted, [E]; what a time limit cuts off
            is not in it, a part of gamma^T.

    Example:
        >>> value_bias(np.array([5.0, 7.0]), np.array([4.0, 4.0]))
        2.0
    """
    return float(np.mean(values - returns))
