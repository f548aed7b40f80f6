"""One trial of a tuning study: a fleet that trains, and may be pruned at its evaluations."""

import contextlib
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from r2r2.api import Result, RunFailed, RunOptions, train_finalized
from r2r2.config.errors import StoppedMembersWarning
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Member
from r2r2.experiments.tuning_file import TuningStudy
from r2r2.stats.aggregates import iqm, mean_score
from r2r2.stats.scores import SCORE_POINTS
from r2r2.storage.checkpoints import checkpoint_files
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.files import StorageError, atomic_write, storage_errors
from r2r2.storage.run_folder import PRUNED_FILE, RunFolder, open_run, read_manifest
from r2r2.training.callbacks import Callback, EvaluationInfo, StartInfo, StopTraining
from r2r2.training.loop import OnProgress
from r2r2.training.recovery import NOT_FINITE
from r2r2.training.run_config import finalize_config
from r2r2.training.saved_config import fleet_members

PRUNED_KIND = "r2r2 pruned trial"

Points = Mapping[Member, Mapping[int, float]]  # of learning curves, by decision step
# 'diverged': a loss was not finite; the sampler takes it for a bad trial, not for an accident.
TrialEnd = Literal["complete", "pruned", "diverged", "failed", "interrupted"]


class Pruner(Protocol):
    """What a trial asks at each of its evaluation points."""

    def report(self, value: float, step: int) -> None:
        """Record the objective so far at a point, counted from 1."""
        ...

    def should_prune(self) -> bool:
        """Return whether the trial is worse than the others and should end."""
        ...


class TrialOutcome(NamedTuple):
    """How a trial ended."""

    end: TrialEnd
    value: float = math.nan  # of the objective, if it is complete
    why: str = ""  # it did not complete


def objective(study: TuningStudy, points: Points) -> float:
    """Return the value that a study maximises, from the learning curves of all members.

    Per member, `score` is the mean of its last 10 points and `last` its last point. With scales,
    returns are mapped to 0 and 1 task by task; then the statistic is taken over all members. It is
    NaN if a member has no points, or if one of them is not finite.

    Example:
        >>> from r2r2.experiments.tuning_file import parse_study
        >>> table = {"base": {"env": "Hopper-v5"}, "space": {"width": {"choices": [128, 256]}}}
        >>> objective(parse_study("a", table), {Member("Hopper-v5", 0): {10: 1.0, 20: 3.0}})
        2.0
    """
    count = SCORE_POINTS if study.settings.objective == "score" else 1
    scores: dict[str, list[float]] = {}
    for member, curve in points.items():
        last = [curve[step] for step in sorted(curve)][-count:]
        low, high = study.scales.get(member.task, (0.0, 1.0))
        mean = float(np.mean(last)) if last else math.nan
        if not math.isfinite(mean):
            return math.nan
        scores.setdefault(member.task, []).append((mean - low) / (high - low))
    statistic = iqm if study.settings.statistic == "iqm" else mean_score
    return float(statistic(scores))


