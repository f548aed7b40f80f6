"""How fast a real task is trained, and on what the time goes."""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from r2r2.config.agents import AgentConfig
from r2r2.config.refusal import Refusal
from r2r2.config.resolve import resolve
from r2r2.config.run import RunConfig
from r2r2.config.text import to_toml
from r2r2.envs.make import make_env
from r2r2.envs.pool import EnvPool
from r2r2.record.folder import create_run
from r2r2.run.clock import Clock
from r2r2.run.fitting import fitted
from r2r2.run.journal import Journal
from r2r2.run.memory import check_fits
from r2r2.run.spread import rounded
from r2r2.run.start import pool_of
from r2r2.run.train import Progress, Training, members_of

PARTS = ["environment", "acting", "replay", "update", "evaluation", "logging"]
REST = "rest"  # of the loop, and of what is booked on the host

# One episode of evaluation for as many steps as the protocol has: its share of the time
# is that of a long run.
PERIOD = RunConfig.eval_every // RunConfig.eval_episodes


class Course(NamedTuple):
    """What is trained, and how far."""

    task: str
    members: int
    utd: int
    steps: int  # decision steps that are timed, of every member


class EndToEnd(NamedTuple):
    """How fast a fleet is trained on a task."""

    agent: str
    task: str
    members: int
    utd: int
    decision_steps: int  # timed, of all members together
    seconds: float
    decision_steps_per_s: float  # of all members together
    updates_per_s: float
    shares: dict[str, float]  # of the seconds, by part; they sum to 1


class Reading(NamedTuple):
    """How far a run was at some time."""

    now: float
    decisions: int
    updates: int
    parts: dict[str, float]


def train_timed(
    agent: AgentConfig, course: Course, watch: Callable[[float], None]
) -> EndToEnd:
    """Trains for a while in a folder that is thrown away.

    Timing begins after warm-up, when an evaluation and updates have been made and all
    programs are compiled, and ends before a member is at its last step or stopped.

    Args:
        agent: the config.
        course: what to train on.
        watch: told how much of what is timed is done, as a fraction.
    """
    config = _config(agent, course)
    names = [member.name for member in members_of(config)]
    with tempfile.TemporaryDirectory() as room, pool_of(config) as pool:
        check_fits(config, pool.spec)
        folder = create_run(Path(room) / "run", to_toml(config), names, False)
        with Journal(config, folder, members_of(config), agent.name) as journal:
            training = TimedTraining(config, pool, journal)
            training.begin()
            readings = Readings(training.clock, config.steps, watch)
            training.run(readings)
    return readings.summary(agent.name, course)


def check_course(agent: AgentConfig, course: Course) -> None:
    """Refuses what cannot be trained.

    Raises:
        Refusal: There is no such task, or none that agents could learn.
    """
    make_env(course.task, _config(agent, course).action_repeat).close()


def _config(agent: AgentConfig, course: Course) -> RunConfig:
    fields = {
        "agent": agent.name,
        "env": course.task,
        "seeds": list(range(course.members)),
        "utd": course.utd,
        "warmup": PERIOD,
        "steps": PERIOD + course.steps,
        "eval_every": PERIOD,
        "eval_episodes": 1,
    }
    return fitted(dataclasses.replace(resolve(fields), agent=agent))


class TimedTraining(Training):
    """A run whose parts are timed."""

    def __init__(self, config: RunConfig, pool: EnvPool, journal: Journal):
        super().__init__(config, pool, journal)
        self.clock = clock = Clock(PARTS)
        fleet, points = self._fleet, self._points
        clock.over("environment", pool, "step", "begin")
        clock.over("acting", self._normaliser, "observe", "normalise")
        clock.over("acting", fleet, "act")
        clock.over("replay", fleet, "add", "_catch_up")
        # Whoever waits, waits for updates.
        clock.over("update", fleet, "train", "wait", "refresh", "alarmed")
        clock.over("evaluation", points, "begin", "turn", "take")
        if self._diagnosing is not None:
            clock.over("evaluation", self._diagnosing, "look")
        clock.over("logging", journal, "event", "evaluation", "episode", "losses")
        clock.over("logging", fleet, "read_metrics")
        fleet.compile_ahead().wait()


class Readings:
    """The watcher of a timed run: what the clock showed when timing began and ended."""

    def __init__(self, clock: Clock, steps: int, watch: Callable[[float], None]):
        self._clock, self._steps, self._watch = clock, steps, watch
        self._first: Reading | None = None
        self._last: Reading | None = None

    def __call__(self, progress: Progress) -> None:
        """Takes in a turn of the loop."""
        decisions, updates = progress.decisions, progress.updates
        if (timed := float(decisions.mean()) - PERIOD) > 0:
            self._watch(timed / (self._steps - PERIOD))
        begun = progress.point > 0 and progress.warm.all() and updates.min() > 0
        if not begun or decisions.max() >= self._steps or progress.stopped.any():
            return
        counts = int(decisions.sum()), int(updates.sum())
        parts = dict(self._clock.seconds)
        self._last = Reading(time.perf_counter(), *counts, parts)
        self._first = self._first or self._last

    def summary(self, agent: str, course: Course) -> EndToEnd:
        """What came of it."""
        first, last = self._first, self._last
        if first is None or last is None or first == last:
            raise Refusal(
                f"steps is {course.steps}; {agent} made too few updates on "
                f"{course.task} in so many to be timed; allowed are more"
            )
        seconds = last.now - first.now
        parts = {x: last.parts[x] - first.parts[x] for x in PARTS}
        parts[REST] = seconds - sum(parts.values())
        steps, updates = last.decisions - first.decisions, last.updates - first.updates
        return EndToEnd(
            agent,
            *course[:3],
            steps,
            rounded(seconds),
            rounded(steps / seconds),
            rounded(updates / seconds),
            {part: rounded(x / seconds) for part, x in parts.items()},
        )
