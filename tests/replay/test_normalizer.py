import dataclasses

import jax
import numpy as np
import pytest

from r2r2.agents.registry import build_agent
from r2r2.config.agents import AGENTS
from r2r2.envs.spec import Spec
from r2r2.replay.normalizer import Normalizer, initial_statistics, make_normalizer
from r2r2.storage.arrays import load_weights, save_weights


def fresh(members: int, obs_dim: int = 3) -> Normalizer:
    return Normalizer(initial_statistics(members, obs_dim), discount=0.9, limit=5.0)


def stream(steps: int, members: int, offset: float = 0.0):
    """Observations, rewards and ends; the first reward belongs to no step."""
    rng = np.random.default_rng(0)
    scale = np.array([1e-3, 1.0, 50.0])
    obs = offset + scale * rng.normal(size=(steps, members, 3))
    return (obs, rng.normal(1.0, 2.0, (steps, members)), rng.random((steps, members)) < 0.05)


def watched(normaliser: Normalizer, steps: int, members: int) -> Normalizer:
    for obs, reward, ended in zip(*stream(steps, members), strict=True):
        normaliser.observe(range(members), obs, reward, ended)
    return normaliser


def test_statistics_of_a_long_stream_far_from_zero_are_exact():
    """20,000 steps about 1e3; the start counts as 1e-4 samples of mean 0, variance 1.

    With them the sum of squares about the mean is that of all samples together.
    """
    steps, start = 20_000, 1e-4
    obs, reward, ended = stream(steps, 1, offset=1e3)
    normaliser = fresh(1)
    for t in range(steps):
        normaliser.observe([0], obs[t], reward[t], ended[t])
    seen = obs[:, 0]
    mean = seen.sum(axis=0) / (steps + start)
    squares = ((seen - mean) ** 2).sum(axis=0) + start * (1 + mean**2)
    moments = normaliser.statistics.obs
    np.testing.assert_allclose(moments.mean[0], mean, rtol=1e-12)
    variance = squares / (steps + start)
    np.testing.assert_allclose(moments.variance[0], variance, rtol=1e-7)
    np.testing.assert_allclose(moments.samples, [steps + start])
    running = returns_of(reward[1:, 0], ended[1:, 0])
    returns = normaliser.statistics.returns
    middle = running.sum() / (steps - 1 + start)
    squares = ((running - middle) ** 2).sum() + start * (1 + middle**2)
    np.testing.assert_allclose(returns.mean[0], middle, rtol=1e-10)
    spread = squares / (steps - 1 + start)
    np.testing.assert_allclose(returns.variance[0], spread, rtol=1e-10)
    assert normaliser.statistics.largest[0] == np.abs(running).max()


def returns_of(reward, ended) -> np.ndarray:
    running, returns = 0.0, []
    for r, over in zip(reward, ended, strict=True):
        running = 0.9 * (0.0 if over else running) + r
        returns.append(running)
    return np.array(returns)


def test_a_terminal_reward_leaks_into_the_next_episode():
    normaliser, obs = fresh(1), np.zeros((1, 3))
    shown = []
    for reward, ended in ((99, True), (1, False), (2, True), (4, False)):
        normaliser.observe([0], obs, np.array([float(reward)]), np.array([ended]))
        shown.append(float(normaliser.statistics.running[0]))
    # The first reward belongs to no step.  1; the end cuts the 1, not its own 2;
    # 0.9 x 2 + 4.
    np.testing.assert_allclose(shown, [0.0, 1.0, 2.0, 5.8])


def test_reward_scale_is_the_larger_of_deviation_and_limit():
    normaliser = fresh(1)
    normaliser.statistics.returns.variance[:] = 4.0
    normaliser.statistics.largest[:] = 5.0
    np.testing.assert_allclose(normaliser.scales().reward, [2.0], rtol=1e-8)
    normaliser.statistics.largest[:] = 50.0
    np.testing.assert_allclose(normaliser.scales().reward, [10.0])


def test_members_have_separate_statistics():
    apart = [watched(fresh(1), 7, 1) for _ in range(2)]
    chosen = fresh(3)
    obs, reward, ended = stream(7, 1)
    for t in range(7):
        pair = (np.repeat(x[t], 2, axis=0) for x in (obs, reward, ended))
        chosen.observe([2, 0], *pair)
    for place in (0, 2):
        for ours, alone in zip(
            jax.tree.leaves(chosen.statistics), jax.tree.leaves(apart[0].statistics), strict=True
        ):
            np.testing.assert_array_equal(ours[place], alone[0])
    untouched = initial_statistics(3, 3)
    for ours, first in zip(*map(jax.tree.leaves, (chosen.statistics, untouched)), strict=True):
        np.testing.assert_array_equal(ours[1], first[1])


def test_members_in_lockstep_learn_as_each_would_alone():
    together, alone = fresh(3), [fresh(1) for _ in range(3)]
    for t, (obs, reward, ended) in enumerate(zip(*stream(9, 3), strict=True)):
        chosen = [0, 1, 2] if t else [0, 2]  # one begins a step later
        together.observe(chosen, obs[chosen], reward[chosen], ended[chosen])
        for member in chosen:
            part = (x[member : member + 1] for x in (obs, reward, ended))
            alone[member].observe([0], *part)
    for member in range(3):
        for ours, own in zip(
            *map(jax.tree.leaves, (together.statistics, alone[member].statistics)), strict=True
        ):
            np.testing.assert_array_equal(ours[member], own[0])


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)], ids=["acting", "evaluating"])
def test_normalize_uses_each_members_statistics_and_changes_none(shape):
    normaliser = watched(fresh(2), 20, 2)
    before = jax.tree.map(np.copy, normaliser.statistics)
    shown = normaliser.normalize(np.ones(shape))
    moments = before.obs
    for member in (0, 1):
        root = np.sqrt(moments.variance[member] + 1e-8)
        expected = np.broadcast_to((1 - moments.mean[member]) / root, shape[1:])
        np.testing.assert_allclose(shown[member], expected, rtol=1e-14)
    normaliser.scales().mean[:] = 7.0
    for old, new in zip(*map(jax.tree.leaves, (before, normaliser.statistics)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_statistics_survive_a_round_trip(tmp_path):
    whole = watched(fresh(2), 20, 2)
    first = fresh(2)
    obs, reward, ended = stream(20, 2)
    for t in range(12):
        first.observe([0, 1], obs[t], reward[t], ended[t])
    save_weights(tmp_path / "kept.npz", first.statistics)
    kept = load_weights(tmp_path / "kept.npz", like=initial_statistics(2, 3))
    second = Normalizer(kept, discount=0.9, limit=5.0)
    for t in range(12, 20):
        second.observe([0, 1], obs[t], reward[t], ended[t])
    for ours, expected in zip(
        *map(jax.tree.leaves, (second.statistics, whole.statistics)), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)


def test_normalizers_match_the_agent_record():
    for name, spec in AGENTS.items():
        settled = {"critics": 1, "discount": 0.9} if "simbav2" in name else {}
        config = dataclasses.replace(spec.config, **settled)
        normaliser = make_normalizer(config, initial_statistics(1, 3))
        agent = build_agent(config, Spec(obs_dim=3, action_dim=1), 1)
        assert agent.normalizes == (normaliser.scales() is not None)
