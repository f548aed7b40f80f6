"""The Python interface: train a run, and evaluate its policies."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.registry import check_extra_loss
from r2r2.compute.devices import is_accelerated, training_device, use_device
from r2r2.config.errors import StoppedMembersWarning, UserError, invalid_value
from r2r2.config.fields import ANY_DEVICE, EPISODES, SCALE, Interval, parse_interval
from r2r2.config.resolve import default_config
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields, experiment_name, run_name, to_toml
from r2r2.envs.make import Env, EnvBuilder, env_builder_of
from r2r2.envs.spec import Member
from r2r2.envs.vector.pool import EnvPool, try_task, worker_count
from r2r2.envs.vector.step_types import EnvFactory, EnvSlot
from r2r2.report.figures import draw_curve
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import early_end, read_events
from r2r2.storage.files import cache_folder, file_entry, storage_errors
from r2r2.storage.run_folder import (
    CURVE_FILE,
    RunFolder,
    create_run,
    lock_run,
    open_run,
    read_manifest,
    reopen_run,
)
from r2r2.storage.versions import versions
from r2r2.training.acting import explores_ahead, make_actors
from r2r2.training.callbacks import Callback, CallbackList
from r2r2.training.checkpointing import CheckpointWriter
from r2r2.training.collector import begin_episodes
from r2r2.training.evaluation import (
    EvalEpisodes,
    Evaluator,
    RunPolicies,
    eval_slots,
    load_policies,
    play_to_end,
)
from r2r2.training.loggers import WANDB_PROJECT, TensorBoardCallback, WandbCallback
from r2r2.training.loop import OnProgress, Progress, Training
from r2r2.training.memory import check_fits
from r2r2.training.policy_document import describe_policies
from r2r2.training.resume_plan import ResumePlan, plan_resume
from r2r2.training.run_config import finalize_config, task_default_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import (
    ENV_FROM_PYTHON,
    check_env_given,
    find_config,
    fleet_members,
    load_config,
    members_to_evaluate,
)
from r2r2.training.signals import Interrupted, interruptible
from r2r2.training.start_data import load_start_data
from r2r2.training.state import OnMessage, ignore


class RunOptions(NamedTuple):
    """How a run is carried out; its result does not depend on these options.

    Example:
        >>> RunOptions(workers=0, checkpoint_every="5min").checkpoints
        2
    """

    overwrite: bool = False  # delete a run that is already in the folder
    tensorboard: bool = False  # write TensorBoard event files as well
    workers: int | None = None  # environment processes; None: one per core, see `worker_count`
    checkpoint_every: str = "10min"  # minutes ('0.5min'), decision steps, or 'never'
    checkpoints: int = 2  # number of checkpoints to keep
    retry_failed: bool = False  # also continue members whose environment failed
    device: str = ANY_DEVICE  # to train on: 'cpu', 'gpu', 'gpu:1', or 'auto'
    wandb: bool = False  # log to Weights & Biases as well
    wandb_project: str = WANDB_PROJECT
    # Where the config is from, recorded in `versions.json`; set by sweeps.
    experiment: str = ""  # of which the run is a part
    scale: float = 1.0  # by which steps, schedules and evaluation were shortened


DEFAULT_OPTIONS = RunOptions()


def check_options(options: RunOptions) -> None:
    """Raise a `UserError` if an option has a value that is not allowed."""
    for name, value in options._asdict().items():
        if isinstance(getattr(DEFAULT_OPTIONS, name), bool) and not isinstance(value, bool):
            raise invalid_value(name, "True or False", value)
    for name, least in (("workers", 0), ("checkpoints", 1)):
        value = getattr(options, name)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not is_count and not (value is None and name == "workers"):
            raise invalid_value(name, f"an integer >= {least}", value)
    for name in ("checkpoint_every", "device", "wandb_project", "experiment"):
        if not isinstance(value := getattr(options, name), str):
            raise invalid_value(name, "a text", value)
    if not SCALE.is_valid(options.scale):
        raise invalid_value("scale", SCALE.description, options.scale)
    parse_interval(options.checkpoint_every)


class Result(NamedTuple):
    """The result of a run."""

    folder: RunFolder
    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [S], last points of the curves; NaN without any
    random: dict[str, float]  # mean return of the warm-up's random policy, by task
    stopped: dict[str, str]  # members that were stopped, with the reason
    interrupted: bool = False  # by Ctrl-C or a callback; the run can be resumed
    stop_reason: str = ""  # why it ended before its last step; empty: it did not

    def __repr__(self) -> str:
        """Return the folder and the last return of each member, on one line."""
        pairs = zip(self.members, self.returns, strict=True)
        returns = ", ".join(f"{member.name} {value:.1f}" for member, value in pairs)
        state = ", interrupted" if self.interrupted else ""
        return f"<Result {self.folder.path}: returns {returns}{state}>"


class RunFailed(Exception):
    """Every member of a run was stopped; `result` has the reasons.

    Example:
        >>> issubclass(RunFailed, Exception)
        True
    """

    def __init__(self, result: Result):
        (name, why), *_ = result.stopped.items()
        path = result.folder.path
        super().__init__(
            f"{path}: failed: every member was stopped; {name}: {why}; see "
            f"'{result.folder.report(name)}'; to run it again, use RunOptions(retry_failed=True), "
            "or overwrite=True to start from step 0"
        )
        self.result = result

    def __reduce__(self) -> tuple[type["RunFailed"], tuple[Result]]:
        """Allow the error to be sent from another process."""
        return RunFailed, (self.result,)


def run_path(config: RunConfig, out: Path | str | None = None) -> Path:
    """Return the folder of a finalized config's run: `out`, or its default."""
    return Path(out) if out else Path("runs") / run_name(config)


