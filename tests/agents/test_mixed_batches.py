"""Agents of every kind on batches that are partly drawn from recorded transitions."""

import chex
import jax
import numpy as np
import pytest

from r2r2.compute.precision import ComputeOptions
from r2r2.compute.update_loop import UpdateCall, longest_stride
from r2r2.replay.prefill import RecordedSteps, lay_out
from r2r2.training.fleet import MixedData
from small_fleets import SPEC, fleet_of, member, scales_of, small

AGENTS = ("td7+r2r2", "minphi", "simbav2-spl+r2r2", "external_td3:TD3")
SEEDS, CALL = [0, 1, 2], 6


def mixed_data(share=0.5):
    rng = np.random.default_rng(7)
    path, count = rng.normal(size=(31, SPEC.obs_dim)), 30
    ended = np.arange(count) % 11 == 10
    rest = rng.uniform(-1, 1, (count, SPEC.action_dim)), rng.normal(size=count)
    return MixedData(lay_out(RecordedSteps(path[:-1], *rest, path[1:], ended, ended)), share)


def train(fleet, made, seeds=SEEDS):
    everyone = UpdateCall(tuple(range(len(seeds))), CALL)
    fleet.train(everyone, np.full(len(seeds), made), scales_of(fleet.agent, seeds))


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_mixed_updates_agree_between_paths_and_fleets_and_after_a_restart(name):
    """The fast path in a fleet, the plain path alone, and a fleet that continues a snapshot."""
    with jax.enable_x64(True):
        config = small(name)
        fleet = fleet_of(config, SEEDS, mixed=mixed_data())
        fleet._stride = longest_stride(fleet.agent, members=1)
        train(fleet, 0)
        snapshot, rows = fleet.snapshot(), [fleet.fetch_rows(m, 0) for m in range(3)]
        train(fleet, CALL)
        expected = jax.device_get(fleet.learners)

        restarted = fleet_of(config, SEEDS, steps=0, mixed=mixed_data())
        restarted._stride = fleet._stride
        restarted.restore(snapshot)
        for number, part in enumerate(rows):
            restarted.put_rows(number, 0, part)
        train(restarted, CALL)
        chex.assert_trees_all_equal(jax.device_get(restarted.learners), expected)

        plain = fleet_of(config, [1], options=ComputeOptions(fast=False), mixed=mixed_data())
        train(plain, 0, [1])
        train(plain, CALL, [1])
        ours, theirs = member(fleet.learners, 1), member(plain.learners, 0)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-9, atol=1e-12)
        changed = np.asarray(expected.priorities.offline.weights) > 1
        assert changed.any() == fleet.agent.prioritizes


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_trains_on_data_alone_before_its_first_step(name):
    """Without mix the data are in the ring; with it, beside an empty ring."""
    with jax.enable_x64(True):
        config, learned = small(name), {}
        for mixed in (None, mixed_data()):
            fleet = fleet_of(config, SEEDS, steps=0, mixed=mixed)
            if mixed is None:
                fleet.prefill(mixed_data().data)
            train(fleet, 0)
            losses = fleet.read_metrics()["loss/critic"]
            assert np.isfinite(losses).all()
            assert not fleet.nonfinite_members()
            learned[mixed is None] = losses
        assert (learned[True] != learned[False]).all()  # other random numbers, the same data
