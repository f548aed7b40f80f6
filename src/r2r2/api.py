"""`r2r2 eval`: the returns of a run's final policies."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from r2r2.agents.registry import make_agent
from r2r2.config.errors import UserError
from r2r2.config.fields import EPISODES
from r2r2.config.interval import parse_interval
from r2r2.config.resolve import default_config, validate
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields, experiment_name, run_name, to_toml
from r2r2.envs.make import Env, EnvBuilder, env_builder_of
from r2r2.envs.spec import Member, Spec
from r2r2.envs.vector.pool import EnvPool, worker_count
from r2r2.envs.vector.step_types import EnvFactory, EnvSlot
from r2r2.report.learning_curve import draw_curve
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.files import storage_errors
from r2r2.storage.run_folder import (
    RunFolder,
    create_run,
    lock_run,
    open_run,
    read_manifest,
    reopen_run,
)
from r2r2.storage.tensorboard import require_tensorboard
from r2r2.storage.versions import versions
from r2r2.training.checkpointer import CheckpointWriter
from r2r2.training.evaluation import Episodes, Evaluator, eval_slots, play_to_end
from r2r2.training.load_run import load_config, load_policies, select_members
from r2r2.training.loop import OnProgress, Progress, Training, fleet_members
from r2r2.training.memory import check_fits
from r2r2.training.resume_plan import ResumePlan, plan_resume, read_config
from r2r2.training.run_log import RunLog
from r2r2.training.state import OnMessage, ignore_message
from r2r2.training.task_defaults import apply_task_defaults, task_default_config


class RunOptions(NamedTuple):
    """How a run is carried out: what its result does not depend on.

    Example:
        >>> RunOptions(workers=0).overwrite
        False
    """

    overwrite: bool = False  # delete a run that is in the folder already
    tensorboard: bool = False  # write TensorBoard's event files too
    workers: int | None = None  # processes for environments; None: one per core
    checkpoint_every: str = "10min"  # minutes ('0.5min'), decision steps, or 'never'
    checkpoints: int = 2  # how many are kept


DEFAULT_OPTIONS = RunOptions()


class Result(NamedTuple):
    """What a run came to."""

    folder: RunFolder
    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [S], the curves' last points; NaN without any
    random: dict[str, float]  # mean return of the warm-up's random policy, by task
    stopped: dict[str, str]  # members that were stopped, each with a sentence why


def finalize_config(config: RunConfig, source: EnvBuilder | None = None) -> RunConfig:
    """The config with everything filled in that its tasks decide.

    Args:
        config: the run.
        source: what builds the caller's own environment, which `config.env` names.
    """
    return apply_task_defaults(validate(config), source)


def run_path(config: RunConfig, out: Path | None = None) -> Path:
    """Where a settled config's run goes unless told otherwise."""
    return out or Path("runs") / run_name(config)


def is_finished(config: RunConfig, out: Path | None = None) -> bool:
    """Whether this very run is there already."""
    path = run_path(config, out)
    manifest = read_manifest(path)
    over = manifest is not None and manifest.status == "finished"
    return over and read_config(path) == config


def _nothing_yet(members: int) -> Progress:
    none = np.zeros(members, dtype=int)
    nobody = none.astype(bool)
    return Progress(none, none, nobody, 0, np.full(members, np.nan), nobody)


def _title(config: RunConfig) -> str:
    """Agent and UTD, with what is changed in the encoder's loss: the ablations."""
    changed = changed_fields(config, default_config(config.agent.name))
    own = {k: v for k, v in changed.items() if "representation" in k}
    ablation = [f"{k.rpartition('.')[2]} {v}" for k, v in own.items()]
    return ", ".join([config.agent.name, *ablation, f"UTD {config.utd}"])


def ignore_progress(_: Progress) -> None:
    """The watcher of a run that nobody looks at."""


def train(
    config: RunConfig,
    out: Path | None = None,
    *,
    env: EnvBuilder | Env | None = None,
    on_progress: OnProgress = ignore_progress,
    options: RunOptions = DEFAULT_OPTIONS,
    on_message: OnMessage = ignore_message,
) -> Result:
    """Trains a fleet and leaves a run folder; refuses before anything is written.

    Args:
        config: the run.
        out: its folder, by default one under `runs/` that the config names.
        env: a class or a function that builds environments, in place of what
            `config.env` names; or an environment itself, which then serves training
            and evaluation of one member, in this process.
        on_progress: called once nothing can be refused any more, then after every turn.
        options: what the result does not depend on.
        on_message: called with sentences for people.

    Raises:
        UserError: something is not as it has to be.
        EnvFailure: an environment failed where no member can be stopped for it.
        StorageError: what happens cannot be written down any more.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve
        >>> config = resolve({"env": "Pendulum-v1", "seeds": 2, "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(config, Path(folder) / "run")
        >>> [member.name for member in result.members]
        ['Pendulum-v1_s0', 'Pendulum-v1_s1']
    """
    members, lent = fleet_members(config), isinstance(env, gymnasium.Env)
    source = env_builder_of(env, config.env, len(members))
    config = finalize_config(config, source)
    path, interval = run_path(config, out), parse_interval(options.checkpoint_every)
    with contextlib.ExitStack() as stack:
        there = read_manifest(path) is not None
        if there:  # nobody else may change it from here on
            stack.enter_context(lock_run(path))
        plan = (
            ResumePlan() if options.overwrite else plan_resume(path, config, on_message)
        )
        pool = stack.enter_context(make_pool(config, source, lent, options))
        _check(config, pool.spec, options)
        folder = _folder(path, config, options, plan)
        if not there:
            stack.enter_context(lock_run(path))
        name = experiment_name(config, task_default_config(config, source))
        journal = RunLog(config, folder, members, name, options.tensorboard)
        stack.enter_context(journal)
        saver = CheckpointWriter(folder.checkpoints, interval, options.checkpoints)
        stack.callback(saver.close)
        on_progress(_nothing_yet(len(members)))
        training = Training(config, pool, journal, saver, lent, on_message)
        _run(training, plan, on_progress)
        random = journal.random_returns()
        result = Result(folder, members, journal.latest, random, training.stopped)
        return _finished(config, result)


