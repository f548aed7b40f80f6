"""What training writes to the run folder: events, curve points and weights."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.replay.normalizer import Scales
from r2r2.storage.arrays import save_weights
from r2r2.storage.evaluations import Row, append_evaluations, truncate_evaluations
from r2r2.storage.events import EventLog, FieldValue, LogPosition, StepCounts, read_events
from r2r2.storage.files import atomic_write, fsync_file, storage_errors
from r2r2.storage.run_folder import RunFolder
from r2r2.storage.tensorboard import TensorBoardWriter
from r2r2.training.evaluation import MemberWeights, SavedPolicy, deviation, member_of
from r2r2.training.rollout import Episode

Counts = tuple[int, int]  # decision steps, updates


class RunLog:
    """Writes the files of a run; `name` is its name in the table of evaluations."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        members: Sequence[Member],
        name: str,
        tensorboard: bool = False,
    ):
        self._config, self._folder = config, folder
        self._members, self._name = tuple(members), name
        self._events = EventLog(folder.events)
        self._board = TensorBoardWriter(folder.tensorboard) if tensorboard else None
        self._means: list[list[float]] = [[] for _ in members]  # of all evaluations
        self._random: dict[str, list[float]] = {}
        self._logged = 0
        self._stopped: set[int] = set()
        self.latest = np.full(len(members), np.nan)  # [S], newest points of the curves

    def event(
        self,
        event: str,
        member: int | None,
        counts: Counts,
        fields: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Write one event of a member, or of the run if `member` is None."""
        name = None if member is None else self._members[member].name
        steps = self._steps(counts)
        self._events.write(event, steps, name, fields)
        if self._board is not None:
            self._board.write(event, steps.env_step, name, fields or {})

    def episode(self, episode: Episode, counts: Counts, random: bool) -> None:
        """Write a training episode; `random` marks an episode of the warm-up."""
        member, number, length, total = episode
        fields = {"episode": number, "length": length, "return": total, "random": random}
        self.event("episode", member, counts, fields)
        if random:
            self._random.setdefault(self._members[member].task, []).append(total)

    def random_returns(self) -> dict[str, float]:
        """Return the mean return of the warm-up's random policy, by task."""
        return {task: float(np.mean(totals)) for task, totals in self._random.items()}

    def evaluation(self, member: int, counts: Counts, returns: NDArray[np.float64]) -> None:
        """Write an evaluation and, after every `eval_average` of them, a point."""
        mean, std = returns.mean(), deviation(returns)
        fields: dict[str, FieldValue] = {"mean": mean, "std": std, "episodes": len(returns)}
        self.event("evaluation", member, counts, fields)
        means, average = self._means[member], self._config.eval_average
        means.append(float(mean))
        if len(means) % average:
            return
        self.latest[member] = np.mean(means[-average:])
        task, seed = self._members[member]
        step = self._steps(counts).env_step
        row = Row(self._name, task, seed, "return", step, self.latest[member])
        append_evaluations(self._folder.evaluations, [row])

    def is_best(self, member: int) -> bool:
        """Return whether the last evaluation of a member has its highest return so far."""
        *earlier, last = self._means[member]
        return last > max([mean for mean in earlier if mean == mean], default=-math.inf)

    def common_point(self) -> tuple[int, NDArray[np.float64]]:
        """Return step and returns [S] of the last point that all members have; 0, NaN for none."""
        average, returns = self._config.eval_average, np.full(len(self._means), np.nan)
        active = [m for m in range(len(self._means)) if m not in self._stopped]
        number = min([len(self._means[m]) for m in active], default=0) // average
        if not number:
            return 0, returns
        last = slice((number - 1) * average, number * average)
        returns[active] = [np.mean(self._means[m][last]) for m in active]
        return number * self._config.eval_every, returns

    def losses_due(self, decisions: NDArray[np.int_]) -> bool:
        """Return whether `log_every` steps have passed since losses were written."""
        return int(decisions.mean()) - self._logged >= self._config.log_every

    def losses(self, means: Mapping[str, NDArray[np.floating]], counts: Sequence[Counts]) -> None:
        """Write the mean losses of every member that made updates."""
        self._logged = int(np.mean([decisions for decisions, _ in counts]))
        for member, count in enumerate(counts):
            fields = {name: mean[member] for name, mean in means.items()}
            if not all(np.isnan(value) for value in fields.values()):
                self.event("losses", member, count, fields)

    def stop(self, member: int, counts: Counts, why: str) -> None:
        """Write that a member is stopped."""
        self._stopped.add(member)
        self.event("stopped", member, counts, {"why": why})

    def report(self, member: int, fields: Mapping[str, Any]) -> None:
        """Write the file that says why a member was stopped."""
        text = json.dumps(dict(fields), indent=2, allow_nan=False) + "\n"
        path = self._folder.report(self._members[member].name)
        with storage_errors(path):
            atomic_write(path, text)

    def save_weights(self, member: int, weights: MemberWeights) -> None:
        """Write one member's weights."""
        path = self._folder.weights(self._members[member].name)
        with storage_errors(path):
            save_weights(path, weights)

    def save_best_weights(self, member: int, weights: SavedPolicy) -> None:
        """Write the policy of a member's best evaluation."""
        path = self._folder.best_weights(self._members[member].name)
        with storage_errors(path):
            save_weights(path, weights)

    def restore_best_weights(self, weights: Mapping[int, SavedPolicy]) -> None:
        """Write the best weights of a checkpoint, and delete those of other members."""
        for index, member in enumerate(self._members):
            path = self._folder.best_weights(member.name)
            for leftover in path.parent.glob(f".{path.name}.*"):  # of a killed process
                leftover.unlink(missing_ok=True)
            if index in weights:
                self.save_best_weights(index, weights[index])
            else:
                path.unlink(missing_ok=True)

    def save_all_weights(
        self, states: Any, scales: Scales | None, skip: Sequence[int] = ()
    ) -> None:
        """Write the weights of all members except those in `skip`."""
        host = jax.device_get(MemberWeights(states, scales))
        for member in range(len(self._members)):
            if member not in skip:
                self.save_weights(member, member_of(host, member))

    def notes(self) -> dict[str, Any]:
        """Return the log's position as JSON values, copied since the run continues."""
        table = self._folder.evaluations
        if table.exists():
            fsync_file(table)
        return {
            "events": list(self._events.position()),
            "evaluations": table.stat().st_size if table.exists() else 0,
            "points": [list(means) for means in self._means],
            "random": {task: list(totals) for task, totals in self._random.items()},
            "logged": self._logged,
            "stopped": sorted(self._stopped),
        }

    def restore(self, notes: Mapping[str, Any], stopped: set[int]) -> None:
        """Remove everything written after `notes`, and the reports on members not `stopped`."""
        self._events.truncate(LogPosition(*notes["events"]))
        truncate_evaluations(self._folder.evaluations, notes["evaluations"])
        self._means = [list(means) for means in notes["points"]]
        self._random = {task: list(totals) for task, totals in notes["random"].items()}
        self._logged, self._stopped = notes["logged"], set(stopped)
        average = self._config.eval_average
        for index, means in enumerate(self._means):
            if end := len(means) // average * average:
                self.latest[index] = np.mean(means[end - average : end])
        if self._board is not None:
            self._board.rewrite(read_events(self._folder.events))
        for index, member in enumerate(self._members):
            if index not in stopped:
                self._folder.report(member.name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._events.close()
        if self._board is not None:
            self._board.close()

    def _steps(self, counts: Counts) -> StepCounts:
        decisions, updates = counts
        return StepCounts(decisions * self._config.action_repeat, decisions, updates)
