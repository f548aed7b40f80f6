"""`r2r2.make_agent`: agents for a training loop of one's own."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import r2r2
from r2r2 import Agent, Batch, Update, UserError, make_agent
from r2r2.agents import registry
from r2r2.envs.spec import Spec
from small_fleets import SPEC, small

UPDATES = 6  # past the sync of TD7's targets, every 5 updates
# One agent per algorithm: the others have the same update, with other weights or layers.
every_algorithm = pytest.mark.parametrize(
    "name",
    ["td7+r2r2"]
    + [
        pytest.param(x, marks=pytest.mark.slow)
        for x in ("minphi+r2r2", "simbav2", "simbav2-spl+r2r2")
    ],
)


def small_agent(name: str) -> Agent:
    return make_agent(small(name), *SPEC)


def batches(agent: Agent, seed: int) -> Batch:
    """Return the batches of some updates, [updates, B, ...]."""
    rng, rows = np.random.default_rng(seed), (UPDATES, agent.batch_size)
    obs, next_obs = rng.normal(size=(2, *rows, 4))
    action, reward = rng.uniform(-1, 1, (*rows, 2)), rng.normal(size=rows)
    return Batch(obs, action, reward, next_obs, rng.random(rows) < 0.1)


def trained(agent: Agent, key, batches: Batch, wrap=lambda function, *_: function):
    """Return the state after some updates, and the last update's output."""

    def one(state, key, batch, step):
        noise = agent.update_noise(jax.random.fold_in(key, step))
        return agent.update(state, batch, noise, step)

    init, update = jax.jit(wrap(agent.init, 0)), jax.jit(wrap(one, (0, 0, 0, None)))
    state, out = init(key), None
    for step in range(UPDATES):
        batch = Batch(*(field[step] for field in batches))
        state, out = update(state, key, batch, step + 1)
    return state, out


@every_algorithm
def test_agents_mapped_over_seeds_equal_each_alone(name):
    with jax.enable_x64(True):
        agent = small_agent(name)
        keys = jax.random.split(jax.random.key(0), 2)
        data = [batches(agent, seed) for seed in (0, 1)]
        both = Batch(*(np.stack(fields, axis=1) for fields in zip(*data, strict=True)))
        together = trained(agent, keys, both, wrap=jax.vmap)
        alone = trained(agent, keys[1], data[1])
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf: leaf[1], together), alone, rtol=1e-9, atol=1e-12
        )
        assert alone[1].metrics["loss/critic"].total.dtype == jnp.float64


def test_update_moves_the_targets_when_they_are_due(monkeypatch):
    record = registry.build_agent(small("td7"), SPEC, 1)
    out = Update(None, {})
    idle = record._replace(update=lambda state, batch, noise, step: (state, out))
    monkeypatch.setattr(registry, "build_agent", lambda *_: idle)
    agent = small_agent("td7")
    assert (agent.sync_period, record.sync_period) == (0, 5)
    first = jax.jit(agent.init)(jax.random.key(0))
    first = first._replace(actor=jax.tree.map(lambda x: x + 1, first.actor))
    batch = Batch(*(field[0] for field in batches(agent, 0)))
    for step in range(1, 11):
        state, same = agent.update(first, batch, None, step)
        assert same is out
        chex.assert_trees_all_equal(state, first if step % 5 else record.sync(first))
    assert not np.array_equal(first.actor_target.embed.kernel, state.actor_target.embed.kernel)


def test_initial_state_is_that_of_a_run_of_the_default_length():
    agent = make_agent(small("simbav2"), *SPEC, utd=4)

    def horizon(*updates):
        return agent.init(jax.random.key(0), *updates).horizon

    assert jax.jit(horizon)() == r2r2.RunConfig().steps * 4
    assert jax.jit(horizon)(7) == 7


