"""Shorter runs: steps, warm-up, schedules and evaluation shrunk by one factor.

A scaled run goes through the same stages as the original, at the same fractions of its length. It
reproduces nothing: its `versions.json` has the factor, and a report shows it.
"""

import dataclasses
import math
from typing import Any

from r2r2.config.common import exact_factor, scale_count
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import SCALE
from r2r2.config.run import DiagnosticsConfig, RunConfig

MIN_STEPS = 100  # of a scaled run


def scale_config(config: RunConfig, factor: float) -> RunConfig:
    """Return the config of a run that is shorter by a factor.

    These fields shrink: steps, warm-up, offline updates, the interval of the log, the agent's
    schedules (`AgentConfig.scaled`), the replay buffer if the run would overwrite rows, the rows
    that diagnoses are sampled from, and the evaluation. The total number of evaluation episodes
    shrinks by the factor: first each point has fewer episodes, and when it has one, there are
    fewer points, but at least two. UTD, batches, networks and intervals between target copies stay.

    Args:
        config: valid, but not yet finalized.
        factor: in (0, 1]; with 1 the config is returned as it is.

    Raises:
        UserError: The factor is not allowed, or leaves too few steps.

    Example:
        >>> from r2r2.config.resolve import resolve
        >>> short = scale_config(resolve({"env": "Hopper-v5", "agent": "td7"}), 0.01)
        >>> short.steps, short.warmup, short.agent.assessment.switch
        (5000, 250, 7500)
        >>> short.eval_every, short.eval_episodes
        (1000, 1)
    """
    check_scale(factor, config.steps)
    if factor == 1:
        return config
    steps = scale_count(config.steps, factor)
    changes: dict[str, Any] = {
        "steps": steps,
        "warmup": min(scale_count(config.warmup, factor), steps - 1),
        "prefill_only_updates": scale_count(config.prefill_only_updates, factor),
        "log_every": scale_count(config.log_every, factor),
        "agent": config.agent.scaled(factor),
        "replay_size": _scale_replay(config, factor),
        "diagnostics": _scale_diagnostics(config.diagnostics, factor),
        **_scale_evaluation(config, steps, factor),
    }
    return dataclasses.replace(config, **changes)


def check_scale(factor: float, steps: int) -> None:
    """Raise a `UserError` if runs of so many steps cannot be scaled by a factor."""
    if not SCALE.is_valid(factor):
        raise invalid_value("scale", SCALE.description, factor)
    if factor < 1 and scale_count(steps, factor) < MIN_STEPS:
        reason = f"so that runs of {steps} steps keep at least {MIN_STEPS}"
        least = smallest_scale(steps)
        allowed = f"a number from {least:g} to 1" if least < 1 else "1"
        raise UserError(f"expected {allowed}, {reason}, got {factor:g}", "scale")


def smallest_scale(steps: int) -> float:
    """Return the smallest factor for runs of so many steps, rounded up to three digits.

    Example:
        >>> smallest_scale(500_000), smallest_scale(30_000), smallest_scale(60)
        (0.0002, 0.00334, 1.0)
    """
    if steps <= MIN_STEPS:
        return 1.0
    digits = 2 - math.floor(math.log10(MIN_STEPS / steps))
    return float(f"{math.ceil(MIN_STEPS * 10**digits / steps)}e-{digits}")


def _scale_replay(config: RunConfig, factor: float) -> int:
    """Return the size of the buffer: smaller if the run would overwrite rows, as before."""
    size = config.replay_size or config.agent.default_replay_size(config.env[0])
    # Recorded data must still fit.
    if size > config.steps or config.prefill:
        return config.replay_size
    return max(4, scale_count(size, factor))


def _scale_diagnostics(probe: DiagnosticsConfig, factor: float) -> DiagnosticsConfig:
    """Return fewer rows to sample from; the batch stays as large as they allow."""
    rows = max(2, scale_count(probe.probe_rows, factor))
    return DiagnosticsConfig(min(probe.probe_batch, rows), rows)


def _scale_evaluation(config: RunConfig, steps: int, factor: float) -> dict[str, int]:
    """Return the interval and the episodes of evaluations; at most as many points as before."""
    exact, average = exact_factor(factor), config.eval_average
    points = max(1, math.ceil(config.steps / config.eval_every))
    episodes = math.floor(config.eval_episodes * exact)
    if not episodes:
        total = math.floor(points * config.eval_episodes * exact)
        points, episodes = max(total, min(points, 2)), 1
    interval = math.ceil(steps / points)
    return {"eval_every": math.ceil(interval / average) * average, "eval_episodes": episodes}
