import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.losses.representation import redundancy, variance_hinge
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.update import Data
from r2r2.config.agents import agent_config
from r2r2.config.common import Representation
from r2r2.config.run import DiagnosticsConfig
from r2r2.diagnostics.latent_probe import LatentProbe, existing_rows, fixed_rows
from r2r2.envs.spec import Spec
from r2r2.replay.buffer import Rows
from r2r2.replay.normalizer import Scales

SPEC, MEMBERS, RING = Spec(obs_dim=5, action_dim=2), 2, 90
SIZES = {"width": 12, "model_width": 12, "latent": 8, "actor_width": 8}
SIZES |= {"critic_width": 8, "bins": 11, "critics": 2, "discount": 0.97}
ENCODERS = ["td7", "minphi", "simbav2-spl"]
MANY = DiagnosticsConfig(probe_batch=500)


def small(name: str):
    config = agent_config(name)
    fields = {field.name for field in dataclasses.fields(config)}
    sizes = {field: size for field, size in SIZES.items() if field in fields}
    return dataclasses.replace(config, **sizes)


@functools.cache
def fleet(name: str):
    """An agent, two members' states whose networks all differ, and their data."""
    agent = build_agent(small(name), SPEC, 1)
    rng = np.random.default_rng(0)
    states = jax.tree.map(
        lambda x: rng.normal(0.1, 0.3, (MEMBERS, *x.shape)).astype(x.dtype), state_shapes(agent)
    )
    shape = MEMBERS, RING
    rows = Rows(
        obs=jnp.asarray(rng.normal(2, 1, (*shape, SPEC.obs_dim))),
        action=jnp.zeros((*shape, SPEC.action_dim)),
        reward=jnp.zeros(shape),
        terminated=jnp.zeros(shape, bool),
    )
    scales = Scales(
        mean=jnp.asarray(rng.normal(2, 1, (MEMBERS, SPEC.obs_dim))),
        deviation=jnp.asarray(rng.uniform(0.5, 2, (MEMBERS, SPEC.obs_dim))),
        reward=jnp.ones(MEMBERS),
    )
    return agent, states, Data(rows, scales if agent.normalizes else None)


def one(tree, member: int):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[member], tree)


def make_probe(name: str, weights: Representation, count: int = 64) -> LatentProbe:
    return LatentProbe(fleet(name)[0], weights, [4, 7], DiagnosticsConfig(probe_batch=count))


@pytest.mark.parametrize("name", ENCODERS)
def test_member_is_diagnosed_on_its_own_rows(name):
    agent, states, data = fleet(name)
    weights = Representation(zero_centred=True, variance_threshold=0.4)
    diagnosis, numbers = make_probe(name, weights).latents(1, data, states, RING - 1).diagnose()
    obs = data.rows.obs[1, existing_rows(fixed_rows(7, DiagnosticsConfig(probe_batch=64)), RING)]
    if data.scales is not None:
        mean, deviation = (jnp.broadcast_to(x[1], obs.shape) for x in data.scales[:2])
        obs = (obs - mean) / deviation
    z = jax.jit(agent.encode)(one(states, 1), obs)
    expected = np.linalg.svd(np.asarray(z, np.float64), compute_uv=False)
    np.testing.assert_allclose(
        diagnosis.singular_values, expected, rtol=1e-5, atol=1e-6 * expected[0]
    )
    assert numbers["redundancy"] == pytest.approx(float(redundancy(z, True)), rel=1e-4)
    assert numbers["variance_hinge"] == pytest.approx(float(variance_hinge(z, 0.4)), rel=1e-4)
    assert numbers["effective_rank"] == diagnosis.effective_rank


def test_one_program_serves_all_members_and_replay_lengths():
    _, states, data = fleet("td7")
    probe = make_probe("td7", Representation())
    for member, opened in ((0, 3), (1, 3), (0, 50), (1, RING + 7)):
        probe.latents(member, data, states, opened)
    assert probe._latents._cache_size() == 1


def test_rows_stay_the_same_once_they_exist():
    rows = fixed_rows(4, MANY)
    assert len(set(rows.tolist())) == 500
    assert 0 <= rows.min() < rows.max() < MANY.probe_rows
    np.testing.assert_array_equal(rows, fixed_rows(4, MANY))
    assert (rows != fixed_rows(5, MANY)).any()
    for count in (MANY.probe_rows, 10**6):
        np.testing.assert_array_equal(existing_rows(rows, count), rows)


def test_rows_of_earlier_versions_stay_the_same():
    rows = fixed_rows(4, DiagnosticsConfig())
    expected = np.random.default_rng([4, 4096]).permutation(40_960)[:4096]
    np.testing.assert_array_equal(rows, expected)


