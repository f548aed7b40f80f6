"""Precision of products: 16-bit operands, where they are used, and their clipping."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.networks.hypersphere import LerpBlock, UnitLinear, sphere_weights
from r2r2.agents.networks.layers import matmul
from r2r2.agents.registry import build_agent
from r2r2.compute import fast_optimizer, loop_packing, precision, update_loop
from r2r2.compute.compiled import ProgramKey, inner_jaxprs
from r2r2.compute.precision import (
    FP16,
    ComputeOptions,
    Fp16UnitLinear,
    add_copies,
    apply_precision,
    counting,
    drop_copies,
    fp16_matmul,
)
from r2r2.compute.update_loop import UpdateCall
from small_fleets import SPEC, fleet_of, scales_of, small

ROUNDING = 2.0**-11  # the relative error of rounding to ten binary digits
ZERO = jnp.zeros(())

MIXED = ComputeOptions(precision="mixed")


def unit(key, *shape, axis):
    x = jax.random.normal(jax.random.key(key), shape)
    return x / jnp.linalg.norm(x, axis=axis, keepdims=True)


@pytest.mark.parametrize("size", [1e-8, 1e-3, 1.0])
def test_fp16_matmul_and_its_gradients_have_ten_digits(size):
    x, kernel = unit(0, 2, 64, 48, axis=-1), unit(1, 48, 32, axis=0)
    dy = size * jax.random.normal(jax.random.key(2), (2, 64, 32))
    kernel16 = kernel.astype(FP16)
    y, back = jax.vjp(lambda x, k: fp16_matmul(x, k, kernel16, ZERO), x, kernel)
    exact, exact_back = jax.vjp(lambda x, k: matmul((x,), k), x, kernel)
    (dx, dk), (exact_dx, exact_dk) = back(dy), exact_back(dy)
    # Both operands of every term are rounded.
    terms = jnp.abs(x) @ jnp.abs(kernel)
    assert (jnp.abs(y - exact) <= 2.1 * ROUNDING * terms).all()
    terms = jnp.abs(dy) @ jnp.abs(kernel).T
    assert (jnp.abs(dx - exact_dx) <= 2.1 * ROUNDING * terms).all()
    terms = jnp.einsum("abi,abo->io", jnp.abs(x), jnp.abs(dy))
    assert (jnp.abs(dk - exact_dk) <= 2.1 * ROUNDING * terms).all()
    assert jnp.abs(dk - exact_dk).max() > 0


def clipped(x, dy):
    """Results, input gradients and the number of clipped operands of one product."""
    kernel = unit(1, 4, 3, axis=0)
    kernel16 = kernel.astype(FP16)
    y, back = jax.vjp(lambda x, n: fp16_matmul(x, kernel, kernel16, n), x, ZERO)
    return y, *back(dy)


def test_operands_beyond_the_range_are_clipped_and_counted():
    y, dx, count = clipped(jnp.array([0.5, 1e9, -1e38, 2.0]), jnp.array([1e9, 1.0, -1]))
    assert jnp.isfinite(y).all()
    assert jnp.isfinite(dx).all()
    assert count == 3
    assert clipped(jnp.ones(4), jnp.ones(3))[2] == 0


@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, jnp.nan])
def test_nonfinite_operands_are_not_clipped(bad):
    y, dx, count = clipped(jnp.ones(4).at[0].set(bad), jnp.ones(3).at[0].set(bad))
    assert not jnp.isfinite(y).any()
    assert not jnp.isfinite(dx).any()
    assert count == 0


def test_the_counter_sums_over_twins_and_not_over_members():
    layer = Fp16UnitLinear(UnitLinear(2, 2))

    def loss(counter, x):
        with counting(counter):
            return jnp.sum(jax.vmap(layer)(x))

    x = jnp.zeros((3, 2, 2)).at[0, :, 0].set(1e9).at[1, 0, 0].set(1e9)
    assert jax.vmap(jax.grad(loss), (None, 0))(ZERO, x).tolist() == [2, 1, 0]


def test_a_block_reads_its_copies_also_where_units_are_dead():
    block = sphere_weights(LerpBlock(16, expansion=4, blocks=1), jax.random.key(0))
    dead = eqx.tree_at(lambda b: b.up.kernel, block, jnp.zeros((16, 64)))
    x = unit(3, 5, 16, axis=-1)
    for plain in (block, dead):
        layers = Fp16UnitLinear(plain.up), Fp16UnitLinear(plain.down)
        copied = eqx.tree_at(lambda b: (b.up, b.down), plain, layers)
        assert 0 < jnp.abs(copied(x) - plain(x)).max() < 1e-3
        assert jnp.abs(plain(x) - x).max() > 0.1


@pytest.mark.parametrize(
    ("x64", "gpu", "layer", "used"),
    [
        (False, True, (512, 512), True),
        (False, True, (256, 512), True),
        (False, True, (256, 511), False),
        (False, True, (512, 512, False), False),  # unbounded inputs
        (True, True, (512, 512), False),
        (False, False, (512, 512), False),
    ],
)
def test_where_layers_get_16_bit_operands(monkeypatch, x64, gpu, layer, used):
    monkeypatch.setattr(precision, "available", lambda: gpu)
    with jax.enable_x64(x64):
        new = add_copies(UnitLinear(*layer))
        assert isinstance(new, Fp16UnitLinear) is used
        assert type(drop_copies(new)[0]) is UnitLinear


@pytest.mark.parametrize(
    ("options", "used"),
    [
        (ComputeOptions(), False),
        (MIXED, True),
        (MIXED._replace(fast=False), False),
        (ComputeOptions(precision="float32"), False),
    ],
)
def test_which_options_use_16_bit_operands(options, used):
    assert options.fp16 is used


@pytest.mark.parametrize("ambient", [None, "bfloat16"])
def test_the_option_overrides_the_precision_of_jax(ambient):
    agent = build_agent(small("simbav2"), SPEC, 1)
    state = jax.eval_shape(agent.init, jax.random.key(0), jnp.asarray(1))
    used = {}
    with jax.default_matmul_precision(ambient):
        for name in ("float32", "tf32", "mixed"):
            value = apply_precision(agent, name).value
            args = state, jnp.zeros((1, 4)), jnp.zeros((1, 2))
            text = str(jax.make_jaxpr(value)(*args))
            used[name] = set(re.findall(r"Precision\.(\w+)", text))
    assert used == {"float32": {"HIGHEST"}, "tf32": {"HIGH"}, "mixed": {"DEFAULT"}}


@pytest.fixture
def fp16_on_cpu(monkeypatch):
    """Large layers have copies, and the loop packs, as on a GPU."""
    monkeypatch.setattr(update_loop, "packs", lambda: True)
    monkeypatch.setattr(loop_packing, "SMALL", 40)
    monkeypatch.setattr(fast_optimizer, "SMALL", 40)

    def large(layer):
        rows, columns = layer.kernel.shape[-2:]
        return rows > 8 and rows * columns > 40

    monkeypatch.setattr(precision, "suits", large)


def fp16_products(jaxpr):
    """Count products whose operands both have 16 bits."""
    count = sum(
        all(x.aval.dtype == FP16 for x in equation.invars)
        for equation in jaxpr.eqns
        if equation.primitive.name == "dot_general"
    )
    return count + sum(fp16_products(x) for e in jaxpr.eqns for x in inner_jaxprs(e))


# Large layers of critics (two blocks, a head) and actor (a block, half of two heads);
# with SPL also their embeddings.
LAYERS = {"simbav2": (6, 4), "simbav2-spl+r2r2": (7, 5)}


@pytest.mark.parametrize("name", LAYERS)
def test_programs_multiply_16_bit_operands_which_learners_do_not_have(fp16_on_cpu, name):
    fleet = fleet_of(small(name), [0, 1], options=MIXED)
    traced = fleet._updates.traced(ProgramKey(2, True, 1))
    critic, actor = LAYERS[name]
    # Forward for actor, target and critics' loss; backward, for inputs and weights, for
    # the first and the last. The actor: forward twice, backward once.
    assert fp16_products(traced.jaxpr.jaxpr) == 7 * critic + 4 * actor
    carried, learners = (
        {x.dtype.name for x in jax.tree.leaves(y)} for y in (traced.out_info, fleet.learners)
    )
    assert "float16" in carried - learners


@pytest.mark.slow
def test_clipped_operands_are_logged_and_infinite_ones_raise_the_flag(fp16_on_cpu, monkeypatch):
    fleet = fleet_of(small("simbav2"), [0, 1], options=MIXED)
    call, made, scales = (UpdateCall((0, 1), 2), np.zeros(2, int), scales_of(fleet.agent, [0, 1]))
    fleet.train([call], made, scales)
    assert fleet.read_metrics()["precision/saturated"].tolist() == [0, 0]
    saved = fleet.snapshot()
    assert saved.learners.clipped is None
    bias = saved.learners.state.critic.value.bias
    assert np.isfinite(bias).all()
    huge = eqx.tree_at(
        lambda s: s.critic.value.scale.gain,
        saved.learners.state,
        saved.learners.state.critic.value.scale.gain * np.array([[[1e30]], [[1.0]]]),
    )
    fleet.restore(saved._replace(learners=saved.learners._replace(state=huge)))
    fleet.train([call], made + 2, scales)
    saturated = fleet.read_metrics()["precision/saturated"]
    assert saturated[0] > 0
    assert saturated[1] == 0