def _check(config: RunConfig, spec: Spec, options: RunOptions) -> None:
    check_fits(config, spec)
    if options.tensorboard:
        require_tensorboard()


def _run(training: Training, plan: ResumePlan, on_progress: OnProgress) -> None:
    if plan.checkpoint:
        training.go_on(plan.checkpoint)
    else:
        training.begin()
    training.run(on_progress)


def _finished(config: RunConfig, result: Result) -> Result:
    folder = result.folder
    with storage_errors(folder.path):
        if folder.evaluations.exists():
            rows = read_evaluations(folder.evaluations)
            lines = {f"random policy, {task}": x for task, x in result.random.items()}
            draw_curve(rows, folder.curve, _title(config), lines)
        folder.finish()
    return result


def _folder(
    path: Path, config: RunConfig, options: RunOptions, plan: ResumePlan
) -> RunFolder:
    text = to_toml(config)
    if plan.checkpoint:
        return reopen_run(path, text)
    names = [member.name for member in fleet_members(config)]
    folder = create_run(path, text, names, options.overwrite or plan.anew)
    folder.write_versions(versions())
    return folder


def make_pool(
    config: RunConfig,
    source: EnvBuilder | None = None,
    lent: bool = False,
    options: RunOptions = DEFAULT_OPTIONS,
) -> EnvPool:
    """The members' environments and those of their evaluation.

    A fleet of one is trained in this process: there is nobody to step beside it. Not
    so an environment of the caller's own, which might hang, and then is cut off.
    """
    members = fleet_members(config)
    factories = [
        EnvFactory(member.task, config.action_repeat, source) for member in members
    ]
    places = [
        EnvSlot(member, factory, "training")
        for member, factory in zip(members, factories, strict=True)
    ]
    places += eval_slots(members, factories, 1 if lent else config.eval_episodes)
    workers = 0 if lent else worker_count(options.workers)
    known = source is None and all(":" not in task for task in config.env)
    here = 1 if known and len(members) == 1 else 0
    return EnvPool(places, workers, here, config.env_timeout)


class Evaluation(NamedTuple):
    """The returns of some members of a run."""

    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [K, episodes]


def evaluate_run(
    path: Path,
    episodes: int = 10,
    member: str | None = None,
    *,
    env: EnvBuilder | Env | None = None,
    workers: int | None = None,
) -> Evaluation:
    """Plays episodes with the final policies of a run, without exploration.

    The episodes are none of those that training evaluated on.

    Args:
        path: the run's folder.
        episodes: episodes per member.
        member: `task:seed` for one member alone.
        env: as in `train`, for a run on an environment of one's own.
        workers: processes that step environments, by default one per core; 0 for none.

    Raises:
        UserError: the folder is no finished run, or has no such member.
        EnvFailure: an environment raised, or its worker process died.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve, train
        >>> config = resolve({"env": "Pendulum-v1", "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(config, Path(folder) / "run").folder.path
        ...     found = evaluate_run(run, episodes=2)
        >>> found.returns.shape
        (1, 2)
    """
    if not EPISODES.is_valid(episodes):
        raise UserError(f"episodes is {episodes}; allowed is {EPISODES.description}")
    folder = open_run(path)
    config = load_config(folder)
    members = select_members(fleet_members(config), member)
    source = env_builder_of(env, config.env, len(members))
    factories = [EnvFactory(m.task, config.action_repeat, source) for m in members]
    lent = isinstance(env, gymnasium.Env)
    places = eval_slots(members, factories, 1 if lent else episodes)
    with EnvPool(places, 0 if lent else worker_count(workers)) as pool:
        agent = make_agent(config.agent, pool.spec, config.utd)
        evaluated = load_policies(folder, agent, pool.spec, members)
        slots, who = range(len(places)), range(len(members))
        plan = Episodes(members, slots, episodes, "eval-command")
        evaluator = Evaluator(agent, plan, len(members))
        for fault in evaluator.begin(pool, who, evaluated, first=[0] * len(members)):
            raise pool.to_error(fault)
        found = play_to_end(evaluator, pool)
    return Evaluation(members, np.stack([found[member] for member in who]))
