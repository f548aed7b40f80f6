"""`r2r2 bench`: how fast this device trains, as tables and as a file."""

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from r2r2.bench.end_to_end import Course, EndToEnd, check_course, train_timed
from r2r2.bench.roofline import Ceiling, ceiling
from r2r2.bench.updates import (
    Overhead,
    Stage,
    Timing,
    Watch,
    check_room,
    measure,
    stages,
)
from r2r2.cli.argparser import wants_help
from r2r2.cli.bench_display import BenchBar, show
from r2r2.cli.bench_flags import BenchCommand, bench_help, parse_bench
from r2r2.cli.process import cache_compiled_programs, program, use_this_folder
from r2r2.config.errors import UserError
from r2r2.storage.files import StorageError, atomic_write, reason
from r2r2.storage.versions import versions

CEILING = Stage("ceiling", "measuring the device")
TENTHS = 10  # of a training, for the bar


def bench_command(argv: list[str]) -> int:
    """`r2r2 bench`, from its arguments to its exit code."""
    if wants_help(argv):
        print(bench_help(), end="")
        return 0
    command = parse_bench(argv)
    use_this_folder()
    _check(command)
    cache_compiled_programs()
    console = Console()
    with BenchBar(console, _stages(command)) as bar:
        found = _measured(command, bar)
    launches = jax.default_backend() != "cpu"
    show(console, *found, launches)
    if command.out is not None:
        said = shlex.join([*program().split(), "bench", *argv])
        _write(command.out, _facts(command, said, found))
        console.print(f"'{command.out}' has every repeat", soft_wrap=True)
    return 0


Found = tuple[Ceiling, list[Timing], list[Overhead], list[EndToEnd]]


def _check(command: BenchCommand) -> None:
    """Refuses what could only fail after minutes."""
    if command.out is not None:
        _check_out(command.out)
    for members in command.members:
        check_room(command.timed, members, command.sizes)
    if command.course is not None:
        for agent in command.agents.values():
            check_course(agent, command.course)


def _check_out(out: Path) -> None:
    if out.is_dir():
        raise UserError(f"out is '{out}', which is a folder; allowed is a file")
    if not out.parent.is_dir():
        raise UserError(f"out is '{out}'; there is no folder '{out.parent}'")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"out is '{out}'; '{out.parent}' cannot be written to")


def _stages(command: BenchCommand) -> list[Stage]:
    """Everything that the bar will hear of."""
    timed, repeats = command.timed, command.sizes.repeats
    all_stages = [CEILING]
    for members in command.members:
        all_stages += stages(timed, members, repeats)
    if command.course is not None:
        for name in command.agents:
            all_stages += _training_stages(name, command.course)
    return all_stages


def _training_stages(agent: str, course: Course) -> list[Stage]:
    what = f"training {agent} on {course.task}"
    begin = Stage("start training", f"starting {what.removeprefix('training ')}")
    return [begin, *[Stage(what, f"{what}, timed")] * TENTHS]


def _measured(command: BenchCommand, watch: Watch) -> Found:
    watch(CEILING)
    best = ceiling()
    timings, overheads = list[Timing](), list[Overhead]()
    for members in command.members:
        found = measure(
            command.timed, members, command.sizes, best.tflops.median, watch
        )
        timings += found[0]
        overheads += found[1]
    trained = list[EndToEnd]()
    if command.course is not None:
        for name, agent in command.agents.items():
            tenths = Tenths(_training_stages(name, command.course), watch)
            trained.append(train_timed(agent, command.course, tenths))
            tenths(1.0)
    return best, timings, overheads, trained


class Tenths:
    """Tells of a training in pieces: first that it begins, then each tenth of it.

    Example:
        >>> said = []
        >>> tenths = Tenths([Stage("", str(n)) for n in range(11)], said.append)
        >>> tenths(0.01)
        >>> tenths(0.15)
        >>> [stage.what for stage in said]
        ['0', '1', '2']
    """

    def __init__(self, left: list[Stage], watch: Watch):
        self._left, self._watch, self._told = left, watch, 0
        self._tell(1)

    def __call__(self, fraction: float) -> None:
        """Takes in how much is done."""
        self._tell(2 + min(int(fraction * TENTHS), TENTHS - 1))

    def _tell(self, many: int) -> None:
        while self._told < many:
            self._watch(self._left[self._told])
            self._told += 1


def _facts(command: BenchCommand, said: str, found: Found) -> dict[str, Any]:
    """All that was found, as JSON has it."""
    best, timings, overheads, trained = found
    stats = jax.devices()[0].memory_stats() or {}
    cpu = jax.default_backend() == "cpu"
    return {
        "command": said,
        "versions": versions() | ({"commit": command.commit} if command.commit else {}),
        "sizes": _plain(command.sizes),
        "agents": {x: dataclasses.asdict(y) for x, y in command.timed.items()},
        "ceiling": _plain(best),
        "kernels_are": "computations fused by XLA" if cpu else "kernels launched",
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
        "updates": _plain(timings),
        "overheads": _plain(overheads),
        "end_to_end": _plain(trained),
    }


def _plain(value: Any) -> Any:
    """Records as tables by name, whatever is in them."""
    if hasattr(value, "_asdict"):
        return {name: _plain(x) for name, x in value._asdict().items()}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value


def _write(out: Path, facts: dict[str, Any]) -> None:
    try:
        atomic_write(out, json.dumps(facts, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise StorageError(f"'{out}' cannot be written: {reason(error)}") from error
