"""Products of 16-bit operands, and the networks that have some."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import small_fleets
from r2r2.agents import optimizer as optimise
from r2r2.agents.networks.hypersphere import (
    LerpBlock,
    UnitLinear,
    draw_weights,
    map_units,
)
from r2r2.compute import adam_kernel as step_kernel
from r2r2.compute import fp16_weights as halves
from r2r2.compute import loop_packing as carry
from r2r2.compute import update_loop as loop
from r2r2.compute.flops import _within
from r2r2.compute.fp16_matmul import HALF, fp16_matmul
from r2r2.compute.matmul import matmul
from small_fleets import by_hand, check_a_call, fleet_of, small

DIGITS = 2.0**-11  # what rounding to ten binary digits changes at most


def unit(key, *shape, axis):
    x = jax.random.normal(jax.random.key(key), shape)
    return x / jnp.linalg.norm(x, axis=axis, keepdims=True)


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-3, 1.0])
def test_it_is_a_product_of_ten_digits_and_so_are_its_gradients(size):
    x, kernel = unit(0, 2, 64, 48, axis=-1), unit(1, 48, 32, axis=0)
    dy = size * jax.random.normal(jax.random.key(2), (2, 64, 32))
    half = kernel.astype(HALF)
    ours, back = jax.vjp(lambda x, kernel: fp16_matmul(x, kernel, half), x, kernel)
    theirs, exact = jax.vjp(lambda x, kernel: matmul((x,), kernel), x, kernel)
    (dx, dk), (dx_exact, dk_exact) = back(dy), exact(dy)
    # Every term is off by 2 roundings at most, wherever the sum of them ends.
    terms = jnp.abs(x) @ jnp.abs(kernel)
    assert (jnp.abs(ours - theirs) <= 2.1 * DIGITS * terms).all()
    terms = jnp.abs(dy) @ jnp.abs(kernel).T
    assert (jnp.abs(dx - dx_exact) <= 2.1 * DIGITS * terms).all()
    terms = jnp.einsum("abi,abo->io", jnp.abs(x), jnp.abs(dy))
    assert (jnp.abs(dk - dk_exact) <= 2.1 * DIGITS * terms).all()
    assert jnp.abs(dk - dk_exact).max() > 0


def test_what_is_beyond_the_range_stays_finite_and_what_is_no_number_does_not():
    kernel = unit(1, 4, 3, axis=0)
    half = kernel.astype(HALF)
    value, back = jax.vjp(lambda x: fp16_matmul(x, kernel, half), jnp.full(4, 1e9))
    assert jnp.isfinite(value).all()
    assert jnp.isfinite(back(jnp.full(3, 1e9))[0]).all()
    assert jnp.isnan(fp16_matmul(jnp.full(4, jnp.nan), kernel, half)).all()
    assert jnp.isnan(back(jnp.full(3, jnp.nan))[0]).all()


def test_a_block_reads_its_16_bits_also_where_units_are_dead():
    block = draw_weights(LerpBlock(16, expansion=4, blocks=1), jax.random.key(0))
    dead = eqx.tree_at(lambda b: b.up.kernel, block, jnp.zeros((16, 64)))
    x = unit(3, 5, 16, axis=-1)
    for plain in (block, dead):
        layers = map_units(lambda layer: halves.with_half(layer, layer.kernel), plain)
        apart = jnp.abs(layers(x) - plain(x)).max()
        assert 0 < apart < 1e-3
        assert jnp.abs(plain(x) - x).max() > 0.1  # by the floor alone where all is dead


@pytest.mark.parametrize(
    ("precision", "doubles", "there", "layer", "used"),
    [
        (None, False, True, (512, 512), True),
        ("default", False, True, (256, 512), True),
        (None, False, True, (256, 511), False),
        (None, False, True, (512, 512, False), False),  # inputs without bounds
        ("highest", False, True, (512, 512), False),
        ("tensorfloat32", False, True, (512, 512), False),
        (None, True, True, (512, 512), False),
        (None, False, False, (512, 512), False),
    ],
)
def test_where_16_bits_suit(monkeypatch, precision, doubles, there, layer, used):
    monkeypatch.setattr(step_kernel, "available", lambda: there)
    with jax.default_matmul_precision(precision), jax.enable_x64(doubles):
        assert (halves.added(UnitLinear(*layer)).half is not None) is used


@pytest.fixture
def everywhere(monkeypatch):
    """Every large weight has 16 bits, and calls are as on a GPU but for kernels."""
    monkeypatch.setattr(loop, "packs", lambda: True)
    monkeypatch.setattr(carry, "SMALL", 40)
    monkeypatch.setattr(optimise, "SMALL", 40)
    monkeypatch.setattr(halves, "suits", lambda layer: layer.kernel.shape[-2] > 8)


def products_of_halves(jaxpr):
    """How many products a program has whose operands are both of 16 bits."""
    own = sum(
        all(x.aval.dtype == HALF for x in equation.invars)
        for equation in jaxpr.eqns
        if equation.primitive.name == "dot_general"
    )
    return own + sum(products_of_halves(x) for e in jaxpr.eqns for x in _within(e))


@pytest.mark.parametrize("name", ["simbav2", "simbav2-spl+r2r2"])
def test_a_call_multiplies_them_and_its_results_have_none(everywhere, name):
    fleet = fleet_of(small(name), [0, 1])
    traced = fleet._updates.traced(2, True, 1)
    layers = 7 if "spl" in name else 6  # two blocks, the head, an embedding of latents
    # Forwards for the actor, the target and the critics' own loss; backwards for the
    # first and the last, to what a layer is shown and to its weights.
    assert products_of_halves(traced.jaxpr.jaxpr) == 7 * layers
    after = jax.tree.structure(traced.out_info.state)
    assert after == jax.tree.structure(fleet.states)


@pytest.mark.slow
def test_a_call_with_them_is_updates_that_make_them_anew(everywhere, monkeypatch):
    def anew(fleet, *given):
        agent = fleet._agent

        def update(state, *more):
            state, out = agent.update(agent.enter(state), *more)
            return agent.leave(state), out

        fleet._agent = agent._replace(update=update)
        learner = by_hand(fleet, *given)
        fleet._agent = agent
        return learner

    monkeypatch.setattr(small_fleets, "by_hand", anew)
    # Steps so long that stale weights are 0.04 apart, and few: roundings grow.
    fast = {"first_rate": 0.03, "last_rate": 0.03}
    check_a_call("simbav2-spl+r2r2", (1, 3, 5), count=2, near=2e-3, **fast)
