"""Train from Python: `Trainer`, for scripts and notebooks."""

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import gymnasium
import numpy as np
from rich.console import Console
from rich.markup import escape

from r2r2.api import (
    Evaluation,
    Result,
    RunOptions,
    RunSession,
    callback_list,
    check_options,
    checked,
    enable_compilation_cache,
    ended_run,
    evaluate_run,
    run_path,
    train_finalized,
)
from r2r2.compute.devices import use_device
from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import Interval, parse_interval
from r2r2.config.resolve import agent_name, quick_config, resolve, validate
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import read_toml
from r2r2.envs.make import Env, EnvBuilder, env_builder_of
from r2r2.policy.policy import Policy
from r2r2.progress import TrainingDisplay
from r2r2.saved_run import Curve, SavedRun
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.run_folder import read_manifest
from r2r2.training.callbacks import Callback, CallbackList
from r2r2.training.loop import Progress
from r2r2.training.run_config import finalize_config
from r2r2.training.saved_config import check_env_given, find_config, fleet_members
from r2r2.training.signals import Interrupted, interruptible

EnvSource = str | Sequence[str] | EnvBuilder | Env


class Trainer:
    """Trains a fleet, as `r2r2 train` does, and gives access to what it has learned.

    The run is written to its folder as it goes. If the folder holds a part of the same run,
    training continues there. Use it as a context manager if you call `step` yourself.

    Args:
        agent: name of the agent, or `module:NAME`.
        env: a task or several (Gymnasium id, DMC `domain-task`, `module:Class`); or a class or
            a function that builds an environment; or an environment, which then serves one
            seed, in this process.
        seeds: a number of seeds (5 means 0 to 4), or a list of seeds.
        steps: decision steps of the whole run. Without it, the run gets as many as `train` is
            asked for. Agents whose schedule depends on the run's length (SimbaV2) need it if
            `train` is called more than once.
        out: the run folder; by default one under `runs/` named after the config.
        config: other fields of the config, as a table or as the path of a TOML file.
        callbacks: called during training, see `Callback`.
        progress: whether to show a progress bar, in a terminal or a notebook.
        quick: use the small preset of `r2r2 train --quick` for fields that are not given.
        **fields: fields of the config (`utd=20`, `width=128`, `lambda_rr=0`), with the names of
            the command line; and run options (`workers=0`, `tensorboard=True`, `overwrite=True`,
            `checkpoint_every="5min"`, see `RunOptions`).

    Raises:
        UserError: A field is unknown or a value is not allowed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> trainer = Trainer("td7+r2r2", env="Pendulum-v1", seeds=2, out=f"{folder.name}/run",
        ...     warmup=10, width=16, latent=16, eval_episodes=1, workers=0, progress=False)
        >>> result = trainer.train(steps=210)
        >>> trainer.step_count, trainer.curve().returns.shape
        (210, (2, 1))
        >>> trainer.policy(seed=1)([1.0, 0.0, 0.0]).shape
        (1,)
        >>> folder.cleanup()
    """

    def __init__(
        self,
        agent: str | None = None,
        env: EnvSource | None = None,
        *,
        seeds: int | Sequence[int] | None = None,
        steps: int | None = None,
        out: Path | str | None = None,
        config: Mapping[str, Any] | Path | str | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        quick: bool = False,
        **fields: Any,
    ):
        options = {name: fields.pop(name) for name in RunOptions._fields if name in fields}
        if isinstance(options.get("checkpoint_every"), int):
            options["checkpoint_every"] = str(options["checkpoint_every"])
        self._options, self._progress = RunOptions(**options), progress
        self._callbacks = list(CallbackList(callbacks))
        self._env, names = _split_env(env)
        table = config if isinstance(config, Mapping) else read_toml(Path(config)) if config else {}
        if out is not None and not isinstance(out, str | Path):
            raise invalid_value("out", "a path", out)
        seeds = list(seeds) if isinstance(seeds, range) else seeds
        given = {"agent": agent, "env": names, "seeds": seeds, "steps": steps}
        layers = [table, {k: x for k, x in given.items() if x is not None}, fields]
        if quick:
            layers.insert(0, quick_config(agent_name(*layers)))
        self._fixed_steps = any("steps" in layer for layer in layers)
        self._start(resolve(*layers), out)

    @classmethod
    def from_run(
        cls,
        path: Path | str,
        env: EnvBuilder | Env | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        **options: Any,
    ) -> Self:
        """Return the trainer of an existing run, to continue it.

        Args:
            path: the run folder.
            env: for a run on an environment from Python, as before.
            callbacks: called during training, see `Callback`.
            progress: whether to show a progress bar.
            **options: run options, see `RunOptions`.

        Raises:
            UserError: The folder is not a run.
        """
        run = SavedRun(path)
        check_env_given(run.path, env)
        if unknown := sorted(options.keys() - set(RunOptions._fields)):
            expected = f"one of {', '.join(RunOptions._fields)}"
            raise invalid_value("option", expected, unknown[0])
        trainer = cls.__new__(cls)
        trainer._options, trainer._progress = RunOptions(**options), progress
        trainer._callbacks = list(CallbackList(callbacks))
        trainer._env, trainer._fixed_steps = env, True
        trainer._start(run.config, run.path)
        return trainer

    def _start(self, config: RunConfig, out: Path | str | None) -> None:
        check_options(self._options)
        members = len(fleet_members(config))
        builder = env_builder_of(self._env, config.env, members, config.env_args.to_dict())
        self._config = finalize_config(config, builder)
        self._path = run_path(self._config, out)
        earlier = None if self._options.overwrite else find_config(self._path)
        extends = not config.agent.depends_on_run_length
        if earlier is not None and extends and earlier.steps > config.steps:
            self._config = dataclasses.replace(self._config, steps=earlier.steps)
        self._result: Result | None = None
        self._session: RunSession | None = None
        self._iterator: Iterator[Progress] | None = None
        self._latest: Progress | None = None  # of a session
        enable_compilation_cache(replace=False)

    @property
    def config(self) -> RunConfig:
        """The resolved config; its steps grow if `train` goes beyond them."""
        return self._config

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._path

    @property
    def step_count(self) -> int:
        """Decision steps that every member has made."""
        if self._latest is not None:
            return _least(self._latest)
        manifest, config = read_manifest(self._path), find_config(self._path)
        if manifest is None or config is None or self._options.overwrite:
            return 0
        checkpoint, _ = latest_valid(self._path / "checkpoints")
        if checkpoint is not None:
            return checkpoint.step
        return config.steps if manifest.status == "finished" else 0

    @property
    def result(self) -> Result | None:
        """The result of the last call of `train`; None before."""
        return self._result

    def train(self, steps: int | None = None) -> Result:
        """Train for more decision steps, and return the result so far.

        Training ends with a checkpoint, from which the next call continues. Ctrl-C does the same
        earlier; `interrupted` of the result is True then.

        Args:
            steps: further decision steps of every member; by default all that the run has left.

        Raises:
            UserError: There is nothing to train, or the run cannot be extended.
            RunFailed: Every member was stopped.
        """
        self.close()
        target = self._extend(steps)
        self._check_saves(target)
        paused = False

        def on_progress(progress: Progress) -> None:
            nonlocal paused
            # The folder is created: a later call must not delete it.
            self._options = self._options._replace(overwrite=False, retry_failed=False)
            if display is not None:
                display(progress)
            if _least(progress) >= target < self._config.steps:
                paused = True
                raise Interrupted

        with contextlib.ExitStack() as stack:
            display = stack.enter_context(self._display(target)) if self._progress else None
            say = _ignore if display is None else display.say
            run, hooks = (self._config, self._path, self._env), self._callbacks
            result = train_finalized(*run, on_progress, self._options, say, hooks)
            if display is not None:
                display.interrupted = result.interrupted and not paused
        if paused:
            result = result._replace(interrupted=False, stop_reason="")
        self._result = result
        return result

    def step(self) -> Progress | None:
        """Make one iteration of the training loop; return the progress, or None at the end.

        An iteration is one decision step of the members that collect data, beside updates of
        those that have some pending; beside an accelerator it is all that happens in 20 ms, since
        a report costs time. The first call also starts workers and compiles programs.
        The run stays open until it ends, or until `close`, `train` or `evaluate`.

        Raises:
            UserError: The steps of the run are not known; `Trainer(steps=...)` sets them.
            KeyboardInterrupt: Ctrl-C was pressed; a checkpoint has been written.
        """
        if not self._fixed_steps:
            raise UserError("expected the steps of the run, as in Trainer(steps=50_000)", "steps")
        if self._iterator is None and not self._open():
            return None
        progress = self._advance(cast("Iterator[Progress]", self._iterator))
        if progress is None and self._session is not None:
            self._finish()
        self._latest = progress
        return progress

    def iterate(self, steps: int | None = None) -> Iterator[Progress]:
        """Yield the progress after every iteration, for further steps or to the end of the run.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trainer = Trainer("td7", "Pendulum-v1", steps=9, out=folder, random_only=True)
            ...     steps = {int(progress.decisions[0]) for progress in trainer.iterate()}
            >>> sorted(steps)  # the last one also while the run is evaluated
            [1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        target = self._extend(steps)
        self._check_saves(target)
        return self._iterate(target)

    def _iterate(self, target: int) -> Iterator[Progress]:
        while (progress := self.step()) is not None:
            yield progress
            if _least(progress) >= target < self._config.steps:
                self.close()
                return

    def __iter__(self) -> Iterator[Progress]:
        return self.iterate()

    def evaluate(self, episodes: int = 10, weights: str = "last") -> Evaluation:
        """Evaluate the policies on new episodes, without exploration.

        Args:
            episodes: episodes per member.
            weights: 'last', or 'best' for the policy of each member's best evaluation.

        Raises:
            UserError: There are no weights yet.
        """
        self.close()
        workers = self._options.workers
        return evaluate_run(self._path, episodes, env=self._env, workers=workers, weights=weights)

    def curve(self, task: str | None = None) -> Curve:
        """Return the learning curves so far, of all members or of those of one task."""
        return self.saved_run().curve(task)

    def policy(
        self, task: str | None = None, seed: int | None = None, weights: str = "last"
    ) -> Policy:
        """Return the trained policy of a member; see `SavedRun.policy`."""
        if self._session is not None:
            with use_device(self._options.device):
                self._session.pause()
        return self.saved_run().policy(task, seed, weights)

    def saved_run(self) -> SavedRun:
        """Return the run as `load` does: evaluations, diagnostics and events."""
        return SavedRun(self._path)

    def close(self) -> None:
        """Write a checkpoint of a run that `step` has left open, and free its resources."""
        session = self._forget()
        if session is not None:
            with session, use_device(self._options.device):
                session.pause()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(self._config.env)
        return f"<Trainer {self._path}: {self._config.agent.name} on {names}>"

    def _extend(self, steps: int | None) -> int:
        """Return the decision step to train to, and give the run that many if it has fewer."""
        if steps is None:
            if not self._fixed_steps:
                expected = "expected how many decision steps to train, here or in Trainer(...)"
                raise UserError(expected, "steps")
            return self._config.steps
        is_integer = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
        if not is_integer or steps < 1:
            raise invalid_value("steps", "an integer >= 1", steps)
        target = self.step_count + int(steps)
        earlier = None if self._options.overwrite else find_config(self._path)
        least = [target, earlier.steps if earlier else 0]
        total = max(*least, self._config.steps if self._fixed_steps else 0)
        if total != self._config.steps:
            self.close()
            self._config = validate(dataclasses.replace(self._config, steps=total))
        return target

    def _display(self, target: int) -> TrainingDisplay:
        config = self._config
        tasks = [member.task for member in fleet_members(config)]
        text = f"[bold]{config.agent.name}[/] on {', '.join(config.env)}, UTD {config.utd}, seeds "
        text += f"{','.join(map(str, config.seeds))}, run folder {escape(str(self._path))}"
        return TrainingDisplay(target, tasks, Console(emoji=False), text)

    def _check_saves(self, target: int) -> None:
        """Refuse to pause a run that writes no checkpoints: its steps would be lost."""
        never = parse_interval(self._options.checkpoint_every) == Interval()
        if never and target < self._config.steps:
            raise UserError(
                f"expected the run's {self._config.steps} steps, or a trainer that writes "
                f"checkpoints, got steps to {target} with checkpoint_every='never'",
                "steps",
            )

    def _open(self) -> bool:
        """Open the run for `step`; return False if it has ended already."""
        if not self._options.overwrite:
            check_env_given(self._path, self._env)
        if ended_run(self._config, self._path, self._options):
            return False
        callbacks = callback_list(self._callbacks, self._options, _ignore)
        with use_device(self._options.device):
            run = self._config, self._path, self._env
            session = RunSession(*run, self._options, callbacks=callbacks)
        self._options = self._options._replace(overwrite=False, retry_failed=False)
        self._session, self._iterator = session, session.iterate()
        self._finalizer = weakref.finalize(self, session.close)
        next(self._iterator)  # the progress before the first step
        return True

    def _advance(self, iterator: Iterator[Progress]) -> Progress | None:
        """Make one iteration; an error ends the session, Ctrl-C with a checkpoint."""
        saves = parse_interval(self._options.checkpoint_every) != Interval()
        with use_device(self._options.device), interruptible(saves, program=False) as check:
            try:
                check()
                check()  # from the second on, Ctrl-C is held back until the next
                progress = next(iterator, None)
                check()
            except KeyboardInterrupt as interruption:
                session = cast(RunSession, self._session)
                self._result = session.result(str(interruption) or "interrupted")
                self.close()
                if str(interruption):  # a callback has stopped training
                    return None
                raise
            except BaseException:
                with cast(RunSession, self._forget()):
                    raise
        return progress

    def _finish(self) -> None:
        with cast(RunSession, self._forget()) as session:
            self._result = checked(session.finish())

    def _forget(self) -> RunSession | None:
        """Return the session, if there is one, and hold nothing of it any more."""
        session = self._session
        if session is not None:
            self._finalizer.detach()
        self._session = self._iterator = self._latest = None
        return session


def _split_env(env: EnvSource | None) -> tuple[EnvBuilder | Env | None, str | list[str] | None]:
    """Return the caller's environment, if it is an object, and the names of the tasks."""
    if env is None or isinstance(env, str):
        return None, env
    if isinstance(env, gymnasium.Env):
        return env, env.spec.id if env.spec else type(env.unwrapped).__name__
    if isinstance(env, Sequence):
        return None, list(env)
    if not callable(env):
        expected = "a task, a gymnasium.Env, its class, or a function that builds one"
        raise invalid_value("env", expected, env)
    return env, getattr(env, "__name__", "custom").strip("<>")


def _least(progress: Progress) -> int:
    """Return the decision steps that every member has made that is not stopped."""
    running = ~progress.stopped | progress.stopped.all()
    return int(progress.decisions[running].min())


def _ignore(_: str) -> None:
    """Show no message."""
