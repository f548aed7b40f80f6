"""Programs of batches against the same programs row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from policy_parts import real_observations, sample
from r2r2.compute.policy_tracing import trace
from r2r2.config.agents import AGENTS
from r2r2.policy.batching import batch_program
from r2r2.policy.program import BoundProgram, Operation


@pytest.mark.parametrize("name", AGENTS)
def test_a_batch_equals_its_rows_for_every_agent(name):
    parts = sample(name).parts
    obs = (3 * real_observations()[::25]).astype(np.float32)
    batched = batch_program(parts.program, parts.parameters, obs[0])
    rows, batch = (BoundProgram(x, parts.parameters) for x in (parts.program, batched))
    expected = np.stack([rows(x) for x in obs])
    assert expected.std(axis=0).min() > 0.01
    for size in (len(obs), 7, 1, 0):  # with one program
        actual = batch(obs[:size])
        assert actual.dtype == np.float32
        # NumPy's products of vectors and matrices round differently: 1.2e-6 on one processor.
        np.testing.assert_allclose(actual, expected[:size], rtol=0, atol=5e-6)


W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, x: jnp.max(x) * p,  # one number per row beside a matrix without a batch axis
        lambda p, x: jnp.sum(x) + jnp.array([1.0, 2, 3]),
        lambda p, x: jnp.concatenate([jnp.ones(2), x, p[0]]),
        lambda p, x: jnp.concatenate([p, jnp.outer(x, x)[:, :3]], axis=1).T,
        lambda p, x: p.T @ x,  # the batch on the right
        lambda p, x: jnp.tensordot(p, jnp.outer(x, x), ((0,), (1,))),
        lambda p, x: jnp.outer(x, x + 1) @ x,  # a batch on both sides
        lambda p, x: jnp.where(x > 0, x, p[:, 1])[1:3],
        lambda p, x: jnp.broadcast_to(x[:, None] - p, (2, 4, 3)).min(axis=(0, 1)),
        lambda p, x: jnp.clip(x.reshape(2, 2).T, -0.5, 0.5)[:, ::2],
        lambda p, x: jax.nn.softmax(x) ** 3 % 0.2,
        lambda p, x: p[0] * 2,  # does not depend on the observation
        lambda p, x: x.sum() > 0,
    ],
)
def test_batched_operations_equal_those_of_rows(function):
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        program = trace(function, W, obs[0])
        expected = jax.vmap(function, (None, 0))(W, obs)
    actual = BoundProgram(batch_program(program, [W], obs[0]), [W])(obs)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_an_operation_that_cannot_be_batched_is_named():
    program = trace(lambda p, x: x * p, np.float32(2), np.zeros(3, np.float32))
    batched = batch_program(program, [np.float32(2)], W[0])
    odd = Operation("expand_rows", (batched.output,), batched.output + 1, {"axes": 1})
    twice = batched._replace(operations=(*batched.operations, odd), output=odd.output)
    with pytest.raises(NotImplementedError, match="'expand_rows' cannot be batched"):
        batch_program(twice, [np.float32(2)], W)