def read_points(folder: RunFolder, config: RunConfig) -> dict[Member, dict[int, float]]:
    """Return the points of a run's learning curves so far."""
    points: dict[Member, dict[int, float]] = {member: {} for member in fleet_members(config)}
    for row in read_evaluations(folder.evaluations) if folder.evaluations.exists() else []:
        points[Member(row.env_name, row.seed)][row.env_step // config.action_repeat] = row.value
    return points


class Pruning(Callback):
    """Reports every point that all members have reached, and stops a trial that is to be pruned.

    Points of the warm-up are not reported: no policy is trained there. A trial also ends as soon
    as one of its members is stopped, because its objective can no longer be computed.

    Attributes:
        pruned: why and at which step the trial was pruned; None if it was not.
    """

    def __init__(self, study: TuningStudy, config: RunConfig, pruner: Pruner):
        self._study, self._config, self._pruner = study, config, pruner
        self._members = {member.name: member for member in fleet_members(config)}
        self._points: dict[Member, dict[int, float]] = {x: {} for x in self._members.values()}
        self.pruned: tuple[str, int] | None = None

    def on_start(self, info: StartInfo) -> None:
        """Read the points of a run that is resumed."""
        if info.resumed:
            read = read_points(open_run(info.run), self._config)
            self._points = {
                member: {step: x for step, x in curve.items() if step <= info.step}
                for member, curve in read.items()
            }

    def on_log(self, event: dict[str, Any]) -> None:
        """End a trial with a stopped member."""
        if event["event"] == "stopped":
            raise StopTraining(f"{event['member']} was stopped: {event.get('why')}")

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Report a point once all members have it."""
        if info.point is None:
            return
        self._points[self._members[info.member]][info.step] = info.point
        is_common = all(info.step in curve for curve in self._points.values())
        is_last = info.step >= self._config.steps
        if is_common and not is_last and info.step > self._untrained_steps:
            self._report(info.step)

    @property
    def _untrained_steps(self) -> int:
        return 0 if self._config.random_only else self._config.warmup

    def _report(self, step: int) -> None:
        until = {m: {s: x for s, x in c.items() if s <= step} for m, c in self._points.items()}
        value = objective(self._study, until)
        number = -(-step // self._config.eval_every)
        self._pruner.report(value, number)
        if self._pruner.should_prune():
            why = f"pruned at step {step} with an objective of {value:g} so far"
            self.pruned = why, step
            raise StopTraining(why)


class TrialRun(NamedTuple):
    """A trial: its study, the values of its parameters and the folder of its run."""

    study: TuningStudy
    number: int
    values: Mapping[str, Any]  # of the parameters, by dotted name
    path: Path


def run_trial(
    trial: TrialRun, pruner: Pruner, options: RunOptions, on_progress: OnProgress
) -> TrialOutcome:
    """Train or resume a trial; errors of its run are its outcome, not raised.

    Raises:
        StorageError: The disk cannot be written, which concerns all trials.
        KeyboardInterrupt: `on_progress` raised it; the run has a checkpoint.
    """
    if (trial.path / PRUNED_FILE).exists():  # the process was killed before it recorded this
        return TrialOutcome("pruned", why="pruned")
    try:
        config = finalize_config(trial.study.config(trial.values))
        pruning = Pruning(trial.study, config, pruner)
        result = _train(config, trial.path, options, on_progress, pruning)
        return _outcome(trial, config, result, pruning)
    except StorageError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return TrialOutcome("failed", why=f"{text:.500}")


def _train(
    config: RunConfig, path: Path, options: RunOptions, on_progress: OnProgress, pruning: Pruning
) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedMembersWarning)
        try:
            return train_finalized(
                config, path, on_progress=on_progress, options=options, callbacks=[pruning]
            )
        except RunFailed as failure:
            return failure.result


def _outcome(trial: TrialRun, config: RunConfig, result: Result, pruning: Pruning) -> TrialOutcome:
    for member, why in result.stopped.items():
        end: TrialEnd = "diverged" if why == NOT_FINITE else "failed"
        return TrialOutcome(end, why=f"{member} was stopped: {why}")
    if pruning.pruned is not None:
        why, step = pruning.pruned
        facts = {"kind": PRUNED_KIND, "trial": trial.number, "step": step, "why": why}
        with storage_errors(trial.path / PRUNED_FILE):
            atomic_write(trial.path / PRUNED_FILE, json.dumps(facts, indent=2) + "\n")
        return TrialOutcome("pruned", why=why)
    if result.interrupted:
        return TrialOutcome("interrupted", why=result.stop_reason)
    value = objective(trial.study, read_points(result.folder, config))
    if not math.isfinite(value):
        return TrialOutcome("failed", why=f"its objective is {value}")
    return TrialOutcome("complete", value)


def delete_checkpoints(run: Path) -> None:
    """Delete the checkpoints of a trial that has ended: each holds a whole replay buffer."""
    folder = run / "checkpoints"
    if read_manifest(run) is None or folder.is_symlink() or not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        for file in checkpoint_files(folder):
            file.unlink()
        folder.rmdir()


def trial_name(number: int) -> str:
    """Return the name of a trial's run folder.

    Example:
        >>> trial_name(7)
        'trial_0007'
    """
    return f"trial_{number:04}"
