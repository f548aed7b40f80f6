"""Write run folders without training, with chosen numbers."""

import dataclasses
from pathlib import Path

import numpy as np

from r2r2.config.resolve import resolve
from r2r2.config.toml_io import experiment_name, to_toml
from r2r2.storage.evaluations import Row, append_evaluations
from r2r2.storage.events import EventLog, StepCounts
from r2r2.storage.run_folder import create_run
from r2r2.training.run_config import finalize_config, task_default_config
from r2r2.training.saved_config import fleet_members


def flat(level):
    """Return constant returns that differ by the seed."""
    return lambda task, seed, part: level + seed


def rising(level):
    """Return returns that approach a level, each seed slightly above the last."""
    return lambda task, seed, part: level * (1 - np.exp(-4 * part)) * (1 + seed / 50)


CURVE = rising(100.0)


def make_run(path, returns=CURVE, finished=True, points=5, stopped=None, versions=None, **fields):
    """Write a run folder as training would, and return its path.

    Args:
        path: the folder.
        returns: function of task, seed and progress in (0, 1]; None omits a point.
        finished: whether the manifest says so.
        points: number of evaluation points.
        stopped: seed that ends halfway; None for none.
        versions: further entries of `versions.json`.
        fields: of the config, for example `lambda_rr=0`.
    """
    layers = {"agent": "td7+r2r2", "env": "Hopper-v5", "seeds": 2, **fields}
    steps = layers.pop("steps", 500_000)  # may be less than the warm-up
    config = finalize_config(resolve({"eval_every": 500_000 // points}, layers))
    config = dataclasses.replace(config, steps=steps)
    return write_run(path, config, returns, finished, points, stopped, versions)


def write_run(path, config, returns=CURVE, finished=True, points=5, stopped=None, versions=None):
    """Write the folder of a finalized config's run, as `make_run` does."""
    members = fleet_members(config)
    folder = create_run(Path(path), to_toml(config), [m.name for m in members], False)
    lasts = {m: points // 2 if m.seed == stopped else points for m in members}
    steps = [_steps(config, number / points) for number in range(points + 1)]
    with EventLog(folder.events, clock=_clock()) as log:
        for number in range(points + 1):
            for member in members:
                if number <= lasts[member]:
                    _write(log, config, member, steps[number], number / points)
        for member in members:
            if member.seed == stopped:
                why = {"why": "a loss was not finite"}
                log.write("stopped", steps[lasts[member]], member.name, why)
    name = experiment_name(config, task_default_config(config))
    rows = [
        Row(name, *member, "return", steps[number].env_step, value)
        for member in members
        for number in range(1, lasts[member] + 1)
        if (value := returns(*member, number / points)) is not None
    ]
    append_evaluations(folder.evaluations, rows)
    stated = {"r2r2": "0.1.0", "commit": "abc1234", "device": "cpu", **(versions or {})}
    folder.write_versions(stated)
    if finished:
        folder.finish()
    return folder.path


def _write(log, config, member, steps, part):
    """Write a member's events at one point."""
    log.write("losses", steps, member.name, {"critic": 1.0})
    if part and config.agent.representation is not None:
        _diagnose(log, member, steps, part)


def _steps(config, part):
    decisions = round(part * config.steps)
    return StepCounts(decisions * config.action_repeat, decisions, decisions * config.utd)


def make_csv(path, runs, metric="return"):
    """Write a long CSV file of returns by experiment, task and seed."""
    rows = [
        Row(name, task, seed, metric, 1000 * number, value)
        for (name, task, seed), values in runs.items()
        for number, value in enumerate(values, start=1)
    ]
    append_evaluations(Path(path), rows)
    return Path(path)


def _clock():
    """Return a clock that advances by a second per call."""
    ticks = iter(range(10**9))
    return lambda: float(next(ticks))


def _diagnose(log, member, steps, part):
    values = np.exp(-np.arange(16) / (2 + 4 * part))
    share = values / values.sum()
    rank = float(np.exp(-(share * np.log(share)).sum()))
    fields = {
        "effective_rank": rank,
        "rank_99": 12,
        "numerical_rank": 14,
        "dead": 1,
        "deviation": 0.4,
        "spread": 0.8 - part / 4 + member.seed / 100,
        "norm": 3.0 + part,
        "least_norm": 1.0,
        "most_norm": 5.0,
        "redundancy": 0.5 / (1 + part),
        "variance_hinge": 0.1 + member.seed / 100,
        "collapsed": False,
    }
    log.write("diagnostics", steps, member.name, fields)
    _write_spectrum(log, member, steps, values)
    bias = {"expected": 90.0, "discounted_return": 80.0, "bias": 10.0 * part}
    log.write("value", steps, member.name, {**bias, "episodes": 10})


def _write_spectrum(log, member, steps, values):
    fields = {"singular_values": [round(float(x), 6) for x in values]}
    log.write("spectrum", steps, member.name, fields)
