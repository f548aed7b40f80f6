"""The command line: `r2r2 train`, `r2r2 watch`, `r2r2 eval` and the others."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

import r2r2
from r2r2.cli.argparser import one_line
from r2r2.cli.signals import Terminated, exit_code, held_back
from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.errors import EnvFailure
from r2r2.storage.files import StorageError

HELP = f"""r2r2 {r2r2.__version__}: sample-efficient continuous control with R2R2

  r2r2 train                  learn a small task in a few minutes, to see it work
  r2r2 train --env Hopper-v5 --utd 20 --seeds 5
                              train a fleet; 'r2r2 train --help' shows every field
  r2r2 train --resume RUN     go on with a run that was interrupted
  r2r2 eval RUN               play episodes with a run's final policies
  r2r2 eval RUN --video out.mp4
                              and film one
  r2r2 watch                  see how running training does, curves included
  r2r2 report RUNS            compare runs, with each other and with the paper:
                              a page, figures and tables
  r2r2 bench                  measure how fast this machine trains
  r2r2 clean                  show what runs take on the disk, and free it
  r2r2 list agents|envs       what can be trained, and on what
"""

COMMANDS = ("train", "watch", "report", "eval", "bench", "clean", "list")

# Exit codes of what ends while something may still be running.
ABRUPT = (1, exit_code(KeyboardInterrupt()), exit_code(Terminated()))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; bad input is one sentence and exit code 2.

    An environment that fails is told with its traceback, and is exit code 1; so is a
    disk on which a run cannot be written down any more, in one sentence.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        if not tokens or tokens[0] in ("-h", "--help", "help"):
            print(HELP, end="")
            return 0
        if tokens[0] == "--version":
            print(r2r2.__version__)
            return 0
        if tokens[0] not in COMMANDS:
            near = did_you_mean(tokens[0], COMMANDS)
            raise UserError(
                f"{tokens[0]!r} is not a command{near or '; see r2r2 --help'}"
            )
        return _command(tokens[0])(tokens[1:])
    except UserError as refusal:
        print(f"r2r2: {one_line(str(refusal))}", file=sys.stderr)
        return 2
    except (EnvFailure, StorageError) as failure:
        print(f"r2r2: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("r2r2: interrupted", file=sys.stderr)
        return exit_code(interruption)


def _command(name: str) -> Callable[[list[str]], int]:
    """A command, loaded when it is asked for: most need what takes a second to load.

    An interruption waits until that is done: in the midst of it, some libraries lose
    it, and others do not survive it.
    """
    with held_back():
        module = importlib.import_module(f"r2r2.cli.{name}")
    command: Callable[[list[str]], int] = getattr(module, f"{name}_command")
    return command


def entry() -> None:
    """The program: `main`, and its exit code.

    After an interruption or a failure it leaves at once, for a compilation may still
    be running in a thread that the interpreter's end would wait for.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code in ABRUPT:
        os._exit(code)
    sys.exit(code)
