"""The parts of Minimalist phi's update, as its specification defines them."""

import dataclasses
import functools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.base import Batch
from r2r2.agents.minphi import init, minphi, phase_a, phase_b, phase_c, value_target
from r2r2.agents.networks.minphi import noise_deviation, straight_through_clip
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.config.agent_configs import MinPhiConfig
from r2r2.config.common import Representation
from r2r2.envs.spec import Spec

SPEC = Spec(obs_dim=5, action_dim=2)
CONFIG = MinPhiConfig(width=16, model_width=24, latent=8, batch_size=6)
NETWORKS = ("encoder", "encoder_target", "model", "critic", "critic_target", "actor")


@functools.cache
def start():
    """Return a state whose targets differ from its networks."""
    state, other = (
        jax.jit(lambda key: init(CONFIG, SPEC, key))(jax.random.key(seed)) for seed in (0, 1)
    )
    return state._replace(encoder_target=other.encoder, critic_target=other.critic)


def batch(rows: int = CONFIG.batch_size) -> Batch:
    rng = np.random.default_rng(0)
    obs, next_obs = jnp.asarray(rng.normal(size=(2, rows, SPEC.obs_dim)), float)
    return Batch(
        obs=obs,
        action=jnp.asarray(rng.uniform(-1, 1, (rows, SPEC.action_dim)), float),
        reward=jnp.asarray(rng.normal(size=rows), float),
        next_obs=next_obs,
        terminated=jnp.arange(rows) == 0,
    )


def noise():
    return jax.random.normal(jax.random.key(2), (CONFIG.batch_size, SPEC.action_dim))


def shown(phase: str, config, state) -> dict:
    """Return the metrics of one phase."""
    if phase == "a":
        return phase_a(config, state, batch(), noise())[1]
    if phase == "b":
        return phase_b(config, state, batch(), noise())[2]
    z = state.encoder(batch().obs)
    return phase_c(config, state, jax.lax.stop_gradient(z), noise())[1]


LOSSES = {
    "representation/spl": "a",
    "representation/redundancy": "a",
    "representation/variance": "a",
    "loss/encoder_actor": "a",
    "loss/critic": "b",
    "loss/actor": "c",
}


@functools.cache
def reached() -> dict[str, set[str]]:
    """Return for each loss the networks to which it has a gradient."""
    weights = Representation(lambda_rr=0.01, lambda_var=0.01)
    config = dataclasses.replace(CONFIG, representation=weights)
    state = start()

    def losses(networks):
        changed = state._replace(**networks)
        phases = {phase: shown(phase, config, changed) for phase in "abc"}
        return {metric: phases[phase][metric] for metric, phase in LOSSES.items()}

    networks = {name: getattr(state, name) for name in NETWORKS}
    grads = jax.jit(jax.jacrev(losses))(networks)
    return {
        loss: {n for n in NETWORKS if any(x.any() for x in jax.tree.leaves(grad[n]))}
        for loss, grad in grads.items()
    }


@pytest.mark.slow
def test_networks_to_which_each_loss_has_a_gradient():
    expected = {
        "representation/spl": {"encoder", "model"},
        "representation/redundancy": {"encoder"},
        "representation/variance": {"encoder"},
        # Of these phase A steps only the encoder.
        "loss/encoder_actor": {"encoder", "critic", "actor"},
        "loss/critic": {"encoder", "critic"},
        # Of these phase C steps only the actor.
        "loss/actor": {"critic", "actor"},
    }
    assert reached() == expected


def test_the_actor_loss_reaches_the_encoder_only_through_the_actor_input():
    state = start()
    deaf = jax.tree.map(jnp.zeros_like, state.actor)

    def loss(encoder, actor):
        changed = state._replace(encoder=encoder, actor=actor)
        return shown("a", CONFIG, changed)["loss/encoder_actor"]

    grad = jax.jit(jax.grad(loss))
    for actor, reached in ((state.actor, True), (deaf, False)):
        leaves = jax.tree.leaves(grad(state.encoder, actor))
        assert any(leaf.any() for leaf in leaves) is reached


def changed(before, after) -> set[str]:
    return {
        name
        for name in before._fields
        if not all(
            np.array_equal(old, new)
            for pair in [(getattr(before, name), getattr(after, name))]
            for old, new in zip(*map(jax.tree.leaves, pair), strict=True)
        )
    }


