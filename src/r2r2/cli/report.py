"""`r2r2 report`: read runs and result files, and write tables, figures and a page."""

import contextlib
import time
from collections.abc import Generator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, one_line
from r2r2.config.errors import UserError
from r2r2.experiments.run_report import (
    CONTENTS,
    SLOW_STAGE,
    STAGES_AFTER_READING,
    OnStage,
    find_sources,
    load_study,
    write_report,
)
from r2r2.storage.files import check_report_dir

DEFAULT = Path("report")
BAR_DELAY = 2.0  # seconds before a progress bar is shown; figures take longer by themselves

PARSER = ArgumentParser(
    "report",
    "RUN|FOLDER|FILE.csv... [--out DIR]",
    """\
Compare runs with each other and with the paper: a page that needs no network,
figures (SVG, PNG, PDF) and tables (CSV, Markdown, LaTeX). An existing report is
replaced. The arguments are

  RUN        a run folder, finished or not
  FOLDER     a folder with runs anywhere below it
  FILE.csv   results of any program, one number per line, with the columns
             exp_name,env_name,seed,metric,env_step,value
             and the metric 'return' or 'avg_return'; an exp_name that ends in
             _utd20 is at UTD 20

Runs of an agent with the same UTD and settings are combined, unless they
disagree on a seed. Two runs, or a run and a file, are also compared in pairs.
Only results with all of the paper's settings, seeds and steps are called a
reproduction. docs/report.md explains how to read a report.
""",
    """\
  r2r2 report runs
  r2r2 report RUN_A RUN_B --out compared
  r2r2 report runs theirs.csv
""",
    field_table(("out", str, str(DEFAULT), "folder of the report", FOLDER)),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 report` and return its exit code."""
    given = PARSER.parse(argv)
    out = Path(given.get("out", DEFAULT))
    if not given["arguments"]:
        raise UserError("expected runs, folders or CSV files, as in 'r2r2 report runs'")
    check_report_dir(out, CONTENTS)
    add_working_folder_to_path()  # an agent of the user has its defaults there
    sources = find_sources([Path(name) for name in given["arguments"]])
    with progress_bar(Console(emoji=False), len(sources) + STAGES_AFTER_READING) as on_stage:
        study = load_study(sources, on_stage)
        summary = write_report(study, sources, out, on_stage)
    print(one_line(summary))
    for text in study.damage:
        print(f"  damaged: {one_line(text)}")
    return 0


@contextlib.contextmanager
def progress_bar(console: Console, total: int) -> Generator[OnStage]:
    """Yield a function that shows the next stage in a bar, if a report takes long."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task, start = bar.add_task("", total=total, completed=-1), time.monotonic()

    def on_stage(stage: str) -> None:
        bar.update(task, advance=1, description=one_line(stage))
        if stage == SLOW_STAGE or time.monotonic() - start > BAR_DELAY:
            bar.start()

    try:
        yield on_stage
    finally:
        bar.stop()
