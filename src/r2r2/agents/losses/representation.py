"""R2R2's terms, which keep a self-predictive encoder from collapsing (ICML 2026).

Z = phi(s) is the online encoder's output on the batch of the update, [N, d]. The terms
act on Z directly, without a projector, and their gradients reach the encoder only
through it. They can be used alone, on any encoder:

    >>> import jax.numpy as jnp
    >>> from r2r2 import redundancy, variance_hinge
    >>> z = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> float(redundancy(z)), float(variance_hinge(z))
    (484.0, 0.0)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.base import Array, replaceable
from r2r2.config.common import Representation
from r2r2.config.errors import UserError
from r2r2.config.imports import EXTRA_FIELD, call_extra_loss


def self_prediction(predicted: Array, target: Array) -> Array:
    r"""Return L_SPL of TD7 and SimbaV2-SPL: the mean over batch and features.

    $$\frac{1}{Nd} \sum_{n,j} (T(\phi(s), a) - \mathrm{sg}(\phi(s')))_{nj}^2$$

    Args:
        predicted: the latent model's prediction, [N, d].
        target: the latent of the next observation, [N, d]; no gradient reaches it.

    Example:
        >>> float(self_prediction(jnp.array([[1.0, 2.0]]), jnp.zeros((1, 2))))
        2.5
    """
    return jnp.mean((predicted - jax.lax.stop_gradient(target)) ** 2)


def summed_self_prediction(predicted: Array, target: Array) -> Array:
    r"""Return L_SPL of Minimalist phi: the batch mean of sums over features.

    $$\frac{1}{N} \sum_{n,j} (T(\phi(s), a) - \mathrm{sg}(\phi(s')))_{nj}^2$$

    Predictions and targets are [N, d]; no gradient reaches the targets.
    """
    return self_prediction(predicted, target) * predicted.shape[-1]


def redundancy(z: Array, zero_centred: bool = False) -> Array:
    r"""Return L_RR: the mean squared off-diagonal of the second moment.

    $$\frac{1}{d(d-1)} \sum_{i \neq j} C_{ij}^2, \qquad C = Z^\top Z / (N - 1)$$

    Z is deliberately not centered: centering erases the constant mode of the dynamics,
    which the optimal self-predictive representation contains.

    Args:
        z: latents, [N, d].
        zero_centred: subtract the batch mean first (the paper's ablation).

    Example:
        >>> z = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> float(redundancy(z)), float(redundancy(z, zero_centred=True))
        (484.0, 16.0)
    """
    _, dim = _sizes(z)
    if zero_centred:
        z = z - jnp.broadcast_to(jnp.mean(z, axis=0, keepdims=True), z.shape)
    return correlation(z) / float(dim * (dim - 1))  # beyond JAX's integers for large dim


@replaceable
def correlation(z: Array) -> Array:
    """Return the sum of squared off-diagonal entries of Z^T Z / (N - 1)."""
    return jnp.sum(off_diagonal(z) ** 2)


def off_diagonal(z: Array) -> Array:
    """Return Z^T Z / (N - 1) with a diagonal of zeros, [d, d]."""
    batch, dim = z.shape
    moment = z.T @ z / (batch - 1)
    return jnp.where(jnp.eye(dim, dtype=bool), 0, moment)


def variance_hinge(z: Array, threshold: float = 1.0) -> Array:
    r"""Return L_Var: the mean shortfall of the features' deviations from a threshold.

    $$\frac{1}{d} \sum_j \max(0, v_{th} - \mathrm{std}_j)$$

    Args:
        z: latents, [N, d].
        threshold: v_th; on the unit sphere the hinge never closes at 1.

    A feature that is constant over the batch counts in full but has no gradient.

    Example:
        >>> float(variance_hinge(jnp.array([[0.0, 5.0], [4.0, 5.0]])))
        0.5
    """
    return jnp.mean(jax.nn.relu(threshold - deviation(z)))


def deviation(z: Array) -> Array:
    """Return the unbiased standard deviation over the batch, [d]; no gradient where it is zero."""
    # The root's derivative is infinite at zero, and 0 x inf is NaN. Differences are taken from the
    # first row, not from the mean, so that a constant feature has a variance of exactly zero; if
    # the first row is far from the others, the relative error is up to about N times that of one
    # operation.
    batch, _ = _sizes(z)
    shifted = z - jnp.broadcast_to(jax.lax.stop_gradient(z[:1]), z.shape)
    squares = jnp.sum(shifted**2, axis=0) - jnp.sum(shifted, axis=0) ** 2 / batch
    variance = squares / (batch - 1)
    varies = variance > 0
    return jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0)


def representation_loss(
    weights: Representation,
    z: Array,
    prediction: Array,
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Array, dict[str, Array]]:
    """Return the encoder's total loss, and its unweighted terms.

    A weight of 0 removes its term from the program, which then is the base agent's.

    Args:
        weights: the lambdas and the ablations; static.
        z: latents of the batch's observations, [N, d], with gradient.
        prediction: L_SPL, reduced as the agent defines it.
        inputs: what the extra term may use besides z, if there is one; see `extra_term`.

    Example:
        >>> z = jnp.array([[0.0, 5.0], [4.0, 5.0]])
        >>> weights = Representation(lambda_var=0.1)
        >>> total, terms = representation_loss(weights, z, jnp.asarray(2.0))
        >>> round(float(total), 3), sorted(terms)
        (2.05, ['spl', 'variance'])
    """
    total, terms = jnp.zeros_like(prediction), dict[str, Array]()
    if weights.lambda_spl:
        terms["spl"] = prediction
        total = weights.lambda_spl * prediction
    if weights.lambda_rr:
        terms["redundancy"] = redundancy(z, weights.zero_centred)
        total = total + weights.lambda_rr * terms["redundancy"]
    if weights.lambda_var:
        terms["variance"] = variance_hinge(z, weights.variance_threshold)
        total = total + weights.lambda_var * terms["variance"]
    if weights.extra and weights.lambda_extra:
        terms["extra"] = extra_term(weights.extra, z, inputs)
        total = total + weights.lambda_extra * terms["extra"]
    return total, terms


def extra_term(name: str, z: Array, inputs: Mapping[str, Any]) -> Array:
    """Return the term of a user's function, a scalar of the type of `z`.

    Args:
        name: `module:function`.
        z: latents of the batch's observations, [N, d], with gradient.
        inputs: passed by name where the function has such parameters. Agents give
            `predicted`, the latent model's prediction [N, d], with gradient; `target`, the
            latents of the next observations [N, d], without gradient; and `batch`.

    Raises:
        UserError: There is no such function, or it does not return a scalar.
    """
    value: Any = call_extra_loss(name, z, inputs)
    array: Any = value if hasattr(value, "dtype") else np.asarray(value)
    if array.shape or not jnp.issubdtype(array.dtype, jnp.floating):
        got = repr(value) if array is not value else f"shape {value.shape} of {value.dtype}"
        raise UserError(f"expected {name!r} to return a real scalar, got {got}", EXTRA_FIELD)
    return jnp.asarray(value, dtype=z.dtype)


def _sizes(z: Array) -> tuple[int, int]:
    if z.ndim != 2 or min(z.shape) < 2:
        raise UserError(f"z: wrong shape; expected [N, d] with N >= 2 and d >= 2, got {z.shape}")
    return z.shape[0], z.shape[1]
