"""Exported policies against the JAX policies that they come from."""

import shutil

import numpy as np
import pytest
from runners import RUNNERS, run_c

from policy_parts import HIGH, LOW, real_observations, sample
from r2r2.config.agents import AGENTS
from r2r2.export.export import FORMATS, export_policy
from r2r2.policy.policy import Policy

TOLERANCE = 1e-5  # of the action range
# Their squares do not overflow, nor do their sums.
MODERATE = [0.0, -0.0, 1e-30, -1e-40, 5e-324, 1e-3, -1.0, 1e4, -1e6, 3e15]
EXTREME = [1e18, -1e25, 1e30, -1e30, 1e37, -1e38, 3e38]
BAD = [np.nan, np.inf, -np.inf, 1e200, -1e300, 1.7e308]  # or too large for float32

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
every_format = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=needs_compiler) if x == "c" else x for x in FORMATS]
)


def rows_of(values):
    """Return observations with every entry at a value, and with one entry at it."""
    same = np.array(values)[:, None] * np.ones(11)
    with np.errstate(all="ignore"):
        mixed = np.where(np.arange(11) == 4, same, real_observations()[: len(values)])
    return np.concatenate([same, mixed])


def difference(actual, expected):
    """Return the largest difference as a share of the action range."""
    return np.max(np.abs(np.asarray(actual, np.float64) - expected) / (HIGH - LOW))


def check_format(run, chosen, dtype):
    """Check a policy on real, moderate, extreme and bad observations, in one batch and others."""
    kinds = [real_observations(), rows_of(MODERATE), rows_of(EXTREME), rows_of(BAD)]
    obs, ends = np.concatenate(kinds), np.cumsum([len(rows) for rows in kinds])
    expected, actual = chosen.expected(obs), run(obs)
    assert ends[0] == 1000
    assert actual.shape == (len(obs), 3)
    assert actual.dtype == dtype
    # The policy is not a constant: actions vary far more than the tolerance.
    assert (expected[:1000].std(axis=0) / (HIGH - LOW)).min() > 300 * TOLERANCE
    assert difference(actual[: ends[1]], expected[: ends[1]]) < TOLERANCE
    check_extremes(actual[ends[1] : ends[2]], expected[ends[1] : ends[2]])
    assert np.isnan(actual[ends[2] :]).all()
    for size in (1, 17):  # the batch has any size, and rows do not depend on others
        assert difference(run(obs[:size]), expected[:size]) < TOLERANCE


def check_extremes(actual, expected):
    """Numbers may overflow inside the network: the action is NaN, or that of JAX."""
    known = ~np.isnan(actual)
    assert known.any()
    assert np.isfinite(expected[known]).all()
    error = np.abs(actual.astype(np.float64) - expected) / (HIGH - LOW)
    assert error[known].max() < TOLERANCE
    assert ((actual >= LOW) & (actual <= HIGH))[known].all()


def exported(chosen, name, folder):
    """Export a policy and return the function that runs it, with the type of its actions."""
    out = export_policy(chosen.parts, name, folder / "policy")
    return RUNNERS[name](out, chosen.parts), np.float64 if name == "c" else np.float32


@every_format
def test_every_format_acts_as_in_jax(name, tmp_path):
    chosen = sample("td7+r2r2")
    run, dtype = exported(chosen, name, tmp_path)
    check_format(run, chosen, dtype)


@pytest.mark.slow
@every_format
def test_every_format_acts_as_in_jax_on_nested_observations(name, tmp_path):
    chosen = sample("simbav2-spl+r2r2", nested=True)
    run, dtype = exported(chosen, name, tmp_path)
    check_format(run, chosen, dtype)


@pytest.mark.slow
@every_format
@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_acts_as_in_jax(agent, name, tmp_path):
    chosen = sample(agent)
    run, dtype = exported(chosen, name, tmp_path)
    check_format(run, chosen, dtype)


@pytest.mark.slow
@every_format
@pytest.mark.parametrize("agent", ["td7+r2r2", "simbav2-spl+r2r2"])
def test_networks_of_default_size_act_as_in_jax(agent, name, tmp_path):
    chosen = sample(agent, default_size=True)
    run, dtype = exported(chosen, name, tmp_path)
    check_format(run, chosen, dtype)


@pytest.mark.parametrize(
    "agent", ["td7+r2r2", pytest.param("simbav2-spl+r2r2", marks=pytest.mark.slow)]
)
def test_a_loaded_policy_acts_as_in_jax(agent):
    chosen = sample(agent)
    check_format(Policy(chosen.parts), chosen, np.float32)


@needs_compiler
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_compiles_without_warnings_and_runs(language, tmp_path):
    chosen = sample("td7+r2r2")
    out = export_policy(chosen.parts, "c", tmp_path / "policy")
    run, obs = run_c(out, chosen.parts, language), real_observations()
    assert difference(run(obs), chosen.expected(obs)) < TOLERANCE
