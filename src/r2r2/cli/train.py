"""`r2r2 train`: a run from its fields, with a bar."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape

from r2r2.api import Result, is_finished, run_path, train
from r2r2.cli.argparser import wants_help
from r2r2.cli.process import cache_compiled_programs, program, use_this_folder
from r2r2.cli.progress import Bar, spread
from r2r2.cli.signals import exit_code, interruptible
from r2r2.cli.train_flags import TrainCommand, parse_train, train_help
from r2r2.config.interval import Interval, parse_interval
from r2r2.config.resolve import QUICK_TARGET, QUICK_TASK
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import changed_fields
from r2r2.storage.run_folder import open_run
from r2r2.training.loop import Progress
from r2r2.training.run_config import (
    finalize_config,
    fleet_members,
    task_default_config,
)

SAID = ("env", "seeds", "utd", "action_repeat")  # said on the opening's first line


def train_command(argv: list[str]) -> int:
    """`r2r2 train`, from its arguments to its exit code."""
    if wants_help(argv):
        print(train_help(argv), end="")
        return 0
    command = parse_train(argv)
    console = Console()
    use_this_folder()
    config = finalize_config(command.config)
    path = run_path(config, command.out)
    if not command.how.overwrite and is_finished(config, command.out):
        said = f"{path} is finished already, with this very config."
        console.print(said, soft_wrap=True, markup=False, highlight=False)
        stopped = _stopped_there(path)
        _say_stopped(stopped)
        _next_steps(console, path)
        return 1 if stopped else 0
    cache_compiled_programs()
    return _trained(config, path, command, console)


def _trained(
    config: RunConfig, path: Path, command: TrainCommand, console: Console
) -> int:
    """Trains and says what came of it; gives the exit code."""
    tasks = [member.task for member in fleet_members(config)]
    bar = Bar(config.steps, tasks, console, _opening(config, path))
    saves = parse_interval(command.how.checkpoint_every) != Interval()
    with interruptible(saves) as check:
        watch = _Watch(bar, check)
        try:
            with bar:
                result = train(
                    config,
                    path,
                    on_progress=watch,
                    options=command.how,
                    on_message=bar.say,
                )
        except KeyboardInterrupt as interruption:
            if not watch.calls:
                raise
            print(f"r2r2: {_left(path, watch, saves)}", file=sys.stderr)
            return exit_code(interruption)
    _say_result(console, result, command.quick)
    return 1 if result.stopped else 0


class _Watch:
    """The run's watcher: the bar, and how far the run was when a signal ended it."""

    def __init__(self, bar: Bar, check: Callable[[], None]):
        self._bar, self._check = bar, check
        self.calls, self.step = 0, 0

    def __call__(self, progress: Progress) -> None:
        self.calls, self.step = self.calls + 1, int(progress.decisions.min())
        self._check()
        self._bar(progress)


def _left(path: Path, watch: _Watch, saves: bool) -> str:
    """What an interruption left, with a command that can be pasted.

    The watcher's first call comes before the loop, when no checkpoint can be taken.
    """
    where = f"left at step {watch.step}" if watch.calls > 1 else "unfinished"
    if watch.calls > 1 and not saves:
        where += ", of which no checkpoint is kept"
    command = f"{program()} train --resume {shlex.quote(str(path))}"
    how = "go on" if saves or watch.calls <= 1 else "begin again"
    return f"'{path}' is {where}; {how} with: {command}"


def _say_stopped(stopped: Mapping[str, str]) -> None:
    for name, why in stopped.items():
        print(f"r2r2: {name} was stopped: {why}", file=sys.stderr)


def _stopped_there(path: Path) -> dict[str, str]:
    """The members of a finished run that were stopped, each with where it says why."""
    folder = open_run(path)
    reports = {name: folder.report(name) for name in folder.members}
    return {name: f"see '{x}'" for name, x in reports.items() if x.exists()}


def _opening(config: RunConfig, path: Path) -> str:
    seeds = ",".join(map(str, config.seeds))
    lines = [
        f"[bold]{config.agent.name}[/] on {', '.join(config.env)}, UTD {config.utd}, "
        f"seeds {seeds}",
        f"  {jax.devices()[0].device_kind}, run folder {escape(str(path))}",
    ]
    changed = changed_fields(config, task_default_config(config))
    shown = [f"{k.rpartition('.')[2]}={v}" for k, v in changed.items() if k not in SAID]
    if shown:
        lines.append(f"  changed: {escape(', '.join(shown))}")
    if config.warmup >= config.steps:
        lines.append("  warm-up covers the whole run: no updates will be made")
    if rest := config.steps % config.eval_every:
        lines.append(f"  the last {rest} steps come after the last evaluation")
    return "\n".join(lines)


def _say_result(console: Console, result: Result, quick: bool) -> None:
    """Every task's return over the members that came to their end, then the others."""
    for task in dict.fromkeys(member.task for member in result.members):
        mine = [
            member.task == task and member.name not in result.stopped
            for member in result.members
        ]
        line = f"{task}: return {spread(result.returns[mine])}"
        if task in result.random:
            line += f"; a random policy {result.random[task]:.1f}"
        if quick and task == QUICK_TASK["env"]:
            line += f"; what --quick should reach {QUICK_TARGET}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _say_stopped(result.stopped)
    if len(result.stopped) < len(result.members):
        _next_steps(console, result.folder.path)


def _next_steps(console: Console, path: Path) -> None:
    lines = f"  evaluate: {program()} eval {shlex.quote(str(path))}"
    if (path / "curve.png").exists():
        lines += f"\n  look at:  {path / 'curve.png'}"
    console.print(lines, soft_wrap=True, markup=False, highlight=False)
