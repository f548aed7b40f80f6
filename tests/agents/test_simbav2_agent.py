"""Tests of SimbaV2 and SimbaV2-SPL beyond those of every agent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.base import Batch
from r2r2.agents.networks.hypersphere import UnitLinear, sphere_weights
from r2r2.agents.networks.simbav2 import Critic, View
from r2r2.agents.registry import build_agent
from r2r2.agents.simbav2 import update_actor
from r2r2.agents.simbav2_spl import latent_view
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec

SPEC = Spec(obs_dim=4, action_dim=2)
SIZES = {"actor_width": 8, "critic_width": 8, "bins": 11, "batch_size": 6}
both = pytest.mark.parametrize("name", ["simbav2", "simbav2-spl+r2r2"])
HORIZON = 100


@functools.cache
def agent_of(name: str, critics: int = 2, **changes):
    sizes = SIZES | {"critics": critics, "discount": 0.9} | changes
    if "spl" in name:
        sizes |= {"latent": 6, "model_width": 8}
    return build_agent(dataclasses.replace(agent_config(name), **sizes), SPEC, 1)


@functools.cache
def compiled(name: str):
    agent = agent_of(name)
    return jax.jit(agent.init), jax.jit(agent.update)


def batch(seed: int = 0, **changes) -> Batch:
    rng = np.random.default_rng(seed)
    fields = Batch(
        obs=rng.normal(size=(6, 4)),
        action=rng.uniform(-1, 1, (6, 2)),
        reward=rng.normal(size=6),
        next_obs=rng.normal(size=(6, 4)),
        terminated=np.arange(6) == 5,
    )
    return jax.tree.map(jnp.asarray, fields._replace(**changes))


def noise(seed: int = 0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(2, 6, 2)))


def start(name: str):
    """Return a state after some updates, whose targets differ from its networks."""
    init, update = compiled(name)
    state = init(jax.random.key(3), jnp.asarray(HORIZON))
    for seed in range(3):
        state, _ = update(state, batch(seed), noise(seed), jnp.asarray(1))
    return state


def unit_layers(tree) -> list[UnitLinear]:
    def is_unit(node) -> bool:
        return isinstance(node, UnitLinear)

    return list(filter(is_unit, jax.tree.leaves(tree, is_leaf=is_unit)))


@pytest.mark.slow
def test_columns_have_length_1_after_20_updates():
    init, update = compiled("simbav2-spl+r2r2")
    state = init(jax.random.key(0), jnp.asarray(HORIZON))
    for seed in range(20):
        state, _ = update(state, batch(seed), noise(seed), jnp.asarray(1))
    layers = unit_layers((state.base.actor, state.base.critic, state.encoder))
    assert len(layers) == 15
    for layer in layers:
        norms = jnp.linalg.norm(layer.kernel, axis=-2)
        np.testing.assert_allclose(norms, np.ones(norms.shape), rtol=1e-6)
    # Averages of points on the sphere are inside it, and stay there.
    for layer in unit_layers(state.base.critic_target):
        assert jnp.linalg.norm(layer.kernel, axis=-2).min() < 1


PARTS = ("actor", "temperature_adam", "critic", "encoder", "model")


def changed_parts(name: str, **changes) -> set[str]:
    """Return the trained parts of a state that change with the inputs of an update."""
    state, (_, update) = start(name), compiled(name)
    fields = {"batch": batch(9), "noise": noise(9)}
    plain, other = (
        update(state, inputs["batch"], inputs["noise"], jnp.asarray(1))[0]
        for inputs in (fields, fields | changes)
    )
    changed = set()
    for part in PARTS:
        trees = [_part(new, part) for new in (plain, other)]
        if not all(map(np.array_equal, *map(jax.tree.leaves, trees))):
            changed.add(part)
    return changed


def _part(state, part: str):
    if part in ("encoder", "model"):
        return getattr(state, part, ())
    return getattr(getattr(state, "base", state), part)


@pytest.mark.slow
@both
def test_rewards_affect_only_the_critics(name):
    other = batch(9, reward=np.full(6, 3.0))
    assert changed_parts(name, batch=other) == {"critic"}


@both
def test_next_observations_affect_critics_and_encoder_but_not_the_policy(name):
    other = batch(9, next_obs=np.ones((6, 4)))
    encoder_parts = {"encoder", "model"} if "spl" in name else set()
    assert changed_parts(name, batch=other) == {"critic"} | encoder_parts


@both
def test_stored_actions_do_not_affect_the_policy(name):
    other = batch(9, action=np.zeros((6, 2)))
    encoder_parts = {"encoder", "model"} if "spl" in name else set()
    assert changed_parts(name, batch=other) == {"critic"} | encoder_parts


@both
def test_noise_of_actor_and_target_are_separate(name):
    actor, target = noise(9)
    only_target = jnp.stack([actor, -target])
    assert changed_parts(name, noise=only_target) == {"critic"}
    only_actor = jnp.stack([-actor, target])
    # The critics learn from the actor and temperature after their steps.
    expected = {"actor", "temperature_adam", "critic"}
    assert changed_parts(name, noise=only_actor) == expected


def test_the_actors_gradient_passes_through_the_latent_model():
    state, agent = start("simbav2-spl+r2r2"), agent_of("simbav2-spl+r2r2")
    config, obs = agent.update.args[0], batch().obs
    z = state.encoder_target(obs)
    through = latent_view(obs, z, state.model)
    action = jnp.tanh(through.policy(state.base.actor).mean)
    fixed = through.predict(action)
    cut = View(obs, (z,), lambda _: fixed)

    def improved(view):
        return update_actor(config, state.base, view, jnp.zeros((6, 2)))[0].actor

    actors = [jax.jit(functools.partial(improved, view))() for view in (through, cut)]
    # Without noise both views show the critics the same; only the gradient differs.
    assert not all(map(np.array_equal, *map(jax.tree.leaves, actors)))


@both
def test_updates_preserve_shapes_and_types(name):
    agent = agent_of(name)
    before = jax.eval_shape(agent.init, jax.random.key(0), jnp.asarray(HORIZON))
    after, _ = jax.eval_shape(agent.update, before, batch(), noise(), jnp.asarray(1))
    for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        assert old.weak_type == new.weak_type


@both
def test_learning_rates_follow_the_horizon_in_one_program(name):
    init, update = compiled(name)
    step = jnp.asarray(1)
    ends = []
    for horizon in (1, 10**6):
        state = init(jax.random.key(0), jnp.asarray(horizon))
        for seed in range(2):
            state, _ = update(state, batch(seed), noise(seed), step)
        ends.append(getattr(state, "base", state).log_temperature)
    # The first update is made at 1e-4 in both, the second at 5e-5 or 1e-4.
    moved = np.abs(np.asarray(ends) - np.log(0.01))
    np.testing.assert_allclose(moved, [1.5e-4, 2e-4], rtol=0.02)


def parameters(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def shapes(name: str, critics: int):
    config = dataclasses.replace(agent_config(name), critics=critics, discount=0.99)
    agent = build_agent(config, Spec(obs_dim=11, action_dim=3), 1)
    return jax.eval_shape(agent.init, jax.random.key(0), jnp.asarray(1))


def test_parameter_counts_at_the_papers_widths():
    state = shapes("simbav2", critics=2)
    # Embedding, a block of 128-512-128, two heads of 128-128-3.
    block, head = 2 * 128 * 512 + 512 + 128, 128 * 128 + 128 + 128 * 3 + 3
    assert parameters(state.actor) == 12 * 128 + 128 + block + 2 * head
    # Embedding, two blocks of 512-2048-512, a head of 512-512-101; two critics.
    blocks = 2 * (2 * 512 * 2048 + 2048 + 512)
    value = 512 * 512 + 512 + 512 * 101 + 101
    assert parameters(state.critic) == 2 * (15 * 512 + 512 + blocks + value)
    spl = shapes("simbav2-spl", critics=1)
    assert parameters(spl.encoder) == 12 * 128 + 128
    assert parameters(spl.model) == 132 * 256 + 257 * 256 + 257 * 128
    # A projection, then an embedding of it and the latents.
    trunk = 12 * 128 + (128 + 128 + 1) * 128 + 128
    assert parameters(spl.base.actor) == trunk + block + 2 * head
    trunk = 15 * 512 + (512 + 2 * 128 + 1) * 512 + 512
    assert parameters(spl.base.critic) == trunk + blocks + value


@pytest.mark.parametrize("field", ["critics", "discount"])
def test_automatic_settings_must_be_set(field):
    config = dataclasses.replace(agent_config("simbav2"), critics=1, discount=0.9)
    with pytest.raises(UserError, match=f"^agent.{field}: 0 \\(automatic\\) depends on"):
        build_agent(dataclasses.replace(config, **{field: 0}), SPEC, 1)


@pytest.mark.slow
def test_stacked_critics_have_different_weights():
    tower = dataclasses.replace(agent_config("simbav2"), critic_width=8).critic_tower
    blank = Critic(tower, SPEC, bins=5)
    keys = jax.random.split(jax.random.key(0))
    twins = jax.vmap(lambda key: sphere_weights(blank, key))(keys)
    for layer in unit_layers(twins):
        assert not np.allclose(layer.kernel[0], layer.kernel[1])
