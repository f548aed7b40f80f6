import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2 import R2R2, Representation, UserError, redundancy, variance_hinge
from r2r2.agents.losses.representation import deviation, representation_loss, self_prediction

eager_and_jit = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
Z = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


@eager_and_jit
def test_redundancy(wrap):
    # N = 3, d = 2.  Z'Z = [35 44; 44 56], C_12 = 44 / 2 = 22.
    # (22^2 + 22^2) / (2 * 1) = 484.
    # Centred it would be 16; divided by N, 215.1; with the diagonal, 1029.1.
    np.testing.assert_allclose(wrap(redundancy)(Z), 484.0)


@eager_and_jit
def test_redundancy_zero_centred(wrap):
    # Z - mean = [-2 -2; 0 0; 2 2]; C_12 = 8 / 2 = 4; (16 + 16) / 2 = 16.
    centred = wrap(lambda z: redundancy(z, zero_centred=True))
    np.testing.assert_allclose(centred(Z), 16.0)


@eager_and_jit
def test_variance_hinge(wrap):
    # Column 1: 0, 0.6, 0: mean 0.2, squares 0.04 + 0.16 + 0.04 = 0.24, over 2: 0.12,
    # root 0.3464.  Column 2: 0, 3, 6: deviation 3, hinge closed.
    # (1 - 0.3464 + 0) / 2 = 0.3268.  With ddof 0 it would be 0.3586.
    z = jnp.array([[0.0, 0.0], [0.6, 3.0], [0.0, 6.0]])
    np.testing.assert_allclose(wrap(variance_hinge)(z), (1 - 0.12**0.5) / 2, rtol=1e-6)
    # Threshold 4 opens the second hinge: (4 - 0.3464 + 1) / 2.
    wider = wrap(lambda z: variance_hinge(z, 4.0))
    np.testing.assert_allclose(wider(z), (5 - 0.12**0.5) / 2, rtol=1e-6)


@eager_and_jit
def test_self_prediction_averages_and_stops_at_the_target(wrap):
    # (1 + 4 + 0 + 9) / 4 = 3.5; a sum over features would be 7.
    predicted, target = (jnp.array([[1.0, 2.0], [3.0, 1.0]]), jnp.array([[0.0, 0], [3, 4]]))
    np.testing.assert_allclose(wrap(self_prediction)(predicted, target), 3.5)
    assert not wrap(jax.grad(self_prediction, argnums=1))(predicted, target).any()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e20, -3.3])
@pytest.mark.parametrize("rows", [2, 3, 7, 256])
def test_constant_features_have_no_gradient(value, rows):
    # 0.1 does not average to itself over 3 or 7 rows: its computed variance is not 0.
    moving = jnp.linspace(-0.5, 0.5, rows)
    z = jnp.stack([jnp.full(rows, value), moving], axis=1)
    gradient = jax.jit(jax.grad(variance_hinge))(z)
    assert not gradient[:, 0].any()
    assert jnp.isfinite(gradient).all()
    assert gradient[:, 1].any()
    assert deviation(z)[0] == 0


def test_variances_that_underflow_have_no_gradient():
    z = jnp.array([[0.0, 0.0], [1e-30, 1.0]])
    gradient = jax.grad(variance_hinge)(z)
    assert jnp.isfinite(gradient).all()


def test_deviation_equals_its_definition():
    z = jax.random.normal(jax.random.key(0), (64, 32)) * 0.3
    plain = jnp.sqrt(jnp.sum((z - z.mean(0)[None]) ** 2, axis=0) / 63)
    np.testing.assert_allclose(deviation(z), plain, rtol=2e-6)


def test_a_distant_first_row_costs_few_digits():
    z = np.random.default_rng(0).normal(size=(256, 4))
    z[0] = 1e4
    np.testing.assert_allclose(deviation(jnp.asarray(z)), z.std(0, ddof=1), rtol=1e-4)


def test_two_rows_are_enough():
    # C = Z'Z: off-diagonal 1 * 2 + 3 * 4 = 14; (196 + 196) / 2.  Deviations sqrt 2.
    z = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(redundancy(z), 196.0)
    np.testing.assert_allclose(variance_hinge(z, 2.0), 2 - 2**0.5, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (4,), (2, 3, 4)])
@pytest.mark.parametrize("term", [redundancy, variance_hinge])
def test_latents_of_wrong_shape_are_an_error(term, shape):
    with pytest.raises(UserError, match="N >= 2 and d >= 2") as error:
        term(jnp.ones(shape))
    assert str(shape) in str(error.value)


def test_total_is_the_weighted_sum():
    weights = Representation(lambda_spl=2.0, lambda_rr=0.5, lambda_var=3.0)
    z = jnp.array([[0.0, 1.0], [0.6, 3.0], [0.0, 6.0]])
    total, terms = representation_loss(weights, z, jnp.asarray(7.0))
    expected = 2 * 7 + 0.5 * redundancy(z) + 3 * variance_hinge(z)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    assert set(terms) == {"spl", "redundancy", "variance"}


def test_ablations_apply_to_the_terms():
    z = Z * 0.1
    full, _ = representation_loss(R2R2, z, jnp.asarray(0.0))
    np.testing.assert_allclose(full, 0.01 * redundancy(z) + 0.01 * variance_hinge(z))
    ablated = Representation(
        lambda_rr=1.0, lambda_var=1.0, zero_centred=True, variance_threshold=3.0
    )
    total, _ = representation_loss(ablated, z, jnp.asarray(0.0))
    expected = redundancy(z, zero_centred=True) + variance_hinge(z, 3.0)
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_zero_weights_remove_their_terms():
    z = jnp.full((4, 3), jnp.nan)
    total, terms = representation_loss(Representation(), z, jnp.asarray(1.5))
    assert total == 1.5
    assert set(terms) == {"spl"}
    alone = Representation(lambda_spl=0.0, lambda_rr=2.0)
    total, terms = representation_loss(alone, Z, jnp.asarray(jnp.nan))
    assert total == 2 * 484
    assert set(terms) == {"redundancy"}
