"""The NumPy losses have the values and gradients of the agents' losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.losses import representation
from r2r2.theory import losses
from r2r2.theory.chains import absorbing_walk, grid_world, ring
from r2r2.theory.experiments import DIM, VICREG_WEIGHTS

BATCHES = [(2, 2), (7, 3)]


def latents(shape, seed=0):
    z = np.random.default_rng(seed).normal(0.3, 0.7, shape)
    z[:, 0] *= 0.1  # its hinge is open
    return z


def compare(term, function, z):
    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(function)(jnp.asarray(z))
    np.testing.assert_allclose(term.value, value, rtol=1e-12)
    np.testing.assert_allclose(term.gradient, gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("centred", [False, True])
def test_redundancy(shape, centred):
    z = latents(shape)
    compare(losses.redundancy(z, centred), lambda x: representation.redundancy(x, centred), z)


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("threshold", [0.3, 1.0])
def test_variance_hinge(shape, threshold):
    z = latents(shape)
    term = losses.variance_hinge(z, threshold)
    assert term.value > 0
    compare(term, lambda x: representation.variance_hinge(x, threshold), z)


def test_a_constant_feature_has_no_gradient():
    z = latents((5, 3))
    z[:, 1] = 2.0
    term = losses.variance_hinge(z)
    assert not term.gradient[:, 1].any()
    compare(term, representation.variance_hinge, z)


def transitions(p, moves):
    """Every state with its next ones, as often as a multiple of 1 / moves says."""
    counts = np.rint(moves * p).astype(int)
    np.testing.assert_allclose(counts / moves, p)
    pairs = [(s, t) for s in range(len(p)) for t in range(len(p)) for _ in range(counts[s, t])]
    return np.array(pairs).T


@pytest.mark.parametrize(
    ("p", "moves"), [(grid_world(2, 3), 5), (ring(6), 2), (absorbing_walk(5), 2)]
)
@pytest.mark.parametrize("stop", [True, False])
def test_self_prediction_is_the_loss_on_all_transitions(p, moves, stop):
    z = latents((len(p), 3))
    states, following = transitions(p, moves)
    # The optimal model's own gradient is 0, so it can be held fixed.
    model = losses.optimal_model(p, z)

    def loss(x):
        if stop:
            return representation.self_prediction(x[states] @ model, x[following])
        return jnp.mean((x[states] @ model - x[following]) ** 2)

    compare(losses.self_prediction(p, z, stop), loss, z)


def test_vicreg_weights_are_those_of_its_paper():
    z = latents((9, DIM))
    covariance = np.cov(z, rowvar=False)
    off_diagonal = (covariance**2).sum() - (np.diag(covariance) ** 2).sum()
    hinge = np.maximum(0, 1 - z.std(axis=0, ddof=1)).mean()
    expected = (25 * hinge + 1 * off_diagonal / DIM) / 25  # for an invariance term of weight 1
    w = VICREG_WEIGHTS
    terms = losses.redundancy(z, w.zero_centred), losses.variance_hinge(z, w.variance_threshold)
    value = w.lambda_rr * terms[0].value + w.lambda_var * terms[1].value
    np.testing.assert_allclose(value, expected)


def test_the_model_is_optimal():
    p, z = grid_world(2, 3), latents((6, 3))
    model = losses.optimal_model(p, z)
    np.testing.assert_allclose(z.T @ (z @ model - p @ z), 0, atol=1e-9)


def test_many_representations_at_once():
    z = np.stack([latents((6, 3), seed) for seed in range(4)])
    centred, thresholds = np.array([True, False] * 2), np.array([0.1, 0.5, 1.0, 2.0])
    p = np.stack([ring(6), grid_world(2, 3)] * 2)
    together = [
        losses.redundancy(z, centred),
        losses.variance_hinge(z, thresholds),
        losses.self_prediction(p, z, centred),
    ]
    for n in range(4):
        alone = [
            losses.redundancy(z[n], centred[n]),
            losses.variance_hinge(z[n], thresholds[n]),
            losses.self_prediction(p[n], z[n], centred[n]),
        ]
        for many, one in zip(together, alone, strict=True):
            np.testing.assert_allclose(many.value[n], one.value, rtol=1e-12)
            np.testing.assert_allclose(many.gradient[n], one.gradient, rtol=1e-9, atol=1e-15)
