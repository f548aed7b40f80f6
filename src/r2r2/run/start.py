"""From a config to a finished run folder: checks first, then training."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from r2r2.config.every import every
from r2r2.config.resolve import checked, defaults
from r2r2.config.run import RunConfig
from r2r2.config.text import changed_fields, experiment_name, run_name, to_toml
from r2r2.envs.make import Env, Source
from r2r2.envs.members import Member, Spec
from r2r2.envs.own import source_of
from r2r2.envs.pool import EnvPool, crew_size
from r2r2.envs.troupe import Recipe
from r2r2.envs.turns import Place
from r2r2.measure.evaluate import places_for
from r2r2.record.evaluations import read_evaluations
from r2r2.record.files import recording
from r2r2.record.folder import RunFolder, create_run, reopen_run
from r2r2.record.lock import hold
from r2r2.record.manifest import read_manifest
from r2r2.record.tensorboard import check_tensorboard
from r2r2.record.versions import versions
from r2r2.report.curve import draw_curve
from r2r2.run.fitting import fitted, plain
from r2r2.run.journal import Journal
from r2r2.run.memory import check_fits
from r2r2.run.parts import Say, silent
from r2r2.run.plan import Plan, config_there, plan
from r2r2.run.saver import Saver
from r2r2.run.train import Progress, Training, Watcher, members_of


class How(NamedTuple):
    """How a run is carried out: what its result does not depend on.

    Example:
        >>> How(workers=0).overwrite
        False
    """

    overwrite: bool = False  # delete a run that is in the folder already
    tensorboard: bool = False  # write TensorBoard's event files too
    workers: int | None = None  # processes for environments; None: one per core
    checkpoint_every: str = "10min"  # minutes ('0.5min'), decision steps, or 'never'
    checkpoints: int = 2  # how many are kept


PLAINLY = How()


class Result(NamedTuple):
    """What a run came to."""

    folder: RunFolder
    members: tuple[Member, ...]
    returns: NDArray[np.float64]  # [S], the curves' last points; NaN without any
    random: dict[str, float]  # mean return of the warm-up's random policy, by task
    stopped: dict[str, str]  # members that were stopped, each with a sentence why


def settle(config: RunConfig, source: Source | None = None) -> RunConfig:
    """The config with everything filled in that its tasks decide.

    Args:
        config: the run.
        source: what builds the caller's own environment, which `config.env` names.
    """
    return fitted(checked(config), source)


def folder_of(config: RunConfig, out: Path | None = None) -> Path:
    """Where a settled config's run goes unless told otherwise."""
    return out or Path("runs") / run_name(config)


def finished(config: RunConfig, out: Path | None = None) -> bool:
    """Whether this very run is there already."""
    path = folder_of(config, out)
    manifest = read_manifest(path)
    over = manifest is not None and manifest.status == "finished"
    return over and config_there(path) == config


def _nothing_yet(members: int) -> Progress:
    none = np.zeros(members, dtype=int)
    nobody = none.astype(bool)
    return Progress(none, none, nobody, 0, np.full(members, np.nan), nobody)


def _title(config: RunConfig) -> str:
    """Agent and UTD, with what is changed in the encoder's loss: the ablations."""
    changed = changed_fields(config, defaults(config.agent.name))
    own = {k: v for k, v in changed.items() if "representation" in k}
    ablation = [f"{k.rpartition('.')[2]} {v}" for k, v in own.items()]
    return ", ".join([config.agent.name, *ablation, f"UTD {config.utd}"])


def unwatched(_: Progress) -> None:
    """The watcher of a run that nobody looks at."""