def test_settings_are_given_by_short_or_full_name_or_as_a_config():
    by_name = make_agent("td7+r2r2", 4, 2, width=16, lambda_rr=0, batch_size=8)
    config = r2r2.agent_config("td7+r2r2")
    weights = dataclasses.replace(config.representation, lambda_rr=0.0)
    config = dataclasses.replace(config, width=16, representation=weights)
    by_config = make_agent(config, 4, 2, **{"agent.batch_size": 8})

    def names(agent):
        key = jax.random.key(0)
        state, noise = jax.eval_shape(agent.init, key), agent.update_noise(key)
        batch = Batch(*(field[0] for field in batches(agent, 0)))
        state, out = jax.eval_shape(agent.update, state, batch, noise, 1)
        return jax.tree.map(lambda x: x.shape, state), sorted(out.metrics)

    assert names(by_name) == names(by_config)
    assert "representation/redundancy" not in names(by_name)[1]
    assert "representation/variance" in names(by_name)[1]


@pytest.mark.parametrize("name", ["td7", "minphi", "simbav2-spl"])
def test_observations_may_be_single_or_in_batches(name):
    agent = small_agent(name)

    def outputs(state, obs):
        policy, noise = agent.behavior_policy(state), jnp.ones_like(obs)[..., :2]
        actions = agent.greedy(policy, obs), agent.explore(policy, obs, noise)
        return *actions, agent.encode(state, obs)

    state = jax.eval_shape(agent.init, jax.random.key(0))
    for rows in ((), (3,), (2, 3)):
        shapes = [x.shape for x in jax.eval_shape(outputs, state, jnp.ones((*rows, 4)))]
        assert shapes == [(*rows, 2), (*rows, 2), (*rows, 12)]


@pytest.mark.parametrize(
    ("arguments", "fields", "message"),
    [
        (("td8", 3, 1), {}, "agent: expected one of .*did you mean 'td7'"),
        ((None, 3, 1), {}, "agent: expected a name or an AgentConfig, got None"),
        (("td7", 0, 1), {}, "obs_dim: expected an integer from 1 to 1048576, got 0"),
        (("td7", 3, 1.5), {}, "action_dim: expected an integer from 1 to 1048576, got 1.5"),
        (("td7", "3", 1), {}, "obs_dim: expected an integer from 1 to 1048576, got '3'"),
        (("td7", 3, 1), {"utd": 0}, "utd: expected an integer >= 1, got 0"),
        (("td7", 3, 1), {"widht": 8}, "widht: unknown field; did you mean 'width'"),
        (("td7", 3, 1), {"steps": 8}, "steps: unknown field"),
        (("td7", 3, 1), {"width": "wide"}, "agent.width: expected an integer from 1"),
        (("simbav2", 3, 1), {}, r"agent.critics: 0 \(automatic\) depends on .* critics=2"),
        (("simbav2", 3, 1), {"critics": 1}, "agent.discount: 0 .* such as discount=0.99"),
        (("td7", 3, 1), {"extra": "missing:loss"}, "extra: cannot import 'missing'"),
    ],
)
def test_wrong_arguments_are_reported_in_one_sentence(arguments, fields, message):
    with pytest.raises(UserError, match=message):
        make_agent(*arguments, **fields)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", np.zeros((8, 1)), r"batch.reward: expected shape \(8,\), got \(8, 1\)"),
        ("obs", np.zeros((8, 5)), r"batch.obs: expected shape \(8, 4\), got \(8, 5\)"),
        ("terminated", np.zeros(4), r"batch.terminated: expected shape \(8,\), got \(4,\)"),
    ],
)
def test_batches_of_wrong_shape_are_reported(field, value, message):
    agent = small_agent("td7")
    batch = Batch(*(x[0] for x in batches(agent, 0)))._replace(**{field: value})
    state, noise = jax.eval_shape(agent.init, jax.random.key(0)), jnp.zeros((8, 2))
    with pytest.raises(UserError, match=message):
        jax.eval_shape(agent.update, state, batch, noise, 1)


def test_agents_of_users_are_made_by_name():
    agent = make_agent("external_td3:TD3", *Spec(3, 1), width=8)
    assert agent.policy_period == 2
    assert agent.encode is None
