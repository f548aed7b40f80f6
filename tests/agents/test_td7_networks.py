from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.networks.layers import Linear, uniform_weights
from r2r2.agents.td7 import init
from r2r2.config.agent_configs import TD7Config
from r2r2.envs.spec import Spec

SPEC = Spec(obs_dim=11, action_dim=3)


def parameters(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_parameter_counts_at_the_papers_width():
    state = jax.eval_shape(lambda key: init(TD7Config(), SPEC, key), jax.random.key(0))
    square, end = 256 * 256 + 256, 256 + 1
    # zs: 11-256-256-256; zsa: (256 + 3)-256-256-256.
    assert parameters(state.encoder) == 12 * 256 + 2 * square + 260 * 256 + 2 * square
    # A head: 14-256, then (256 + 256 + 256)-256-256-1; two of them.
    assert parameters(state.critic) == 2 * (15 * 256 + 769 * 256 + square + end)
    # 11-256, then (256 + 256)-256-256-3.
    assert parameters(state.actor) == 12 * 256 + 513 * 256 + square + 257 * 3


def test_layer_norm_adds_a_gain_and_a_bias_to_each_hidden_unit_of_the_encoder():
    plain, normed = (
        jax.eval_shape(partial(init, config, SPEC), jax.random.key(0))
        for config in (TD7Config(), TD7Config(layer_norm=True))
    )
    assert parameters(normed.encoder) == parameters(plain.encoder) + 4 * 2 * 256
    for network in ("critic", "actor"):
        pair = getattr(plain, network), getattr(normed, network)
        assert parameters(pair[0]) == parameters(pair[1])


@pytest.mark.parametrize("n_in", [1, 100])
def test_uniform_weights_are_within_their_limits(n_in):
    layer = uniform_weights(Linear(n_in, 2000), jax.random.key(0))
    for leaf in (layer.kernel, layer.bias):
        largest = float(jnp.abs(leaf).max())
        assert 0.99 * n_in**-0.5 < largest <= n_in**-0.5


def test_initial_weights_are_all_different():
    state = init(TD7Config(width=8, latent=8), SPEC, jax.random.key(0))
    networks = (state.encoder, state.critic, state.actor)
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(networks)])
    assert len(set(numbers.tolist())) > 0.999 * len(numbers)


def test_twins_differ_and_targets_equal_their_networks():
    state = init(TD7Config(width=8, latent=8), SPEC, jax.random.key(0))
    for leaf in jax.tree.leaves(state.critic):
        assert leaf.shape[0] == 2
        assert not np.allclose(leaf[0], leaf[1])
    for online, copies in {
        "encoder": ("fixed_encoder", "fixed_encoder_target", "checkpoint_encoder"),
        "critic": ("critic_target",),
        "actor": ("actor_target", "checkpoint_actor"),
    }.items():
        for copy in copies:
            pair = getattr(state, online), getattr(state, copy)
            assert all(map(np.array_equal, *map(jax.tree.leaves, pair)))