def test_all_rows_are_used_if_there_are_as_many_as_observations():
    rows = fixed_rows(4, DiagnosticsConfig(probe_batch=30, probe_rows=30))
    assert sorted(rows.tolist()) == list(range(30))


def test_earlier_rows_replace_missing_ones():
    rows = fixed_rows(4, MANY)
    early = existing_rows(rows, count=100)
    assert early.max() == 99
    assert len(set(early.tolist())) > 90
    exists = rows <= 20_000
    np.testing.assert_array_equal(existing_rows(rows, count=20_001)[exists], rows[exists])


def test_full_replay_uses_all_its_rows():
    """Rows are numbered from the first of the run."""
    _, states, data = fleet("td7")
    probe, asked = make_probe("td7", Representation(), count=500), []
    probe._latents = lambda *given: asked.append(given[-1]) or (np.eye(2), {})
    for opened in (RING - 1, RING, 10 * RING):
        probe.latents(0, data, states, opened)
    for rows in asked:
        assert set(np.asarray(rows).tolist()) == set(range(RING))
        np.testing.assert_array_equal(rows, asked[0])


def test_agent_without_encoder_is_refused():
    agent = build_agent(small("simbav2"), SPEC, 1)
    assert agent.encode is None
    with pytest.raises(ValueError, match="no encoder"):
        LatentProbe(agent, Representation(), [0], MANY)


def changed(state, path: str):
    """Return the state with one network changed."""
    first, _, rest = path.partition("/")
    part = getattr(state, first)
    new = changed(part, rest) if rest else jax.tree.map(lambda x: x * 1.5 + 0.1, part)
    return state._replace(**{first: new})


VALUES_OF = {
    "td7": {"fixed_encoder", "critic"},
    "minphi": {"encoder", "critic"},
    "simbav2": {"critic"},
    "simbav2-spl": {"encoder_target", "model_target", "base/critic"},
}


def networks(state, prefix: str = ""):
    for name in state._fields:
        part = getattr(state, name)
        if name == "base":
            yield from networks(part, "base/")
        elif not name.endswith("_adam") and name not in ("updates", "horizon"):
            yield prefix + name


@pytest.mark.parametrize("name", ENCODERS)
def test_latents_depend_on_the_trained_encoder_alone(name):
    agent, states, data = fleet(name)
    state, obs = one(states, 0), data.rows.obs[0, :6]
    latents = jax.jit(agent.encode)
    z = latents(state, obs)
    assert z.shape == (6, SIZES["latent"])
    moved = {
        network
        for network in networks(state)
        if not np.array_equal(z, latents(changed(state, network), obs))
    }
    assert moved == {"encoder"}


@pytest.mark.parametrize("name", VALUES_OF)
def test_values_depend_on_critics_and_their_inputs_alone(name):
    agent, states, data = fleet(name)
    state, obs = one(states, 0), data.rows.obs[0, :6]
    action = jnp.full((6, 2), 0.3)
    value = jax.jit(agent.value)
    q = value(state, obs, action)
    assert q.shape == (6,)
    moved = {
        network
        for network in networks(state)
        if not np.array_equal(q, value(changed(state, network), obs, action))
    }
    assert moved == VALUES_OF[name]


@pytest.mark.parametrize("name", VALUES_OF)
def test_value_is_the_smaller_critic(name):
    agent, states, data = fleet(name)
    state, obs = one(states, 0), data.rows.obs[0, :40]
    action = jnp.full((40, 2), 0.3)
    inner = state.base if name == "simbav2-spl" else state

    def with_twin(which: int):
        both = jax.tree.map(lambda x: jnp.stack([x[which], x[which]]), inner.critic)
        new = inner._replace(critic=both)
        return state._replace(base=new) if name == "simbav2-spl" else new

    value = jax.jit(agent.value)
    twins = [value(with_twin(which), obs, action) for which in (0, 1)]
    assert (twins[0] != twins[1]).all()
    np.testing.assert_allclose(value(state, obs, action), np.minimum(*twins), rtol=1e-5, atol=1e-6)


def test_expected_values_use_the_evaluated_policy():
    agent, states, data = fleet("td7")
    obs = data.rows.obs[1, :6]
    values = make_probe("td7", Representation()).values(1, states, obs)
    state, value = one(states, 1), jax.jit(agent.value)

    def of(policy):
        return value(state, obs, jax.jit(agent.greedy)(policy, obs))

    np.testing.assert_allclose(values, of(agent.eval_policy(state)), rtol=1e-5)
    assert (np.abs(values - of(agent.behavior_policy(state))) > 1e-4).all()
