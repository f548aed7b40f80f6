"""R2R2's losses for PyTorch: the same values and gradients as the JAX functions.

This module needs PyTorch, which `pip install "r2r2[torch]"` installs, and neither JAX nor
an accelerator. Add the terms to the loss of any encoder:

    >>> import torch
    >>> from r2r2 import R2R2
    >>> from r2r2.torch import representation_loss, self_prediction
    >>> z = torch.randn(256, 64, requires_grad=True)
    >>> predicted, next_z = torch.randn(256, 64), torch.randn(256, 64)
    >>> total, terms = representation_loss(R2R2, z, self_prediction(predicted, next_z))
    >>> total.backward()
    >>> sorted(terms), tuple(z.grad.shape)
    (['redundancy', 'spl', 'variance'], (256, 64))
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from r2r2.config.common import Representation
from r2r2.config.errors import UserError
from r2r2.config.imports import EXTRA_FIELD, call_extra_loss

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise ImportError(
        'r2r2.torch: PyTorch is not installed; install it with: pip install "r2r2[torch]"'
    ) from error

__all__ = ["redundancy", "representation_loss", "self_prediction", "variance_hinge"]


def self_prediction(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Return L_SPL of TD7 and SimbaV2-SPL: the mean over batch and features.

    $$\frac{1}{Nd} \sum_{n,j} (T(\phi(s), a) - \mathrm{sg}(\phi(s')))_{nj}^2$$

    Args:
        predicted: the latent model's prediction, [N, d].
        target: the latent of the next observation, [N, d]; no gradient reaches it.

    Example:
        >>> float(self_prediction(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)))
        2.5
    """
    return torch.mean((predicted - target.detach()) ** 2)


def redundancy(z: Tensor, zero_centred: bool = False) -> Tensor:
    r"""Return L_RR: the mean squared off-diagonal of the second moment.

    $$\frac{1}{d(d-1)} \sum_{i \neq j} C_{ij}^2, \qquad C = Z^\top Z / (N - 1)$$

    Args:
        z: latents, [N, d]; deliberately not centered.
        zero_centred: subtract the batch mean first (the paper's ablation).

    Example:
        >>> z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> float(redundancy(z)), float(redundancy(z, zero_centred=True))
        (484.0, 16.0)
    """
    batch, dim = _sizes(z)
    if zero_centred:
        z = z - z.mean(dim=0, keepdim=True)
    moment = z.T @ z / (batch - 1)
    diagonal = torch.eye(dim, dtype=torch.bool, device=z.device)
    return torch.sum(moment.masked_fill(diagonal, 0) ** 2) / (dim * (dim - 1))


def variance_hinge(z: Tensor, threshold: float = 1.0) -> Tensor:
    r"""Return L_Var: the mean shortfall of the features' deviations from a threshold.

    $$\frac{1}{d} \sum_j \max(0, v_{th} - \mathrm{std}_j)$$

    Args:
        z: latents, [N, d].
        threshold: v_th.

    A feature that is constant over the batch counts in full but has no gradient.

    Example:
        >>> float(variance_hinge(torch.tensor([[0.0, 5.0], [4.0, 5.0]])))
        0.5
    """
    batch, _ = _sizes(z)
    # From the first row, as in the JAX function: a constant feature has a variance of exactly 0.
    shifted = z - z[:1].detach()
    squares = torch.sum(shifted**2, dim=0) - torch.sum(shifted, dim=0) ** 2 / batch
    variance = squares / (batch - 1)
    varies = variance > 0
    root = torch.sqrt(torch.where(varies, variance, 1))
    return torch.mean(torch.relu(threshold - torch.where(varies, root, 0)))


def representation_loss(
    weights: Representation,
    z: Tensor,
    prediction: Tensor,
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the encoder's total loss, and its unweighted terms.

    A weight of 0 removes its term.

    Args:
        weights: the lambdas and the ablations, for example `r2r2.R2R2`.
        z: latents of the batch's observations, [N, d], with gradient.
        prediction: L_SPL, as `self_prediction` or as your agent reduces it.
        inputs: passed by name to the extra term, `weights.extra`, if there is one.

    Example:
        >>> z = torch.tensor([[0.0, 5.0], [4.0, 5.0]])
        >>> weights = Representation(lambda_var=0.1)
        >>> total, terms = representation_loss(weights, z, torch.tensor(2.0))
        >>> round(float(total), 3), sorted(terms)
        (2.05, ['spl', 'variance'])
    """
    terms = dict[str, tuple[float, Tensor]]()
    if weights.lambda_spl:
        terms["spl"] = weights.lambda_spl, prediction
    if weights.lambda_rr:
        terms["redundancy"] = weights.lambda_rr, redundancy(z, weights.zero_centred)
    if weights.lambda_var:
        terms["variance"] = weights.lambda_var, variance_hinge(z, weights.variance_threshold)
    if weights.extra and weights.lambda_extra:
        terms["extra"] = weights.lambda_extra, _extra_term(weights.extra, z, inputs)
    total = torch.zeros_like(prediction)
    for weight, term in terms.values():
        total = total + weight * term
    return total, {name: term for name, (_, term) in terms.items()}


def _extra_term(name: str, z: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    value = call_extra_loss(name, z, inputs)
    if not isinstance(value, Tensor) or value.shape or not value.is_floating_point():
        got = f"shape {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else value
        raise UserError(f"expected {name!r} to return a real scalar, got {got}", EXTRA_FIELD)
    return value


def _sizes(z: Tensor) -> tuple[int, int]:
    if z.ndim != 2 or min(z.shape) < 2:
        raise UserError(
            f"z: wrong shape; expected [N, d] with N >= 2 and d >= 2, got {tuple(z.shape)}"
        )
    return z.shape[0], z.shape[1]
