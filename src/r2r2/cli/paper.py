"""`r2r2 paper`: the experiments that come with r2r2, and what they cost on this machine."""

import contextlib
import math
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, one_line, program_name
from r2r2.config.errors import UserError
from r2r2.config.fields import SCALE
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import run_name
from r2r2.experiments.costs import CostModel, load_costs
from r2r2.experiments.experiment import Experiment, finalize_cells, find_experiment, preset_names
from r2r2.experiments.scaling import scale_config
from r2r2.stats.scores import Override, run_results
from r2r2.training.run_config import task_default_config

DEFAULT = "sweeps"
WIDTH = 80  # columns of the output
NOT_MEASURED = "*"  # mark of a time that follows from other agents or tasks
UNKNOWN = "unknown"

PARSER = ArgumentParser(
    "paper",
    "[NAME|FILE.toml] [--scale X] [--out DIR]",
    """\
List the paper's experiments: what each reproduces, its cells (agents x tasks x
UTD) and runs (cells x seeds), its updates, and the estimated time on a device
of this machine, from speeds that sweeps or 'r2r2 bench --task' measured. With a
name, or a file of your own, show one experiment in detail. Nothing is trained;
'r2r2 sweep' does.
""",
    """\
  r2r2 paper
  r2r2 paper main-table
  r2r2 paper main-table --scale 0.01
  r2r2 paper my_grid.toml
""",
    field_table(
        ("scale", float, 1.0, "shorten runs by this factor, as in sweep", SCALE),
        ("out", str, DEFAULT, "sweeps whose speeds to use as well", FOLDER),
    ),
    positional=tuple(preset_names()),
)


class Size(NamedTuple):
    """How large a set of cells is."""

    cells: int
    runs: int
    updates: int
    seconds: float  # of a device, with the seeds of a cell as a fleet; NaN: unknown
    measured: bool  # all of them, on the same agent and task

    @property
    def texts(self) -> tuple[str, ...]:
        """Its values for a table."""
        time = UNKNOWN if math.isnan(self.seconds) else format_time(self.seconds)
        mark = "" if self.measured or time == UNKNOWN else f" {NOT_MEASURED}"
        return f"{self.cells}", f"{self.runs}", format_count(self.updates), time + mark


def run(argv: list[str]) -> int:
    """Run `r2r2 paper` and return its exit code."""
    given = PARSER.parse(argv)
    names: list[str] = given.pop("arguments")
    if len(names) > 1:
        raise UserError(f"unexpected argument {names[1]!r}")
    add_working_folder_to_path()  # agents and tasks of a user's file
    scale, folder = given.get("scale", 1.0), Path(given.get("out", DEFAULT))
    if "out" in given and not folder.is_dir():
        raise UserError(f"--out: expected a folder of sweeps, got '{folder}', which is not there")
    experiments = [find_experiment(name) for name in names or preset_names()]
    experiments.sort(key=lambda x: not x.reproduces)
    cells = {x.name: finalize_cells(x, scale) for x in experiments}
    costs = _prepared(load_costs(folder), [x for of_one in cells.values() for x in of_one])
    console = Console(emoji=False, width=WIDTH, highlight=False)
    if names:
        _print_experiment(console, experiments[0], cells[experiments[0].name], costs, scale)
        _print_command(console, names[0], scale)
    else:
        _print_list(console, experiments, cells, costs, scale)
        _print_command(console, "NAME", scale)
        console.print(f"details: {program_name()} paper NAME")
    return 0


def _prepared(costs: CostModel, cells: Sequence[RunConfig]) -> CostModel | None:
    """Return costs that are ready for these cells; None if nothing was measured."""
    if math.isnan(costs.estimate(cells[0]).seconds):
        return None
    costs.prepare(cells)
    return costs


def measure_size(cells: Sequence[RunConfig], costs: CostModel | None) -> Size:
    """Return how large a set of finalized cells is."""
    estimates = [costs.estimate(cell) for cell in cells] if costs else []
    return Size(
        len(cells),
        sum(len(cell.seeds) for cell in cells),
        sum(count_updates(cell) for cell in cells),
        sum(x.seconds for x in estimates) if costs else math.nan,
        all(x.measured for x in estimates),
    )


def count_updates(config: RunConfig) -> int:
    """Return the updates of all members of a run.

    Example:
        >>> count_updates(RunConfig(env=("Hopper-v5",), seeds=(0, 1), utd=20))
        19000000
    """
    online = 0 if config.random_only else max(0, config.steps - config.warmup) * config.utd
    return (online + config.prefill_only_updates) * len(config.env) * len(config.seeds)


