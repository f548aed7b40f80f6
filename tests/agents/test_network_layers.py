import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.networks.layers import (
    LayerNorm,
    Linear,
    NormedLinear,
    linears,
    mlp,
    uniform_weights,
)


def test_layer_norm_equals_its_formula():
    x = np.array([[1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    norm = LayerNorm(3)
    unit = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(jnp.asarray(x)), unit, rtol=1e-5, atol=1e-6)


def test_layer_norm_scales_and_shifts_features():
    norm, rows = LayerNorm(3), jnp.asarray([[1.0, 2.0, 6.0]])
    gain, bias = jnp.array([2.0, 3.0, 4.0]), jnp.array([0.5, 0.0, -0.5])
    leaves = jax.tree.unflatten(jax.tree.structure(norm), [gain, bias])
    np.testing.assert_allclose(leaves(rows)[0], norm(rows)[0] * gain + bias, rtol=1e-6)


def test_hidden_layers_are_normed_and_the_last_is_not():
    layers = linears(3, 4, 5, 2, normed=True)
    assert [type(layer) for layer in layers] == [NormedLinear, NormedLinear, Linear]
    assert {type(layer) for layer in linears(3, 4, 5, 2)} == {Linear}


def test_norms_precede_the_activation():
    layers = uniform_weights(linears(3, 8, 2, normed=True), jax.random.key(0))
    first, last = layers
    x = jnp.ones((1, 3))
    plain = x @ first.kernel + first.bias[None]
    hidden = jax.nn.elu(first.norm(plain))
    np.testing.assert_allclose(mlp(layers, x), last(hidden), rtol=1e-5)


def test_uniform_weights_do_not_change_norms():
    layer = uniform_weights(NormedLinear(3, 4), jax.random.key(0))
    assert layer.kernel.all()
    assert layer.bias.all()
    np.testing.assert_array_equal(layer.norm.gain, 1)
    np.testing.assert_array_equal(layer.norm.bias, 0)
