"""NumPy policies against the JAX policies that they were traced from."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.policy_tracing import host_parameters, trace, trace_exploration, trace_greedy
from r2r2.config.agents import AGENTS
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member, Spec
from r2r2.policy.actor import BLOCK, Actor, UniformActions
from r2r2.policy.program import FUNCTIONS, BoundProgram
from r2r2.replay.normalizer import Scales
from r2r2.training.acting import explores_ahead, make_actors, parameters
from r2r2.training.run_config import finalize_config
from small_fleets import small

SPEC = Spec(obs_dim=7, action_dim=3)
MEMBERS = (Member("Hopper-v5", 3), Member("Hopper-v5", 4))
NOISE = jax.ShapeDtypeStruct((SPEC.action_dim,), jnp.float32)


def agent_and_policies(name, count=1):
    """Return a small agent, and behavior and evaluation policies [count, ...]."""
    agent = build_agent(small(name), SPEC, 1)
    # Biases and gains are constants at the start; move everything.
    keys = iter(jax.random.split(jax.random.key(2), 500))

    def move(leaf):
        shape = count, *leaf.shape
        if leaf.dtype.kind == "i":  # numbers of updates
            return jax.random.randint(next(keys), shape, 10, 100, leaf.dtype)
        return 0.4 * jax.random.normal(next(keys), shape, leaf.dtype)

    policies = agent.behavior_policy, agent.eval_policy
    shapes = (jax.eval_shape(policy, state_shapes(agent)) for policy in policies)
    return agent, *(jax.tree.map(move, shape) for shape in shapes)


def member_of(tree, member):
    return jax.tree.map(lambda leaf: leaf[member], tree)


def observations(rng):
    ordinary = rng.normal(size=(100, SPEC.obs_dim)) * 3
    extreme = np.array([0, 1e-30, -1e-8, 1e4, -1e6, 3e18])[:, None] * np.ones(SPEC.obs_dim)
    return np.concatenate([ordinary, extreme]).astype(np.float32)


@pytest.mark.parametrize("name", AGENTS)
def test_actions_equal_those_of_jax(name):
    agent, policy, _ = agent_and_policies(name)
    policy, rng = member_of(policy, 0), np.random.default_rng(0)
    values, obs = host_parameters(policy), observations(rng)
    explore = BoundProgram(trace_exploration(agent, policy, SPEC.obs_dim, NOISE), values)
    greedy = BoundProgram(trace_greedy(agent, policy, SPEC.obs_dim), values)
    noise = rng.normal(size=(len(obs), SPEC.action_dim)).astype(np.float32)
    with np.errstate(all="ignore"):
        explored = np.stack([explore(x, n) for x, n in zip(obs, noise, strict=True)])
        exploited = np.stack([greedy(x) for x in obs])
    assert explored.dtype == exploited.dtype == np.float32
    expected = jax.jit(jax.vmap(agent.explore, (None, 0, 0)))(policy, obs, noise)
    np.testing.assert_allclose(explored, expected, atol=1e-5)
    expected = jax.jit(jax.vmap(agent.greedy, (None, 0)))(policy, obs)
    np.testing.assert_allclose(exploited, expected, atol=1e-5)
    assert np.abs(explored - exploited).max() > 0.01
    assert exploited.std(axis=0).min() > 0.01


def run_config(name) -> RunConfig:
    config = finalize_config(resolve({"agent": name, "env": "Hopper-v5"}))
    return dataclasses.replace(config, agent=small(name))


@pytest.mark.parametrize("name", ["td7+r2r2", "simbav2-spl+r2r2", "minphi"])
def test_actors_of_a_fleet_act_as_its_members(name):
    config, rng = run_config(name), np.random.default_rng(1)
    agent, behavior, evaluation = agent_and_policies(name, len(MEMBERS))
    actors, scales = make_actors(config, MEMBERS, SPEC), None
    assert actors.seeds == (3, 4)
    assert agent.normalizes == actors.greedy.normalizes == ("simba" in name)
    if agent.normalizes:
        mean, deviation = rng.normal(size=(2, 2, SPEC.obs_dim))
        scales = Scales(mean, 0.1 + np.abs(deviation), np.ones(2))
    obs = 5 * rng.normal(size=SPEC.obs_dim)
    for member in range(2):
        actor = Actor(actors.greedy, parameters(evaluation, scales, member))
        seen = (obs - scales.mean[member]) / scales.deviation[member] if scales else obs
        expected = jax.jit(agent.greedy)(member_of(evaluation, member), seen.astype(np.float32))
        np.testing.assert_allclose(actor(obs), expected, atol=1e-5)
    assert (actors.explore is not None) == explores_ahead(config.agent) == ("td7" in name)
    if actors.explore is not None:
        noise = rng.normal(size=actors.noise).astype(np.float32)
        actor = Actor(actors.explore, parameters(behavior, None, 1))
        expected = jax.jit(agent.explore)(member_of(behavior, 1), obs.astype(np.float32), noise)
        np.testing.assert_allclose(actor(obs, noise), expected, atol=1e-5)


def test_parameters_are_the_same_in_shared_memory():
    spec = make_actors(run_config("simbav2"), MEMBERS, SPEC).greedy
    rng = np.random.default_rng(2)
    values = [rng.normal(size=shape).astype(x) for shape, x in zip(*spec[1:3], strict=True)]
    memory = np.zeros((2, spec.nbytes), np.uint8)
    spec.write(memory[1], values)
    assert not memory[0].any()
    for view, value, used in zip(spec.views(memory[1]), values, spec.used, strict=True):
        assert view.dtype == value.dtype
        np.testing.assert_array_equal(view, value if used else [])


def test_only_parameters_that_actions_use_travel():
    spec = make_actors(run_config("td7"), MEMBERS, SPEC).explore
    used = sum(math.prod(shape) for shape, x in zip(spec.shapes, spec.used, strict=True) if x)
    total = sum(map(math.prod, spec.shapes))
    assert used < 0.8 * total  # without the encoder of state and action
    assert 4 * used <= spec.nbytes < 4 * used + 64 * len(spec.shapes)


@pytest.mark.parametrize("name", AGENTS)
def test_simplified_programs_return_the_same_bits(name):
    """Every operation of a program in its order, one by one, gives what the bound one gives."""
    agent, policy, _ = agent_and_policies(name)
    policy, rng = member_of(policy, 0), np.random.default_rng(0)
    program = trace_exploration(agent, policy, SPEC.obs_dim, NOISE)
    parameters = host_parameters(policy)
    bound = BoundProgram(program, parameters)
    assert len(bound._steps) < 0.9 * len(program.operations)
    for obs in observations(rng):
        noise = rng.normal(size=SPEC.action_dim).astype(np.float32)
        values = dict(enumerate([*parameters, obs, noise, *program.constants]))
        with np.errstate(all="ignore"):
            for name_, inputs, output, settings in program.operations:
                function = FUNCTIONS[name_]
                values[output] = function(*(values[index] for index in inputs), **settings)
            actual = bound(obs, noise)
        np.testing.assert_array_equal(actual, values[program.output])


def traced(function, *arrays):
    """Return what the NumPy program of a function of arrays returns."""
    arrays = [np.asarray(x) for x in arrays]
    return BoundProgram(trace(lambda _, *x: function(*x), (), *arrays), ())(*arrays)


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.nn.softmax(x, axis=1),
        lambda x: jax.nn.elu(x) + jax.nn.relu(x) * jax.nn.silu(x),
        lambda x: jnp.where(x > 0.5, x, -x) % 0.3,
        lambda x: jnp.concatenate([x[1:, ::2], x[:2, :2] ** 3], axis=1).T,
        lambda x: jnp.einsum("ij,kj->ik", x, x) + jnp.array([1.0, 2, 3]),
        lambda x: jnp.tensordot(x[0], x, ((0,), (1,))),
        lambda x: jnp.clip(x / jnp.linalg.norm(x, axis=0), -0.5, 0.5).max(axis=1),
        lambda x: jax.lax.rsqrt(jnp.square(x) + 1).sum(),
        lambda x: (x > 0) & ~(x > 1) | (x == x[0, 0]),
    ],
)
def test_programs_equal_their_functions(function):
    with jax.numpy_rank_promotion("allow"), np.errstate(all="ignore"):
        actual, expected = traced(function, X), function(X)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_unsupported_operation_is_named():
    with pytest.raises(NotImplementedError, match="'cumsum' has no NumPy program"):
        trace(lambda policy, obs: jnp.cumsum(obs) * policy, jnp.ones(()), jnp.zeros(3))


def test_operations_on_parameters_run_once():
    program = trace(lambda policy, obs: obs @ jnp.exp(policy), jnp.zeros((3, 2)), jnp.zeros(3))
    policy = np.zeros((3, 2), np.float32)
    bound = BoundProgram(program, [policy])
    policy[:] = 9  # too late
    np.testing.assert_array_equal(bound(np.ones(3, np.float32)), [3, 3])


def test_random_actions_are_functions_of_seed_and_step():
    actions = UniformActions(3, 2)
    steps = [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 1, 10**9]
    drawn = [actions(step).copy() for step in steps]
    for step, action in zip(steps, drawn, strict=True):
        np.testing.assert_array_equal(UniformActions(3, 2)(step), action)
    np.testing.assert_array_equal(drawn[1], drawn[5])
    assert len(np.unique(drawn)) == 2 * (len(steps) - 1)
    assert not np.isin(UniformActions(4, 2)(0), drawn).any()
    many = np.stack([actions(step) for step in range(1000)])
    # Uniform on [-1, 1]: mean 0, deviation 0.577, and both ends reached.
    assert abs(many.mean(axis=0)).max() < 0.06
    assert 0.55 < many.std(axis=0).min() < many.std(axis=0).max() < 0.6
    assert many.max() > 0.99
    assert many.min() < -0.99
    assert np.abs(np.corrcoef(many[1:, 0], many[:-1, 0])[0, 1]) < 0.1
