"""Tune fields of a run: an Optuna study whose trials are fleets, stored in one folder.

    study.json      what the study is, as its file said when it began
    journal.jsonl   trials and their values, as Optuna's journal storage writes them
    runs/trial_N    run folders
    trials.csv      the trials as a table
    best.toml       the config of the best trial
    history.png     the objective by trial

The sampler of each trial is seeded with (seed, number of the trial), and sees only what the journal
holds. A study that is interrupted therefore continues as if it had not been.
"""

import contextlib
import importlib
import json
import math
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from r2r2.api import DEFAULT_OPTIONS, RunOptions, check_options, enable_compilation_cache
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import DURATION, at_least, parse_duration
from r2r2.experiments.tuning_file import Parameter, TuningStudy, load_tuning_study
from r2r2.experiments.tuning_results import (
    PICTURE_FILE,
    TrialRecord,
    TrialState,
    TuningResult,
    best_trial,
    draw_history,
    write_tables,
)
from r2r2.experiments.tuning_trial import (
    TrialOutcome,
    TrialRun,
    delete_checkpoints,
    run_trial,
    trial_name,
)
from r2r2.storage.files import LogFile, atomic_write, cannot_write, read_json_object, storage_errors
from r2r2.storage.run_folder import is_locked, lock_owner, lock_run
from r2r2.training.loop import Progress
from r2r2.training.run_config import finalize_config

if TYPE_CHECKING:
    import optuna

STUDY_FILE, JOURNAL_FILE = "study.json", "journal.jsonl"
STUDY_KIND, STUDY_FORMAT = "r2r2 tuning study", 1
FOLDER = "tuning"
MAX_STARTS = 3  # of a trial during which the process dies
MAX_FIRST_FAILURES = 5  # trials that fail before any other succeeds
MIN_COMPLETE = 10  # trials, for importances
# How a trial is counted by Optuna; its sampler takes pruned trials for bad ones.
STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "diverged": "PRUNED", "failed": "FAIL"}


class TuningStatus(NamedTuple):
    """A study while it runs."""

    number: int  # of the current trial, from 1
    trials: int  # of the whole study
    values: Mapping[str, Any]  # of the trial's parameters, by dotted name
    step: int  # decision steps of the trial
    steps: int  # decision steps of a trial that is not pruned
    best: TrialRecord | None
    seconds_left: float | None  # estimated, of the whole study; None: unknown
    ended: TrialRecord | None = None  # the trial, once it has ended


OnTuning = Callable[[TuningStatus], None]


def tune(
    study: str | Path | TuningStudy | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    trials: int | None = None,
    budget: str | None = None,
    options: RunOptions = DEFAULT_OPTIONS,
    on_status: OnTuning = lambda _: None,
) -> TuningResult:
    """Search for the best values of some fields of a run, or continue such a search.

    Each trial is one fleet: all seeds and tasks of the study with the same values. It ends early if
    the pruner finds its evaluations worse than those of other trials. A trial that fails is
    recorded and does not end the study. Ctrl-C ends it with a checkpoint of the current trial;
    the same call continues. docs/tuning.md describes the file and the folder.

    Args:
        study: a TOML file, or a table of the same form.
        out: folder of the study; by default `tuning/NAME`, after the name of the file.
        trials: trials of the whole study, instead of those of the file.
        budget: time after which no further trial starts, such as '8h', instead of the file's.
        options: how runs are carried out, except `overwrite`.
        on_status: called before, during and after each trial.

    Raises:
        UserError: The input is invalid (nothing has been written then), or Optuna is not installed.
        StorageError: The folder can no longer be written.

    Example:
        >>> import tempfile
        >>> study = {
        ...     "base": {"env": "Pendulum-v1", "steps": 10, "random_only": True},
        ...     "space": {"encoder_rate": {"low": 1e-4, "high": 1e-3, "log": True}},
        ...     "study": {"trials": 1},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tune(study, f"{folder}/study", options=RunOptions(workers=0))
        >>> len(result.trials), sorted(result.best.values)
        (1, ['agent.encoder_rate'])
    """
    loaded = load_tuning_study(study)
    folder = Path(out) if out is not None else Path(FOLDER) / loaded.name
    limits = _limits(loaded, trials, budget)
    check_options(options)
    if options.overwrite:
        raise UserError("not allowed for a study, which resumes its runs", "overwrite")
    import_optuna()
    for config in loaded.corners():
        finalize_config(config)
    _check_folder(folder, loaded)
    enable_compilation_cache(replace=False)
    with _open_folder(folder, loaded):
        tuner = Tuner(loaded, folder, options._replace(checkpoints=1), on_status)
        return tuner.run(limits)


