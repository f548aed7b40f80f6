"""`r2r2 clean`: what runs take on the disk, and how to have it back."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from r2r2.cli.argparser import fields_help, split, texts, wants_help
from r2r2.cli.process import program
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, FieldSpec, parse_value
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

FIELDS = {
    leaf.path: leaf
    for leaf in (
        FieldSpec(
            "checkpoints", bool, False, "delete checkpoints that can be spared", ANY
        ),
        FieldSpec("unfinished", bool, False, "delete unfinished runs, whole", ANY),
        FieldSpec("yes", bool, False, "do not ask before deleting", ANY),
    )
}

HELP = """usage: r2r2 clean [RUN or FOLDER]... [--checkpoints] [--unfinished] [--yes]

Show what runs take on the disk, by default those in 'runs'; delete only when told to.

A checkpoint holds all that a run needs to go on, its replay too: it takes the most.
--checkpoints deletes all of them from finished runs, which need one only to be trained
for more --steps, and all but the newest good one from unfinished runs. Results, curves
and weights stay. --unfinished deletes runs that did not finish, each with all that is
in its folder. A run that is being trained is left alone, and so is a run of another
version of r2r2, whatever is not a run, and where links lead.
"""

STATUS = {
    "finished": "finished",
    "running": "unfinished",
    "unknown": "other version",
}


class Deletion(NamedTuple):
    """Something that can go."""

    what: str
    bytes: int
    carry_out: Callable[[], None]


def clean_command(argv: list[str]) -> int:
    """`r2r2 clean`, from its arguments to its exit code."""
    if wants_help(argv):
        print(f"{HELP}\n{fields_help(FIELDS, top='options')}")
        return 0
    # A folder may follow an option, which then is not its value.
    alone = {f"--{name}" for name in FIELDS}
    words = split([f"{word}=true" if word in alone else word for word in argv])
    said = texts(words.options, FIELDS)
    given = {name: parse_value(FIELDS[name], text) for name, text in said.items()}
    wanted = {name for name, value in given.items() if value}
    if wanted == {"yes"}:
        raise UserError("yes is true, but there is no --checkpoints or --unfinished")
    found = _find(words.alone, bool(wanted))
    console = Console()
    if not found:
        _say(console, f"no runs in '{DEFAULT}'")
    elif not wanted:
        console.print(_table(found))
        _next_steps(console, found, words.alone)
    else:
        _clean(console, found, wanted)
    return 0


def size_text(count: float) -> str:
    """Bytes as people say it.

    Example:
        >>> [size_text(count) for count in (0, 999, 4_200, 3_400_000_000)]
        ['0 B', '999 B', '4.2 kB', '3.4 GB']
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.95 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def _find(names: Sequence[str], deleting: bool) -> list[RunUsage]:
    """The runs in what was named, each once; refuses what holds none."""
    runs: list[Path] = []
    for path in map(Path, names):
        below = find_runs(path)
        if not below:
            open_run(path)  # which says what is wrong with it
        elif below == [path] and path.is_symlink():
            raise UserError(f"run is '{path}', which is a link; give what it leads to")
        elif below == [path] and deleting:
            check_unlocked(path)
        runs += below
    if not names:
        runs = find_runs(DEFAULT)
    return [run_usage(run) for run in {run.resolve(): run for run in runs}.values()]


def _table(found: Sequence[RunUsage]) -> Table:
    table = Table(show_footer=len(found) > 1)
    sums = [sum(numbers) for numbers in zip(*map(_sizes, found), strict=True)]
    table.add_column("run", "all", overflow="fold")
    table.add_column("status")
    heads = ("total", "checkpoints", "weights", "others")
    for head, whole in zip(heads, sums, strict=True):
        table.add_column(head, size_text(whole), justify="right", no_wrap=True)
    table.add_column("changed", no_wrap=True)
    for usage in found:
        when = time.strftime("%Y-%m-%d", time.localtime(usage.modified))
        sizes = map(size_text, _sizes(usage))
        table.add_row(escape(str(usage.run)), _status(usage), *sizes, when)
    return table


def _sizes(usage: RunUsage) -> tuple[int, ...]:
    return usage.total, usage.checkpoints, usage.weights, usage.others


def _status(usage: RunUsage) -> str:
    return "in training" if usage.locked else STATUS[usage.manifest.status]


def _next_steps(
    console: Console, found: Sequence[RunUsage], named: Sequence[str]
) -> None:
    """What could be deleted, each with the command that does."""
    command = shlex.join([*program().split(), "clean", *named])
    free = [usage for usage in found if not usage.locked]
    finished = [usage for usage in free if usage.manifest.status == "finished"]
    running = [usage for usage in free if usage.manifest.status == "running"]
    lines: list[str] = []
    if spare := sum(usage.checkpoints for usage in finished):
        lines.append(f"{command} --checkpoints   frees {size_text(spare)} and more:")
        lines.append("    checkpoints of finished runs, old ones of unfinished runs")
    elif any(usage.checkpoints for usage in running):
        lines.append(f"{command} --checkpoints   frees old ones of unfinished runs")
    if whole := sum(usage.total for usage in running):
        lines.append(f"{command} --unfinished    frees {size_text(whole)}:")
        lines.append("    unfinished runs, whole")
    _say(console, "\n".join(f"  {line}" for line in lines or ["nothing to delete"]))


def _clean(console: Console, found: Iterable[RunUsage], wanted: set[str]) -> None:
    """Shows what is to go, asks, and deletes it."""
    doomed: list[Deletion] = []
    for usage in found:
        if usage.locked:
            who = lock_owner(usage.run)
            _say(console, f"left alone is {usage.run}, which {who} is training")
        else:
            doomed += _deletions(usage, wanted)
    for deletion in doomed:
        _say(console, f"  {deletion.what}: {size_text(deletion.bytes)}")
    if not doomed:
        _say(console, "nothing to delete")
        return
    whole = size_text(sum(deletion.bytes for deletion in doomed))
    if "yes" not in wanted and not _agreed(f"delete these, {whole} in all?"):
        _say(console, "nothing is deleted")
        return
    for deletion in doomed:
        deletion.carry_out()
    _say(console, f"freed {whole}")


def _deletions(usage: RunUsage, wanted: set[str]) -> list[Deletion]:
    status = usage.manifest.status
    if "unfinished" in wanted and status == "running":
        what = f"{usage.run}, an unfinished run with all that is in it"
        return [Deletion(what, usage.total, partial(delete_run, usage))]
    files = removable_checkpoints(usage) if "checkpoints" in wanted else []
    if not files:
        return []
    kind = "checkpoints" if status == "finished" else "all but the newest checkpoint"
    what = f"{usage.run}, {kind}"
    carry_out = partial(delete_checkpoints, usage, files)
    return [Deletion(what, total_bytes(files), carry_out)]


def _agreed(question: str) -> bool:
    """Whether whoever sits there says yes.

    Raises:
        UserError: Nobody does.
    """
    if not sys.stdin.isatty():
        raise UserError(
            "yes is false; without a terminal to ask at, nothing is deleted unless "
            "--yes is given"
        )
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)
