"""The speed of training on a real task, and the share of each part of it."""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.api import make_pool
from r2r2.bench.roofline import round_significant
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.make import make_env
from r2r2.envs.vector.pool import EnvPool
from r2r2.storage.run_folder import create_run
from r2r2.training.loop import Progress, Training
from r2r2.training.memory import check_fits
from r2r2.training.run_config import finalize_config, fleet_members
from r2r2.training.run_log import RunLog

PARTS = ["environment", "acting", "replay", "update", "evaluation", "logging"]
REST = "rest"  # the loop itself

# One evaluation episode per as many steps as in a default run, so that evaluation has
# the same share of the time.
PERIOD = RunConfig.eval_every // RunConfig.eval_episodes


class Profiler:
    """Measures the exclusive seconds of parts of a program.

    Time in a nested part counts for that part only. Only methods that were given to
    `wrap` are timed, so other objects have no overhead.
    """

    def __init__(
        self, parts: list[str], clock: Callable[[], float] = time.perf_counter
    ):
        self._clock = clock
        self.seconds = dict.fromkeys(parts, 0.0)
        self._stack: list[str] = []
        self._since = 0.0

    def wrap(self, part: str, owner: Any, *methods: str) -> None:
        """Count these methods of an object for a part from now on."""
        for name in methods:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._stack.append(part)
            try:
                return method(*args, **kwargs)
            finally:
                self._switch()
                self._stack.pop()

        return timed

    def _switch(self) -> None:
        """Add the time since the last switch to the current part."""
        now = self._clock()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


class TrainingSetup(NamedTuple):
    """A training run to be timed."""

    task: str
    members: int
    utd: int
    steps: int  # timed decision steps of every member


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
    with tempfile.TemporaryDirectory() as folder, make_pool(config) as pool:
        check_fits(config, pool.spec)
        names = [member.name for member in members]
        run = create_run(Path(folder) / "run", to_toml(config), names, False)
        with RunLog(config, run, members, agent.name) as log:
            training = ProfiledTraining(config, pool, log)
            training.begin()
            timer = TrainingTimer(training.profiler, config.steps, on_fraction)
            training.run(timer)
    return timer.result(agent.name, setup)


def check_setup(agent: AgentConfig, setup: TrainingSetup) -> None:
    """Raise a UserError if there is no such task or agents cannot learn it."""
    make_env(setup.task, _config(agent, setup).action_repeat).close()


def _config(agent: AgentConfig, setup: TrainingSetup) -> RunConfig:
    fields = {
        "agent": agent.name,
        "env": setup.task,
        "seeds": list(range(setup.members)),
        "utd": setup.utd,
        "warmup": PERIOD,
        "steps": PERIOD + setup.steps,
        "eval_every": PERIOD,
        "eval_episodes": 1,
    }
    return finalize_config(dataclasses.replace(resolve(fields), agent=agent))


class ProfiledTraining(Training):
    """A run whose parts are timed."""

    def __init__(self, config: RunConfig, pool: EnvPool, log: RunLog):
        super().__init__(config, pool, log)
        self.profiler = Profiler(PARTS)
        wrap, state, fleet = self.profiler.wrap, self.state, self.state.fleet
        wrap("environment", pool, "step", "try_reset")
        wrap("acting", state.normalizer, "observe", "normalize")
        wrap("acting", fleet, "act")
        wrap("replay", fleet, "add", "_catch_up")
        # Waiting is always for updates.
        wrap("update", fleet, "train", "wait", "refresh", "nonfinite_members")
        wrap("evaluation", state.evals, "start", "request", "record")
        if self.diagnoser is not None:
            wrap("evaluation", self.diagnoser, "diagnose")
        wrap("logging", log, "event", "evaluation", "episode", "losses")
        wrap("logging", fleet, "read_metrics")
        fleet.compile_ahead().wait()


class _Reading(NamedTuple):
    seconds: float
    decisions: int
    updates: int
    parts: dict[str, float]


class TrainingTimer:
    """An `on_progress` callback that records the first and the last timed moment."""

    def __init__(
        self, profiler: Profiler, steps: int, on_fraction: Callable[[float], None]
    ):
        self._profiler, self._steps = profiler, steps
        self._on_fraction = on_fraction
        self._first: _Reading | None = None
        self._last: _Reading | None = None

    def __call__(self, progress: Progress) -> None:
        """Record the progress of one iteration of the training loop."""
        decisions, updates = progress.decisions, progress.updates
        if (timed := float(decisions.mean()) - PERIOD) > 0:
            self._on_fraction(timed / (self._steps - PERIOD))
        started = progress.point > 0 and progress.warm.all() and updates.min() > 0
        if not started or decisions.max() >= self._steps or progress.stopped.any():
            return
        counts = int(decisions.sum()), int(updates.sum())
        parts = dict(self._profiler.seconds)
        self._last = _Reading(time.perf_counter(), *counts, parts)
        self._first = self._first or self._last

    def result(self, agent: str, setup: TrainingSetup) -> EndToEnd:
        """Return the speed between the first and the last moment."""
        first, last = self._first, self._last
        if first is None or last is None or first == last:
            raise UserError(
                f"--steps: too few for {agent} on {setup.task} to make timed updates; "
                f"expected more, got {setup.steps}"
            )
        seconds = last.seconds - first.seconds
        parts = {x: last.parts[x] - first.parts[x] for x in PARTS}
        parts[REST] = seconds - sum(parts.values())
        steps, updates = last.decisions - first.decisions, last.updates - first.updates
        return EndToEnd(
            agent,
            *setup[:3],
            steps,
            round_significant(seconds),
            round_significant(steps / seconds),
            round_significant(updates / seconds),
            {part: round_significant(x / seconds) for part, x in parts.items()},
        )
