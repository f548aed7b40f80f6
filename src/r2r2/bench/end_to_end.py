"""The speed of training on a real task, and the share of each part of it."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from r2r2.api import make_pool
from r2r2.bench.updates import round_significant
from r2r2.compute.devices import training_device
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.make import make_env
from r2r2.storage.run_folder import create_run
from r2r2.storage.versions import versions
from r2r2.training.loop import OnProgress, Progress, Training
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

    task: str  # or several of equal sizes, separated by commas
    members: int  # of every task
    utd: int
    steps: int  # timed decision steps of every member
    precision: str = "tf32"


class EndToEnd(NamedTuple):
    """The measured speed of training."""

    agent: str
    task: str
    members: int
    utd: int
    decision_steps: int  # timed, of all members, with all their updates
    seconds: float  # from the first burst that is timed to the last
    decision_steps_per_s: float  # of all members
    updates_per_s: float
    shares: dict[str, float]  # of the time, by part; they sum to 1
    busy_cores: float  # CPU seconds of the main process per second


def time_training(
    agent: AgentConfig,
    setup: TrainingSetup,
    on_fraction: Callable[[float], None],
    on_trained: Callable[[Path, EndToEnd], object] = lambda *_: None,
) -> EndToEnd:
    """Train in a temporary folder and measure the speed.

    Timing starts after warm-up, the first evaluation and the first updates, when all
    programs are compiled, and ends before a member finishes or is stopped. Every member is
    timed from the end of a burst of updates to the end of a later one, so that steps and
    updates belong together. `on_fraction` gets the fraction of the timed steps that is done, and
    `on_trained` the run folder, before it is deleted, with the result.
    """
    config = _config(agent, setup)
    members = fleet_members(config)
    names = [member.name for member in members]
    with tempfile.TemporaryDirectory() as folder, make_pool(config) as pool:
        check_fits(config, pool.spec)
        facts = versions(training_device())
        run = create_run(Path(folder) / "run", to_toml(config), names, False, facts)
        with RunLog(config, run, members, agent.name) as log:
            training = Training(config, pool, log)
            with contextlib.closing(training):
                training.state.fleet.compile_ahead().wait()
                training.begin()
                state = training.state
                timer = TrainingTimer(state.times, state.schedule, setup, config.steps, on_fraction)
                training.run(_logging_start(timer, training))
        result = timer.result(agent.name)
        on_trained(run.path, result)
    return result


def _logging_start(timer: "TrainingTimer", training: Training) -> OnProgress:
    """Return a callback that also logs the time at which timing starts.

    The speed that the events of the run say is then that of the timed part.
    """
    logged = False

    def on_progress(progress: Progress) -> None:
        nonlocal logged
        timer(progress)
        if timer.started and not logged:
            training.log_time()
            logged = True

    return on_progress


def check_setup(agent: AgentConfig, setup: TrainingSetup) -> None:
    """Raise a UserError if there is no such task or agents cannot learn it."""
    config = _config(agent, setup)
    for task in config.env:
        make_env(task, config.action_repeat).close()


def _config(agent: AgentConfig, setup: TrainingSetup) -> RunConfig:
    episodes = RunConfig.eval_episodes if setup.steps >= RunConfig.eval_every else 1
    fields = {
        "agent": agent.name,
        "env": setup.task.split(","),
        "seeds": list(range(setup.members)),
        "utd": setup.utd,
        "warmup": PERIOD,
        "steps": PERIOD * episodes + setup.steps,
        "eval_every": PERIOD * episodes,
        "eval_episodes": episodes,
        "precision": setup.precision,
    }
    return finalize_config(dataclasses.replace(resolve(fields), agent=agent))


class Pending(Protocol):
    """The updates [S] that members have yet to make."""

    pending: NDArray[np.int_]


class TrainingTimer:
    """An `on_progress` callback that times every member from burst to burst.

    A member has finished a burst, or the updates of a step in lockstep, if it has made
    updates since the last call and has at most those of one step to make.
    """

    def __init__(
        self,
        times: TimeAccount,
        schedule: Pending,
        setup: TrainingSetup,
        steps: int,
        on_fraction: Callable[[float], None],
    ):
        self._times, self._schedule, self._setup = times, schedule, setup
        self._steps, self._on_fraction = steps, on_fraction
        self._updates = np.zeros(0, dtype=int)  # at the last call
        self._bursts: dict[int, list[tuple[float, int]]] = {}  # first and last: time, updates
        # The first and the last: time, CPU time, parts.
        self._moments: list[NDArray[np.float64]] = []

    def __call__(self, progress: Progress) -> None:
        """Record the progress of one iteration of the training loop."""
        decisions, updates = progress.decisions, progress.updates
        before, self._updates = self._updates, updates
        if (timed := float(decisions.mean()) - PERIOD) > 0:
            self._on_fraction(timed / (self._steps - PERIOD))
        started = progress.point > 0 and progress.warm.all() and updates.min() > 0
        if not started or decisions.max() >= self._steps or progress.stopped.any():
            return
        updated = updates > (before if len(before) else updates)
        finished = updated & (self._schedule.pending <= self._setup.utd)
        if finished.any():
            now = time.perf_counter()
            parts = self._times.seconds().values()
            self._moments[1:] = [np.array([now, time.process_time(), *parts])]
            for member in np.flatnonzero(finished).tolist():
                self._bursts.setdefault(member, [])[1:] = [(now, int(updates[member]))]

    @property
    def started(self) -> bool:
        """Whether timing has started."""
        return bool(self._moments)

    def result(self, agent: str) -> EndToEnd:
        """Return the sum of the members' speeds between their first and last bursts."""
        setup = self._setup
        members = setup.members * len(setup.task.split(","))
        bursts = [x for x in self._bursts.values() if len(x) == 2]
        if len(bursts) < members:
            raise UserError(
                f"--steps: too few for {agent} on {setup.task} to make timed updates; "
                f"expected more, got {setup.steps}"
            )
        pairs = [(last[0] - first[0], last[1] - first[1]) for first, last in bursts]
        updates = sum(count for _, count in pairs)
        rate = sum(count / seconds for seconds, count in pairs)
        first, last = self._moments
        seconds, cpu_seconds, *parts = map(float, last - first)
        shares = [round_significant(part / seconds) for part in parts]
        return EndToEnd(
            agent,
            setup.task,
            members,
            setup.utd,
            round(updates / setup.utd),
            round_significant(seconds),
            round_significant(rate / setup.utd),
            round_significant(rate),
            dict(zip(PARTS, shares, strict=True)),
            round_significant(cpu_seconds / seconds),
        )
