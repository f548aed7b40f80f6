"""`r2r2 collect`: curves, diagnostics and settings of runs as one folder of CSV files."""

from pathlib import Path

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, one_line
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY
from r2r2.experiments.collect import collect, describe_cells

DEFAULT = Path("results")

PARSER = ArgumentParser(
    "collect",
    "RUN|FOLDER... [--out DIR] [--policies]",
    """\
Write what runs have measured to one folder of CSV files: every evaluation and
every diagnostic number of every seed, resolved configs, versions, commit,
wall-clock time and device. The arguments are run folders, or folders with runs
anywhere below them, such as that of a sweep.

Cells that the folder has already are kept; a seed that is collected again is
replaced. Runs that have not ended, or are damaged, are left out. The same runs
give the same files. r2r2.load_results() reads the folder in Python, and
'r2r2 report results' compares it with the paper. docs/results.md describes it.
""",
    """\
  r2r2 collect runs
  r2r2 collect sweeps --out results --policies
""",
    field_table(
        ("out", str, str(DEFAULT), "folder of results, new or of an earlier call", FOLDER),
        ("policies", bool, False, "also the last policy of one seed per cell, if small", ANY),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 collect` and return its exit code."""
    given = PARSER.parse(argv)
    if not given["arguments"]:
        raise UserError("expected runs or folders, as in 'r2r2 collect runs'")
    add_working_folder_to_path()
    out = Path(given.get("out", DEFAULT))
    collected = collect(given["arguments"], out, given.get("policies", False))
    for line in (*describe_cells(collected.cells), *collected.left_out, *collected.no_policy):
        print(f"  {one_line(line)}")
    seeds = sum(map(len, collected.cells.values()))
    cells = len(collected.cells)
    print(f"{out}: collected {seeds} seed{'s' * (seeds != 1)} of {cells} cell{'s' * (cells != 1)}")
    return 0
