"""What a run writes down as it goes: events, points of the curve, weights."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.replay.normalizer import Scales
from r2r2.storage.arrays import save_weights
from r2r2.storage.evaluations import Row, append_evaluations, truncate_evaluations
from r2r2.storage.events import (
    EventLog,
    FieldValue,
    LogPosition,
    StepCounts,
    read_events,
)
from r2r2.storage.files import atomic_write, fsync_file, storage_errors
from r2r2.storage.run_folder import RunFolder
from r2r2.storage.tensorboard import TensorBoardWriter
from r2r2.training.evaluation import deviation
from r2r2.training.rollout import Episode

Counts = tuple[int, int]  # decision steps, updates


class Learnt(NamedTuple):
    """What a member's file of weights holds."""

    state: Any
    scales: Scales | None  # where observations are normalised


class RunLog:
    """The run's folder as training writes it, with TensorBoard's files if wanted.

    Args:
        config: the run.
        folder: where it is written.
        members: the fleet's.
        name: what its curves are called in the table of evaluations.
        tensorboard: whether to write TensorBoard's files too.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        members: Sequence[Member],
        name: str,
        tensorboard: bool = False,
    ):
        self._config, self._folder, self._members = config, folder, tuple(members)
        self._name = name
        self._log = EventLog(folder.events)
        self._board = TensorBoardWriter(folder.tensorboard) if tensorboard else None
        self._points: list[list[float]] = [[] for _ in members]
        self._random: dict[str, list[float]] = {}
        self._logged = 0
        self._stopped: set[int] = set()
        self.latest = np.full(len(members), np.nan)  # [S], the curves' newest points

    def event(
        self,
        event: str,
        member: int | None,
        counts: Counts,
        fields: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Writes one event of a member, or of the whole run."""
        name = None if member is None else self._members[member].name
        steps = self._steps(counts)
        self._log.write(event, steps, name, fields)
        if self._board is not None:
            self._board.write(event, steps.env_step, name, fields or {})

    def episode(self, episode: Episode, counts: Counts, random: bool) -> None:
        """Writes one episode of training down; a random one is warm-up's."""
        member, number, length, total = episode
        fields = {
            "episode": number,
            "length": length,
            "return": total,
            "random": random,
        }
        self.event("episode", member, counts, fields)
        if random:
            self._random.setdefault(self._members[member].task, []).append(total)

    def random_returns(self) -> dict[str, float]:
        """The mean return of warm-up's random policy, by task."""
        return {task: float(np.mean(totals)) for task, totals in self._random.items()}

    def evaluation(
        self, member: int, counts: Counts, returns: NDArray[np.float64]
    ) -> None:
        """Books one evaluation and, when enough of them are in, a point."""
        fields: dict[str, FieldValue] = {
            "mean": returns.mean(),
            "std": deviation(returns),
            "episodes": len(returns),
        }
        self.event("evaluation", member, counts, fields)
        self._points[member].append(float(returns.mean()))
        if len(self._points[member]) % self._config.eval_average:
            return
        self.latest[member] = np.mean(
            self._points[member][-self._config.eval_average :]
        )
        task, seed = self._members[member]
        step = self._steps(counts).env_step
        row = Row(self._name, task, seed, "return", step, self.latest[member])
        append_evaluations(self._folder.evaluations, [row])

    def common_point(self) -> tuple[int, NDArray[np.float64]]:
        """The last point that every member has: its decision step and the returns.

        Step 0, and NaN, before there is one.
        """
        each, none = self._config.eval_average, np.full(len(self._points), np.nan)
        going = [m for m in range(len(self._points)) if m not in self._stopped]
        number = min([len(self._points[m]) for m in going], default=0) // each
        if not number:
            return 0, none
        last = slice((number - 1) * each, number * each)
        none[going] = [np.mean(self._points[m][last]) for m in going]
        return number * self._config.eval_every, none

    def losses_due(self, decisions: NDArray[np.int_]) -> bool:
        """Whether the members have taken `log_every` steps since the last losses."""
        return int(decisions.mean()) - self._logged >= self._config.log_every

    def losses(
        self, means: Mapping[str, NDArray[np.floating]], counts: Sequence[Counts]
    ) -> None:
        """Writes each member's mean losses since the last time; none if no updates."""
        self._logged = int(np.mean([decisions for decisions, _ in counts]))
        for member, count in enumerate(counts):
            own = {name: mean[member] for name, mean in means.items()}
            if not all(np.isnan(value) for value in own.values()):
                self.event("losses", member, count, own)

    def stop(self, member: int, counts: Counts, why: str) -> None:
        """Writes down that a member's run ends here."""
        self._stopped.add(member)
        self.event("stopped", member, counts, {"why": why})

    def report(self, member: int, fields: Mapping[str, Any]) -> None:
        """Writes down why a member was stopped, in a file of its own."""
        text = json.dumps(dict(fields), indent=2, allow_nan=False) + "\n"
        path = self._folder.report(self._members[member].name)
        with storage_errors(path):
            atomic_write(path, text)

    def go_on(self, stopped: set[int]) -> None:
        """Takes back the reports of members that are not stopped any more."""
        self._stopped = set(stopped)
        for place, member in enumerate(self._members):
            if place not in stopped:
                self._folder.report(member.name).unlink(missing_ok=True)

    def keep(self, member: int, learnt: Learnt) -> None:
        """Keeps what one member had learnt."""
        path = self._folder.weights(self._members[member].name)
        with storage_errors(path):
            save_weights(path, learnt)

    def weights(
        self, states: Any, scales: Scales | None, spoilt: Sequence[int] = ()
    ) -> None:
        """Keeps what every member has learnt, but for those that are spoilt."""
        host = jax.device_get(Learnt(states, scales))
        for place in range(len(self._members)):
            if place not in spoilt:
                self.keep(place, jax.tree.map(operator.itemgetter(place), host))

    def notes(self) -> dict[str, Any]:
        """Where it stands, as JSON has it; `restore` goes back there.

        Copies: they are written while the run goes on.
        """
        table = self._folder.evaluations
        if table.exists():
            fsync_file(table)
        return {
            "events": list(self._log.position()),
            "evaluations": table.stat().st_size if table.exists() else 0,
            "points": [list(points) for points in self._points],
            "random": {task: list(found) for task, found in self._random.items()},
            "logged": self._logged,
            "stopped": sorted(self._stopped),
        }

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Goes back to `notes`: what came later is of steps that are made again."""
        self._log.truncate(LogPosition(*notes["events"]))
        truncate_evaluations(self._folder.evaluations, notes["evaluations"])
        self._points = [list(points) for points in notes["points"]]
        self._random = {task: list(found) for task, found in notes["random"].items()}
        self._logged, self._stopped = notes["logged"], set(notes["stopped"])
        for member, points in enumerate(self._points):
            each = self._config.eval_average
            if whole := len(points) // each * each:
                self.latest[member] = np.mean(points[whole - each : whole])
        if self._board is not None:
            self._board.rewrite(read_events(self._folder.events))

    def close(self) -> None:
        """Closes the files."""
        self._log.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _steps(self, counts: Counts) -> StepCounts:
        decisions, updates = counts
        return StepCounts(decisions * self._config.action_repeat, decisions, updates)
