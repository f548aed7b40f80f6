"""The step of Adam as one kernel, which CPUs can only interpret."""

from functools import partial
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import small_fleets
from r2r2.agents import optimizer as optimise
from r2r2.agents.networks.hypersphere import Head, UnitLinear, draw_weights
from r2r2.agents.networks.layers import Linear
from r2r2.agents.optimizer import Optimizer, adam_step, adam_step_with_target
from r2r2.agents.tree_ops import polyak
from r2r2.compute import adam_kernel as step_kernel
from r2r2.compute import fp16_weights as halves
from r2r2.compute import loop_packing as carry
from r2r2.compute import update_loop as loop
from r2r2.config.common import ADAM, Adam
from small_fleets import by_hand, check_a_call

unit_step = step_kernel.unit_step


@pytest.fixture
def kernels(monkeypatch):
    """Kernels are used, as on a GPU; the shapes of all that were made."""
    shapes = []

    def interpreted(adam, rate, numbers, given, halves):
        shapes.append(given[0].shape)
        return unit_step(adam, rate, numbers, given, halves, interpret=True)

    monkeypatch.setattr(step_kernel, "available", lambda: True)
    monkeypatch.setattr(step_kernel, "unit_step", interpreted)
    return shapes


def drawn(*shape):
    normal = np.random.default_rng(0).normal
    grads, mean, square, weights, target = (
        jnp.asarray(normal(size=shape)) for _ in range(5)
    )
    return [grads, mean, square**2, weights, target]


def halves_of(*arrays):
    return [x.astype(jnp.float16) for x in arrays]


@pytest.mark.parametrize(
    "shape",
    [(2, 101, 512), (3, 2, 17, 800), (1, 2, 2048), (40, 3), (1, 1)],
    ids=str,
)
@pytest.mark.parametrize("blocks", [3, step_kernel.BLOCKS])
def test_it_is_adam_then_a_norm_then_a_share_of_the_way(shape, blocks, monkeypatch):
    monkeypatch.setattr(step_kernel, "BLOCKS", blocks)
    with jax.enable_x64(True):
        given = grads, mean, square, weights, target = drawn(*shape)
        numbers = jnp.array([0.03, 1e-3])
        ours, none = unit_step(Adam(0.7, 0.8), 0.01, numbers, given, interpret=True)
        old = halves_of(mean, square)  # of no use, and written over
        again = unit_step(Adam(0.7, 0.8), 0.01, numbers, given, old, interpret=True)
        mean = 0.7 * mean + 0.3 * grads
        square = 0.8 * square + 0.2 * grads**2
        weights = weights - 0.03 * mean / (jnp.sqrt(square) + 1e-3)
        weights /= jnp.linalg.norm(weights, axis=-1, keepdims=True)
        target = 0.01 * weights + 0.99 * target
        theirs = [mean, square, weights, target]
        chex.assert_trees_all_close(ours, theirs, rtol=1e-10, atol=1e-12)
        assert none == []
        chex.assert_trees_all_equal(again, (ours, halves_of(*ours[2:])))


def test_without_a_target_the_rest_is_the_same():
    given = drawn(5, 32)
    numbers = jnp.array([0.03, 1e-3])
    step = partial(unit_step, ADAM, 0.01, numbers, interpret=True)
    chex.assert_trees_all_equal(step(given[:4])[0], step(given)[0][:3])


def test_a_column_of_zeros_stays_there():
    nothing = jnp.zeros((3, 32))
    numbers = jnp.array([0.03, 1e-3])
    new, _ = unit_step(ADAM, 0.01, numbers, [nothing] * 5, interpret=True)
    assert all((x == 0).all() for x in new)


def test_members_and_twins_are_steps_of_their_own():
    many = drawn(3, 2, 4, 32)
    numbers = jnp.array([[0.03, 1e-3], [0.02, 1e-3], [0.01, 1e-2]])
    step = partial(unit_step, ADAM, 0.01, interpret=True)
    together, _ = jax.vmap(step)(numbers, many)
    for member in range(3):
        alone, _ = step(numbers[member], [x[member] for x in many])
        chex.assert_trees_all_close([x[member] for x in together], alone, rtol=1e-6)


def networks():
    """Of every kind: large and small, on the sphere and not."""
    blank = UnitLinear(96, 64), UnitLinear(8, 4), Linear(96, 64), Head(80, 101)
    keys = jax.random.split(jax.random.key(0), 3)
    one, other, grads = (draw_weights(blank, key) for key in keys)
    return one, other, jax.tree.map(lambda x: x + 0.1, grads)


def test_a_step_by_kernels_is_one_without(kernels, monkeypatch):
    params, target, grads = networks()
    optimiser = Optimizer(ADAM, 1e-3)
    state = optimiser.init(params)
    half = jax.tree.map(lambda x: x / 2, grads)
    moments = state[0]._replace(mu=half, nu=jax.tree.map(jnp.square, half))
    args = optimiser, grads, (moments, *state[1:]), params
    ours, followed = adam_step(*args), adam_step_with_target(*args, target, 0.1)
    assert sorted(set(kernels)) == [(64, 96), (80, 80), (101, 80)]
    monkeypatch.setattr(step_kernel, "available", lambda: False)
    theirs = adam_step(*args)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5, atol=1e-7)
    moved = polyak(0.1, theirs[0], target)
    chex.assert_trees_all_close(followed, (*theirs, moved), rtol=1e-5, atol=1e-7)
    assert len(kernels) == 6


