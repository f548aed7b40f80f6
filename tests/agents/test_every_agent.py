"""Requirements on every agent."""

import collections
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.base import Batch
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute import fast_optimizer, loop_packing, update_loop
from r2r2.compute.update_loop import UpdateCall
from r2r2.config.agents import AGENTS
from r2r2.config.common import Representation
from r2r2.training.fleet import Fleet
from small_fleets import (
    LENGTHS,
    SPEC,
    check_paths_agree,
    experience,
    fleet_of,
    networks,
    scales_of,
    small,
    trained,
    trio,
)

# TD7 has everything that any agent has; the other agents are slow tests.
QUICK = ("td7-ln+r2r2",)
every_agent = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in AGENTS]
)


@pytest.mark.slow  # some of the quick golden tests run the fast path
@pytest.mark.parametrize("name", AGENTS)
def test_plain_and_fast_path_agree_in_float64(name, monkeypatch):
    """The fast one in a fleet, packed as on a GPU, the plain one alone."""
    monkeypatch.setattr(update_loop, "packs", lambda: True)
    monkeypatch.setattr(loop_packing, "SMALL", 40)  # kernels get padded rows
    monkeypatch.setattr(fast_optimizer, "SMALL", 40)
    # Whole periods, so that updates run in strides; others are in test_fleet.py.
    changes = {"target_period": 4} if name.startswith("td7") else {}
    with jax.enable_x64(True):
        check_paths_agree(name, (2, 4, 6), updates=20, **changes)


# A base has the program of its R2R2 agent with zero weights, see below.
@pytest.mark.parametrize(
    "name",
    ["td7-ln+r2r2"]
    + [
        pytest.param(x, marks=pytest.mark.slow)
        for x in ("td7+r2r2", "minphi+r2r2", "simbav2", "simbav2-spl+r2r2")
    ],
)
def test_same_seed_gives_same_bits_in_calls_of_any_length(name):
    again = trained(small(name), [0, 1, 2], updates=20, call=10)
    chex.assert_trees_all_equal(trio(name).states, again.states)


@every_agent
def test_seeds_differ_and_every_network_learns(name):
    fleet = trio(name)
    for leaf in jax.tree.leaves(fleet.states):
        # Parts that nothing has changed yet may be equal: gains of policy checkpoints.
        if leaf.ndim > 1 and len(np.unique(leaf)) > 1:
            assert not np.allclose(leaf[0], leaf[1])
    before, after = networks(fleet_of(small(name), [0, 1, 2]).states), fleet.states
    assert {"actor", "critic", "critic_target"} <= set(before)
    for network, new in networks(after).items():
        changed = [
            not np.array_equal(x, y)
            for x, y in zip(*map(jax.tree.leaves, (before[network], new)), strict=True)
        ]
        is_checkpoint = network.startswith("checkpoint")
        assert not any(changed) if is_checkpoint else all(changed), network
    means = fleet.read_metrics()
    assert all(np.isfinite(mean).all() for mean in means.values())
    assert means["loss/critic"].shape == (3,)


def test_priorities_must_match_the_record():
    agent = build_agent(small("td7"), SPEC, 1)._replace(prioritizes=False)
    with pytest.raises(ValueError, match="must return priorities if it prioritizes"):
        Fleet(agent, SPEC, [0], LENGTHS)


@pytest.mark.parametrize(
    "name", ["td7-ln+r2r2", pytest.param("simbav2-spl+r2r2", marks=pytest.mark.slow)]
)
def test_nothing_is_traced_twice(name):
    agent = build_agent(small(name), SPEC, 1)
    traces = collections.Counter()

    def counted(function, name):
        def traced(*arguments):
            traces[name] += 1
            return function(*arguments)

        return traced

    agent = agent._replace(
        update=counted(agent.update, "update"),
        explore=counted(agent.explore, "explore"),
        sync=counted(agent.sync, "sync"),
    )
    seeds, made = [0, 1, 2], np.zeros(3, int)
    fleet = Fleet(agent, SPEC, seeds, LENGTHS)
    for step in range(4):
        fleet.act(np.zeros((3, 4)), np.full(3, step))
        fleet.add(seeds, experience(seeds, step))
        call = UpdateCall((0, 1, 2), 2 + step % 3 * 2)
        fleet.train([call], made, scales_of(agent, [0, 1, step]))
        made += call.updates
        fleet.refresh(seeds)
    # One trace of an update is for the shapes of its metrics, one of a policy for the leaves
    # that its actions depend on.
    expected = collections.Counter(update=2, explore=2, sync=bool(agent.sync_period))
    assert traces == +expected


def program(config) -> str:
    """Return an update as JAX traces it."""
    agent = build_agent(config, SPEC, 1)
    rows = agent.batch_size
    batch = Batch(
        obs=jnp.zeros((rows, SPEC.obs_dim)),
        action=jnp.zeros((rows, SPEC.action_dim)),
        reward=jnp.zeros(rows),
        next_obs=jnp.zeros((rows, SPEC.obs_dim)),
        terminated=jnp.zeros(rows, bool),
    )
    noise = jax.eval_shape(agent.update_noise, jax.random.key(0))
    step = jnp.asarray(1)
    traced = jax.make_jaxpr(agent.update)(state_shapes(agent), batch, noise, step)
    return re.sub("0x[0-9a-f]+", "", str(traced))


@pytest.mark.parametrize("name", [name for name in AGENTS if "+r2r2" in name])
def test_r2r2_with_zero_weights_is_its_base(name):
    zeroed = small(name, representation=Representation())
    base = program(small(name.removesuffix("+r2r2")))
    assert program(zeroed) == base
    assert program(small(name)) != base


@pytest.mark.slow
def test_r2r2_changes_only_the_encoder_directly():
    first, second = (
        trained(small(name), [0], updates=1, call=1).states for name in ("td7", "td7+r2r2")
    )
    differs = [
        field
        for field in first._fields
        if not all(
            map(
                np.array_equal,
                *map(jax.tree.leaves, (getattr(first, field), getattr(second, field))),
            )
        )
    ]
    assert differs == ["encoder", "encoder_adam"]
