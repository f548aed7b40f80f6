"""Adam steps of the fast path, by XLA and by a kernel, which CPUs only interpret."""

from functools import partial
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents import optimizer as plain
from r2r2.agents.networks.hypersphere import Head, UnitLinear, sphere_weights
from r2r2.agents.networks.layers import Linear
from r2r2.agents.optimizer import AdamState, Optimizer
from r2r2.compute import adam_kernel, fast_optimizer, loop_packing, update_loop
from r2r2.compute.fast_optimizer import adam_step
from r2r2.compute.precision import Fp16UnitLinear, remove_copies
from r2r2.config.common import ADAM, Adam
from small_fleets import check_paths_agree

unit_step = adam_kernel.unit_step


@pytest.fixture
def kernels(monkeypatch):
    """Use kernels, as on a GPU; return the shapes of all that were run."""
    shapes = []

    def interpreted(adam, tau, numbers, arrays, copies):
        shapes.append(arrays[0].shape)
        return unit_step(adam, tau, numbers, arrays, copies, interpret=True)

    monkeypatch.setattr(adam_kernel, "available", lambda: True)
    monkeypatch.setattr(adam_kernel, "unit_step", interpreted)
    return shapes


def drawn(*shape):
    normal = np.random.default_rng(0).normal
    grads, mean, square, weights, target = (jnp.asarray(normal(size=shape)) for _ in range(5))
    return [grads, mean, square**2, weights, target]


def in_fp16(*arrays):
    return [x.astype(jnp.float16) for x in arrays]


