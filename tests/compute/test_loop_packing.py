"""What the loop of updates carries, and the products that know of it."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.tree_ops import cond
from r2r2.compute.loop_packing import ROWS, SMALL, LoopPacking, packs
from r2r2.compute.matmul import column_sums, matmul, sum_of_rows


def tree():
    draw = np.random.default_rng(0).normal
    return {
        "bias": jnp.asarray(draw(size=(3, 2, 100))),
        "kernel": jnp.asarray(draw(size=(3, 2, 100, 50))),
        "twins": {"kernel": jnp.asarray(draw(size=(3, 4 * ROWS, 50)))},
        "wide": jnp.asarray(draw(size=(3, 2, SMALL))),  # a bias of twins
        "long": jnp.asarray(draw(size=(3, SMALL + 1))),
        "count": jnp.arange(3),
        "loss": jnp.arange(3.0),
    }


def test_a_tree_comes_back_as_it_went():
    given = tree()
    layout = LoopPacking(given, packs=True)
    chex.assert_trees_all_equal(layout.restore(layout.pack(given)), given)


def test_it_comes_back_also_from_between_two_updates():
    given = tree()
    layout = LoopPacking(given, packs=True)
    between = layout.unpack(layout.pack(given))
    assert between["kernel"].shape == (3, 2, 128, 50)
    chex.assert_trees_all_equal(layout.restore(layout.pack(between)), given)


def test_on_a_cpu_everything_travels_as_it_is():
    assert not packs()
    given = tree()
    layout = LoopPacking(given, packs=False)
    packed = layout.pack(given)
    assert packed.small.shape == (3, 0)
    assert [x.shape for x in packed.large] == [x.shape for x in jax.tree.leaves(given)]
    chex.assert_trees_all_equal(layout.unpack(packed), given)
    chex.assert_trees_all_equal(layout.restore(packed), given)


def test_small_arrays_travel_as_one_and_integers_alone():
    packed = LoopPacking(tree(), packs=True).pack(tree())
    assert packed.small.shape == (3, 2 * 100 + 1)
    shapes = {leaf.shape for leaf in packed.large}
    kernels = {(3, 2, 128, 50), (3, 4 * ROWS, 50)}
    assert shapes == kernels | {(3, 2, SMALL), (3, SMALL + 1), (3,)}


def joined(parts, kernel):
    return jnp.concatenate(parts, axis=-1) @ kernel


@pytest.mark.parametrize("outputs", [1, 3, 101])
@pytest.mark.parametrize("lead", [(), (7,), (3, 64)])
def test_a_product_and_its_gradients_are_those_of_the_plain_one(lead, outputs):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        parts = tuple(jnp.asarray(rng.normal(size=(*lead, n))) for n in (4, 2, 5))
        kernel = jnp.asarray(rng.normal(size=(11, outputs)))
        slope = jnp.asarray(rng.normal(size=(*lead, outputs)))
        ours, back = jax.vjp(matmul, parts, kernel)
        theirs, plain = jax.vjp(joined, parts, kernel)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-12)
        chex.assert_trees_all_close(back(slope), plain(slope), rtol=1e-12)


@pytest.mark.parametrize("moved", [[0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_parts_that_need_no_gradient_cost_none(moved):
    rng = np.random.default_rng(3)
    parts = [jnp.asarray(rng.normal(size=(6, n))) for n in (4, 2, 5)]
    kernel = jnp.asarray(rng.normal(size=(11, 3)))

    def total(map_by, *some):
        own = list(parts)
        for place, part in zip(moved, some, strict=True):
            own[place] = part
        return jnp.sum(jnp.sin(map_by(tuple(own), kernel)))

    some = [parts[place] for place in moved]
    which = tuple(range(1, len(moved) + 1))
    ours, theirs = (jax.grad(total, which)(x, *some) for x in (matmul, joined))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5)
    traced = jax.make_jaxpr(jax.grad(partial(total, matmul), range(len(moved))))
    ends = [0, 4, 6, 11]
    needed = ends[moved[-1] + 1] - ends[moved[0]]
    assert f"f32[6,{needed}] = dot_general" in str(traced(*some))


def test_rows_of_zeros_change_no_product_and_get_no_gradient():
    rng = np.random.default_rng(2)
    x, kernel = (
        jnp.asarray(rng.normal(size=(5, 4))),
        jnp.asarray(rng.normal(size=(4, 3))),
    )
    wide = jnp.pad(kernel, ((0, ROWS - 4), (0, 0)))
    ours, back = jax.vjp(matmul, (x,), wide)
    theirs, plain = jax.vjp(matmul, (x,), kernel)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5)
    (dx, dwide), (plain_dx, dkernel) = back(ours), plain(theirs)
    chex.assert_trees_all_close((dx, dwide[:4]), (plain_dx, dkernel), rtol=1e-5)
    assert not dwide[4:].any()


@pytest.mark.parametrize("features", [3, 5, ROWS + 4])
def test_other_sizes_are_no_product(features):
    with pytest.raises(ValueError, match=f"{features} features, the kernel has 4 rows"):
        matmul((jnp.ones((2, features)),), jnp.ones((4, 3)))


def test_a_known_condition_leaves_no_branch():
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
def test_sums_in_blocks_leave_no_row_out(rows):
    x = jnp.arange(2.0 * rows * 3).reshape(2, rows, 3) % 7
    np.testing.assert_array_equal(column_sums(x), np.asarray(x).sum(axis=1))
    np.testing.assert_array_equal(sum_of_rows(x), np.asarray(x).sum(axis=(0, 1)))
