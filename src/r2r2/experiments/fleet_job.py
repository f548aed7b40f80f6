"""The process of one fleet, which every engine starts: trains it, or resumes it.

python -m r2r2.experiments.fleet_job SWEEPS SWEEP FLEET [--attempt N] [--device NAME]
                                     [--checkpoint-every INTERVAL] [--cores LIST]
                                     [--end-with-stdin]

The exit codes are those of `engine.py`. Without --end-with-stdin the process ends with its parent
on Linux only.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
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
from r2r2.experiments.engine import FAILED, FINISHED, LOCKED, TERMINATED
from r2r2.experiments.plan import Plan
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.checkpoints import CHECKPOINT_DIR, latest_valid
from r2r2.storage.run_folder import is_locked, read_manifest
from r2r2.training.loop import Progress
from r2r2.training.signals import exit_code, interruptible

PR_SET_PDEATHSIG = 1  # of Linux
LAST_SECONDS = 120.0  # to write a checkpoint after the parent has died


def main(argv: Sequence[str] | None = None) -> int:
    """Train the fleet that the arguments name and return the exit code."""
    given = _parser().parse_args(argv)
    if given.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    else:
        _end_with_parent()
    folder = SweepFolder(Path(given.sweeps), given.sweep)
    try:
        return _train(folder, given)
    except UserError as error:
        print(f"r2r2: error: {error}", file=sys.stderr)
        return LOCKED if is_locked(folder.run(given.fleet)) else 2
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
    parser.add_argument("--cores", default="", help="CPU cores to use, as in 0,1")
    parser.add_argument("--end-with-stdin", action="store_true")
    return parser


def _end_with_parent() -> None:
    """Let the system interrupt this process when the one that started it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_with_stdin() -> None:
    """Interrupt this process when its standard input ends, since nobody holds the other side."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os._exit(TERMINATED)  # it hangs


def _train(folder: SweepFolder, given: argparse.Namespace) -> int:
    plan = folder.plan()
    if plan is None:
        raise UserError(f"{folder.plan_file}: does not exist")
    fleet, path = plan.find(given.fleet), folder.run(given.fleet)
    _use_cores(plan.cores, given.cores)
    enable_compilation_cache(replace=False)
    options = _run_options(plan, path, given)
    with interruptible(saves=True) as check, warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedMembersWarning)

        def on_progress(_: Progress) -> None:
            check()

        try:
            rest = None, on_progress, options, _print_message
            result = train_finalized(fleet.config, path, *rest)
        except RunFailed as failure:
            result = failure.result
    for member, why in result.stopped.items():
        print(f"r2r2: {member} was stopped: {why}", file=sys.stderr)
    return FAILED if result.stopped else FINISHED


def _run_options(plan: Plan, path: Path, given: argparse.Namespace) -> RunOptions:
    """Return options that resume the run, also members that failed in an earlier attempt."""
    manifest = read_manifest(path)
    failed = manifest is not None and manifest.status == "failed"
    lost = failed and latest_valid(path / CHECKPOINT_DIR) == (None, [])
    options = RunOptions(device=given.device, checkpoint_every=given.checkpoint_every)
    options = options._replace(experiment=plan.experiment, scale=plan.scale)
    return options._replace(retry_failed=not lost, overwrite=lost)


def _use_cores(count: int, names: str) -> None:
    """Run on some cores; on a CPU, results depend on their number, so it must be the plan's."""
    if not count:
        return
    # XLA's number of threads, even where this machine has fewer cores than the plan's.
    os.environ["NPROC"] = str(count)
    if hasattr(os, "sched_setaffinity"):
        available = sorted(os.sched_getaffinity(0))
        cores = [int(core) for core in names.split(",") if core] or available[:count]
        os.sched_setaffinity(0, cores)


def _print_message(text: str) -> None:
    print(f"r2r2: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