@pytest.mark.parametrize("by_kernels", [True, False])
def test_16_bits_follow_what_they_are_of(kernels, monkeypatch, by_kernels):
    monkeypatch.setattr(step_kernel, "available", lambda: by_kernels)
    params, target, grads = networks()
    optimiser = Optimizer(ADAM, 1e-3)

    def some(tree):  # the first layer has 16 bits, and so it goes on
        first = tree[0]
        return halves.with_half(first, jnp.zeros_like(first.kernel)), *tree[1:]

    args = grads, optimiser.init(params)
    plain = adam_step_with_target(optimiser, *args, params, target, 0.1)
    new = adam_step_with_target(optimiser, *args, some(params), some(target), 0.1)
    for ours, theirs in ((new[0], plain[0]), (new[2], plain[2])):
        assert jnp.array_equal(ours[0].half, ours[0].kernel.astype(jnp.float16))
        assert ours[1].half is None
        chex.assert_trees_all_equal(halves.removed(ours), theirs)
    chex.assert_trees_all_equal(new[1], plain[1])


@pytest.mark.slow
def test_a_call_by_kernels_is_the_updates_one_after_the_other(kernels, monkeypatch):
    monkeypatch.setattr(loop, "packs", lambda: True)
    for module in (carry, optimise):
        monkeypatch.setattr(module, "SMALL", 40)

    def by_xla(*given):
        with monkeypatch.context() as plain:
            plain.setattr(step_kernel, "available", lambda: False)
            return by_hand(*given)

    monkeypatch.setattr(small_fleets, "by_hand", by_xla)
    check_a_call("simbav2-spl+r2r2", (1, 3, 5), count=3)
    assert (2, 16, 32) in kernels  # an embedding of the critics, with rows of zeros


def test_it_writes_where_it_read_and_nowhere_else():
    """A CPU does not tell: there memory beyond an array is not another's."""
    step = partial(unit_step, ADAM, 0.01, jnp.zeros(2), interpret=True)
    given = drawn(2, 101, 512)
    (call,) = jax.make_jaxpr(step)(given, halves_of(*given[3:])).eqns
    places = tuple((2 + n, n) for n in range(6))
    assert call.params["input_output_aliases"] == places
    (turns,) = (x for x in call.params["jaxpr"].eqns if x.primitive.name == "scan")
    kernel = turns.params["jaxpr"].eqns
    (inside,) = (x.outvars[0] for x in kernel if x.primitive.name == "and")
    stores = [x.invars for x in kernel if x.primitive.name == "masked_swap"]
    assert [given[-1] for given in stores] == [inside] * 6


@pytest.mark.gpu
@pytest.mark.skipif(not step_kernel.available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("shape", [(2, 101, 512), (2, 512, 800), (1, 2, 2048, 512)])
def test_a_gpu_computes_what_is_interpreted(shape):
    given, numbers = drawn(*shape), jnp.array([0.03, 1e-3])
    old = halves_of(*given[3:])
    ours = jax.jit(partial(unit_step, ADAM, 0.01))(numbers, given, old)
    theirs = unit_step(ADAM, 0.01, numbers, given, old, interpret=True)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("place", [3, 4])
def test_weights_alone_are_not_in_16_bits(kernels, place):
    params, target, grads = networks()
    optimiser = Optimizer(ADAM, 1e-3)
    given = [optimiser, grads, optimiser.init(params), params, target, 0.1]
    first, *rest = given[place]
    given[place] = halves.with_half(first, first.kernel), *rest
    with pytest.raises(ValueError, match="both in 16 bits, or neither"):
        adam_step_with_target(*given)


def test_a_block_ends_where_its_array_does():
    inside = step_kernel.covered((4, 512), 25, (101, 300))
    assert inside[:1, :300].all()
    assert inside.sum() == 300


@pytest.mark.parametrize(
    ("backend", "capability", "module", "used"),
    [
        ("gpu", "9.0", step_kernel.TRITON, True),
        ("gpu", "8.0", step_kernel.TRITON, True),
        ("gpu", "10.0", step_kernel.TRITON, True),
        ("gpu", "7.5", step_kernel.TRITON, False),
        ("gpu", "gfx942", step_kernel.TRITON, False),
        ("gpu", "9.0", "jax.no_longer_there", False),
        ("cpu", "9.0", step_kernel.TRITON, False),
    ],
)
def test_it_is_used_where_it_can_be(monkeypatch, backend, capability, module, used):
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(step_kernel.jax, "default_backend", lambda: backend)
    monkeypatch.setattr(step_kernel.jax, "devices", lambda: [device])
    monkeypatch.setattr(step_kernel, "TRITON", module)
    assert step_kernel.available() is used


def test_weights_on_the_sphere_travel_with_columns_as_rows():
    tree = jax.tree.map(lambda x: x[None], (UnitLinear(100, 50), Linear(100, 50)))
    layout = carry.LoopPacking(tree, packs=True)
    shapes = [x.shape for x in layout.pack(tree).large]
    assert shapes == [(1, 50, 128), (1, 128, 50)]
    assert layout.unpack(layout.pack(tree))[0].kernel.shape == (1, 128, 50)
