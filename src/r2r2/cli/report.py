"""`r2r2 report`: runs compared, with tables, figures and one page that shows them."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

import r2r2
from r2r2.cli.argparser import fields_help, one_line, split, texts, wants_help
from r2r2.cli.load_study import Source, sources_of, study_sources
from r2r2.cli.train_flags import FOLDER
from r2r2.config.errors import UserError
from r2r2.config.fields import FieldSpec, parse_value
from r2r2.report.comparison_tables import all_tables
from r2r2.report.figures import write_figures
from r2r2.report.page import write_page
from r2r2.report.study import Study
from r2r2.report.tables import write_tables
from r2r2.stats.suites import SAMPLES, SEED
from r2r2.storage.files import atomic_dir, check_report_dir

DEFAULT = Path("report")
CONTENTS = ("index.html", "figures", "tables")
PATIENCE = 2.0  # seconds before a bar is shown
SLOW = "figures"  # takes longer than that by itself
AFTER_READING = ("statistics", "tables", SLOW, "page")

FIELDS = {
    leaf.path: leaf
    for leaf in (FieldSpec("out", str, str(DEFAULT), "the report's folder", FOLDER),)
}

HELP = """usage: r2r2 report RUN or FOLDER or FILE.csv... [--out DIR]

Compare runs, with each other and with the paper. Named may be

  RUN        the folder of a run, finished or not
  FOLDER     a folder with runs anywhere below it: all of them
  FILE.csv   results of any program, a number per line, under the header
             exp_name,env_name,seed,metric,env_step,value
             with the metric 'return' or 'avg_return'. An exp_name that ends in
             _utd20, say, is at UTD 20; nothing else is assumed of its settings.

Runs of one method, which is an agent at a UTD with the same settings, come together:
their seeds are one cell per task. Where they disagree on a seed, as before and after a
change of the program, they are kept apart. Two runs, or a run and a file, are also
compared in pairs: the difference of their means, and the probability that one beats the
other.

DIR gets index.html, a page that needs no network; figures as SVG, PNG and PDF; tables
as CSV, Markdown and LaTeX. A report that is there is replaced, whole or not at all;
anything else is left alone. Scores are those of the paper: the mean of a seed's last 10
evaluations, relative to the base agent at UTD 1. What is missing, uneven or scaled
down is shown, and said to be so; only what has all the paper's settings, seeds and
steps is called a reproduction. docs/report.md says how to read it.
"""


class ReportBar:
    """Shows what a report is at; not before it takes long, nor without a terminal."""

    def __init__(self, console: Console, total: int):
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)
        self._begun, self._at = time.monotonic(), -1

    def __call__(self, what: str) -> None:
        """Says what comes next."""
        self._at += 1
        self._bar.update(self._task, completed=self._at, description=one_line(what))
        if what == SLOW or time.monotonic() - self._begun > PATIENCE:
            self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


def report_command(argv: list[str]) -> int:
    """`r2r2 report RUNS...`, from its arguments to its exit code."""
    if wants_help(argv):
        print(f"{HELP}\n{fields_help(FIELDS, top='options')}")
        return 0
    words = split(argv)
    given = {
        k: parse_value(FIELDS[k], x) for k, x in texts(words.options, FIELDS).items()
    }
    out = Path(given.get("out", DEFAULT))
    if not words.alone:
        raise UserError(
            "runs are missing; allowed are folders of runs, folders with runs in them, "
            "and CSV files, as in 'r2r2 report runs'"
        )
    check_report_dir(out, CONTENTS)
    sources = sources_of([Path(word) for word in words.alone])
    console = Console()
    with ReportBar(console, len(sources) + len(AFTER_READING)) as bar:
        study = study_sources(sources, bar)
        said = write_report(study, sources, out, bar)
    console.print(one_line(said), soft_wrap=True, markup=False, highlight=False)
    return 0


def write_report(
    study: Study,
    sources: list[Source],
    out: Path,
    watch: Callable[[str], None] = lambda _: None,
) -> str:
    """Writes a report, whole, and says what it holds and what to open.

    Args:
        study: what it shows.
        sources: where that was read.
        out: a folder that is not there yet, or a report.
        watch: called with what is written next.
    """
    facts = {
        "r2r2": r2r2.__version__,
        "runs": [str(source.path) for source in sources],
        "resamples": SAMPLES,
        "generator_seed": SEED,
    }
    with atomic_dir(out, facts, CONTENTS) as folder:
        watch("tables")
        tables = all_tables(study)
        (folder / "tables").mkdir()
        write_tables(tables, folder / "tables")
        watch(SLOW)
        gallery = write_figures(study, folder / "figures")
        watch("page")
        write_page(study, tables, gallery, folder)
    files = sum(source.is_file for source in sources)
    counts = {"run": len(sources) - files, "file": files}
    read = [f"{n} {what}{'s' * (n > 1)}" for what, n in counts.items() if n]
    return (
        f"{' and '.join(read)}: {len(tables)} tables and {len(gallery.charts)} figures "
        f"are in '{out}'; open {shlex.quote(str(out / 'index.html'))}"
    )
