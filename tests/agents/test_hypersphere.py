import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.networks.hypersphere import (
    Embed,
    Head,
    LerpBlock,
    Scaler,
    normalize,
    project,
    sphere_weights,
)
from r2r2.agents.networks.layers import Linear, orthogonal


def test_zero_vectors_stay_zero_with_a_finite_gradient():
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(normalize(x)))(jnp.zeros(3))
    assert value == 0
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("stack", [(), (2,), (4, 2)], ids=["one", "twins", "fleet"])
def test_project_normalizes_columns_of_unit_layers_only(stack):
    blank = Head(5, 3), Linear(5, 3)
    moved = jax.tree.map(lambda x: 2.0 + jnp.zeros((*stack, *x.shape)), blank)
    head, plain = project(moved)
    for layer in (head.inner, head.outer):
        norms = jnp.linalg.norm(layer.kernel, axis=-2)
        np.testing.assert_allclose(norms, np.ones(norms.shape), rtol=1e-6)
    for leaf in (head.scale.gain, head.bias, plain.kernel, plain.bias):
        assert (leaf == 2).all()


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (16, 16), (1, 5), (5, 1)])
def test_orthogonal_is_orthonormal_on_its_shorter_side(shape):
    with jax.enable_x64(True):
        q = orthogonal(jax.random.normal(jax.random.key(0), shape))
        short = q.T @ q if shape[0] >= shape[1] else q @ q.T
        np.testing.assert_allclose(short, np.eye(min(shape)), atol=1e-12)


def test_orthogonal_is_uniform():
    """Entries of a uniform 3 x 3 rotation: mean 0, variance 1/3, fourth moment 1/5."""
    keys = jax.random.split(jax.random.key(0), 4000)
    many = jax.jit(jax.vmap(lambda k: orthogonal(jax.random.normal(k, (3, 3)))))(keys)
    np.testing.assert_allclose(many.mean(axis=0), np.zeros((3, 3)), atol=0.04)
    np.testing.assert_allclose(many.var(axis=0), np.full((3, 3), 1 / 3), atol=0.03)
    # A uniform rotation's entry is uniform on [-1, 1]: its fourth moment is 1/5.
    np.testing.assert_allclose((many**4).mean(axis=0), np.full((3, 3), 0.2), atol=0.03)


def test_orthogonal_terminates_for_singular_matrices():
    assert orthogonal(jnp.ones((3, 3))).shape == (3, 3)


def test_linear_layers_are_lecun_normal_truncated_at_two_deviations():
    layer = sphere_weights(Linear(400, 300), jax.random.key(0))
    assert not layer.bias.any()
    np.testing.assert_allclose(layer.kernel.std(), 400**-0.5, rtol=0.01)
    largest = float(jnp.abs(layer.kernel).max()) * 20 * 0.8796
    assert 1.95 < largest < 2.001


def test_sphere_weights_have_unit_columns_and_unchanged_gains():
    block = sphere_weights(LerpBlock(8, 4, blocks=2), jax.random.key(0))
    for layer in (block.up, block.down):
        norms = jnp.linalg.norm(layer.kernel, axis=-2)
        np.testing.assert_allclose(norms, np.ones(norms.shape), rtol=1e-6)
    # Width 8: sqrt(2 / 8) / 2 = 0.25; alpha starts at 1 / sqrt(8), acts as 1 / 3.
    np.testing.assert_allclose(block.scale.gain, np.full(32, 0.25))
    np.testing.assert_allclose(block.alpha.gain, np.full(8, 8**-0.5), rtol=1e-6)
    np.testing.assert_allclose(block.alpha(jnp.ones(8)), np.full(8, 1 / 3), rtol=1e-6)


@pytest.mark.parametrize(("expansion", "gain"), [(1, 0.5), (4, 0.25), (9, 0.5 / 3)])
def test_scale_in_a_block_is_divided_by_the_root_of_the_expansion(expansion, gain):
    scale = LerpBlock(8, expansion, blocks=2).scale
    np.testing.assert_allclose(scale.gains(), np.full(8 * expansion, gain), rtol=1e-6)


def test_scaler():
    # 0.5 at first, used as 2: the gain counts four times.
    scaler = Scaler(1, init=2.0, scale=0.5)
    assert scaler.gain.tolist() == [0.5]
    assert scaler(jnp.array([3.0])).tolist() == [6.0]


def test_embed_preserves_the_length_of_its_input():
    embed = Embed(2, 2, shift=3.0)
    kernel = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    embed = jax.tree.map(lambda x: kernel if x.ndim == 2 else jnp.ones(2), embed)
    # [4, 0, 3] / 5 = [0.8, 0, 0.6], of which the kernel picks 0.8 and 0.6.
    shown = embed(jnp.array([4.0, 0.0]))
    np.testing.assert_allclose(shown, [0.8, 0.6], rtol=1e-6)


def test_embed_equals_that_of_a_normalized_input():
    with jax.enable_x64(True):
        embed = sphere_weights(Embed(5, 4, shift=3.0), jax.random.key(0))
        x, slope = (jax.random.normal(jax.random.key(n), (6, 5)) for n in (1, 2))

        def inside(embed, x):
            whole = jnp.concatenate([x, jnp.full((6, 1), 3.0)], axis=-1)
            return normalize(embed.scale(embed.linear(normalize(whole))))

        ours, back = jax.vjp(lambda embed, x: embed(x), embed, x)
        theirs, back_inside = jax.vjp(inside, embed, x)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-12)
        actual, expected = back(slope[:, :4]), back_inside(slope[:, :4])
        chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_blocks_of_dead_units_have_a_finite_gradient():
    block = sphere_weights(LerpBlock(4, 4, blocks=1), jax.random.key(0))
    dead = eqx.tree_at(lambda b: b.up.kernel, block, jnp.zeros((4, 16)))
    x = normalize(jnp.ones(4))
    value, gradients = jax.value_and_grad(lambda b: jnp.sum(b(x)))(dead)
    assert np.isfinite(value)
    for gradient in jax.tree.leaves(gradients):
        assert np.isfinite(gradient).all()