def test_networks_that_each_phase_changes():
    state = start()
    a, b, c = (jax.jit(functools.partial(f, CONFIG)) for f in (phase_a, phase_b, phase_c))
    after = a(state, batch(), noise())[0]
    assert changed(state, after) == {"encoder", "encoder_adam", "model", "model_adam"}
    after, z, _ = b(state, batch(), noise())
    stepped = {"encoder", "encoder_adam", "critic", "critic_adam"}
    assert changed(state, after) == stepped
    np.testing.assert_allclose(z, state.encoder(batch().obs), rtol=1e-5, atol=1e-6)
    after = c(state, z, noise())[0]
    assert changed(state, after) == {"actor", "actor_adam"}


def updated(config=CONFIG, times: int = 1):
    agent = minphi(config, SPEC, utd=1)
    state, update = start(), jax.jit(agent.update)
    draws = jax.random.normal(jax.random.key(3), (3, config.batch_size, 2))
    for step in range(times):
        state = update(state, batch(2 * config.batch_size), draws, step + 1)[0]
    return state


@pytest.mark.parametrize("phantom", [False, True])
def test_adam_steps_of_one_update(phantom):
    config = dataclasses.replace(CONFIG, phantom_model_step=phantom)
    state = updated(config)
    steps = {
        name: int(getattr(state, f"{name}_adam")[0].count)
        for name in ("encoder", "model", "critic", "actor")
    }
    assert steps == {"encoder": 2, "model": 1 + phantom, "critic": 1, "actor": 1}


def test_the_two_batches_are_halves_of_the_sampled_one():
    """Phase A sees the first half, phases B and C the second."""
    agent = minphi(CONFIG, SPEC, utd=1)
    rows = batch(2 * CONFIG.batch_size)
    draws = jax.random.normal(jax.random.key(3), (3, CONFIG.batch_size, 2))
    update = jax.jit(lambda rows: agent.update(start(), rows, draws, 1)[1].metrics)
    plain = update(rows)
    second = update(rows._replace(reward=rows.reward.at[CONFIG.batch_size :].add(1)))
    first = update(rows._replace(reward=rows.reward.at[: CONFIG.batch_size].add(1)))
    assert plain["loss/critic"].total != second["loss/critic"].total
    # Phase A reads no rewards.
    chex.assert_trees_all_equal(plain, first)
    moved = rows._replace(obs=rows.obs.at[: CONFIG.batch_size].add(1))
    assert plain["loss/encoder"].total != update(moved)["loss/encoder"].total
    moved = rows._replace(obs=rows.obs.at[CONFIG.batch_size :].add(1))
    assert plain["loss/encoder"].total == update(moved)["loss/encoder"].total


def test_targets_move_by_the_polyak_coefficient():
    before, after = start(), updated()
    for name in ("encoder", "critic"):
        trees = (
            getattr(after, f"{name}_target"),
            getattr(before, f"{name}_target"),
            getattr(after, name),
        )
        for new, old, online in zip(*map(jax.tree.leaves, trees), strict=True):
            expected = old + 0.005 * (online - old)
            np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-7)


def test_terminated_rows_do_not_bootstrap():
    rows = batch()
    target = jax.jit(functools.partial(value_target, CONFIG))(start(), rows, noise())
    assert target[0] == rows.reward[0]
    assert not np.any(target[1:] == rows.reward[1:])


def test_self_prediction_sums_over_features():
    state = start()
    model, target = jax.tree.map(jnp.zeros_like, (state.model, state.encoder_target))
    half = jnp.full(CONFIG.latent, 0.5)
    model = eqx.tree_at(lambda model: model.layers[-1].bias, model, half)
    state = state._replace(model=model, encoder_target=target)
    spl = jax.jit(lambda: shown("a", CONFIG, state)["representation/spl"])()
    np.testing.assert_allclose(spl, CONFIG.latent * 0.25, rtol=1e-6)


