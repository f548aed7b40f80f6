"""Agents of every kind on batches that are partly drawn from recorded transitions."""

import chex
import jax
import numpy as np
import pytest

from r2r2.compute.precision import ComputeOptions
from r2r2.compute.update_loop import UpdateCall
from r2r2.replay.prefill import RecordedSteps, lay_out
from r2r2.training.fleet import MixedData
from small_fleets import SPEC, experience, fleet_of, member, scales_of, small

AGENTS = ("td7+r2r2", "minphi", "simbav2-spl+r2r2", "external_td3:TD3")
SEEDS, CALL = [0, 1, 2], 6


def mixed_data(share=0.5):
    rng = np.random.default_rng(7)
    path, count = rng.normal(size=(31, SPEC.obs_dim)), 30
    ended = np.arange(count) % 11 == 10
    rest = rng.uniform(-1, 1, (count, SPEC.action_dim)), rng.normal(size=count)
    return MixedData(lay_out(RecordedSteps(path[:-1], *rest, path[1:], ended, ended)), share)


def train(fleet, made, seeds):
    everyone = UpdateCall(tuple(range(len(seeds))), CALL)
    fleet.train([everyone], np.full(len(seeds), made), scales_of(fleet.agent, seeds))


def begin(config, seeds, **options):
    """Return a fleet after updates on the data alone and a few steps of its own."""
    fleet = fleet_of(config, seeds, steps=0, mixed=mixed_data(), **options)
    train(fleet, 0, seeds)
    assert np.isfinite(fleet.read_metrics()["loss/critic"]).all()
    assert not fleet.nonfinite_members()
    for step in range(40):
        fleet.add(range(len(seeds)), experience(seeds, step))
    return fleet


def restore(fleet, snapshot, rows):
    fleet.restore(snapshot)
    for number, part in enumerate(rows):
        fleet.put_rows(number, 0, part)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_updates_on_mixed_batches_agree_between_paths_and_fleets_and_after_a_restart(name):
    """The fast path in a fleet, the same from a snapshot, and the plain path alone."""
    with jax.enable_x64(True):
        config = small(name)
        fleet = begin(config, SEEDS)
        snapshot, rows = fleet.snapshot(), [fleet.fetch_rows(m, 0) for m in range(3)]
        train(fleet, CALL, SEEDS)
        expected = jax.device_get(fleet.learners)
        changed = np.asarray(expected.priorities.offline.weights) > 1
        assert changed.any() == fleet.agent.prioritizes

        restore(fleet, snapshot, rows)
        train(fleet, CALL, SEEDS)
        chex.assert_trees_all_equal(jax.device_get(fleet.learners), expected)

        plain = begin(config, [1], options=ComputeOptions(fast=False))
        train(plain, CALL, [1])
        ours, theirs = member(fleet.learners, 1), member(plain.learners, 0)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-9, atol=1e-12)
        if not config.policy_checkpoints:
            check_fused_step(fleet, snapshot, rows)


def check_fused_step(fleet, snapshot, rows):
    """Store a step, update and act in one call, and in separate calls."""
    results = []
    for fused in (False, True):
        restore(fleet, snapshot, rows)
        fleet.add(range(len(SEEDS)), experience(SEEDS, 40))
        if fused:
            counts, obs = np.full((2, len(SEEDS)), CALL), np.zeros((len(SEEDS), SPEC.obs_dim))
            fleet.update_and_act(CALL, *counts, scales_of(fleet.agent, SEEDS), obs)
        else:
            train(fleet, CALL, SEEDS)
        results.append(jax.device_get(fleet.learners))
    chex.assert_trees_all_close(*results, rtol=1e-9, atol=1e-12)
