"""Every loss term against the original implementations, value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import golden

from r2r2.learn.losses.representation import redundancy, variance_hinge
from r2r2.learn.losses.value import lap_huber, lap_priority
from r2r2.learn.networks.basic import avg_l1_norm

CASES = sorted({k.split("/")[1] for k in golden("losses") if k.startswith("r2r2/")})
TERMS = {
    "L_RR": redundancy,
    "L_Var": variance_hinge,
    "L_RR_centered": lambda z: redundancy(z, zero_centred=True),
}


def check(name: str, actual, precision: str, atol: float = 1e-6) -> None:
    file = golden("losses")
    if precision == "float32":
        np.testing.assert_allclose(actual, file[name], rtol=1e-5, atol=atol)
    elif f"f64/{name}" in file:
        assert actual.dtype == np.float64
        expected = file[f"f64/{name}"]
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)
    else:
        # Some gradients are recorded in float32 alone.
        np.testing.assert_allclose(actual, file[name], rtol=1e-5, atol=atol)


def check_gradient(name: str, actual, precision: str) -> None:
    largest = float(np.abs(golden("losses")[name]).max())
    check(name, actual, precision, atol=1e-5 * largest)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("case", CASES)
def test_r2r2_terms(case, term, precision):
    z = jnp.asarray(golden("losses")[f"r2r2/{case}/Z"], float)
    value, gradient = jax.value_and_grad(TERMS[term])(z)
    check(f"r2r2/{case}/{term}", value, precision)
    check_gradient(f"r2r2/{case}/grad_{term}", gradient, precision)


def test_avg_l1_norm(precision):
    file = golden("losses")
    x = jnp.asarray(file["avgl1norm/x"], float)
    y, pull = jax.vjp(avg_l1_norm, x)
    check("avgl1norm/y", y, precision)
    (gradient,) = pull(jnp.asarray(file["avgl1norm/cotangent"], float))
    check_gradient("avgl1norm/grad_x", gradient, precision)


def test_lap_huber(precision):
    error = jnp.asarray(golden("losses")["lap_huber/abs_td"].T, float)
    value, gradient = jax.value_and_grad(lambda e: lap_huber(e, 1.0))(error)
    check("lap_huber/loss", value, precision)
    check_gradient("lap_huber/grad", gradient.T, precision)


def test_lap_priority():
    error = jnp.asarray(golden("losses")["lap_huber/abs_td"].T)
    priority = lap_priority(error, 1.0, 0.4)
    check("lap_huber/priority_alpha0.4", priority, "float32")
