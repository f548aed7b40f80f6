"""How fast a real task is trained, and on what the time goes."""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.api import make_pool
from r2r2.bench.timing_stats import rounded
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


class Profiler:
    """Seconds by part; within a part, another one's seconds are that one's alone.

    Only what `over` was told of is timed, so a program that nobody times pays nothing.

    Args:
        parts: their names.
        now: seconds.

    Example:
        >>> clock = Profiler(["counting"])
        >>> numbers = [3, 1, 2]
        >>> class Shelf:
        ...     def count(self):
        ...         return len(numbers)
        >>> shelf = Shelf()
        >>> clock.over("counting", shelf, "count")
        >>> shelf.count(), clock.seconds["counting"] > 0
        (3, True)
    """

    def __init__(self, parts: list[str], now: Callable[[], float] = time.perf_counter):
        self._now = now
        self.seconds = dict.fromkeys(parts, 0.0)
        self._within: list[str] = []
        self._since = 0.0

    def over(self, part: str, owner: Any, *methods: str) -> None:
        """From now on an object's methods of these names count for a part."""
        for name in methods:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._within.append(part)
            try:
                return method(*arguments, **named)
            finally:
                self._turn()
                self._within.pop()

        return timed

    def _turn(self) -> None:
        """Books the time since the last turn for the part that it was spent in."""
        now = self._now()
        if self._within:
            self.seconds[self._within[-1]] += now - self._since
        self._since = now


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
    names = [member.name for member in fleet_members(config)]
    with tempfile.TemporaryDirectory() as room, make_pool(config) as pool:
        check_fits(config, pool.spec)
        folder = create_run(Path(room) / "run", to_toml(config), names, False)
        with RunLog(config, folder, fleet_members(config), agent.name) as journal:
            training = TimedTraining(config, pool, journal)
            training.begin()
            readings = Readings(training.clock, config.steps, watch)
            training.run(readings)
    return readings.summary(agent.name, course)


def check_course(agent: AgentConfig, course: Course) -> None:
    """Refuses what cannot be trained.

    Raises:
        UserError: There is no such task, or none that agents could learn.
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
    return finalize_config(dataclasses.replace(resolve(fields), agent=agent))


class TimedTraining(Training):
    """A run whose parts are timed."""

    def __init__(self, config: RunConfig, pool: EnvPool, journal: RunLog):
        super().__init__(config, pool, journal)
        self.clock = clock = Profiler(PARTS)
        state, fleet = self.state, self.state.fleet
        clock.over("environment", pool, "step", "try_reset")
        clock.over("acting", state.normalizer, "observe", "normalize")
        clock.over("acting", fleet, "act")
        clock.over("replay", fleet, "add", "_catch_up")
        # Whoever waits, waits for updates.
        clock.over("update", fleet, "train", "wait", "refresh", "nonfinite_members")
        clock.over("evaluation", state.evals, "start", "request", "record")
        if self.diagnoser is not None:
            clock.over("evaluation", self.diagnoser, "diagnose")
        clock.over("logging", journal, "event", "evaluation", "episode", "losses")
        clock.over("logging", fleet, "read_metrics")
        fleet.compile_ahead().wait()


class Readings:
    """The watcher of a timed run: what the clock showed when timing began and ended."""

    def __init__(self, clock: Profiler, steps: int, watch: Callable[[float], None]):
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
            raise UserError(
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