def train(
    config: RunConfig,
    out: Path | None = None,
    *,
    env: Source | Env | None = None,
    watch: Watcher = unwatched,
    how: How = PLAINLY,
    say: Say = silent,
) -> Result:
    """Trains a fleet and leaves a run folder; refuses before anything is written.

    Args:
        config: the run.
        out: its folder, by default one under `runs/` that the config names.
        env: a class or a function that builds environments, in place of what
            `config.env` names; or an environment itself, which then serves training
            and evaluation of one member, in this process.
        watch: called once nothing can be refused any more, then after every turn.
        how: what the result does not depend on.
        say: called with sentences for people.

    Raises:
        Refusal: something is not as it has to be.
        EnvFailure: an environment failed where no member can be stopped for it.
        RecordFailure: what happens cannot be written down any more.

    Example:
        >>> import tempfile
        >>> from r2r2 import resolve
        >>> config = resolve({"env": "Pendulum-v1", "seeds": 2, "steps": 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(config, Path(folder) / "run")
        >>> [member.name for member in result.members]
        ['Pendulum-v1_s0', 'Pendulum-v1_s1']
    """
    members, lent = members_of(config), isinstance(env, gymnasium.Env)
    source = source_of(env, config.env, len(members))
    config = settle(config, source)
    path, interval = folder_of(config, out), every(how.checkpoint_every)
    with contextlib.ExitStack() as stack:
        there = read_manifest(path) is not None
        if there:  # nobody else may change it from here on
            stack.enter_context(hold(path))
        how_to = Plan() if how.overwrite else plan(path, config, say)
        pool = stack.enter_context(pool_of(config, source, lent, how))
        _check(config, pool.spec, how)
        folder = _folder(path, config, how, how_to)
        if not there:
            stack.enter_context(hold(path))
        name = experiment_name(config, plain(config, source))
        journal = Journal(config, folder, members, name, how.tensorboard)
        stack.enter_context(journal)
        saver = Saver(folder.checkpoints, interval, how.checkpoints)
        stack.callback(saver.close)
        watch(_nothing_yet(len(members)))
        training = Training(config, pool, journal, saver, lent, say)
        _run(training, how_to, watch)
        random = journal.random_returns()
        result = Result(folder, members, journal.latest, random, training.stopped)
        return _finished(config, result)


def _check(config: RunConfig, spec: Spec, how: How) -> None:
    check_fits(config, spec)
    if how.tensorboard:
        check_tensorboard()


def _run(training: Training, how_to: Plan, watch: Watcher) -> None:
    if how_to.checkpoint:
        training.go_on(how_to.checkpoint)
    else:
        training.begin()
    training.run(watch)


def _finished(config: RunConfig, result: Result) -> Result:
    folder = result.folder
    with recording(folder.path):
        if folder.evaluations.exists():
            rows = read_evaluations(folder.evaluations)
            lines = {f"random policy, {task}": x for task, x in result.random.items()}
            draw_curve(rows, folder.curve, _title(config), lines)
        folder.finish()
    return result


def _folder(path: Path, config: RunConfig, how: How, how_to: Plan) -> RunFolder:
    text = to_toml(config)
    if how_to.checkpoint:
        return reopen_run(path, text)
    names = [member.name for member in members_of(config)]
    folder = create_run(path, text, names, how.overwrite or how_to.anew)
    folder.write_versions(versions())
    return folder


def pool_of(
    config: RunConfig,
    source: Source | None = None,
    lent: bool = False,
    how: How = PLAINLY,
) -> EnvPool:
    """The members' environments and those of their evaluation.

    A fleet of one is trained in this process: there is nobody to step beside it. Not
    so an environment of the caller's own, which might hang, and then is cut off.
    """
    members = members_of(config)
    recipes = [Recipe(member.task, config.action_repeat, source) for member in members]
    places = [
        Place(member, recipe, "training")
        for member, recipe in zip(members, recipes, strict=True)
    ]
    places += places_for(members, recipes, 1 if lent else config.eval_episodes)
    workers = 0 if lent else crew_size(how.workers)
    known = source is None and all(":" not in task for task in config.env)
    here = 1 if known and len(members) == 1 else 0
    return EnvPool(places, workers, here, config.env_timeout)
