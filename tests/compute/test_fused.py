"""Values and derivatives beside those of the plain formulas, as JAX derives them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.compute import fused

FEATURES = 12


def unit(x):
    squares = jnp.sum(x**2, axis=-1, keepdims=True)
    return x / on(jnp.sqrt(jnp.maximum(squares, 1e-16)), x)


def on(gain, x):
    return jnp.broadcast_to(gain, x.shape)


def along(x, goal, share):
    return unit(x + on(share, x) * (unit(goal) - x))


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


FUNCTIONS = {
    "to_sphere": (fused.to_sphere, unit, 1, 0),
    "scaled": (fused.scaled_to_sphere, lambda x, gain: unit(x * on(gain, x)), 1, 1),
    "along": (fused.along_sphere, along, 2, 1),
    "gated": (fused.gated, lambda x, gain: jax.nn.relu(x * on(gain, x)), 1, 1),
    "log_softmax": (fused.log_softmax, lambda x: jnp.log(jax.nn.softmax(x)), 1, 0),
}


@pytest.mark.parametrize("lead", [(), (7,), (64,), (3, 16)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_derivatives_are_those_of_the_plain_formula(name, lead):
    ours, plain, rows, gains = FUNCTIONS[name]
    with jax.enable_x64(True):
        given = [array(seed, *lead, FEATURES) for seed in range(rows)]
        given += [array(9, FEATURES)] * gains
        slope = array(10, *lead, FEATURES)
        value, back = jax.vjp(ours, *given)
        expected, plain_back = jax.vjp(plain, *given)
        chex.assert_trees_all_close(value, expected, rtol=1e-12)
        chex.assert_trees_all_close(back(slope), plain_back(slope), rtol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_twins_of_a_fleet_are_each_as_alone(name):
    ours, _, rows, gains = FUNCTIONS[name]
    given = [array(seed, 3, 2, 16, FEATURES) for seed in range(rows)]
    given += [array(9, 3, 2, FEATURES)] * gains

    def total(*given):
        return jnp.sum(jnp.sin(ours(*given)))

    slopes = jax.grad(total, range(len(given)))
    together = jax.vmap(jax.vmap(slopes))(*given)
    alone = slopes(*(x[2, 1] for x in given))
    picked = jax.tree.map(lambda x: x[2, 1], together)
    chex.assert_trees_all_close(picked, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["to_sphere", "scaled", "gated"])
def test_rows_of_zeros_have_the_plain_formulas_derivative(name):
    ours, plain, _, gains = FUNCTIONS[name]
    with jax.enable_x64(True):
        given = [array(0, 16, FEATURES).at[:3].set(0), *[array(9, FEATURES)] * gains]
        slope = array(10, 16, FEATURES)
        found = jax.vjp(ours, *given)[1](slope)
        chex.assert_trees_all_close(found, jax.vjp(plain, *given)[1](slope), rtol=1e-9)


@pytest.mark.parametrize("zero", ["x", "goal", "both"])
def test_a_zero_row_has_the_plain_formulas_derivative(zero):
    """Of a length that counts as the floor, and so does not change."""
    ours, plain, *_ = FUNCTIONS["along"]
    with jax.enable_x64(True):
        x, goal = (
            array(seed, 8, FEATURES).at[0].multiply(zero not in (name, "both"))
            for seed, name in enumerate(("x", "goal"))
        )
        given, slope = (x, goal, array(9, FEATURES)), array(10, 8, FEATURES)
        found = jax.vjp(ours, *given)[1](slope)
        chex.assert_trees_all_close(found, jax.vjp(plain, *given)[1](slope), rtol=1e-9)


@pytest.mark.parametrize("angle", [1.0, 0.1, 1e-3])
def test_a_goal_nearly_opposite_loses_no_more_than_the_plain_formula(angle):
    """The step then ends near the centre, where lengths are small differences."""
    rng = np.random.default_rng(0)
    x, beside = (row / np.linalg.norm(row) for row in rng.normal(size=(2, 128)))
    beside -= x * (x @ beside)
    goal = 5 * (-np.cos(angle) * x + np.sin(angle) * beside / np.linalg.norm(beside))
    rows = x, goal, np.full(128, 0.5), rng.normal(size=128)
    rounded = [row.astype(np.float32) for row in rows]

    def slopes(function, dtype):
        *given, slope = (jnp.asarray(row, dtype) for row in rounded)
        return jax.vjp(function, *given)[1](slope)[1]

    with jax.enable_x64(True):
        true = slopes(along, float)
        errors = [
            float(jnp.linalg.norm(slopes(function, jnp.float32) - true))
            for function in (fused.along_sphere, along)
        ]
    assert errors[0] < 10 * errors[1]