def _print_list(
    console: Console,
    experiments: Sequence[Experiment],
    cells: Mapping[str, Sequence[RunConfig]],
    costs: CostModel | None,
    scale: float,
) -> None:
    table = _table("experiment", "reproduces")
    sizes = [measure_size(cells[x.name], costs) for x in experiments]
    paper = [x for x in experiments if x.reproduces]
    for experiment, size in zip(experiments, sizes, strict=True):
        table.add_row(
            experiment.name, escape(experiment.reproduces or experiment.title), *size.texts
        )
    total = measure_size(_distinct(x for one in paper for x in cells[one.name]), costs)
    table.add_row("all of the paper", "equal runs are shared", *total.texts, style="bold")
    console.print(table)
    _print_notes(console, sizes, scale)


def _distinct(cells: Iterable[RunConfig]) -> list[RunConfig]:
    """Return each cell once, with the most seeds that it has anywhere."""
    found: dict[str, RunConfig] = {}
    for cell in cells:
        name = run_name(cell)
        if name not in found or len(found[name].seeds) < len(cell.seeds):
            found[name] = cell
    return list(found.values())


def _print_experiment(
    console: Console,
    experiment: Experiment,
    cells: Sequence[RunConfig],
    costs: CostModel | None,
    scale: float,
) -> None:
    title = f": {escape(one_line(experiment.title))}" if experiment.title else ""
    console.print(f"[bold]{escape(experiment.name)}[/]{title}")
    if experiment.reproduces:
        console.print(f"reproduces: {escape(one_line(experiment.reproduces))}")
    text = "\n".join(map(one_line, Path(experiment.file).read_text().splitlines()))
    console.print(f"\n{escape(textwrap.indent(text, '  '))}\n", soft_wrap=True)
    overrides = [_overrides(cell, scale) for cell in cells]
    shared = [x for x in overrides[0] if all(x in others for others in overrides)]
    groups: dict[tuple[str, str, int], list[RunConfig]] = {}
    for cell, of_cell in zip(cells, overrides, strict=True):
        settings = ", ".join(x.brief for x in of_cell if x not in shared)
        groups.setdefault((cell.agent.name, settings, cell.utd), []).append(cell)
    table = _table("agent", "settings", "UTD")
    sizes = [measure_size(group, costs) for group in groups.values()]
    for (agent, settings, utd), size in zip(groups, sizes, strict=True):
        table.add_row(escape(agent), escape(settings), str(utd), *size.texts)
    table.add_row("all", "", "", *measure_size(cells, costs).texts, style="bold")
    console.print(table)
    if shared:
        console.print(f"All runs: {escape(', '.join(x.brief for x in shared))}.")
    _print_notes(console, sizes, scale)


def _overrides(cell: RunConfig, scale: float) -> tuple[Override, ...]:
    """Return the settings of a cell that are not its agent's defaults, scaled alike."""
    default = task_default_config(cell)
    with contextlib.suppress(UserError):  # the defaults are shorter than the cell's runs
        default = scale_config(default, scale)
    return run_results(cell, default, []).method.overrides


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for name in others:
        is_number = name == "UTD"
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    for name in ("cells", "runs", "updates", "device time"):
        table.add_column(name, justify="right", no_wrap=name != "device time")
    return table


def _print_notes(console: Console, sizes: Sequence[Size], scale: float) -> None:
    notes: list[str] = []
    if scale != 1:
        notes.append(f"Scaled by {scale:g}: not a reproduction of the paper.")
    if all(math.isnan(size.seconds) for size in sizes):
        notes.append(
            f"Nothing was measured on this machine yet. '{program_name()} sweep smoke' takes "
            f"minutes and measures its speed; training on a real task, as in "
            f"'{program_name()} bench --task Humanoid-v5', measures it better."
        )
    else:
        notes.append(
            "Device time: with the seeds of a cell as one fleet, one fleet after the other. "
            f"'{program_name()} sweep NAME --dry-run' shows the plan for this machine."
        )
    if any(not size.measured and not math.isnan(size.seconds) for size in sizes):
        notes.append(f"{NOT_MEASURED} partly from the speeds of other agents or tasks.")
    console.print("", *map(escape, notes), "", sep="\n")


def _print_command(console: Console, name: str, scale: float) -> None:
    option = f" --scale {scale:g}" if scale != 1 else ""
    command = f"{program_name()} sweep {shlex.quote(name)}{option}"
    console.print(escape(f"run it: {one_line(command)}"), soft_wrap=True)


def format_count(count: int) -> str:
    """Return a number with at most three digits.

    Example:
        >>> [format_count(x) for x in (7_480_000_000, 999_900, 12_345, 950)]
        ['7.48 G', '1 M', '12.3 k', '950']
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 0.9995 * unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


def format_time(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> [format_time(x) for x in (42, 200, 7_300, 1_000_000)]
        ['42 s', '3.3 min', '2.0 h', '11.6 days']
    """
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.0f} s"
