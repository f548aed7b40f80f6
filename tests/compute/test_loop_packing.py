"""How the update loop packs what it carries."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.networks.hypersphere import UnitLinear
from r2r2.agents.networks.layers import Linear
from r2r2.compute.loop_packing import PADDED_ROWS, SMALL, LoopPacking, packs


def tree():
    draw = np.random.default_rng(0).normal
    return {
        "bias": jnp.asarray(draw(size=(3, 2, 100))),
        "kernel": jnp.asarray(draw(size=(3, 2, 100, 50))),
        "twins": {"kernel": jnp.asarray(draw(size=(3, 4 * PADDED_ROWS, 50)))},
        "wide": jnp.asarray(draw(size=(3, 2, SMALL))),  # a bias of twins
        "long": jnp.asarray(draw(size=(3, SMALL + 1))),
        "count": jnp.arange(3),
        "loss": jnp.arange(3.0),
    }


def test_restore_undoes_pack():
    given = tree()
    packing = LoopPacking(given, packs=True)
    chex.assert_trees_all_equal(packing.restore(packing.pack(given)), given)


def test_restore_undoes_pack_of_an_unpacked_tree():
    given = tree()
    packing = LoopPacking(given, packs=True)
    between = packing.unpack(packing.pack(given))
    assert between["kernel"].shape == (3, 2, 128, 50)
    chex.assert_trees_all_equal(packing.restore(packing.pack(between)), given)


def test_nothing_is_packed_on_a_cpu():
    assert not packs()
    given = tree()
    packing = LoopPacking(given, packs=False)
    packed = packing.pack(given)
    assert packed.small.shape == (3, 0)
    assert [x.shape for x in packed.large] == [x.shape for x in jax.tree.leaves(given)]
    chex.assert_trees_all_equal(packing.unpack(packed), given)
    chex.assert_trees_all_equal(packing.restore(packed), given)


def test_small_arrays_are_packed_into_one_but_integers_are_not():
    packed = LoopPacking(tree(), packs=True).pack(tree())
    assert packed.small.shape == (3, 2 * 100 + 1)
    shapes = {leaf.shape for leaf in packed.large}
    kernels = {(3, 2, 128, 50), (3, 4 * PADDED_ROWS, 50)}
    assert shapes == kernels | {(3, 2, SMALL), (3, SMALL + 1), (3,)}


def test_unit_linear_kernels_are_carried_transposed():
    tree = jax.tree.map(lambda x: x[None], (UnitLinear(100, 50), Linear(100, 50)))
    packing = LoopPacking(tree, packs=True)
    shapes = [x.shape for x in packing.pack(tree).large]
    assert shapes == [(1, 50, 128), (1, 128, 50)]
    assert packing.unpack(packing.pack(tree))[0].kernel.shape == (1, 128, 50)