@pytest.mark.parametrize(
    ("decisions", "deviation"), [(0, 1.0), (50_000, 0.55), (100_000, 0.1), (2_000_000, 0.1)]
)
def test_noise_falls_linearly(decisions, deviation):
    actual = noise_deviation(MinPhiConfig(), jnp.asarray(decisions))
    np.testing.assert_allclose(actual, deviation, rtol=1e-6)


@pytest.mark.parametrize("utd", [1, 4])
def test_noise_follows_decisions_not_updates(utd):
    """Acting counts the decisions before this one, learning also this one."""
    config = dataclasses.replace(CONFIG, noise_steps=10, noise_clip=10.0)
    agent, state = minphi(config, SPEC, utd), start()
    obs, ones = jnp.zeros(SPEC.obs_dim), jnp.full(SPEC.action_dim, 1e-3)
    for updates in range(3 * utd):
        policy = agent.behavior_policy(state._replace(updates=jnp.asarray(updates)))
        added = agent.explore(policy, obs, ones) - agent.greedy(policy, obs)
        expected = 1e-3 * (1 - 0.09 * (updates // utd))
        np.testing.assert_allclose(added, expected, rtol=1e-3)
    rows = batch(2 * CONFIG.batch_size)
    draws = jax.random.normal(jax.random.key(3), (3, CONFIG.batch_size, 2))
    update = jax.jit(lambda n: agent.update(state._replace(updates=n), rows, draws, 1))
    losses = [float(update(n)[1].metrics["loss/actor"].total) for n in range(2 * utd)]
    assert len(set(losses[:utd])) == len(set(losses[utd:])) == 1
    assert losses[0] != losses[utd]


def test_clipped_actions_have_the_gradient_of_the_identity():
    value, grad = jax.value_and_grad(lambda x: straight_through_clip(x, 0.9))(1.7)
    assert (np.float32(value), grad) == (np.float32(0.9), 1)


def test_evaluation_uses_the_unclipped_mean():
    config = dataclasses.replace(CONFIG, action_margin=0.999)
    agent, state = minphi(config, SPEC, utd=1), start()
    obs = batch().obs
    mean = state.actor(state.encoder(obs))
    assert np.abs(mean).max() > 0.001
    np.testing.assert_array_equal(agent.greedy(agent.eval_policy(state), obs), mean)


def test_gradients_of_encoder_and_model_are_clipped_together():
    """The first moment shows the scale of gradients, which Adam's step hides."""
    config = dataclasses.replace(CONFIG, gradient_clip=0.01)
    step = jax.jit(functools.partial(phase_a, config))
    after, metrics = step(start(), batch(), noise())
    moments = after.encoder_adam[0].mu, after.model_adam[0].mu
    squares = sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(moments))
    assert metrics["gradient/phase_a"] > 1
    np.testing.assert_allclose(squares**0.5, 0.1 * 0.01, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ((17, 6), (297_522, 1_159_218, 586_754, 291_846)),
        ((11, 3), (294_450, 1_156_146, 583_682, 290_307)),
        ((111, 8), (345_650, 1_161_266, 588_802, 292_872)),
        ((376, 17), (481_330, 1_170_482, 598_018, 297_489)),
        ((105, 8), (342_578, 1_161_266, 588_802, 292_872)),
        ((348, 17), (466_994, 1_170_482, 598_018, 297_489)),
    ],
)
def test_parameter_counts_at_the_default_width(sizes, counts):
    state = state_shapes(build_agent(MinPhiConfig(), Spec(*sizes), 1))
    networks = (state.encoder, state.model, state.critic, state.actor)
    actual = [sum(leaf.size for leaf in jax.tree.leaves(net)) for net in networks]
    assert tuple(actual) == counts


def test_kernels_start_orthogonal_and_biases_at_zero():
    state = jax.jit(lambda key: init(CONFIG, SPEC, key))(jax.random.key(0))
    for layer in (*state.encoder.layers, *state.model.layers, *state.actor.layers):
        assert not layer.bias.any()
        kernel = np.asarray(layer.kernel)
        if kernel.shape[0] < kernel.shape[1]:
            kernel = kernel.T
        np.testing.assert_allclose(kernel.T @ kernel, np.eye(kernel.shape[1]), atol=1e-5)
    chex.assert_trees_all_equal(state.encoder, state.encoder_target)
    chex.assert_trees_all_equal(state.critic, state.critic_target)
