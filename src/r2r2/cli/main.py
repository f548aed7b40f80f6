"""The r2r2 program: dispatches to the commands, and what they share."""

import contextlib
import importlib
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import r2r2
from r2r2.cli.argparser import ArgumentParser, wants_help
from r2r2.config.errors import StoppedMembersWarning, UserError, did_you_mean
from r2r2.envs.spec import EnvFailure
from r2r2.storage.files import StorageError
from r2r2.training.signals import Terminated, defer_signals, exit_code

COMMANDS = {
    "train": "train agents on tasks, or resume a run",
    "sweep": "train all runs of an experiment, and report them",
    "tune": "search for the best values of fields",
    "watch": "show running training in the terminal",
    "eval": "evaluate the policies of a run, or record a video",
    "export": "write a policy for NumPy, ONNX, StableHLO or C",
    "push": "publish a policy with its card, curve and video",
    "pull": "fetch a published policy and verify it",
    "collect": "write what runs have measured to a folder of CSV files",
    "report": "compare runs with each other and with the paper",
    "paper": "list the paper's experiments and what they cost",
    "theory": "check the paper's argument on small Markov chains and in runs",
    "bench": "measure how fast this machine trains",
    "clean": "show the disk space of runs, and free it",
    "list": "list agents or environments",
    "doctor": "examine this installation; what a bug report should contain",
    "docs": "show the documentation in a browser",
    "completion": "print a completion script for bash, zsh or fish",
}

HELP = f"""usage: r2r2 COMMAND [ARGUMENTS]...

Sample-efficient continuous control with R2R2.

commands:
{chr(10).join(f"  {name:12} {text}" for name, text in COMMANDS.items())}

options:
  -h, --help   show this help; 'r2r2 COMMAND --help' shows that of a command
  --version    show the version

examples:
  r2r2 train                          train a small task in a few minutes
  r2r2 train --env Hopper-v5 --utd 20 --seeds 5
  r2r2 train --resume RUN             resume an interrupted run
  r2r2 sweep smoke                    train a small grid of runs, and report it
  r2r2 eval RUN --video out.mp4
  r2r2 export RUN --format c --out policy
  r2r2 report runs                    compare all runs below a folder
"""

# Exit codes after which nobody waits for threads that are still compiling.
ABRUPT_EXIT_CODES = (exit_code(KeyboardInterrupt()), exit_code(Terminated()))

LIST_PARSER = ArgumentParser(
    "list",
    "agents|envs",
    "List the agents that can be trained, or the tasks to train them on.",
    positional=("agents", "envs"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for bad input, 1 for other failures."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings():  # commands print stopped members themselves
            warnings.simplefilter("ignore", StoppedMembersWarning)
            return _dispatch(tokens)
    except UserError as error:
        print(f"r2r2: error: {one_line(error.with_option)}", file=sys.stderr)
        return 2
    except (EnvFailure, StorageError) as failure:
        print(f"r2r2: error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("r2r2: interrupted", file=sys.stderr)
        return exit_code(interruption)


def _dispatch(tokens: list[str]) -> int:
    name, *arguments = tokens or ["help"]
    if name in ("-h", "--help", "help"):
        print(HELP, end="")
    elif name == "--version":
        print(f"r2r2 {r2r2.__version__}")
    elif name not in COMMANDS:
        near = did_you_mean(name, COMMANDS)
        raise UserError(f"unknown command {name!r}{near or '; see r2r2 --help'}")
    elif wants_help(arguments):
        print(command_parser(name, arguments).format_help(), end="")
    elif name == "list":
        _list(arguments)
    else:
        return int(_module(name).run(arguments))
    return 0


def command_parser(name: str, argv: Sequence[str] = ()) -> ArgumentParser:
    """Return the parser of a command; of `train`, with the fields of the agent."""
    if name == "list":
        return LIST_PARSER
    module = _module(name)
    parser = module.make_parser(argv) if name == "train" else module.PARSER
    return cast(ArgumentParser, parser)


def _module(name: str) -> Any:
    """Import a command; signals are deferred, as some libraries lose them during import."""
    with defer_signals():
        return importlib.import_module(f"r2r2.cli.{name}")


def entry() -> None:
    """Run the program and exit; after a signal at once, without waiting for compilations."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a standard stream was closed; no other file may take its place
    os.close(descriptor)
    warnings.formatwarning = lambda message, *_, **__: f"r2r2: warning: {message}\n"
    try:
        code = main()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:  # nobody reads the output any more, as in `r2r2 ... | head`
        os._exit(128 + signal.SIGPIPE)
    if code in ABRUPT_EXIT_CODES:
        os._exit(code)
    sys.exit(code)


def _list(argv: list[str]) -> None:
    from r2r2.config.agents import AGENTS
    from r2r2.envs.suites import PAPER_TASKS, known_tasks

    given = LIST_PARSER.parse(argv)
    if LIST_PARSER.pop_argument(given, "what to list: agents or envs") == "agents":
        for name, spec in AGENTS.items():
            print(f"{name:18} {spec.description}")
        return
    print("the paper's tasks (sizes of observation and action):")
    for name, task in PAPER_TASKS.items():
        print(f"  {name:18} {task.suite:10} ({task.obs_dim}, {task.action_dim})")
    for suite, names in known_tasks().items():
        print(f"more {suite} tasks:")
        print("  " + "  ".join(name for name in names if name not in PAPER_TASKS))
    print("and any Gymnasium environment with flat observations and bounded continuous")
    print("actions, as module:Id-v0 or module:Class")


def program_name() -> str:
    """Return how this program was called, for commands that can be pasted."""
    called = Path(sys.argv[0])
    if shutil.which("r2r2"):
        return "r2r2"
    if called.parts[-2:] == ("r2r2", "__main__.py"):
        python = shutil.which("python")
        same = python is not None and Path(python).parent == Path(sys.executable).parent
        return f"{'python' if same else shlex.quote(sys.executable)} -m r2r2"
    return sys.argv[0] if called.name == "r2r2" else "r2r2"


def add_working_folder_to_path() -> None:
    """Let `my_robot:Arm-v0` be a file in the working folder, as with python -m."""
    if "" not in sys.path:
        sys.path.insert(0, "")


@contextlib.contextmanager
def use_command_device(name: str) -> Generator[None]:
    """Compute on the device of this name; on a CPU, accelerators are not even initialized."""
    import jax

    from r2r2.compute.devices import use_device

    if name.startswith("cpu"):  # an accelerator would reserve most of its memory
        settings: Any = jax.config
        settings.update("jax_platforms", "cpu")
    with use_device(name):
        yield


def warn_of_damage(run: Path) -> None:
    """Print which files of a run are not as they were written."""
    from r2r2.storage.integrity import find_damage

    for file, why in find_damage(run).items():
        print(f"r2r2: warning: {one_line(f'{file}: {why}')}", file=sys.stderr)


def one_line(text: str) -> str:
    """Return text with unprintable characters escaped, safe to show in a terminal."""
    return "".join(c if c.isprintable() else f"<{ord(c):#x}>" for c in text)
