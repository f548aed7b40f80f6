"""Gradient flows of the encoder's loss on small chains, many at once.

A representation of n states is a matrix Phi, [n, d], one row per state: an encoder that can map
every state anywhere. The batch is all states, and the latent model is linear and always optimal.
Then Phi follows -n d times the gradient of the loss, so that a unit of time does not depend on the
sizes. With the stop-gradient this is the flow that keeps Phi^T Phi and, for a symmetric chain,
climbs Tr((Phi^T P Phi)^T (Phi^T P Phi)).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.common import Representation
from r2r2.diagnostics.representation import TOLERANCE, entropy_rank
from r2r2.theory.lemmas import constant_mode
from r2r2.theory.losses import Floats, centre, redundancy, self_prediction, variance_hinge

STEP = 0.4  # of time, for weights of 0; the rates of SPL's flow are at most 2 where it keeps Z^T Z
RECORDS = 60  # times at which a flow is recorded, evenly spaced in the logarithm
FIRST_TIME = 0.4


class Variant(NamedTuple):
    """One way to train an encoder."""

    name: str
    weights: Representation
    stop_gradient: bool = True
    centred_output: bool = False  # the encoder subtracts its batch mean from its output
    on_sphere: bool = False  # the encoder scales every latent to norm 1, as SimbaV2-SPL's does


class Flow(NamedTuple):
    """A variant on a chain, from one start."""

    variant: Variant
    chain: Floats  # [n, n]
    start: Floats  # [n, d]


class Paths(NamedTuple):
    """The representations of flows over time."""

    times: Floats  # [flows, records]
    z: Floats  # [flows, records, n, d]


def random_start(states: int, dim: int, size: float, rng: np.random.Generator) -> Floats:
    """Return a representation with orthogonal features of root mean square `size`.

    Example:
        >>> z = random_start(6, 2, 0.5, np.random.default_rng(0))
        >>> (z.T @ z / 6).round(12) + 0.0
        array([[0.25, 0.  ],
               [0.  , 0.25]])
    """
    basis, _ = np.linalg.qr(rng.normal(size=(states, dim)))
    start: Floats = size * np.sqrt(states) * basis
    return start


class Coefficients(NamedTuple):
    """The settings of many flows as arrays."""

    chain: Floats  # [flows, n, n]
    stop_gradient: NDArray[np.bool_]  # [flows]
    centred_output: NDArray[np.bool_]
    on_sphere: NDArray[np.bool_]
    zero_centred: NDArray[np.bool_]
    lambda_spl: Floats
    lambda_rr: Floats
    lambda_var: Floats
    threshold: Floats


def coefficients(flows: Sequence[Flow]) -> Coefficients:
    """Return the settings of flows as arrays."""
    variants = [flow.variant for flow in flows]
    weights = [variant.weights for variant in variants]
    return Coefficients(
        np.stack([flow.chain for flow in flows]),
        np.array([variant.stop_gradient for variant in variants]),
        np.array([variant.centred_output for variant in variants]),
        np.array([variant.on_sphere for variant in variants]),
        np.array([w.zero_centred for w in weights]),
        np.array([w.lambda_spl for w in weights], dtype=float),
        np.array([w.lambda_rr for w in weights], dtype=float),
        np.array([w.lambda_var for w in weights], dtype=float),
        np.array([w.variance_threshold for w in weights], dtype=float),
    )


def simulate(
    flows: Sequence[Flow],
    end: float,
    on_progress: Callable[[float], None] = lambda _: None,
    step: float = STEP,
) -> Paths:
    """Return the paths of flows up to a time, by Runge-Kutta steps of fourth order.

    Strong weights make a flow faster: its step and its end are divided by 1 + lambda_rr +
    lambda_var, so that all flows make the same number of steps.

    Args:
        flows: on chains and from starts of equal sizes.
        end: the time at which a flow without weights ends.
        on_progress: called with the share of steps that are done.
        step: time of one step of a flow without weights.

    Example:
        >>> from r2r2.theory.chains import grid_world
        >>> from r2r2.theory.lemmas import top_eigenspace
        >>> chain, start = grid_world(1, 3), random_start(3, 2, 1.0, np.random.default_rng(0))
        >>> paths = simulate([Flow(Variant("SPL", Representation()), chain, start)], end=100.0)
        >>> angles = measure(paths.z, chain, top_eigenspace(chain, 2).basis).angle
        >>> bool(angles[0, 0] > 10 and angles[0, -1] < 0.01)
        True
    """
    settings = coefficients(flows)
    steps = step / (1 + settings.lambda_rr + settings.lambda_var)
    records = _record_steps(end, step)
    z = _project(settings, np.stack([flow.start for flow in flows]))
    path = [z]
    for number in range(1, records[-1] + 1):
        z = _runge_kutta(settings, z, steps[:, None, None])
        if number in records:
            path.append(z)
        on_progress(number / records[-1])
    times = np.array([0, *records]) * steps[:, None]
    return Paths(times, np.stack(path, axis=1))


def _record_steps(end: float, step: float) -> list[int]:
    steps = np.geomspace(FIRST_TIME / step, end / step, RECORDS).round().astype(int)
    return [int(number) for number in np.unique(steps)]


def _runge_kutta(settings: Coefficients, z: Floats, step: Floats) -> Floats:
    a = velocity(settings, z)
    b = velocity(settings, z + step / 2 * a)
    c = velocity(settings, z + step / 2 * b)
    d = velocity(settings, z + step * c)
    return _project(settings, z + step / 6 * (a + 2 * b + 2 * c + d))


def _project(settings: Coefficients, z: Floats) -> Floats:
    """Return what the encoder's last layer makes of z: centered, or on the sphere, or as it is."""
    z = np.where(settings.centred_output[:, None, None], centre(z), z)
    if not settings.on_sphere.any():
        return z
    norms = np.linalg.norm(z, axis=-1, keepdims=True)
    return np.where(settings.on_sphere[:, None, None], z / np.maximum(norms, 1e-300), z)


