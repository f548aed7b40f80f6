"""The speed of training on a real task, and the share of each part of it."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.api import make_pool
from r2r2.bench.updates import round_significant
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.make import make_env
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Progress, Training
from r2r2.training.memory import check_fits
from r2r2.training.run_config import finalize_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members
from r2r2.training.time_account import PARTS, TimeAccount

# One evaluation episode per as many steps as in a default run, so that evaluation has
# the same share of the time. Runs that are long enough are evaluated as by default.
PERIOD = RunConfig.eval_every // RunConfig.eval_episodes


class TrainingSetup(NamedTuple):
    """A training run to be timed."""

    task: str
    members: int
    utd: int
    steps: int  # timed decision steps of every member
    precision: str = "tf32"


class EndToEnd(NamedTuple):
    """The measured speed of training."""

    agent: str
    task: str
    members: int
    utd: int
    decision_steps: int  # timed, of all members
    seconds: float
    decision_steps_per_s: float  # of all members
    updates_per_s: float
    shares: dict[str, float]  # of the time, by part; they sum to 1


def time_training(
    agent: AgentConfig, setup: TrainingSetup, on_fraction: Callable[[float], None]
) -> EndToEnd:
    """Train in a temporary folder and measure the speed.

    Timing starts after warm-up, the first evaluation and the first updates, when all
    programs are compiled, and ends before a member finishes or is stopped. The callback
    gets the fraction of the timed steps that is done.
    """
    config = _config(agent, setup)
    members = fleet_members(config)
    names = [member.name for member in members]
    with tempfile.TemporaryDirectory() as folder, make_pool(config) as pool:
        check_fits(config, pool.spec)
        run = create_run(Path(folder) / "run", to_toml(config), names, False)
        with RunLog(config, run, members, agent.name) as log:
            training = Training(config, pool, log)
            with contextlib.closing(training):
                training.state.fleet.compile_ahead().wait()
                training.begin()
                timer = TrainingTimer(training.state.times, config.steps, on_fraction)
                training.run(timer)
    return timer.result(agent.name, setup)


def check_setup(agent: AgentConfig, setup: TrainingSetup) -> None:
    """Raise a UserError if there is no such task or agents cannot learn it."""
    make_env(setup.task, _config(agent, setup).action_repeat).close()


def _config(agent: AgentConfig, setup: TrainingSetup) -> RunConfig:
    episodes = RunConfig.eval_episodes if setup.steps >= RunConfig.eval_every else 1
    fields = {
        "agent": agent.name,
        "env": setup.task,
        "seeds": list(range(setup.members)),
        "utd": setup.utd,
        "warmup": PERIOD,
        "steps": PERIOD * episodes + setup.steps,
        "eval_every": PERIOD * episodes,
        "eval_episodes": episodes,
        "precision": setup.precision,
    }
    return finalize_config(dataclasses.replace(resolve(fields), agent=agent))


class TrainingTimer:
    """An `on_progress` callback that records the first and the last timed moment."""

    def __init__(self, times: TimeAccount, steps: int, on_fraction: Callable[[float], None]):
        self._times, self._steps = times, steps
        self._on_fraction = on_fraction
        self._moments: list[NDArray[np.float64]] = []  # the first and the last

    def __call__(self, progress: Progress) -> None:
        """Record the progress of one iteration of the training loop."""
        decisions, updates = progress.decisions, progress.updates
        if (timed := float(decisions.mean()) - PERIOD) > 0:
            self._on_fraction(timed / (self._steps - PERIOD))
        started = progress.point > 0 and progress.warm.all() and updates.min() > 0
        if not started or decisions.max() >= self._steps or progress.stopped.any():
            return
        counts = time.perf_counter(), decisions.sum(), updates.sum()
        self._moments[1:] = [np.array([*counts, *self._times.seconds().values()])]

    def result(self, agent: str, setup: TrainingSetup) -> EndToEnd:
        """Return the speed between the first and the last moment."""
        if len(self._moments) < 2:
            raise UserError(
                f"--steps: too few for {agent} on {setup.task} to make timed updates; "
                f"expected more, got {setup.steps}"
            )
        first, last = self._moments
        seconds, steps, updates, *parts = map(float, last - first)
        shares = [round_significant(part / seconds) for part in parts]
        return EndToEnd(
            agent,
            *setup[:3],
            int(steps),
            round_significant(seconds),
            round_significant(steps / seconds),
            round_significant(updates / seconds),
            dict(zip(PARTS, shares, strict=True)),
        )
