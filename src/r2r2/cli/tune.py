"""`r2r2 tune`: search for the best values of fields, with Optuna."""

import shlex
import sys
import time
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from r2r2.api import RunOptions
from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, one_line, program_name, use_command_device
from r2r2.cli.train import DEVICE_OPTION, WORKERS
from r2r2.config.fields import DURATION, at_least
from r2r2.envs.output import lossy_output
from r2r2.experiments.tuning import FOLDER as TUNING
from r2r2.experiments.tuning import TuningStatus, tune
from r2r2.experiments.tuning_file import TuningStudy, load_tuning_study
from r2r2.experiments.tuning_results import (
    PICTURE_FILE,
    TABLE_FILE,
    TrialRecord,
    TuningResult,
    objective_name,
    shown_values,
)
from r2r2.progress import format_duration, format_eta
from r2r2.training.signals import exit_code, interruptible

REDRAW_SECONDS = 0.25

PARSER = ArgumentParser(
    "tune",
    "FILE [--out DIR] [--trials N] [--budget TIME]",
    """\
Search for the best values of fields with Optuna (pip install 'r2r2[tune]').
FILE is a TOML file with the fields of every trial ([base]), the fields to vary
and their ranges ([space]), and how to search ([study]). A trial is one run with
all seeds and tasks; a trial that is worse than the others at an evaluation ends
early. Repeating the command continues an interrupted study; with a larger
--trials, also a complete one. docs/tuning.md describes the file.
""",
    """\
  r2r2 tune rates.toml
  r2r2 tune rates.toml --trials 100 --budget 8h
  r2r2 train --config tuning/rates/best.toml --seeds 10,11,12,13,14
""",
    field_table(
        ("out", str, f"{TUNING}/<name>", "folder of the study", FOLDER),
        ("trials", int, "as in FILE", "trials of the whole study", at_least(1)),
        ("budget", str, "as in FILE", "start no trial after this time: 25m, 8h", DURATION),
        DEVICE_OPTION,
        WORKERS,
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 tune` and return its exit code."""
    given = PARSER.parse(argv)
    add_working_folder_to_path()
    study = load_tuning_study(PARSER.pop_argument(given, "a TOML file with a study"))
    options = RunOptions(**{x: given.pop(x) for x in ("device", "workers") if x in given})
    out = Path(given.pop("out", Path(TUNING) / study.name))
    with use_command_device(options.device), lossy_output(), interruptible() as check:
        display = TuningDisplay(study, Console(emoji=False))

        def on_status(status: TuningStatus) -> None:
            check()
            display(status)

        try:
            with display:
                result = tune(study, out, options=options, on_status=on_status, **given)
        except KeyboardInterrupt as interruption:
            if not display.has_begun:
                raise
            return _print_interrupted(out, argv, interruption)
    if result.interrupted:
        return _print_interrupted(out, argv, KeyboardInterrupt())
    return _print_result(result, given.get("trials", study.settings.trials))


class TuningDisplay:
    """Shows the trial in training, the best one so far and the time left."""

    def __init__(self, study: TuningStudy, console: Console):
        self._study, self._console = study, console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn, self._number = 0.0, 0
        self.has_begun = False

    def __call__(self, status: TuningStatus) -> None:
        """Show a status; redraw a few times per second at most."""
        if not self.has_begun:
            self.has_begun = True
            self._open(status.trials)
        if status.ended is not None:
            self._print(_ended_line(status, status.ended))
        elif status.number != self._number:
            self._number = status.number
            values = ", ".join(
                f"{k} {x}" for k, x in shown_values(self._study, status.values).items()
            )
            self._print(f"trial {status.number} of {status.trials}: {values}")
        now = time.monotonic()
        if self._console.is_terminal and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._live.update(self._view(status), refresh=True)

    def _open(self, trials: int) -> None:
        study = self._study
        name = f"[bold]{escape(study.title or study.name)}[/]"
        text = f"{name}: {trials} trials, objective: {objective_name(study)}"
        self._console.print(text, soft_wrap=True, highlight=False)
        if self._console.is_terminal:
            self._live.start()

    def _view(self, status: TuningStatus) -> Table:
        right = Column(justify="right", no_wrap=True)
        view = Table.grid(Column(no_wrap=True), Column(ratio=1), right, expand=True, padding=(0, 1))
        best = f"best {status.best.value:.6g}, " if status.best else ""
        position = f"{best}{format_eta(status.seconds_left)}"
        bar = ProgressBar(status.steps, status.step)
        view.add_row(f"trial {status.number} of {status.trials}", bar, position)
        return view

    def _print(self, line: str) -> None:
        self._console.print(f"  {one_line(line)}", soft_wrap=True, highlight=False, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()


def _ended_line(status: TuningStatus, trial: TrialRecord) -> str:
    """Return how a trial ended, the best one so far, and the time left."""
    result = f"{trial.value:.6g}" if trial.state == "complete" else trial.state
    why = f" ({trial.why})" if trial.why and trial.state != "pruned" else ""
    line = f"trial {trial.number}: {result}{why} in {format_duration(trial.seconds)}"
    if status.best is not None:
        line += f"; best {status.best.value:.6g} (trial {status.best.number})"
    return f"{line}, {format_eta(status.seconds_left)}"


def _print_interrupted(out: Path, argv: list[str], interruption: KeyboardInterrupt) -> int:
    command = shlex.join([*program_name().split(), "tune", *argv])
    print(f"r2r2: '{out}' stopped; continue with: {command}", file=sys.stderr)
    return exit_code(interruption)


def _print_result(result: TuningResult, wanted: int) -> int:
    """Print the best parameters of `wanted` trials and what to do next; return the exit code."""
    counts: dict[str, int] = {}
    for trial in result.trials:
        counts[trial.state] = counts.get(trial.state, 0) + 1
    print(f"{len(result.trials)} trials: " + ", ".join(f"{n} {x}" for x, n in counts.items()))
    if left := max(wanted - len(result.trials), 0):
        print(f"{left} of {wanted} trials were not started; the same command continues the study")
    if result.best is None:
        failed = [trial for trial in result.trials if trial.why]
        why = f"; trial {failed[-1].number}: {failed[-1].why}" if failed else ""
        print(f"r2r2: error: {result.folder}: no trial is complete{why}", file=sys.stderr)
        return 1
    _print_best(result, result.best)
    values = [trial.value for trial in result.trials if trial.state == "complete"]
    if len(values) > 1 and len(set(values)) == 1:
        print(
            f"r2r2: warning: all {len(values)} complete trials have the same value, so nothing was "
            "learned about the parameters; runs may be too short to change the policy that is "
            "evaluated",
            file=sys.stderr,
        )
    config = shlex.quote(str(result.best_config))
    print(f"  trials:  {result.folder / TABLE_FILE}")
    print(f"  picture: {result.folder / PICTURE_FILE}")
    print(f"  train:   {program_name()} train --config {config} --seeds {_other_seeds(result)}")
    print(f"  compare: {program_name()} report {shlex.quote(str(result.folder))}")
    return 0


def _other_seeds(result: TuningResult) -> str:
    """Return five seeds that the study has not used, as an option."""
    start = (max(result.study.corners()[0].seeds) // 10 + 1) * 10
    return ",".join(map(str, range(start, start + 5)))


def _print_best(result: TuningResult, best: TrialRecord) -> None:
    print(f"best: {best.value:.6g}, trial {best.number} ({objective_name(result.study)})")
    table = Table(box=None, padding=(0, 2))
    table.add_column("parameter", no_wrap=True)
    table.add_column("value", no_wrap=True)
    if result.importances:
        table.add_column("importance", justify="right", no_wrap=True)
    for parameter in result.study.space:
        share = result.importances.get(parameter.path)
        ((name, text),) = shown_values(
            result.study, {parameter.path: best.values[parameter.path]}
        ).items()
        cells = [f"{share:.0%}"] if share is not None else []
        table.add_row(escape(name), escape(text), *cells)
    Console(emoji=False, width=1000).print(table, highlight=False)
