"""`r2r2 theory`: check the paper's argument numerically, and write a page with the figures."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import r2r2
from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import one_line
from r2r2.config.errors import UserError
from r2r2.experiments.run_report import CONTENTS, OnStage, find_sources, load_study
from r2r2.report.study import Study
from r2r2.report.tables import Table
from r2r2.storage.files import atomic_dir, check_report_dir
from r2r2.theory.chains import Chain, examples
from r2r2.theory.experiments import Outcome, run_experiments
from r2r2.theory.page import Part, make_parts, write_pages
from r2r2.theory.practice import check_diagnostics

DEFAULT = Path("theory")
PAGE = "theory"  # the command, as report.json names it
FLOW_SHARE = 0.7  # of the time that simulating the flows takes
STAGES = 7  # after it: tables, figures of up to five parts, the page
# Columns that fit on a terminal; the page has all of them.
PRINTED = {
    "lemmas": (
        *("chain", "symmetric", "doubly stochastic", "aperiodic", "all hold"),
        "largest residual",
    ),
    "assumptions": (
        *("chain", "orthogonal eigenvectors", "HP = PH", "trace never falls"),
        "starts that reach the top-k",
    ),
    "variants": (
        *("loss", "constant mode in the span", "constant mode's share of Z", "effective rank"),
    ),
    "sweeps": (*("chain", "share, not centred (R2R2)", "share, centred (VICReg)"),),
    "practice": (
        *("task", "method", "UTD", "share of the constant mode", "effective rank"),
        "effective rank (paper)",
    ),
}

PARSER = ArgumentParser(
    "theory",
    "[RUN|FOLDER]... [--out DIR]",
    """\
Check the argument behind R2R2 with numbers: the paper's lemmas on small Markov
chains, what each loss learns on them, what weights and threshold do, also on
the unit sphere of SimbaV2-SPL. Writes a page that needs no network, figures
(SVG, PNG, PDF) and tables (CSV, Markdown, LaTeX). An earlier page is replaced.
Takes less than two minutes on two cores.

With runs, or folders of runs, the page also shows the share of the constant
mode, the spectra and the effective ranks of their encoders, from the
diagnostics that every run records. docs/theory.md explains the page.
""",
    """\
  r2r2 theory
  r2r2 theory runs --out theory
""",
    field_table(("out", str, str(DEFAULT), "folder of the page", FOLDER)),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 theory` and return its exit code."""
    given = PARSER.parse(argv)
    out = Path(given.get("out", DEFAULT))
    check_report_dir(out, CONTENTS, PAGE)
    paths = [Path(name) for name in given["arguments"]]
    study = read_runs(paths) if paths else None
    console, chains = Console(emoji=False), examples()
    with _bar(console) as bar:
        task = bar.add_task("gradient flows", total=1.0)
        outcomes = run_experiments(chains, lambda x: bar.update(task, completed=FLOW_SHARE * x))

        def on_stage(stage: str) -> None:
            bar.update(task, advance=(1 - FLOW_SHARE) / STAGES, description=one_line(stage))

        parts = write_theory(chains, outcomes, study, out, on_stage)
    for part in parts:
        for table in part.tables:
            if table.name in PRINTED:
                console.print(_printed(table))
    for text in () if study is None else study.damage:
        print(f"  damaged: {one_line(text)}")
    counts = sum(len(x.tables) for x in parts), sum(len(x.charts) for x in parts)
    where = shlex.quote(str(out / "index.html"))
    print(one_line(f"{counts[0]} tables and {counts[1]} figures in '{out}'; open {where}"))
    return 0


def read_runs(paths: Sequence[Path]) -> Study:
    """Return the study of run folders, of which some must have diagnostics."""
    for path in paths:
        if path.is_file():
            raise UserError(f"{path}: expected a run folder, got a file")
    study = load_study(find_sources(paths))
    check_diagnostics(study)
    return study


def write_theory(
    chains: Sequence[Chain],
    outcomes: Sequence[Outcome],
    study: Study | None,
    out: Path,
    on_stage: OnStage,
) -> list[Part]:
    """Write the page completely or not at all, and return its parts."""
    parts = make_parts(chains, outcomes, study)
    runs = [] if study is None else [run.path for run in study.runs]
    facts = {"r2r2": r2r2.__version__, "page": PAGE, "runs": runs}
    with atomic_dir(out, facts, CONTENTS) as folder:
        write_pages(parts, len(chains), folder, on_stage)
    return parts


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _printed(table: Table) -> RichTable:
    """Return the columns of a table that fit on a terminal."""
    wanted = [n for n, name in enumerate(table.header) if name in PRINTED[table.name]]
    shown = RichTable(title=table.title, title_justify="left")
    for number in wanted:
        shown.add_column(table.header[number], overflow="fold")
    for row in table.rows:
        if row[0].text != "stated bound":
            shown.add_row(*(one_line(row[n].text) for n in wanted))
    return shown
