"""The process of one fleet, which every engine starts: trains it, or resumes it.

python -m r2r2.experiments.fleet_job SWEEPS SWEEP FLEET [--attempt N] [--device NAME]
    [--checkpoint-every INTERVAL]
"""

import argparse
import ctypes
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from r2r2.api import (
    DEFAULT_OPTIONS,
    RunFailed,
    RunOptions,
    enable_compilation_cache,
    train_finalized,
)
from r2r2.config.errors import StoppedMembersWarning, UserError
from r2r2.experiments.engine import FAILED, FINISHED
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.training.loop import Progress
from r2r2.training.signals import exit_code, interruptible

PR_SET_PDEATHSIG = 1  # of Linux


def main(argv: Sequence[str] | None = None) -> int:
    """Train the fleet that the arguments name and return the exit code."""
    given = _parser().parse_args(argv)
    _end_with_parent()
    folder = SweepFolder(Path(given.sweeps), given.sweep)
    try:
        return _train(folder, given.fleet, _options(given))
    except UserError as error:
        print(f"r2r2: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        return exit_code(interruption)
    except Exception:
        traceback.print_exc()  # into the fleet's log, whose last line the sweep shows
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m r2r2.experiments.fleet_job")
    parser.add_argument("sweeps")
    parser.add_argument("sweep")
    parser.add_argument("fleet")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--device", default=DEFAULT_OPTIONS.device)
    parser.add_argument("--checkpoint-every", default=DEFAULT_OPTIONS.checkpoint_every)
    return parser


def _options(given: argparse.Namespace) -> RunOptions:
    retry = given.attempt > 1
    every = given.checkpoint_every
    return RunOptions(device=given.device, retry_failed=retry, checkpoint_every=every)


def _end_with_parent() -> None:
    """Let the system interrupt this process when the one that started it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _train(folder: SweepFolder, name: str, options: RunOptions) -> int:
    plan = folder.plan()
    if plan is None:
        raise UserError(f"{folder.plan_file}: does not exist")
    fleet = plan.find(name)
    if plan.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.cores])
    enable_compilation_cache(replace=False)
    with interruptible(saves=True) as check, warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedMembersWarning)

        def on_progress(_: Progress) -> None:
            check()

        try:
            rest = None, on_progress, options, _print_message
            result = train_finalized(fleet.config, folder.run(name), *rest)
        except RunFailed as failure:
            result = failure.result
    for member, why in result.stopped.items():
        print(f"r2r2: {member} was stopped: {why}", file=sys.stderr)
    return FAILED if result.stopped else FINISHED


def _print_message(text: str) -> None:
    print(f"r2r2: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
