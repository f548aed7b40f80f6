"""Copies of policies on the host: which leaves, and in how many transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.policy_copy import PolicyCopy, acting_leaves
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Member
from r2r2.training.acting import make_actors
from small_fleets import SPEC, small

SHAPES = [(3, 2), (), (5,), (2, 1, 2), (0,), (4,)]
DTYPES = ["float32", "int32", "float32", "float16", "float32", "int32"]
SIZE = 4


def policies(seed):
    """Return leaves of several shapes and types, with all kinds of bits."""
    rng = np.random.default_rng(seed)
    tree = []
    for shape, dtype in zip(SHAPES, DTYPES, strict=True):
        bits = rng.integers(0, 256, (SIZE, *shape, np.dtype(dtype).itemsize), np.uint8)
        tree.append(bits.view(dtype).reshape(SIZE, *shape))
    tree[0][0, 0] = np.nan, -0.0
    return {"first": tree[:3], "second": tree[3:]}


def assert_same_bits(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("who", "count"), [([0, 1, 2, 3], 4), ([2], 1), ([3, 1, 3, 3], 2), ([1, 0], 2)]
)
def test_members_are_copied_to_the_bit_and_the_others_are_kept(packed, who, count):
    used = [True, True, False, True, True, True]
    host, trained = policies(0), policies(1)
    expected = policies(0)
    for leaf, new, copied in zip(*map(jax.tree.leaves, (expected, trained)), used, strict=True):
        if copied:
            leaf[who[:count]] = new[who[:count]]
    PolicyCopy(lambda same: same, used, packed)(
        host, jax.tree.map(jnp.asarray, trained), np.array(who), count
    )
    assert_same_bits(host, expected)


def test_one_transfer_has_one_array_per_type(monkeypatch):
    fetched, device_get = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree) or device_get(tree))
    copy = PolicyCopy(lambda same: same, [True] * 6, packed=True)
    copy(policies(0), jax.tree.map(jnp.asarray, policies(1)), np.arange(SIZE), SIZE)
    (arrays,) = fetched
    assert {name: (x.dtype, x.ndim) for name, x in arrays.items()} == {
        name: (name, 1) for name in ("float32", "int32", "float16")
    }


@pytest.mark.parametrize("name", ["td7+r2r2", "td7-ln"])
def test_leaves_that_actions_depend_on_are_those_that_workers_get(name):
    agent = build_agent(small(name), SPEC, 1)
    shapes = jax.eval_shape(agent.behavior_policy, state_shapes(agent))
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), shapes)
    config = resolve({"agent": name, "env": "any"})
    explore = make_actors(config, [Member("any", 0)], SPEC).explore
    used = acting_leaves(agent, stacked, SPEC.obs_dim)
    assert used == explore.used
    assert 0 < sum(used) < len(used)  # TD7's policy has a whole encoder, and needs half of it
