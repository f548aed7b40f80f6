"""Every loss term against the original implementations, value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import golden

from r2r2.agents.losses.categorical import atoms, bellman_atoms, cross_entropy, project_distribution
from r2r2.agents.losses.policy import tanh_gaussian
from r2r2.agents.losses.representation import redundancy, variance_hinge
from r2r2.agents.losses.value import lap_huber, lap_priority
from r2r2.agents.networks.hypersphere import UnitLinear, normalize, project
from r2r2.agents.networks.layers import avg_l1_norm

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


def read(group: str, *names: str):
    return [jnp.asarray(golden("losses")[f"{group}/{name}"], float) for name in names]


@pytest.mark.parametrize("case", ["default101", "coarse11_gamma1", "wide51"])
def test_categorical_loss(case, precision):
    group = f"categorical/{case}"
    predicted, target = read(group, "pred_log_probs", "target_log_probs")
    reward, done, entropy = read(group, "reward", "done", "entropy")
    low, high, gamma = (float(x) for x in read(group, "min_v", "max_v", "gamma"))
    values = atoms(low, high, predicted.shape[-1])
    places = bellman_atoms(reward, done > 0, entropy, values, gamma)
    probs = project_distribution(jnp.exp(target), places, values)
    # A place is counted in gaps between atoms, whose rounding is ten times the value's.
    check(f"{group}/target_probs", probs, precision, atol=1e-5)
    value, gradient = jax.value_and_grad(cross_entropy)(predicted[None], probs)
    check(f"{group}/loss", value, precision)
    check_gradient(f"{group}/grad_pred_log_probs", gradient[0], precision)


def test_normalize(precision):
    x, cotangent = read("l2normalize", "x", "cotangent")
    y, pull = jax.vjp(normalize, x)
    check("l2normalize/y_axis-1", y, precision)
    (gradient,) = pull(cotangent)
    assert np.isfinite(gradient).all()
    # The release's gradient of the zero vector, row 0, is NaN.
    name, file = "l2normalize/grad_x_axis-1", golden("losses")
    expected = file[f"f64/{name}" if precision == "float64" else name]
    rtol = 1e-10 if precision == "float64" else 1e-5
    np.testing.assert_allclose(gradient[1:], expected[1:], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kernel", ["kernel2", "kernel3"])
def test_project(kernel, precision):
    layer = UnitLinear(1, 1)
    (weights,) = read("l2normalize", kernel)
    moved = project(jax.tree.map(lambda _: weights, layer)).kernel
    check(f"l2normalize/{kernel}_out", moved, precision)


def test_tanh_gaussian(precision):
    group = "tanh_gaussian"
    mean, log_std, eps = read(group, "mean", "log_std", "eps")
    drawn, pull = jax.vjp(lambda m, s: tanh_gaussian(m, s, eps), mean, log_std)
    check(f"{group}/action", drawn[0], precision)
    check(f"{group}/log_prob", drawn[1], precision)
    gradients = pull(tuple(read(group, "cot_action", "cot_log_prob")))
    for name, gradient in zip(("mean", "log_std"), gradients, strict=True):
        check_gradient(f"{group}/grad_{name}", gradient, precision)