class Limits(NamedTuple):
    """When a study ends."""

    trials: int
    seconds: float  # of this call


def _limits(study: TuningStudy, trials: int | None, budget: str | None) -> Limits:
    count = study.settings.trials if trials is None else trials
    if type(count) is not int or not at_least(1).is_valid(count):
        raise invalid_value("trials", at_least(1).description, count)
    text = study.settings.budget if budget is None else budget
    if not isinstance(text, str) or not DURATION.is_valid(text):
        raise invalid_value("budget", DURATION.description, text)
    return Limits(count, parse_duration(text) if text else math.inf)


def import_optuna() -> Any:
    """Return the package optuna, or raise a `UserError` if it is not installed."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            "tune: expected the package optuna, which is not installed; pip install 'r2r2[tune]'"
        ) from error


# The folder


def _check_folder(folder: Path, study: TuningStudy) -> None:
    """Check that a folder is new, or holds the same study, which no other process runs."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; expected a folder")
    if not any(folder.iterdir()):
        return
    facts = read_json_object(folder / STUDY_FILE) or {}
    if facts.get("kind") != STUDY_KIND:
        raise UserError(f"{folder}: not empty and not a tuning study; choose another --out")
    if facts.get("format") != STUDY_FORMAT:
        raise UserError(
            f"{folder / STUDY_FILE}: unsupported format; expected {STUDY_FORMAT}, got "
            f"{facts.get('format')}"
        )
    if change := _first_change(facts.get("definition"), study.definition()):
        raise UserError(
            f"{folder}: contains a study with {change}; only trials, budget and title may change; "
            "choose another --out"
        )
    _check_unused(folder)


def _check_unused(folder: Path) -> None:
    if is_locked(folder):
        raise UserError(f"{folder}: in use; {lock_owner(folder)} is running this study")


def _first_change(old: Any, new: Mapping[str, Any]) -> str:
    """Return the first entry in which two definitions differ; empty if they are equal."""
    if not isinstance(old, dict):
        return "an unreadable definition"
    for part, entries in new.items():
        before: Any = old.get(part)
        earlier = before if isinstance(before, dict) else {}
        for key in dict.fromkeys([*entries, *earlier]):
            if earlier.get(key) != entries.get(key):
                now, then = entries.get(key, "none"), earlier.get(key, "none")
                return f"another [{part}] ({key} is {then}, not {now})"
    return ""


@contextlib.contextmanager
def _open_folder(folder: Path, study: TuningStudy) -> Generator[None]:
    """Create the folder of a study, and keep other processes from running it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    _check_unused(folder)
    with lock_run(folder):
        facts = {"kind": STUDY_KIND, "format": STUDY_FORMAT, "name": study.name}
        facts |= {"title": study.title, "definition": study.definition()}
        with storage_errors(folder):
            atomic_write(folder / STUDY_FILE, json.dumps(facts, indent=1) + "\n")
        yield


def open_journal(folder: Path, study: TuningStudy) -> "optuna.Study":
    """Return the study in a folder's journal, a new one if there is none.

    The caller holds the lock of the folder.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    path = folder / JOURNAL_FILE
    lock = JournalFileOpenLock(str(path))
    with storage_errors(path):
        Path(f"{path}.lock").unlink(missing_ok=True)  # of a killed process
        LogFile(path).close()  # cuts off a line that a killed process wrote in part
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), lock)),
            study_name=study.name,
            direction="maximize",
            pruner=make_pruner(study),
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}") from error
    finally:
        optuna.logging.set_verbosity(verbosity)


