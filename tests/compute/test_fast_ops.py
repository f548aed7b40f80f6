"""Fast operations: values and derivatives equal those of the plain ones."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.base import use_replacements
from r2r2.agents.losses import representation
from r2r2.agents.networks import hypersphere, layers
from r2r2.compute import fast_ops
from r2r2.compute.fast_ops import column_sums, cond, matmul, sum_of_rows
from r2r2.compute.fast_optimizer import FAST
from r2r2.compute.loop_packing import PADDED_ROWS

FEATURES = 12


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


# Fast and plain operation, number of arguments [..., n], number of gains [n].
FUNCTIONS = {
    "normalize": (fast_ops.normalize, hypersphere.normalize, 1, 0),
    "scaled": (fast_ops.scale_and_normalize, hypersphere.scale_and_normalize, 1, 1),
    "lerp": (fast_ops.lerp, hypersphere.lerp, 2, 1),
    "relu": (fast_ops.scaled_relu, hypersphere.scaled_relu, 1, 1),
    "log_softmax": (fast_ops.log_softmax, hypersphere.log_softmax, 1, 0),
}


@pytest.mark.parametrize("lead", [(), (7,), (3, 16)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_equal_the_plain_ones(name, lead):
    fast, plain, rows, gains = FUNCTIONS[name]
    with jax.enable_x64(True):
        given = [array(seed, *lead, FEATURES) for seed in range(rows)]
        given += [array(9, FEATURES)] * gains
        slope = array(10, *lead, FEATURES)
        value, back = jax.vjp(fast, *given)
        expected, plain_back = jax.vjp(plain, *given)
        chex.assert_trees_all_close(value, expected, rtol=1e-12)
        chex.assert_trees_all_close(back(slope), plain_back(slope), rtol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mapping_over_members_and_twins_changes_nothing(name):
    fast, _, rows, gains = FUNCTIONS[name]
    given = [array(seed, 3, 2, 16, FEATURES) for seed in range(rows)]
    given += [array(9, 3, 2, FEATURES)] * gains

    def total(*given):
        return jnp.sum(jnp.sin(fast(*given)))

    slopes = jax.grad(total, range(len(given)))
    together = jax.vmap(jax.vmap(slopes))(*given)
    alone = slopes(*(x[2, 1] for x in given))
    picked = jax.tree.map(lambda x: x[2, 1], together)
    chex.assert_trees_all_close(picked, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["normalize", "scaled", "relu"])
def test_zero_rows_have_the_plain_derivative(name):
    fast, plain, _, gains = FUNCTIONS[name]
    with jax.enable_x64(True):
        given = [array(0, 16, FEATURES).at[:3].set(0), *[array(9, FEATURES)] * gains]
        slope = array(10, 16, FEATURES)
        gradients = jax.vjp(fast, *given)[1](slope)
        chex.assert_trees_all_close(gradients, jax.vjp(plain, *given)[1](slope), rtol=1e-9)


@pytest.mark.parametrize("zero", ["x", "goal", "both"])
def test_lerp_of_zero_rows_has_the_plain_derivative(zero):
    fast, plain, *_ = FUNCTIONS["lerp"]
    with jax.enable_x64(True):
        x, goal = (
            array(seed, 8, FEATURES).at[0].multiply(zero not in (name, "both"))
            for seed, name in enumerate(("x", "goal"))
        )
        given, slope = (x, goal, array(9, FEATURES)), array(10, 8, FEATURES)
        gradients = jax.vjp(fast, *given)[1](slope)
        chex.assert_trees_all_close(gradients, jax.vjp(plain, *given)[1](slope), rtol=1e-9)


@pytest.mark.parametrize("angle", [1.0, 0.1, 1e-3])
def test_lerp_to_a_nearly_opposite_goal_is_as_accurate_as_the_plain_one(angle):
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
        true = slopes(hypersphere.lerp, float)
        errors = [
            float(jnp.linalg.norm(slopes(function, jnp.float32) - true))
            for function in (fast_ops.lerp, hypersphere.lerp)
        ]
    assert errors[0] < 10 * errors[1]


@pytest.mark.parametrize("outputs", [1, 3, 101])
@pytest.mark.parametrize("lead", [(), (7,), (3, 64)])
def test_matmul_and_its_gradients_equal_the_plain_ones(lead, outputs):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        parts = tuple(jnp.asarray(rng.normal(size=(*lead, n))) for n in (4, 2, 5))
        kernel = jnp.asarray(rng.normal(size=(11, outputs)))
        slope = jnp.asarray(rng.normal(size=(*lead, outputs)))
        ours, back = jax.vjp(matmul, parts, kernel)
        theirs, plain = jax.vjp(layers.matmul, parts, kernel)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-12)
        chex.assert_trees_all_close(back(slope), plain(slope), rtol=1e-12)


@pytest.mark.parametrize("moved", [[0], [1], [0, 2]])
def test_matmul_computes_no_gradient_of_constant_parts(moved):
    rng = np.random.default_rng(3)
    parts = [jnp.asarray(rng.normal(size=(6, n))) for n in (4, 2, 5)]
    kernel = jnp.asarray(rng.normal(size=(11, 3)))

    def total(map_by, *some):
        replaced = list(parts)
        for place, part in zip(moved, some, strict=True):
            replaced[place] = part
        return jnp.sum(jnp.sin(map_by(tuple(replaced), kernel)))

    some = [parts[place] for place in moved]
    which = tuple(range(1, len(moved) + 1))
    ours, theirs = (jax.grad(total, which)(x, *some) for x in (matmul, layers.matmul))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5)
    traced = jax.make_jaxpr(jax.grad(partial(total, matmul), range(len(moved))))
    ends = [0, 4, 6, 11]
    needed = ends[moved[-1] + 1] - ends[moved[0]]
    assert f"f32[6,{needed}] = dot_general" in str(traced(*some))


def test_padded_rows_change_no_product_and_have_no_gradient():
    rng = np.random.default_rng(2)
    x, kernel = (jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(rng.normal(size=(4, 3))))
    wide = jnp.pad(kernel, ((0, PADDED_ROWS - 4), (0, 0)))
    ours, back = jax.vjp(matmul, (x,), wide)
    theirs, plain = jax.vjp(matmul, (x,), kernel)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5)
    (dx, dwide), (plain_dx, dkernel) = back(ours), plain(theirs)
    chex.assert_trees_all_close((dx, dwide[:4]), (plain_dx, dkernel), rtol=1e-5)
    assert not dwide[4:].any()


@pytest.mark.parametrize("features", [3, 5, PADDED_ROWS + 4])
def test_matmul_of_other_sizes_is_an_error(features):
    with pytest.raises(ValueError, match=f"{features} features, the kernel has 4 rows"):
        matmul((jnp.ones((2, features)),), jnp.ones((4, 3)))


def test_a_condition_known_at_trace_time_leaves_no_branch():
    def one() -> jax.Array:
        return jnp.ones(())

    def two() -> jax.Array:
        return 2 * jnp.ones(())

    known = jax.make_jaxpr(lambda: cond(True, one, two))()
    asked = jax.make_jaxpr(lambda x: cond(x, one, two))(True)
    assert "cond" not in str(known)
    assert "cond" in str(asked)
    assert cond(jnp.asarray(False), one, two) == 2


@pytest.mark.parametrize("rows", [1, 31, 32, 256, 544, 769, 800, 2048])
def test_sums_in_blocks_include_every_row(rows):
    x = jnp.arange(2.0 * rows * 3).reshape(2, rows, 3) % 7
    np.testing.assert_array_equal(column_sums(x), np.asarray(x).sum(axis=1))
    np.testing.assert_array_equal(sum_of_rows(x), np.asarray(x).sum(axis=(0, 1)))


@pytest.mark.parametrize("zero_centred", [False, True])
def test_correlation_and_its_gradient_equal_the_plain_ones(zero_centred):
    with jax.enable_x64(True):
        z = array(0, 16, 5)
        loss = partial(representation.redundancy, zero_centred=zero_centred)
        plain = jax.value_and_grad(loss)(z)
        with use_replacements(FAST):
            fast = jax.value_and_grad(loss)(z)
        chex.assert_trees_all_close(fast, plain, rtol=1e-12)
