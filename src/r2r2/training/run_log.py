"""What training writes to the run folder: events, curve points and weights."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.config.fields import flatten_config
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.replay.normalizer import Scales
from r2r2.storage.arrays import save_weights
from r2r2.storage.evaluations import Row, append_evaluations, read_evaluations, truncate_evaluations
from r2r2.storage.events import EarlyEnd, EventLog, FieldValue, LogPosition, StepCounts
from r2r2.storage.files import FileEntry, LogFile, atomic_write, file_entry, storage_errors
from r2r2.storage.run_folder import BEST_WEIGHTS_FILE, EVALUATIONS_FILE, EVENTS_FILE, RunFolder
from r2r2.training.callbacks import CallbackList, EpisodeInfo, EvaluationInfo, StartInfo
from r2r2.training.evaluation import MemberWeights, SavedPolicy, deviation, member_of
from r2r2.training.rollout import Episode

Counts = tuple[int, int]  # decision steps, updates


class RunLog:
    """Writes the files of a run, and tells its callbacks.

    `name` is the run's name in the table of evaluations.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        members: Sequence[Member],
        name: str,
        callbacks: CallbackList | None = None,
    ):
        self._config, self._folder = config, folder
        self._members, self._name = tuple(members), name
        self._events, self._evaluations = EventLog(folder.events), cast("LogFile | None", None)
        self._files: dict[str, FileEntry] = {}  # of members, as they were written
        self.callbacks = callbacks or CallbackList()
        # By member: means of the evaluations at multiples of the interval, and the points.
        self._means: list[list[float]] = [[] for _ in members]
        self._points: list[dict[int, float]] = [{} for _ in members]  # by decision step
        self._random: dict[str, list[float]] = {}
        self._logged = 0
        self._stopped: set[int] = set()
        self.ended_early: EarlyEnd | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def latest(self) -> NDArray[np.float64]:
        """The newest points of the curves, [S]; NaN before the first."""
        return np.array([next(reversed(x.values()), np.nan) for x in self._points])

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
        self.callbacks.log(self._events.write(event, steps, name, fields))

    def start(self, step: int, resumed: bool) -> None:
        """Tell the callbacks that the run starts, or continues after `step`."""
        config = self._config
        run, agent, names = self._folder.path, config.agent.name, self._folder.members

        def info() -> StartInfo:
            values = {path: field.value for path, field in flatten_config(config).items()}
            stopped = tuple(names[member] for member in sorted(self._stopped))
            return StartInfo(run, agent, names, step, config.steps, resumed, values, stopped)

        self.callbacks.start(info)

    def episode(self, episode: Episode, counts: Counts, random: bool) -> None:
        """Write a training episode; `random` marks an episode of the warm-up."""
        member, number, length, total = episode
        fields = {"episode": number, "length": length, "return": total, "random": random}
        self.event("episode", member, counts, fields)
        name = self._members[member].name
        info = EpisodeInfo(name, *counts, number, length, total, random)
        self.callbacks.call("on_episode", lambda: info)
        if random:
            self._random.setdefault(self._members[member].task, []).append(total)

    def random_returns(self) -> dict[str, float]:
        """Return the mean return of the warm-up's random policy, by task."""
        return {task: float(np.mean(totals)) for task, totals in self._random.items()}

    def evaluation(
        self, member: int, counts: Counts, returns: NDArray[np.float64], cut: int = 0
    ) -> None:
        """Write an evaluation and, after every `eval_average` of them or at the end, a point.

        `cut` is the number of episodes that did not end and were cut off.
        """
        mean, std = float(returns.mean()), deviation(returns)
        fields: dict[str, FieldValue] = {"mean": mean, "std": std, "episodes": len(returns)}
        fields |= {"cut": cut} if cut else {}
        self.event("evaluation", member, counts, fields)
        point = self._add_point(member, counts, mean)
        name = self._members[member].name
        self.callbacks.call(
            "on_evaluation",
            lambda: EvaluationInfo(name, *counts, mean, std, np.array(returns), point),
        )

    def _add_point(self, member: int, counts: Counts, mean: float) -> float | None:
        """Write and return the point that an evaluation completes, if it does."""
        config, means, step = self._config, self._means[member], counts[0]
        since = [*means[len(means) // config.eval_average * config.eval_average :], mean]
        # Where the run ends between two steps of the interval, it may get more steps later:
        # then the next point must not contain the evaluation at this end.
        if step % (config.eval_every // config.eval_average) == 0:
            means.append(mean)
        if len(since) < config.eval_average and step != config.steps:
            return None
        self._points[member][step] = value = float(np.mean(since))
        task, seed = self._members[member]
        row = Row(self._name, task, seed, "return", self._steps(counts).env_step, value)
        self._evaluations = self._evaluations or self._open_table()
        append_evaluations(self._folder.evaluations, [row], self._evaluations)
        return value

    def reached(self, value: float) -> bool:
        """Return whether the newest point of every member that is not stopped is at least this."""
        active = self._active
        return bool(active) and bool((self.latest[active] >= value).all())

    def best_mean(self, member: int) -> float:
        """Return the highest mean of a member's evaluations so far, without NaN."""
        return max([mean for mean in self._means[member] if mean == mean], default=-math.inf)

    def common_point(self) -> tuple[int, NDArray[np.float64]]:
        """Return step and returns [S] of the last point that all members have; 0, NaN for none."""
        returns = np.full(len(self._points), np.nan)
        step = min((next(reversed(self._points[m]), 0) for m in self._active), default=0)
        for member in self._active:
            returns[member] = self._points[member].get(step, np.nan)
        return step, returns

    @property
    def _active(self) -> list[int]:
        return [m for m in range(len(self._members)) if m not in self._stopped]

    def losses_due(self, decisions: NDArray[np.int_]) -> bool:
        """Return whether `log_every` steps have passed since losses were written."""
        # The mean falls if a member that was stopped is trained again.
        return abs(self._mean_step(decisions) - self._logged) >= self._config.log_every

    def _mean_step(self, decisions: Sequence[int] | NDArray[np.int_]) -> int:
        """Return the mean step of the members that are not stopped."""
        steps: list[int] = np.asarray(decisions).tolist()
        chosen = self._active or range(len(steps))
        return sum(steps[member] for member in chosen) // len(chosen)

    def losses(self, means: Mapping[str, NDArray[np.floating]], counts: Sequence[Counts]) -> None:
        """Write the mean losses of every member that made updates."""
        self._logged = self._mean_step([decisions for decisions, _ in counts])
        for member, count in enumerate(counts):
            fields = {name: mean[member] for name, mean in means.items()}
            if not all(np.isnan(value) for value in fields.values()):
                self.event("losses", member, count, fields)

    def end_early(self, counts: Counts, why: str) -> None:
        """Write that the run ends before its last step, as its config asks for."""
        self.ended_early = EarlyEnd(counts[0], why)
        self.event("end", None, counts, {"why": why})

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
            self._files[f"{path.parent.name}/{path.name}"] = file_entry(path)

    def save_weights(self, member: int, weights: MemberWeights) -> None:
        """Write one member's weights; those of a stopped member are not its final ones."""
        name = self._members[member].name
        path, other = self._folder.weights(name), self._folder.stopped_weights(name)
        if member in self._stopped:
            path, other = other, path
        self._save(path, weights)
        with storage_errors(other):
            other.unlink(missing_ok=True)
        self._files.pop(f"{name}/{other.name}", None)

    def _save(self, path: Path, tree: object) -> None:
        with storage_errors(path):
            save_weights(path, tree)
            self._files[f"{path.parent.name}/{path.name}"] = file_entry(path)

    def _open_table(self) -> LogFile:
        with storage_errors(self._folder.evaluations):
            return LogFile(self._folder.evaluations)

    def logs(self) -> dict[str, LogFile]:
        """Return the logs by file name."""
        table = {} if self._evaluations is None else {EVALUATIONS_FILE: self._evaluations}
        return {EVENTS_FILE: self._events.file, **table}

    def files(self, best: bool = True) -> dict[str, FileEntry]:
        """Return length and checksum of logs and members' files, perhaps without best weights."""
        own = {k: x for k, x in self._files.items() if best or not k.endswith(BEST_WEIGHTS_FILE)}
        return own | {name: log.entry() for name, log in self.logs().items()}

    def save_best_weights(self, member: int, weights: SavedPolicy) -> None:
        """Write the policy of a member's best evaluation."""
        self._save(self._folder.best_weights(self._members[member].name), weights)

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
        for log in self.logs().values():
            log.sync()
        return {
            "events": list(self._events.position()),
            "evaluations": self._evaluations.entry().bytes if self._evaluations else 0,
            "points": [list(means) for means in self._means],
            "random": {task: list(totals) for task, totals in self._random.items()},
            "logged": self._logged,
            "stopped": sorted(self._stopped),
        }

    def restore(
        self,
        notes: Mapping[str, Any],
        stopped: set[int],
        files: Mapping[str, FileEntry] | None = None,
    ) -> None:
        """Remove everything written after `notes`, and the reports on members not `stopped`."""
        self._events.truncate(LogPosition(*notes["events"]))
        truncate_evaluations(self._folder.evaluations, notes["evaluations"])
        self._evaluations = self._open_table() if self._folder.evaluations.exists() else None
        # The weights of other members are written again.
        names = [f"{self._members[member].name}/" for member in stopped]
        self._files = {k: x for k, x in (files or {}).items() if k.startswith(tuple(names))}
        self._means = [list(means) for means in notes["points"]]
        self._random = {task: list(totals) for task, totals in notes["random"].items()}
        self._logged, self._stopped = notes["logged"], set(stopped)
        table, repeat = self._folder.evaluations, self._config.action_repeat
        points = dict(zip(self._members, self._points, strict=True))
        for row in read_evaluations(table) if table.exists() else []:
            if (curve := points.get(Member(row.env_name, row.seed))) is not None:
                curve[row.env_step // repeat] = row.value
            self._name = row.exp_name  # defaults may have changed since the run began
        for index, member in enumerate(self._members):
            if index not in stopped:
                self._folder.report(member.name).unlink(missing_ok=True)
                self._folder.stopped_weights(member.name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._events.close()
        if self._evaluations is not None:
            self._evaluations.close()

    def _steps(self, counts: Counts) -> StepCounts:
        decisions, updates = counts
        return StepCounts(decisions * self._config.action_repeat, decisions, updates)