# Optuna's objects


def make_sampler(study: TuningStudy, number: int) -> "optuna.samplers.BaseSampler":
    """Return the sampler of one trial: its random numbers depend on the trial's number only."""
    from optuna.samplers import RandomSampler, TPESampler

    sequence = np.random.SeedSequence((study.settings.seed, number))
    seed = int(sequence.generate_state(1)[0])
    if study.settings.sampler == "random":
        return RandomSampler(seed)
    return TPESampler(seed=seed, n_startup_trials=study.settings.startup)


def make_pruner(study: TuningStudy) -> "optuna.pruners.BasePruner":
    """Return the pruner of a study; its resources are evaluation points."""
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    config = study.corners()[0]
    if study.settings.pruner == "hyperband":
        return HyperbandPruner(1, max(1, -(-config.steps // config.eval_every)))
    if study.settings.pruner == "median":
        return MedianPruner(n_startup_trials=study.settings.startup)
    return NopPruner()


def _suggest(trial: "optuna.Trial", parameter: Parameter) -> None:
    """Give a trial its value of a parameter; one that it has already stays."""
    low, high, step, log = parameter.low, parameter.high, parameter.step, parameter.log
    if parameter.choices:
        trial.suggest_categorical(parameter.path, parameter.choices)
    elif parameter.is_integer:
        trial.suggest_int(parameter.path, int(low), int(high), step=int(step or 1), log=log)
    else:
        trial.suggest_float(parameter.path, low, high, step=step, log=log)


class _ReportedTrial:
    """The pruner's view of a trial; points that were reported before a resume are not repeated."""

    def __init__(self, journal: "optuna.Study", trial: "optuna.Trial"):
        self._trial = trial
        self._known = {*journal.trials[trial.number].intermediate_values}

    def report(self, value: float, step: int) -> None:
        if step not in self._known:
            self._trial.report(value, step)

    def should_prune(self) -> bool:
        return self._trial.should_prune()


# The loop


class Tuner:
    """Runs the trials of a study, one after the other."""

    def __init__(self, study: TuningStudy, folder: Path, options: RunOptions, on_status: OnTuning):
        self._study, self._folder, self._options = study, folder, options
        self._on_status, self._began = on_status, time.monotonic()
        self._steps = study.corners()[0].steps
        self._journal = open_journal(folder, study)

    def run(self, limits: Limits) -> TuningResult:
        """Run trials until there are enough, and write the results."""
        interrupted = False
        try:
            while not interrupted and (trial := self._next(limits)) is not None:
                interrupted = not self._run_trial(trial, limits.trials)
                write_tables(self._study, self._folder, self.records())
        finally:
            records = self.records()
            if any(record.state != "unfinished" for record in records):
                write_tables(self._study, self._folder, records)
                draw_history(self._study, self._folder / PICTURE_FILE, records)
        importances = self._importances(records)
        return TuningResult(self._study, self._folder, tuple(records), interrupted, importances)

    def records(self) -> list[TrialRecord]:
        """Return all trials of the study."""
        return [self._record(trial) for trial in self._journal.trials]

    def _record(self, trial: "optuna.trial.FrozenTrial") -> TrialRecord:
        facts, ended = trial.user_attrs, trial.state.is_finished()
        state: TrialState = facts.get("end", "failed") if ended else "unfinished"
        value = trial.value if ended else None
        number = trial.number + 1
        return TrialRecord(
            number,
            state,
            math.nan if value is None else value,
            trial.params,
            facts.get("seconds", 0.0),
            facts.get("why", ""),
            self._path(number),
        )

    def _path(self, number: int) -> Path:
        return self._folder / "runs" / trial_name(number)

    def _next(self, limits: Limits) -> "optuna.Trial | None":
        """Return the trial to run: an interrupted one, or else a new one; None at the end."""
        import optuna

        trials, records = self._journal.trials, self.records()
        unfinished = [trial for trial in trials if not trial.state.is_finished()]
        if not unfinished and not self._may_start(records, limits):
            return None
        number = unfinished[0].number if unfinished else len(trials)
        self._journal.sampler = make_sampler(self._study, number)
        if unfinished:
            trial = optuna.Trial(self._journal, unfinished[0]._trial_id)
        else:
            trial = self._journal.ask()
        for parameter in self._study.space:
            _suggest(trial, parameter)
        return trial

    def _may_start(self, records: Sequence[TrialRecord], limits: Limits) -> bool:
        """Return whether a new trial may start, and would probably end in time."""
        failures = [record for record in records if record.state == "failed"]
        if len(records) >= limits.trials or len(records) == len(failures) >= MAX_FIRST_FAILURES:
            return False
        expected = float(np.median([x.seconds for x in records])) if records else 0.0
        return time.monotonic() - self._began + expected <= limits.seconds

    def _run_trial(self, trial: "optuna.Trial", count: int) -> bool:
        """Run or resume a trial of `count`; return False if it was interrupted."""
        starts, before = (trial.user_attrs.get(x, 0) for x in ("starts", "seconds"))
        if starts >= MAX_STARTS:
            why = f"the process died {starts} times during this trial"
            self._tell(trial, TrialOutcome("failed", why=why), count)
            return True
        trial.set_user_attr("starts", starts + 1)
        number = trial.number + 1  # Optuna counts from 0
        run = TrialRun(self._study, number, trial.params, self._path(number))
        on_progress, began, ended = self._progress(trial, count, before), time.monotonic(), False
        try:
            outcome = run_trial(
                run, _ReportedTrial(self._journal, trial), self._options, on_progress
            )
            ended = outcome.end != "interrupted"
        finally:
            trial.set_user_attr("seconds", before + time.monotonic() - began)
            if not ended:  # on purpose: the next start is not one after a crash
                trial.set_user_attr("starts", 0)
        if ended:
            self._tell(trial, outcome, count)
        return ended

    def _tell(self, trial: "optuna.Trial", outcome: TrialOutcome, count: int) -> None:
        """Record the end of a trial."""
        from optuna.trial import TrialState as OptunaState

        trial.set_user_attr("end", outcome.end)
        trial.set_user_attr("why", outcome.why)
        value = outcome.value if outcome.end == "complete" else None
        self._journal.tell(trial, value, OptunaState[STATES[outcome.end]])
        delete_checkpoints(self._path(trial.number + 1))
        records = self.records()
        status = self._status(trial, count, records)
        self._on_status(status._replace(ended=records[trial.number]))

    def _progress(
        self, trial: "optuna.Trial", count: int, before: float
    ) -> Callable[[Progress], None]:
        """Return the function that reports the progress of a trial's run."""
        began = time.monotonic()
        status = self._status(trial, count, self.records())

        def on_progress(progress: Progress) -> None:
            seconds = before + time.monotonic() - began
            step, left = int(progress.decisions.min()), status.seconds_left
            if left is not None:
                left = max(0.0, left - seconds)
            elif step:
                trials_left = count - status.number + 1
                left = max(0.0, seconds * (self._steps / step * trials_left - 1))
            self._on_status(status._replace(step=step, seconds_left=left))

        return on_progress

    def _status(
        self, trial: "optuna.Trial", count: int, records: Sequence[TrialRecord]
    ) -> TuningStatus:
        """Return the status at the start or the end of a trial."""
        ended = [record.seconds for record in records if record.state != "unfinished"]
        left = float(np.mean(ended)) * max(count - len(ended), 0) if ended else None
        total, best = max(count, len(records)), best_trial(records)
        return TuningStatus(trial.number + 1, total, trial.params, 0, self._steps, best, left)

    def _importances(self, records: Sequence[TrialRecord]) -> dict[str, float]:
        """Return the share of each parameter in good values, by PED-ANOVA."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        values = [record.value for record in records if record.state == "complete"]
        if len(values) < MIN_COMPLETE or len(set(values)) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about few trials, and experimental features
            shares = get_param_importances(self._journal, evaluator=PedAnovaImportanceEvaluator())
        return {name: float(share) for name, share in shares.items()}
