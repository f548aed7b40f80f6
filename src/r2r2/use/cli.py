"""The command line: `r2r2 train`, `r2r2 eval`, `r2r2 list`."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import r2r2
from r2r2.config.agents import AGENTS
from r2r2.config.fields import Leaf, parse
from r2r2.config.options import ANY, at_least
from r2r2.config.presets import QUICK, QUICK_BAR
from r2r2.config.refusal import Refusal, did_you_mean
from r2r2.config.resolve import defaults
from r2r2.config.run import RunConfig
from r2r2.config.text import changed_fields
from r2r2.envs.suites import PAPER_TASKS, known_tasks
from r2r2.measure.evaluate import deviation
from r2r2.run.start import Result, finished, folder_of, settle, train
from r2r2.use.bar import Bar, spread
from r2r2.use.evaluate import evaluate_run
from r2r2.use.flags import TrainCommand, parse_train, train_help
from r2r2.use.words import fields_help, split, texts, wants_help

HELP = f"""r2r2 {r2r2.__version__}: sample-efficient continuous control with R2R2

  r2r2 train                  learn a small task in a few minutes, to see it work
  r2r2 train --env Hopper-v5 --utd 20 --seeds 5
                              train a fleet; 'r2r2 train --help' shows every field
  r2r2 eval RUN               play episodes with a run's final policies
  r2r2 list agents|envs       what can be trained, and on what
"""

INTERRUPTED = 130
SAID = ("env", "seeds", "utd", "action_repeat")  # said on the opening's first line

EVAL_FIELDS = {
    "member": Leaf("member", str, "", "one member alone, as TASK:SEED", ANY),
    "episodes": Leaf("episodes", int, 10, "episodes per member", at_least(1)),
}

EVAL_HELP = """usage: r2r2 eval RUN [--name value]...

Play episodes with a run's final policies, without exploration.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; bad input is one sentence and exit code 2."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train_command,
        "eval": eval_command,
        "list": list_command,
    }
    try:
        if not tokens or tokens[0] in ("-h", "--help", "help"):
            print(HELP, end="")
            return 0
        if tokens[0] == "--version":
            print(r2r2.__version__)
            return 0
        if tokens[0] not in commands:
            near = did_you_mean(tokens[0], commands)
            raise Refusal(
                f"{tokens[0]!r} is not a command{near or '; see r2r2 --help'}"
            )
        return commands[tokens[0]](tokens[1:])
    except Refusal as refusal:
        print(f"r2r2: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("r2r2: interrupted", file=sys.stderr)
        return INTERRUPTED


def entry() -> None:
    """The program: `main`, and its exit code.

    After an interruption it leaves at once, for a compilation may still be running in
    a thread that would not survive the interpreter's end.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)


def train_command(argv: list[str]) -> int:
    """`r2r2 train`: a run from its fields, with a bar."""
    if wants_help(argv):
        print(train_help(argv), end="")
        return 0
    command = parse_train(argv)
    console = Console()
    _use_this_folder()
    config = settle(command.config)
    path = folder_of(config, command.out)
    if not command.overwrite and finished(config, command.out):
        said = f"{path} is finished already, with this very config."
        console.print(said, soft_wrap=True, markup=False, highlight=False)
        _next_steps(console, path)
        return 0
    _cache_compiled_programs()
    with Bar(config.steps, console, _opening(config, path)) as bar:
        result = _train(config, command, path, bar)
    _say_result(console, result, command.quick)
    return 0


def _train(config: RunConfig, command: TrainCommand, path: Path, bar: Bar) -> Result:
    try:
        return train(config, command.out, command.overwrite, bar)
    except KeyboardInterrupt:
        advice = "the same command with --overwrite starts it again"
        print(f"r2r2: '{path}' is left unfinished; {advice}", file=sys.stderr)
        raise


def eval_command(argv: list[str]) -> int:
    """`r2r2 eval RUN`: returns of the final policies, per episode."""
    if wants_help(argv):
        print(f"{EVAL_HELP}\n{fields_help(EVAL_FIELDS, top='options')}")
        return 0
    words = split(argv)
    given = {
        path: parse(EVAL_FIELDS[path], text)
        for path, text in texts(words.options, EVAL_FIELDS).items()
    }
    run = _only(words.alone, "run", "the folder of a run, as in 'r2r2 eval RUN'")
    _use_this_folder()
    _cache_compiled_programs()
    found = evaluate_run(Path(run), **given)
    table = Table("member", "mean", "std", "per episode")
    for member, returns in zip(found.members, found.returns, strict=True):
        episodes = " ".join(f"{x:.1f}" for x in returns)
        table.add_row(
            f"{member.task}:{member.seed}",
            f"{returns.mean():.1f}",
            "-" if len(returns) == 1 else f"{deviation(returns):.1f}",
            episodes,
        )
    Console().print(table)
    return 0


def list_command(argv: list[str]) -> int:
    """`r2r2 list agents|envs`."""
    if wants_help(argv):
        print("usage: r2r2 list agents|envs\n\nWhat can be trained, and on what.")
        return 0
    words, subjects = split(argv), ("agents", "envs")
    texts(words.options, {})
    what = _only(words.alone, "what", "agents or envs, as in 'r2r2 list agents'")
    if what not in subjects:
        near = did_you_mean(what, subjects)
        raise Refusal(f"what is {what!r}; allowed are {', '.join(subjects)}{near}")
    if what == "agents":
        for name, (_, text) in AGENTS.items():
            print(f"{name:10} {text}")
        return 0
    print("the paper's tasks (observation, action):")
    for name, task in PAPER_TASKS.items():
        print(f"  {name:18} {task.suite:10} ({task.obs_dim}, {task.action_dim})")
    for suite, names in known_tasks().items():
        print(f"{suite}, also:")
        others = [name for name in names if name not in PAPER_TASKS]
        print("  " + "  ".join(others))
    print("and any Gymnasium id of your own with flat observations and bounded")
    print("continuous actions, as module:Id-v0")
    return 0


def _only(alone: Sequence[str], name: str, allowed: str) -> str:
    if not alone:
        raise Refusal(f"{name} is missing; allowed is {allowed}")
    if len(alone) > 1:
        raise Refusal(f"{name} is {' '.join(alone)!r}; allowed is one: {allowed}")
    return alone[0]


def _opening(config: RunConfig, path: Path) -> str:
    seeds = ",".join(map(str, config.seeds))
    lines = [
        f"[bold]{config.agent.name}[/] on {', '.join(config.env)}, UTD {config.utd}, "
        f"seeds {seeds}",
        f"  {jax.devices()[0].device_kind}, run folder {escape(str(path))}",
    ]
    changed = changed_fields(config, defaults(config.agent.name))
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
    lines = f"  evaluate: {_program()} eval {path}"
    if (path / "curve.png").exists():
        lines += f"\n  look at:  {path / 'curve.png'}"
    console.print(lines, soft_wrap=True, markup=False, highlight=False)


def _program() -> str:
    """How this program was called, so that what it says can be pasted."""
    called = Path(sys.argv[0])
    if shutil.which("r2r2"):
        return "r2r2"
    if called.parts[-2:] == ("r2r2", "__main__.py"):
        return "python -m r2r2"
    return sys.argv[0] if called.name == "r2r2" else "r2r2"


def _use_this_folder() -> None:
    # As with python -m: `my_robot:Arm-v0` may be a file in the working folder.
    if "" not in sys.path:
        sys.path.insert(0, "")


def _cache_compiled_programs() -> None:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "r2r2" / "xla"
    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", str(folder))
    settings.update("jax_persistent_cache_min_compile_time_secs", 1.0)
