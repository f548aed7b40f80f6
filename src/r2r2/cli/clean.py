"""`r2r2 clean`: the disk space of runs, and freeing it."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal as format_bytes
from rich.markup import escape
from rich.table import Table

from r2r2.cli.argparser import ArgumentParser, field_table
from r2r2.cli.main import program_name
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY
from r2r2.storage.disk_usage import (
    RunUsage,
    delete_checkpoints,
    delete_run,
    find_runs,
    removable_checkpoints,
    run_usage,
    total_bytes,
)
from r2r2.storage.run_folder import check_unlocked, lock_owner, open_run

DEFAULT = Path("runs")
MAX_WIDTH = 100_000  # columns of the table

PARSER = ArgumentParser(
    "clean",
    "[RUN or FOLDER]... [--checkpoints] [--unfinished] [--yes]",
    """\
Show the disk space of runs, by default of those in 'runs'. Nothing is deleted
unless --checkpoints or --unfinished is given.

--checkpoints deletes all checkpoints of finished runs, which need one only to
train for more --steps, and all but the newest valid one of unfinished runs.
Results, curves and weights are kept. --unfinished deletes runs that did not
finish or have failed, with everything in their folders. Runs in training, runs
of another version of r2r2, non-runs and symlink targets are never touched.
""",
    """\
  r2r2 clean
  r2r2 clean runs/hopper --checkpoints
  r2r2 clean --unfinished --yes
""",
    field_table(
        ("checkpoints", bool, False, "delete checkpoints not needed", ANY),
        ("unfinished", bool, False, "delete unfinished runs completely", ANY),
        ("yes", bool, False, "do not ask before deleting", ANY),
    ),
    positional=True,
)

STATUS = {
    "finished": "finished",
    "failed": "failed",
    "running": "unfinished",
    "unknown": "other version",
}
UNFINISHED = ("running", "failed")
# What can be deleted, its bytes, and the function that deletes it.
Deletion = tuple[str, int, Callable[[], None]]


def run(argv: list[str]) -> int:
    """Run `r2r2 clean` and return its exit code."""
    given = PARSER.parse(argv)
    names: list[str] = given.pop("arguments")
    deleting = bool(given.get("checkpoints") or given.get("unfinished"))
    if given.get("yes") and not deleting:
        raise UserError("--yes: only used with --checkpoints or --unfinished")
    usages = _find_runs(names, deleting)
    if not usages:
        print(f"no runs in '{DEFAULT}'")
    elif not deleting:
        # As wide as it is: a path must not be broken, in a narrow terminal or a pipe.
        Console(emoji=False, width=MAX_WIDTH).print(_table(usages))
        _print_next_steps(usages, names)
    else:
        _clean(usages, given)
    return 0


def _find_runs(names: Sequence[str], deleting: bool) -> list[RunUsage]:
    """Return the runs in the named folders, each once; reject folders without any."""
    runs: list[Path] = []
    for path in map(Path, names):
        below = find_runs(path)
        if not below:
            open_run(path)  # raises the error for it
        elif below == [path] and path.is_symlink():
            raise UserError(f"{path}: is a symbolic link; expected its target")
        elif below == [path] and deleting:
            check_unlocked(path)
        runs += below
    if not names:
        runs = find_runs(DEFAULT)
    return [run_usage(path) for path in {x.resolve(): x for x in runs}.values()]


def _table(usages: Sequence[RunUsage]) -> Table:
    table = Table(show_footer=len(usages) > 1, box=None, pad_edge=False)
    table.add_column("status", no_wrap=True)
    sizes = ("total", "checkpoints", "weights", "others")
    for name in sizes:
        total = format_bytes(sum(getattr(usage, name) for usage in usages))
        table.add_column(name, total, justify="right", no_wrap=True)
    table.add_column("changed", no_wrap=True)
    table.add_column("run", "all", no_wrap=True)  # last, since paths may be long
    for usage in usages:
        table.add_row(
            "in training" if usage.locked else STATUS[usage.manifest.status],
            *(format_bytes(getattr(usage, name)) for name in sizes),
            time.strftime("%Y-%m-%d", time.localtime(usage.modified)),
            escape(str(usage.run)),
        )
    return table


def _print_next_steps(usages: Sequence[RunUsage], names: Sequence[str]) -> None:
    """Print what could be deleted, each with its command."""
    command = shlex.join([*program_name().split(), "clean", *names])
    free = [usage for usage in usages if not usage.locked]
    finished = [usage for usage in free if usage.manifest.status == "finished"]
    unfinished = [usage for usage in free if usage.manifest.status in UNFINISHED]
    lines: list[str] = []
    if size := sum(usage.checkpoints for usage in finished):
        lines.append(f"{command} --checkpoints   frees {format_bytes(size)} or more:")
        lines.append("    checkpoints of finished runs, old ones of unfinished runs")
    elif any(usage.checkpoints for usage in unfinished):
        lines.append(f"{command} --checkpoints   frees old ones of unfinished runs")
    if size := sum(usage.total for usage in unfinished):
        lines.append(f"{command} --unfinished    frees {format_bytes(size)}:")
        lines.append("    unfinished runs, completely")
    print(*(f"  {line}" for line in lines or ["nothing to delete"]), sep="\n")


def _clean(usages: Sequence[RunUsage], given: dict[str, Any]) -> None:
    """Show what would be deleted, ask, and delete it."""
    deletions: list[Deletion] = []
    for usage in usages:
        if usage.locked:
            print(f"skipped {usage.run}: {lock_owner(usage.run)} is training it")
        else:
            deletions += _deletions(usage, given)
    for what, size, _ in deletions:
        print(f"  {what}: {format_bytes(size)}")
    total = format_bytes(sum(size for _, size, _ in deletions))
    if not deletions:
        print("nothing to delete")
    elif given.get("yes") or _confirmed(f"delete these, {total} in all?"):
        for _, _, delete in deletions:
            delete()
        print(f"freed {total}")
    else:
        print("nothing was deleted")


def _deletions(usage: RunUsage, given: dict[str, Any]) -> list[Deletion]:
    status = usage.manifest.status
    if given.get("unfinished") and status in UNFINISHED:
        what = f"{usage.run}, {STATUS[status]} run with everything in its folder"
        return [(what, usage.total, partial(delete_run, usage))]
    files = removable_checkpoints(usage) if given.get("checkpoints") else []
    if not files:
        return []
    kind = "checkpoints" if status == "finished" else "all but the newest checkpoint"
    return [(f"{usage.run}, {kind}", total_bytes(files), partial(delete_checkpoints, usage, files))]


def _confirmed(question: str) -> bool:
    """Return whether the user at the terminal says yes."""
    if not sys.stdin.isatty():
        raise UserError("no terminal to confirm; add --yes")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