def ended_run(
    config: RunConfig, out: Path | str | None = None, options: RunOptions = DEFAULT_OPTIONS
) -> RunFolder | None:
    """Return the run of exactly this config if it has ended and is not to be run again.

    A run that ended early, since it reached `stop_at_return`, has ended for more steps as well.
    """
    path = run_path(config, out)
    manifest = read_manifest(path)
    ended = manifest is not None and manifest.status in ("finished", "failed")
    earlier = find_config(path) if ended and not options.overwrite else None
    if earlier is None or dataclasses.replace(earlier, steps=config.steps) != config:
        return None
    folder = open_run(path)
    if earlier != config and not (config.steps > earlier.steps and early_end_reason(folder)):
        return None
    return None if options.retry_failed and folder.stopped() else folder


def early_end_reason(folder: RunFolder) -> str:
    """Return why a run that has ended did so before its last step; empty if it did not."""
    end = early_end(read_events(folder.events)) if folder.events.exists() else None
    return end.why if end else ""


def train(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    env: EnvBuilder | Env | None = None,
    on_progress: OnProgress = ignore,
    options: RunOptions = DEFAULT_OPTIONS,
    on_message: OnMessage = ignore,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train a fleet and write its run folder; resume the run if it is there already.

    A run that has ended with the same config is returned as it is. Ctrl-C ends a run with a
    checkpoint and returns its result so far; Ctrl-C again is raised at once.

    Args:
        config: the run.
        out: its folder; by default one under `runs/` named after the config.
        env: a class or function that builds environments, in place of `config.env`, and gets
            `config.env_args`; or an environment, which then serves training and evaluation
            of one member.
        on_progress: called before the first step, and after every iteration; beside an accelerator
            every 20 ms and at the end.
        options: options that do not change the result.
        on_message: called with messages for the user.
        callbacks: code to run at certain moments, which may stop the run; see `Callback`.

    Raises:
        UserError: The input is invalid; nothing has been written then.
        EnvFailure: An environment failed where no member can be stopped for it.
        StorageError: The run folder can no longer be written.
        RunFailed: Every member was stopped. If some were, a `StoppedMembersWarning` says so.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve
        >>> fields = {"env": "Pendulum-v1", "seeds": 2, "steps": 10, "random_only": True}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(resolve(fields), f"{folder}/run")
        >>> [member.name for member in result.members]
        ['Pendulum-v1_s0', 'Pendulum-v1_s1']
    """
    if isinstance(config, Mapping):
        raise UserError("expected a RunConfig, as `resolve` returns, got a table", "config")
    if out is not None and not options.overwrite:
        check_env_given(Path(out), env)
    builder = env_builder_of(env, config.env, len(fleet_members(config)))
    config = finalize_config(config, builder)
    path, rest = run_path(config, out), (env, on_progress, options, on_message, callbacks)
    return train_finalized(config, path, *rest)


def train_finalized(
    config: RunConfig,
    path: Path,
    env: EnvBuilder | Env | None = None,
    on_progress: OnProgress = ignore,
    options: RunOptions = DEFAULT_OPTIONS,
    on_message: OnMessage = ignore,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train a fleet as `train` does, with a finalized config."""
    check_options(options)
    if not options.overwrite:
        check_env_given(path, env)
    if options.overwrite and options.retry_failed:
        raise UserError("not allowed with overwrite, which deletes the run", "retry_failed")
    if folder := ended_run(config, path, options):
        why = early_end_reason(folder)
        on_message(f"{path}: has ended already with the same config{why and f': {why}'}")
        return checked(_load_result(folder, config))
    hooks = callback_list(callbacks, options, on_message)
    with use_device(options.device):
        return checked(_train(config, path, env, options, on_progress, on_message, hooks))


def callback_list(
    callbacks: Sequence[Callback], options: RunOptions, on_message: OnMessage
) -> CallbackList:
    """Return the caller's callbacks, and those of the options."""
    loggers: list[Callback] = []
    if options.tensorboard:
        loggers.append(TensorBoardCallback())
    if options.wandb:
        loggers.append(WandbCallback(options.wandb_project, on_message))
    return CallbackList([*loggers, *CallbackList(callbacks)])


def _train(
    config: RunConfig,
    path: Path,
    env: EnvBuilder | Env | None,
    options: RunOptions,
    on_progress: OnProgress,
    on_message: OnMessage,
    callbacks: CallbackList,
) -> Result:
    """Start or resume a finalized run, and carry it out."""
    saves = parse_interval(options.checkpoint_every) != Interval()
    with (
        interruptible(saves, program=False) as check,
        RunSession(config, path, env, options, on_message, callbacks) as session,
    ):
        try:
            for progress in session.iterate():
                try:
                    check()
                    on_progress(progress)
                except KeyboardInterrupt:
                    session.pause()
                    raise
        except Interrupted as interruption:
            if not session.has_begun:
                raise
            return session.result(str(interruption) or "interrupted")
        return session.finish()


class RunSession:
    """A finalized run that this process carries out: its folder is locked, its workers run.

    Iterate over `iterate()`, then call `finish`. To end before, call `pause`, after which the
    run can be resumed. Leaving the context frees everything.
    """

    def __init__(
        self,
        config: RunConfig,
        path: Path,
        env: EnvBuilder | Env | None = None,
        options: RunOptions = DEFAULT_OPTIONS,
        on_message: OnMessage = ignore,
        callbacks: CallbackList | None = None,
    ):
        self._config, self._on_message = config, on_message
        self._callbacks = callbacks or CallbackList()
        self._training: Training | None = None
        with contextlib.ExitStack() as stack:
            self._open(stack, path, env, options)
            self._stack = stack.pop_all()

    def _open(
        self,
        stack: contextlib.ExitStack,
        path: Path,
        env: EnvBuilder | Env | None,
        options: RunOptions,
    ) -> None:
        config, on_message = self._config, self._on_message
        self.members, self._shared_env = fleet_members(config), isinstance(env, gymnasium.Env)
        builder = env_builder_of(env, config.env, len(self.members), config.env_args.to_dict())
        stack.callback(try_task.cache_clear)  # the environment may be changed before the next run
        exists = read_manifest(path) is not None
        if exists:  # no other process may change it from here on
            stack.enter_context(lock_run(path))
        self._plan = ResumePlan()
        if not options.overwrite:
            self._plan = plan_resume(path, config, on_message, options.retry_failed)
        self._pool = stack.enter_context(make_pool(config, builder, self._shared_env, options))
        if (options.workers or 0) > (used := len(self._pool.worker_pids)):
            limit = "at most one per core and one per environment"
            on_message(f"workers: using {used} of {options.workers}; {limit}")
        check_extra_loss(config.agent, self._pool.spec)
        start = load_start_data(config, self._pool.spaces, self._plan.checkpoint is not None)
        check_fits(config, self._pool.spec, recorded=start.row_count)
        self._start_data = start
        self.folder = self._prepare_folder(path, env, options)
        if not exists:
            stack.enter_context(lock_run(path))
        name = experiment_name(config, task_default_config(config, builder))
        log = RunLog(config, self.folder, self.members, name, self._callbacks)
        self._log = stack.enter_context(log)
        interval = parse_interval(options.checkpoint_every)
        self._writer = CheckpointWriter(self.folder.checkpoints, interval, options.checkpoints)
        stack.callback(self._writer.close)

    def _prepare_folder(
        self, path: Path, env: EnvBuilder | Env | None, options: RunOptions
    ) -> RunFolder:
        """Create or reopen the run folder, and record versions and the form of the policies."""
        config, plan = self._config, self._plan
        text, used = to_toml(config), dict[str, object](versions(training_device()))
        used |= {"precision": config.precision, **_provenance(options)}
        if env is not None:
            used[ENV_FROM_PYTHON] = getattr(env, "__qualname__", type(env).__qualname__)
        policy = describe_policies(config, self._pool.spec, self._pool.spaces).to_json()
        if plan.checkpoint:
            _check_spaces(path, policy["spaces"])
        if plan.checkpoint:
            resumed = {"step": plan.checkpoint.step, **used}
            return reopen_run(path, text, resumed, plan.repairs, policy)
        names = [member.name for member in self.members]
        overwrite = options.overwrite or plan.restart
        return create_run(path, text, names, overwrite, used, policy)

    @property
    def has_begun(self) -> bool:
        """Whether there is something that `pause` can save."""
        return self._training is not None

    def iterate(self) -> Iterator[Progress]:
        """Train to the last step; yield the progress before the first step and after iterations."""
        yield _no_progress(len(self.members))
        plan, pool, shared_env = self._plan, self._pool, self._shared_env
        first = None if plan.checkpoint else begin_episodes(self._config, pool, shared_env)
        rest = self._log, self._writer, shared_env, self._on_message, self._start_data
        training = Training(self._config, pool, *rest)
        self._stack.callback(training.close)
        if plan.checkpoint:
            training.resume(plan.checkpoint, plan.retry)
        else:
            training.begin(first)
        self._training = training
        yield from training.iterate()

    def pause(self) -> None:
        """Write a checkpoint, from which the run can be resumed, if there is anything to save."""
        if self._training is not None:
            self._training.pause()
            self._callbacks.raise_error()  # of `on_checkpoint`

    def finish(self) -> Result:
        """Draw the learning curve, mark the run as ended, and return its result."""
        result, folder = self.result(), self.folder
        with storage_errors(folder.path):
            if folder.evaluations.exists():
                rows = read_evaluations(folder.evaluations)
                lines = {f"random policy, {task}": x for task, x in result.random.items()}
                draw_curve(rows, folder.curve, _title(self._config), lines)
            curve = {CURVE_FILE: file_entry(folder.curve)} if folder.curve.exists() else {}
            folder.finish(list(result.stopped), self._log.files() | curve)
        return result

    def result(self, interruption: str = "") -> Result:
        """Return the result so far, with the reason of an interruption, if there was one."""
        state, early = self._training.state if self._training else None, self._log.ended_early
        stopped = {} if state is None else state.stopped
        names = {self.members[m].name: why for m, why in stopped.items()}
        rest = self._log.latest, self._log.random_returns(), names, bool(interruption)
        return Result(self.folder, self.members, *rest, early.why if early else interruption)

    def close(self) -> None:
        """Free environments, threads, files and the lock; a second call does nothing."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _provenance(options: RunOptions) -> dict[str, object]:
    """Return the experiment and the scale that a run is from, as far as it is from one."""
    stated = {name: getattr(options, name) for name in ("experiment", "scale")}
    return {x: value for x, value in stated.items() if value != getattr(DEFAULT_OPTIONS, x)}


def _check_spaces(path: Path, spaces: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the tasks of a run to be resumed have the spaces that they had before."""
    record = open_run(path).policy_document() or {}
    earlier: Any = record.get("spaces") or {}
    for task, now in spaces.items():
        for name, value in now.items():
            if task in earlier and earlier[task][name] != value:
                raise UserError(
                    f"env {task!r}: its {name} space has changed since the run '{path}' began; "
                    f"expected {earlier[task][name]}, got {value}"
                )


def _load_result(folder: RunFolder, config: RunConfig) -> Result:
    """Return the result of a run that has ended, from its files."""
    members = fleet_members(config)
    tasks = {member.name: member.task for member in members}
    rows = read_evaluations(folder.evaluations) if folder.evaluations.exists() else []
    points = {(row.env_name, row.seed): row.value for row in rows}
    totals: dict[str, list[float]] = {}
    for event in read_events(folder.events) if folder.events.exists() else []:
        if event["event"] == "episode" and event.get("random"):
            task = tasks[str(event["member"])]
            totals.setdefault(task, []).append(float(str(event["return"])))
    returns = np.array([points.get(member, np.nan) for member in members])
    random = {task: float(np.mean(values)) for task, values in totals.items()}
    stop_reason = early_end_reason(folder)
    return Result(folder, members, returns, random, folder.stopped(), stop_reason=stop_reason)


def checked(result: Result) -> Result:
    """Return a result; raise if all members were stopped, warn the caller of `train` if some."""
    if len(result.stopped) == len(result.members):
        raise RunFailed(result)
    for name, why in result.stopped.items():
        warnings.warn(f"{name} was stopped: {why}", StoppedMembersWarning, stacklevel=4)
    return result


def _no_progress(members: int) -> Progress:
    zeros, nan = np.zeros(members, dtype=int), np.full(members, np.nan)
    return Progress(zeros, zeros, zeros.astype(bool), 0, nan, zeros.astype(bool))


def _title(config: RunConfig) -> str:
    """Return agent, changed representation settings (ablations) and UTD."""
    changed = changed_fields(config, default_config(config.agent.name))
    ablations = {k: v for k, v in changed.items() if "representation" in k}
    parts = [f"{k.rpartition('.')[2]} {v}" for k, v in ablations.items()]
    return ", ".join([config.agent.name, *parts, f"UTD {config.utd}"])


def make_pool(
    config: RunConfig,
    builder: EnvBuilder | None = None,
    shared_env: bool = False,
    options: RunOptions = DEFAULT_OPTIONS,
) -> EnvPool:
    """Return the pool with the members' training and evaluation environments.

    On a CPU, a single member's training environment is stepped in this process, which saves the
    communication with a worker. A user's environment is not, because it might hang and must then
    be terminated. It is tried once before. Beside an accelerator, members whose workers play whole
    episodes have a worker each.
    """
    members, accelerated = fleet_members(config), is_accelerated()
    factories = _factories(config, members, builder)
    slots = [
        EnvSlot(member, factory, "training")
        for member, factory in zip(members, factories, strict=True)
    ]
    slots += eval_slots(members, factories, 1 if shared_env else config.eval_episodes)
    players = len(members) if accelerated and explores_ahead(config.agent) else 0
    workers = 0 if shared_env else worker_count(options.workers, players)
    local = 1 if len(members) == 1 and factories[0].is_builtin and not accelerated else 0
    actors = partial(make_actors, config, members)
    return EnvPool(slots, workers, local, config.env_timeout, trial=True, actors=actors)


def _factories(
    config: RunConfig, members: Sequence[Member], builder: EnvBuilder | None
) -> list[EnvFactory]:
    rest = config.action_repeat, builder, config.max_episode_steps
    return [EnvFactory(member.task, *rest, args=config.env_args) for member in members]


class Evaluation(NamedTuple):
    """The returns of some members of a run."""

    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [K, episodes]
    policies: RunPolicies  # that were evaluated

    def __repr__(self) -> str:
        """Return the mean return of each member, on one line."""
        pairs = zip(self.members, self.returns.mean(axis=1), strict=True)
        means = ", ".join(f"{member.name} {mean:.1f}" for member, mean in pairs)
        return f"<Evaluation: mean returns {means}; {self.returns.shape[1]} episodes each>"


def evaluate_run(
    path: Path | str,
    episodes: int = 10,
    member: str | None = None,
    *,
    env: EnvBuilder | Env | None = None,
    workers: int | None = None,
    weights: str = "last",
) -> Evaluation:
    """Evaluate policies of a run without exploration, on other episodes than during training.

    The last policies of an unfinished run are those of its latest checkpoint; another process may
    be training it.

    Args:
        path: the run folder.
        episodes: episodes per member.
        member: `task:seed` for one member alone.
        env: as in `train`, for a run on a user's environment.
        workers: environment processes, by default one per core; 0 for none.
        weights: 'last', or 'best' for the policy of each member's best evaluation.

    Raises:
        UserError: The folder is not a run, or has no such member or weights.
        EnvFailure: An environment raised, or its worker process died.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(config, f"{folder}/run").folder.path
        ...     evaluation = evaluate_run(run, episodes=2)
        >>> evaluation.returns.shape
        (1, 2)
    """
    if not isinstance(episodes, int) or not EPISODES.is_valid(episodes):
        raise invalid_value("episodes", EPISODES.description, episodes)
    folder = open_run(Path(path))
    check_env_given(Path(path), env)
    config = load_config(folder)
    members = members_to_evaluate(folder, fleet_members(config), member)
    builder = env_builder_of(env, config.env, len(members))
    factories = _factories(config, members, builder)
    shared_env = isinstance(env, gymnasium.Env)
    slots = eval_slots(members, factories, 1 if shared_env else episodes)
    processes = 0 if shared_env else worker_count(workers)
    try_task.cache_clear()
    actors, timeout = partial(make_actors, config, members), config.env_timeout
    with EnvPool(slots, processes, 0, timeout, trial=True, actors=actors) as pool:
        loaded = load_policies(folder, config, pool.spec, members, weights)
        size = len(members)
        plan = EvalEpisodes(members, range(len(slots)), episodes, "eval-command")
        evaluator = Evaluator(plan, size)
        for fault in evaluator.begin(pool, range(size), loaded.policies, first=[0] * size):
            raise pool.to_error(fault)
        returns = play_to_end(evaluator, pool)
    stacked = np.stack([returns[index] for index in range(size)])
    return Evaluation(members, stacked, loaded)


def enable_compilation_cache(replace: bool = True) -> None:
    """Keep compiled programs in the user's cache folder, except those that compile in no time.

    Without `replace`, a cache that the program has set already is left as it is.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir and not replace:
        return
    settings.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0.05)