@pytest.mark.parametrize("shape", [(2, 101, 512), (3, 2, 17, 80), (40, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("blocks", [3, adam_kernel.BLOCKS])
def test_kernel_is_adam_then_normalization_then_polyak(shape, blocks, monkeypatch):
    monkeypatch.setattr(adam_kernel, "BLOCKS", blocks)
    with jax.enable_x64(True):
        given = grads, mean, square, weights, target = drawn(*shape)
        numbers = jnp.array([0.03, 1e-3])
        ours, none = unit_step(Adam(0.7, 0.8), 0.01, numbers, given, interpret=True)
        old = in_fp16(mean, square)  # not read, only overwritten
        again = unit_step(Adam(0.7, 0.8), 0.01, numbers, given, old, interpret=True)
        mean = 0.7 * mean + 0.3 * grads
        square = 0.8 * square + 0.2 * grads**2
        weights = weights - 0.03 * mean / (jnp.sqrt(square) + 1e-3)
        weights /= jnp.linalg.norm(weights, axis=-1, keepdims=True)
        target = 0.01 * weights + 0.99 * target
        theirs = [mean, square, weights, target]
        chex.assert_trees_all_close(ours, theirs, rtol=1e-10, atol=1e-12)
        assert none == []
        chex.assert_trees_all_equal(again, (ours, in_fp16(*ours[2:])))


def test_kernel_without_a_target():
    given = drawn(5, 32)
    numbers = jnp.array([0.03, 1e-3])
    step = partial(unit_step, ADAM, 0.01, numbers, interpret=True)
    chex.assert_trees_all_equal(step(given[:4])[0], step(given)[0][:3])


def test_zero_columns_stay_zero():
    nothing = jnp.zeros((3, 32))
    numbers = jnp.array([0.03, 1e-3])
    new, _ = unit_step(ADAM, 0.01, numbers, [nothing] * 5, interpret=True)
    assert all((x == 0).all() for x in new)


def test_members_and_twins_are_stepped_separately():
    many = drawn(3, 2, 4, 32)
    numbers = jnp.array([[0.03, 1e-3], [0.02, 1e-3], [0.01, 1e-2]])
    step = partial(unit_step, ADAM, 0.01, interpret=True)
    together, _ = jax.vmap(step)(numbers, many)
    for member in range(3):
        alone, _ = step(numbers[member], [x[member] for x in many])
        chex.assert_trees_all_close([x[member] for x in together], alone, rtol=1e-6)


def networks():
    """Return params, target and gradients with layers of every kind."""
    blank = UnitLinear(96, 64), UnitLinear(8, 4), Linear(96, 64), Head(80, 101)
    keys = jax.random.split(jax.random.key(0), 3)
    one, other, grads = (sphere_weights(blank, key) for key in keys)
    return one, other, jax.tree.map(lambda x: x + 0.1, grads)


def opt_state(grads):
    """Return an optimizer's state with moments that are not zero."""
    moments = jax.tree.map(lambda x: x / 2, grads)
    return (AdamState(jnp.asarray(3), moments, jax.tree.map(jnp.square, moments)),)


@pytest.mark.slow
@pytest.mark.parametrize("by_kernel", [True, False])
def test_fast_step_equals_the_plain_one(kernels, monkeypatch, by_kernel):
    monkeypatch.setattr(adam_kernel, "available", lambda: by_kernel)
    params, target, grads = networks()
    args = Optimizer(ADAM, 1e-3), grads, opt_state(grads), params
    for more in ((), (target, 0.1)):
        fast, expected = adam_step(*args, *more), plain.adam_step(*args, *more)
        chex.assert_trees_all_close(fast, expected, rtol=1e-5, atol=1e-7)
    shapes = [(64, 96), (80, 80), (101, 80)]
    assert sorted(kernels) == sorted(2 * shapes if by_kernel else [])


@pytest.mark.parametrize("by_kernel", [True, False])
def test_16_bit_copies_follow_their_weights(kernels, monkeypatch, by_kernel):
    monkeypatch.setattr(adam_kernel, "available", lambda: by_kernel)
    params, target, grads = networks()

    def copied(tree):  # the first layer has a copy, out of date
        return Fp16UnitLinear(tree[0], jnp.zeros((96, 64), jnp.float16)), *tree[1:]

    args = Optimizer(ADAM, 1e-3), grads, opt_state(grads)
    bare = adam_step(*args, params, target, 0.1)
    new = adam_step(*args, copied(params), copied(target), 0.1)
    for ours, theirs in ((new[0], bare[0]), (new[2], bare[2])):
        assert jnp.array_equal(ours[0].kernel16, ours[0].kernel.astype(jnp.float16))
        assert not isinstance(ours[1], Fp16UnitLinear)
        chex.assert_trees_all_equal(remove_copies(ours), theirs)
    chex.assert_trees_all_equal(new[1], bare[1])


@pytest.mark.slow
def test_updates_by_kernels_equal_the_plain_path(kernels, monkeypatch):
    monkeypatch.setattr(update_loop, "packs", lambda: True)
    for module in (loop_packing, fast_optimizer):
        monkeypatch.setattr(module, "SMALL", 40)
    with jax.enable_x64(True):
        check_paths_agree("simbav2-spl+r2r2", (1, 3, 5), updates=3)
    assert (2, 16, 32) in kernels  # an embedding of the critics, with padded rows


def test_kernel_writes_in_place_and_only_within_the_arrays():
    step = partial(unit_step, ADAM, 0.01, jnp.zeros(2), interpret=True)
    given = drawn(2, 101, 512)
    (call,) = jax.make_jaxpr(step)(given, in_fp16(*given[3:])).eqns
    places = tuple((2 + n, n) for n in range(6))
    assert call.params["input_output_aliases"] == places
    (turns,) = (x for x in call.params["jaxpr"].eqns if x.primitive.name == "scan")
    kernel = turns.params["jaxpr"].eqns
    (inside,) = (x.outvars[0] for x in kernel if x.primitive.name == "and")
    stores = [x.invars for x in kernel if x.primitive.name == "masked_swap"]
    assert [given[-1] for given in stores] == [inside] * 6


@pytest.mark.gpu
@pytest.mark.skipif(not adam_kernel.available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("shape", [(2, 101, 512), (2, 512, 800), (1, 2, 2048, 512)])
def test_gpu_kernel_equals_the_interpreted_one(shape):
    given, numbers = drawn(*shape), jnp.array([0.03, 1e-3])
    old = in_fp16(*given[3:])
    ours = jax.jit(partial(unit_step, ADAM, 0.01))(numbers, given, old)
    theirs = unit_step(ADAM, 0.01, numbers, given, old, interpret=True)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("place", [3, 4])
def test_weights_and_target_must_both_have_copies(kernels, place):
    params, target, grads = networks()
    args = [Optimizer(ADAM, 1e-3), grads, opt_state(grads), params, target, 0.1]
    first, *rest = args[place]
    args[place] = Fp16UnitLinear(first), *rest
    with pytest.raises(ValueError, match="must both have 16-bit copies, or neither"):
        adam_step(*args)


def test_tiles_end_where_the_array_does():
    inside = adam_kernel.tile_mask((4, 512), 25, (101, 300))
    assert inside[:1, :300].all()
    assert inside.sum() == 300


@pytest.mark.parametrize(
    ("backend", "capability", "module", "used"),
    [
        ("gpu", "9.0", adam_kernel.TRITON, True),
        ("gpu", "8.0", adam_kernel.TRITON, True),
        ("gpu", "10.0", adam_kernel.TRITON, True),
        ("gpu", "7.5", adam_kernel.TRITON, False),
        ("gpu", "gfx942", adam_kernel.TRITON, False),
        ("gpu", "9.0", "jax.no_longer_there", False),
        ("cpu", "9.0", adam_kernel.TRITON, False),
    ],
)
def test_where_the_kernel_is_available(monkeypatch, backend, capability, module, used):
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(adam_kernel, "platform", lambda: backend)
    monkeypatch.setattr(adam_kernel, "training_device", lambda: device)
    monkeypatch.setattr(adam_kernel, "TRITON", module)
    assert adam_kernel.available() is used
