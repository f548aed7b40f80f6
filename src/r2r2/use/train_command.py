"""`r2r2 train`: a run from its fields, with a bar."""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape

from r2r2.config.presets import QUICK, QUICK_BAR
from r2r2.config.run import RunConfig
from r2r2.config.text import changed_fields
from r2r2.run.fitting import plain
from r2r2.run.start import Result, finished, folder_of, settle, train
from r2r2.run.train import Progress, Watcher, members_of
from r2r2.use.bar import Bar, spread
from r2r2.use.flags import TrainCommand, parse_train, train_help
from r2r2.use.process import (
    cache_compiled_programs,
    interruptible,
    program,
    use_this_folder,
)
from r2r2.use.words import wants_help

SAID = ("env", "seeds", "utd", "action_repeat")  # said on the opening's first line


def train_command(argv: list[str]) -> int:
    """`r2r2 train`, from its arguments to its exit code."""
    if wants_help(argv):
        print(train_help(argv), end="")
        return 0
    command = parse_train(argv)
    console = Console()
    use_this_folder()
    config = settle(command.config)
    path = folder_of(config, command.out)
    if not command.how.overwrite and finished(config, command.out):
        said = f"{path} is finished already, with this very config."
        console.print(said, soft_wrap=True, markup=False, highlight=False)
        _next_steps(console, path)
        return 0
    cache_compiled_programs()
    tasks = [member.task for member in members_of(config)]
    with Bar(config.steps, tasks, console, _opening(config, path)) as bar:
        result = _train(config, command, path, bar)
    _say_result(console, result, command.quick)
    return 0


def _train(config: RunConfig, command: TrainCommand, path: Path, bar: Bar) -> Result:
    try:
        with interruptible() as check:
            return train(
                config, command.out, watch=_checked(bar, check), how=command.how
            )
    except KeyboardInterrupt:
        if path.exists():
            advice = "the same command with --overwrite starts it again"
            print(f"r2r2: '{path}' is left unfinished; {advice}", file=sys.stderr)
        raise


def _checked(bar: Bar, check: Callable[[], None]) -> Watcher:
    def watch(progress: Progress) -> None:
        check()
        bar(progress)

    return watch


def _opening(config: RunConfig, path: Path) -> str:
    seeds = ",".join(map(str, config.seeds))
    lines = [
        f"[bold]{config.agent.name}[/] on {', '.join(config.env)}, UTD {config.utd}, "
        f"seeds {seeds}",
        f"  {jax.devices()[0].device_kind}, run folder {escape(str(path))}",
    ]
    changed = changed_fields(config, plain(config))
    shown = [f"{k.rpartition('.')[2]}={v}" for k, v in changed.items() if k not in SAID]
    if shown:
        lines.append(f"  changed: {escape(', '.join(shown))}")
    if config.warmup >= config.steps:
        lines.append("  warm-up covers the whole run: no updates will be made")
    if rest := config.steps % config.eval_every:
        lines.append(f"  the last {rest} steps come after the last evaluation")
    return "\n".join(lines)


def _say_result(console: Console, result: Result, quick: bool) -> None:
    for task in dict.fromkeys(member.task for member in result.members):
        mine = [member.task == task for member in result.members]
        line = f"{task}: return {spread(result.returns[mine])}"
        if task in result.random:
            line += f"; a random policy {result.random[task]:.1f}"
        if quick and task == QUICK["env"]:
            line += f"; what --quick should reach {QUICK_BAR}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _next_steps(console, result.folder.path)


def _next_steps(console: Console, path: Path) -> None:
    lines = f"  evaluate: {program()} eval {path}"
    if (path / "curve.png").exists():
        lines += f"\n  look at:  {path / 'curve.png'}"
    console.print(lines, soft_wrap=True, markup=False, highlight=False)
