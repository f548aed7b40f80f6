"""Runs that are shortened by a factor."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from r2r2 import UserError, resolve
from r2r2.config.agents import AGENTS
from r2r2.config.common import exact_factor
from r2r2.config.fields import MAX_INT
from r2r2.config.resolve import validate
from r2r2.config.toml_io import changed_fields, run_name
from r2r2.experiments.scaling import MIN_STEPS, scale_config, smallest_scale


def scaled(factor, **fields):
    return scale_config(resolve({"env": "Hopper-v5", **fields}), factor)


def evaluations(config):
    """The points of a curve, and the episodes of all of them."""
    points = math.ceil(config.steps / config.eval_every)
    return points, points * config.eval_average * config.eval_episodes


def test_steps_warmup_and_schedules_shrink_alike():
    config = scaled(0.01, agent="td7", log_every=1000)
    assert (config.steps, config.warmup, config.log_every) == (5000, 250, 10)
    assert config.agent.assessment.switch == 7500
    assert scaled(0.01, agent="minphi").agent.noise_steps == 1000
    assert scaled(0.01, agent="simbav2").warmup == 50
    data = scaled(0.01, prefill="data.npz", prefill_only_updates=150, mix=0.5)
    assert data.prefill_only_updates == 2
    probe = scaled(0.01).diagnostics
    assert (probe.probe_rows, probe.probe_batch) == (410, 410)
    assert scaled(0.5).diagnostics.probe_batch == 4096


def test_warmup_ends_before_the_run():
    config = scaled(0.5, steps=500, warmup=499)
    assert (config.steps, config.warmup) == (250, 249)


def test_what_is_not_a_schedule_stays():
    for agent in AGENTS:
        config = resolve({"env": "Hopper-v5", "agent": agent})
        changed = changed_fields(scale_config(config, 0.01), config)
        allowed = (
            *("steps", "warmup", "log_every", "eval_every", "eval_episodes", "replay_size"),
            *("diagnostics.probe_rows", "diagnostics.probe_batch"),
            *("agent.assessment.switch", "agent.noise_steps"),
        )
        assert set(changed) <= set(allowed)
        assert scale_config(config, 1.0) is config


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("factor", [0.99, 0.5, 0.01, 0.0002])
def test_scaled_runs_have_other_names(agent, factor):
    config = resolve({"env": "Hopper-v5", "agent": agent})
    assert run_name(scale_config(config, factor)) != run_name(config)


def test_the_buffer_shrinks_only_if_rows_are_overwritten():
    assert scaled(0.01, agent="minphi").replay_size == 1000
    assert scaled(0.01, agent="td7").replay_size == 0
    assert scaled(0.01, replay_size=10_000).replay_size == 100
    assert scaled(0.01, replay_size=600_000).replay_size == 600_000
    assert scaled(0.01, replay_size=10_000, prefill="data.npz").replay_size == 10_000


@pytest.mark.parametrize(
    ("factor", "points", "episodes"),
    [
        *[(1, 50, 500), (0.5, 50, 250), (0.29, 50, 100), (0.1, 50, 50), (0.05, 25, 25)],
        *[(0.01, 5, 5), (0.004, 2, 2), (0.0002, 2, 2)],
    ],
)
def test_evaluation_episodes_shrink_with_the_run(factor, points, episodes):
    assert evaluations(scaled(factor)) == (points, episodes)


def test_averaged_evaluations_stay_averaged():
    config = scaled(0.01, eval_average=2)
    assert config.eval_average == 2
    assert evaluations(config) == (5, 10)
    assert config.eval_every % 2 == 0


def test_a_single_point_stays_single():
    assert evaluations(scaled(0.01, eval_every=2_000_000)) == (1, 1)


@pytest.mark.parametrize("factor", [0, -0.5, 1.01, math.nan, math.inf, True, "0.1", None])
def test_only_scales_up_to_1_are_allowed(factor):
    with pytest.raises(UserError, match="expected a number > 0 and <= 1, got") as error:
        scaled(factor)
    assert error.value.with_option.startswith("--scale: ")


def test_too_small_a_scale_names_the_smallest():
    with pytest.raises(UserError) as error:
        scaled(1e-5)
    assert error.value.with_option == (
        "--scale: expected a number from 0.0002 to 1, so that runs of 500000 steps keep at least "
        "100, got 1e-05"
    )
    with pytest.raises(UserError, match="scale: expected 1, so that runs of 60 steps"):
        scaled(0.9, steps=60, warmup=10)


@given(st.integers(1, MAX_INT))
def test_the_smallest_scale_is_allowed_and_little_less_is_not(steps):
    config = resolve({"env": "Hopper-v5", "steps": steps, "warmup": 0, "eval_every": steps})
    least = smallest_scale(steps)
    assert scale_config(config, least).steps >= min(steps, MIN_STEPS)
    with pytest.raises(UserError):
        scale_config(config, least * 0.98)


COUNTS = st.integers(1, 1000) | st.integers(1, 10**6)


@given(
    agent=st.sampled_from(sorted(AGENTS)),
    steps=st.integers(100, 10**6),
    share=st.floats(0, 1),
    counts=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
    episodes=st.integers(1, 100),
    average=st.integers(1, 7),
    factor=st.floats(1e-6, 1) | st.sampled_from([0.1, 0.01, 0.5, 1 / 3, 1.0]),
)
def test_any_config_stays_valid(agent, steps, share, counts, episodes, average, factor):
    eval_every, log_every, size, rows = counts
    config = resolve(
        {
            **{"agent": agent, "env": "Hopper-v5", "steps": steps, "log_every": log_every},
            **{"warmup": int(share * (steps - 1)), "eval_every": eval_every * average},
            **{"eval_episodes": episodes, "eval_average": average, "replay_size": size + 3},
            **{"diagnostics.probe_rows": rows + 1, "diagnostics.probe_batch": min(rows + 1, 64)},
        }
    )
    assume(smallest_scale(steps) <= factor)
    short = scale_config(config, factor)
    assert validate(short) == short
    assert short.steps == max(MIN_STEPS if factor < 1 else 1, round(steps * exact_factor(factor)))
    assert short.warmup <= max(1, math.ceil(config.warmup * factor))
    before, total = evaluations(config)
    points, fewer = evaluations(short)
    assert 1 <= points <= before
    assert fewer <= max(total * factor * (1 + 1e-6), min(before, 2) * average)
