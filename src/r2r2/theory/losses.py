"""The encoder's loss with its exact gradient in NumPy, for many small representations at once.

The definitions are those of `agents/losses/representation.py`; tests compare values and gradients.
Arrays have any number of leading dimensions, [..., n, d].
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Term(NamedTuple):
    """A loss and its gradient."""

    value: Floats  # [...]
    gradient: Floats  # [..., n, d]


def centre(z: Floats) -> Floats:
    """Return z minus its mean over the batch."""
    centred: Floats = z - z.mean(axis=-2, keepdims=True)
    return centred


def redundancy(z: Floats, zero_centred: ArrayLike = False) -> Term:
    """Return L_RR; `zero_centred` [...] subtracts the batch mean first.

    Example:
        >>> z = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> float(redundancy(z).value), float(redundancy(z, zero_centred=True).value)
        (484.0, 16.0)
    """
    batch, dim = z.shape[-2:]
    z = np.where(_matrix(zero_centred), centre(z), z)
    moment = z.mT @ z / (batch - 1)
    others = moment * (1 - np.eye(dim))
    pairs = dim * (dim - 1)
    value = (others**2).sum(axis=(-2, -1)) / pairs
    # The columns of a centered z have mean 0, and so has their gradient.
    return Term(value, 4 / ((batch - 1) * pairs) * z @ others)


def variance_hinge(z: Floats, threshold: ArrayLike = 1.0) -> Term:
    """Return L_Var for thresholds v_th [...]; a constant feature has no gradient.

    Example:
        >>> float(variance_hinge(np.array([[0.0, 5.0], [4.0, 5.0]])).value)
        0.5
    """
    batch, dim = z.shape[-2:]
    deviations = z.std(axis=-2, ddof=1, keepdims=True)
    shortfall = np.maximum(_matrix(threshold) - deviations, 0)
    push = (shortfall > 0) & (deviations > 0)
    slope = np.where(push, -1 / (dim * (batch - 1) * np.where(push, deviations, 1)), 0)
    return Term(shortfall.mean(axis=(-2, -1)), slope * centre(z))


def optimal_model(p: Floats, z: Floats, ridge: float = 1e-10) -> Floats:
    """Return the linear latent model T that predicts P Z best from Z, [..., d, d].

    The ridge, a share of the mean squared feature, keeps it finite where Z has collapsed.
    """
    gram = z.mT @ z
    size = np.trace(gram, axis1=-2, axis2=-1)[..., None, None] / z.shape[-1]
    regular = gram + (ridge * size + 1e-300) * np.eye(z.shape[-1])
    model: Floats = np.linalg.solve(regular, z.mT @ (p @ z))
    return model


def self_prediction(p: Floats, z: Floats, stop_gradient: ArrayLike = True) -> Term:
    """Return L_SPL with the optimal latent model, as an expectation over next states.

    States are uniform, and the next one is drawn from its row of P. Without `stop_gradient` [...]
    the gradient also flows through the target.
    """
    model = optimal_model(p, z)
    target, scale = p @ z, 1 / (z.shape[-2] * z.shape[-1])
    error = z @ model - target
    arrivals = p.sum(axis=-2)[..., None]  # how often a state is the next one
    variance = (arrivals * z**2 - target**2).sum(axis=(-2, -1))  # of the sampled target
    value = scale * ((error**2).sum(axis=(-2, -1)) + variance)
    through_target = arrivals * z - p.mT @ (z @ model)
    gradient = error @ model.mT + np.where(_matrix(stop_gradient), 0, through_target)
    return Term(value, 2 * scale * gradient)


def _matrix(values: ArrayLike) -> NDArray[Any]:
    """Return values [...] as [..., 1, 1]."""
    return np.asarray(values)[..., None, None]
