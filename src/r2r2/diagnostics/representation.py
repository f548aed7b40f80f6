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

from r2r2.diagnostics.spectrum import (
    Floats,
    checked,
    count_at,
    entropy_rank,
    numerical_rank,
    singular_values,
)

# A coordinate is dead if it deviates by less than this part of Z's typical entry,
# which is 1 for TD7, 0.09 on SimbaV2-SPL's sphere and free for Minimalist phi.
DEAD = 0.01
# A representation has collapsed below an effective rank of 1 and this part of the
# directions there could be. Untrained encoders have at least 2.9 times as much on
# seven tasks from Pendulum to dog; see docs/diagnostics.md for where it is less.
LEAST_RANK = 0.05
MOST_DEAD = 0.5  # or with more than this part of its coordinates dead
# Or with a smaller spread: nearly one point. Untrained encoders have at least 0.48 on
# seven tasks from Pendulum to dog; see docs/diagnostics.md for where it was set.
LEAST_SPREAD = 0.1


class Diagnosis(NamedTuple):
    """What a batch says of an encoder."""

    singular_values: Floats  # largest first
    effective_rank: float
    rank_99: int  # the fewest singular values that make 99 % of their sum
    numerical_rank: int
    dead: int  # coordinates
    deviation: float  # of a coordinate, the mean over coordinates
    spread: float  # deviation from the mean latent, as a part of Z's size
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
        UserError: These are no latents.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(500, 32))
        >>> found = diagnose(z)
        >>> found.rank_99, found.dead, found.collapsed
        (32, 0, False)
    """
    z = checked(latents)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite says so
        return _diagnosed(z, z.shape[1] if inputs is None else inputs)


def _diagnosed(z: Floats, inputs: int) -> Diagnosis:
    spectrum, apart = singular_values(z), spread(z)
    norms, rank = np.sqrt((z**2).sum(axis=1)), entropy_rank(spectrum)
    dead = dead_coordinates(z)
    lost = collapsed(rank, apart, dead / z.shape[1], directions=min(z.shape[1], inputs))
    return Diagnosis(
        singular_values=spectrum,
        effective_rank=rank,
        rank_99=count_at(spectrum, 0.99),
        numerical_rank=numerical_rank(spectrum),
        dead=dead,
        deviation=float(deviations(z).mean()),
        spread=apart,
        norm=float(norms.mean()),
        least_norm=float(norms.min()),
        most_norm=float(norms.max()),
        collapsed=lost,
    )


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
    z = checked(latents)
    return int(np.sum(deviations(z) <= threshold * np.sqrt(np.mean(z**2))))


def spread(latents: ArrayLike) -> float:
    r"""How far latents lie apart, from 0 (all are one) to 1 (their mean is 0).

    $$\sqrt{\textstyle\sum_n \|z_n - \bar z\|^2 / \sum_n \|z_n\|^2}$$

    The effective rank alone is slow to tell of a complete collapse, since the little
    that is left of the other directions counts by its root: it is still 1.7 where the
    spread is 0.06. 0 for Z = 0.

    Example:
        >>> spread([[1.0, 2.0], [1.0, -2.0]]), spread([[3.0, 4.0], [3.0, 4.0]])
        (0.8944271909999159, 0.0)
    """
    z = checked(latents)
    size = float(np.mean(z**2))
    return float(np.sqrt(z.var(axis=0).mean() / size)) if size else 0.0


def collapsed(rank: float, apart: float, dead: float, directions: int) -> bool:
    """Whether a representation has lost what it could tell observations apart by.

    Args:
        rank: its effective rank, which is to be 1 + 0.05 of the directions or more.
        apart: its spread, which is to be 0.1 or more.
        dead: the part of its coordinates that is dead, at most one half.
        directions: the lesser of its own and the observations' number.

    What is not finite has collapsed.

    Example:
        >>> [collapsed(rank, 0.9, 0.0, directions=67) for rank in (76.5, 4.36, 4.34)]
        [False, False, True]
    """
    healthy = rank >= 1 + LEAST_RANK * directions and apart >= LEAST_SPREAD
    return not (healthy and dead <= MOST_DEAD)


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