def velocity(settings: Coefficients, z: Floats) -> Floats:
    """Return -n d times the gradient of every flow's loss, [flows, n, d]."""
    s = settings
    spl = self_prediction(s.chain, z, s.stop_gradient).gradient
    rr = redundancy(z, s.zero_centred).gradient
    var = variance_hinge(z, s.threshold).gradient
    weights = (x[:, None, None] for x in (s.lambda_spl, s.lambda_rr, s.lambda_var))
    gradient = sum(w * term for w, term in zip(weights, (spl, rr, var), strict=True))
    total: Floats = -(z.shape[-2] * z.shape[-1]) * (gradient + np.zeros_like(z))
    total = np.where(s.centred_output[:, None, None], centre(total), total)
    return np.where(s.on_sphere[:, None, None], tangential(z, total), total)


def tangential(z: Floats, vectors: Floats) -> Floats:
    """Return the part of vectors that moves unit latents z, [..., n, d], along the sphere.

    The rest points away from the center, and scaling latents to norm 1 removes it.

    Example:
        >>> tangential(np.array([[1.0, 0.0]]), np.array([[2.0, 3.0]]))
        array([[0., 3.]])
    """
    along: Floats = vectors - (vectors * z).sum(axis=-1, keepdims=True) * z
    return along


class Measures(NamedTuple):
    """What a representation has learnt; fields are [...] for latents [..., n, d]."""

    trace: Floats  # objective of an orthonormal basis of the features' span
    angle: Floats  # largest principal angle to an eigenspace, degrees; 90 if a direction is lost
    angles: Floats  # all of them, smallest first, [..., d]
    constant_mode: Floats  # share of the constant mode that the features span, 0 to 1
    constant_share: Floats  # share of the squared norm that belongs to the mean latent
    effective_rank: Floats
    deviation: Floats  # smallest standard deviation of a feature
    mean_deviation: Floats  # mean over features


def measure(z: Floats, p: Floats, eigenspace: Floats) -> Measures:
    """Return the measures of latents [..., n, d] on a chain, against a basis [n, d].

    A direction counts if its singular value is above 1 % of the largest, as in `numerical_rank`.

    Example:
        >>> constant = np.ones((3, 1))
        >>> result = measure(constant, np.eye(3), constant / 3**0.5)
        >>> float(result.constant_mode.round(9)), float(result.angle.round(4))
        (1.0, 0.0)
    """
    left, values, _ = np.linalg.svd(z, full_matrices=False)
    basis = left * (values > TOLERANCE * values[..., :1])[..., None, :]
    cosines = np.linalg.svd(eigenspace.T @ basis, compute_uv=False)
    angles = np.degrees(np.arccos(np.clip(cosines, 0, 1)))
    size = (z**2).sum(axis=(-2, -1))
    deviations = z.std(axis=-2, ddof=1)
    ranks = [entropy_rank(spectrum) for spectrum in values.reshape(-1, values.shape[-1])]
    return Measures(
        trace=((basis.mT @ p @ basis) ** 2).sum(axis=(-2, -1)),
        angle=angles[..., -1],
        angles=angles,
        constant_mode=((constant_mode(z.shape[-2]) @ basis) ** 2).sum(axis=-1),
        constant_share=z.shape[-2] * (z.mean(axis=-2) ** 2).sum(axis=-1) / size,
        effective_rank=np.array(ranks).reshape(size.shape),
        deviation=deviations.min(axis=-1),
        mean_deviation=deviations.mean(axis=-1),
    )
