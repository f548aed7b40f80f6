"""`r2r2 sweep`: train all runs of an experiment, and report them."""

import math
import shlex
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.filesize import decimal as format_bytes
from rich.live import Live
from rich.text import Text

from r2r2.cli.argparser import FOLDER, ArgumentParser, field_table
from r2r2.cli.main import add_working_folder_to_path, one_line, program_name
from r2r2.cli.report import progress_bar
from r2r2.cli.sweep_view import FleetRow, SweepView, rows_of
from r2r2.cli.watch_view import Size
from r2r2.config.errors import UserError
from r2r2.config.fields import ANY, DURATION, SCALE, at_least, one_of, parse_duration
from r2r2.experiments.experiment import run_keys
from r2r2.experiments.plan import Plan, PlannedFleet, write_plan
from r2r2.experiments.planner import count_slots, plan_seconds
from r2r2.experiments.run_report import STAGES_AFTER_READING
from r2r2.experiments.runner import RETRIES, FleetStatus
from r2r2.experiments.slurm import write_job_scripts
from r2r2.experiments.sweep import (
    ENGINES,
    OUT,
    SweepPlan,
    SweepResult,
    check_engine,
    plan_sweep,
    run_sweep,
)
from r2r2.experiments.sweep_folder import lock_sweep
from r2r2.progress import format_duration
from r2r2.training.signals import interruptible

REDRAW_SECONDS = 1.0
REFRESH_SECONDS = 2.0  # between two looks at the run folders
SLURM = "slurm"

PARSER = ArgumentParser(
    "sweep",
    "NAME|FILE.toml [--scale X] [--budget TIME] [--dry-run] ...",
    """\
Train all runs of an experiment, a preset or a TOML file, and report them. Runs
that can share a program are trained together, on all GPUs of this machine or on
its cores.

Finished runs are skipped and interrupted ones resume, also those of other
sweeps in the same folder, so the same command continues a sweep. A fleet that
fails is retried, then set aside and reported; the others go on. Ctrl-C ends all
fleets with a checkpoint.

The folder has plans/, runs/, logs/ and reports/, and can be moved or copied.
'r2r2 watch DIR' shows it from elsewhere.
""",
    """\
  r2r2 sweep smoke
  r2r2 sweep smoke --dry-run
  r2r2 sweep my_grid.toml --budget 2h --out /data/sweeps
""",
    field_table(
        ("scale", float, 1.0, "factor of the length of all runs", SCALE),
        ("budget", str, "", "start only what finishes in this time", DURATION),
        ("dry_run", bool, False, "show the plan and write nothing", ANY),
        ("out", str, OUT, "folder of the sweep, which others can share", FOLDER),
        ("engine", str, ENGINES[0], "where to train", one_of(*ENGINES, SLURM)),
        ("address", str, "", "address of the Ray cluster", ANY),
        ("retries", int, RETRIES, "more attempts of a fleet that fails", at_least(0)),
    ),
    positional=True,
)


def run(argv: list[str]) -> int:
    """Run `r2r2 sweep` and return its exit code: 1 if something was set aside."""
    given = PARSER.parse(argv)
    name = PARSER.pop_argument(given, "an experiment: a preset or a file NAME.toml")
    engine, address = given.get("engine", ENGINES[0]), given.get("address") or None
    retries = given.get("retries", RETRIES)
    if address and engine != "ray":
        raise UserError("--address: only used with --engine ray")
    add_working_folder_to_path()  # for tasks of the user
    if engine in ENGINES and not given.get("dry_run"):
        check_engine(engine, address)
    budget = parse_duration(given.get("budget", ""))
    planned = plan_sweep(
        name, given.get("out", OUT), scale=given.get("scale", 1.0), budget=budget or None
    )
    if given.get("dry_run"):
        print_plan(planned)
        return 0
    if engine == SLURM:
        return _write_slurm_jobs(planned, retries)
    console = Console(emoji=False, highlight=False)
    started = time.monotonic()
    result = _carry_out(console, planned, engine, address, retries)
    _print_result(planned, result, time.monotonic() - started)
    if result.missing:
        command = shlex.join([*program_name().split(), "sweep", *argv])
        print(f"to train what is missing: {one_line(command)}")
    unexpected = len(result.missing) > _run_count(result.postponed)
    return 1 if result.set_aside or unexpected else 0


def print_plan(planned: SweepPlan) -> None:
    """Print what a sweep would do."""
    print(one_line(_summary(planned)))
    for fleet in planned.fleets:
        print(f"  train      {_describe_fleet(fleet)}")
    for fleet in planned.postponed:
        print(f"  postponed  {_describe_fleet(fleet)}")
    for device in planned.machine.devices:
        print(f"on {device.name} ({device.kind}, {format_bytes(device.memory)})")
    plan = planned.plan._replace(fleets=planned.fleets)
    seconds, slots = plan_seconds(plan, planned.machine), count_slots(plan, planned.machine)
    if planned.fleets and not math.isnan(seconds):
        at_a_time = f"{slots} fleet{'s' * (slots > 1)} at a time"
        print(f"about {format_duration(seconds)} in all, with {at_a_time}")
    print("dry run: nothing was written")


def _summary(planned: SweepPlan) -> str:
    runs, done = len(planned.keys), len(planned.finished)
    text = f"sweep {planned.folder.name} in '{planned.folder.path}': {runs} runs"
    text += f", {done} finished already" if done else ""
    count = len(planned.fleets)
    text += f"; {count} fleet{'s' * (count > 1)} to train" if count else "; nothing to train"
    if count := len(planned.postponed):
        text += f", {count} postponed, as they do not fit into the budget"
    seconds = sum(fleet.seconds for fleet in planned.fleets)
    if planned.fleets and not math.isnan(seconds):
        text += f"; about {format_duration(seconds)} of fleet time"
    return text


def _describe_fleet(fleet: PlannedFleet) -> str:
    config = fleet.config
    members = len(config.env) * len(config.seeds)
    texts = [
        f"{config.agent.name} on {', '.join(config.env)}, UTD {config.utd}",
        f"{members} member{'s' * (members > 1)}",
        "time unknown" if math.isnan(fleet.seconds) else f"about {format_duration(fleet.seconds)}",
        *([format_bytes(fleet.memory)] if fleet.memory else []),
    ]
    return f"{'; '.join(texts)}  [{fleet.name}]"


def _run_count(fleets: tuple[PlannedFleet, ...]) -> int:
    return sum(len(run_keys(fleet.config)) for fleet in fleets)


def _write_slurm_jobs(planned: SweepPlan, retries: int) -> int:
    """Write the scripts of a SLURM cluster, and print what to do with them."""
    if not planned.fleets:
        print(one_line(_summary(planned)))
        return 0
    with lock_sweep(planned.folder):
        plan = planned.plan._replace(fleets=planned.fleets)
        write_plan(planned.folder.plan_file, _submitted(planned))
        reused = sorted({run.name for run, _ in planned.finished.values()})
        script = write_job_scripts(planned.folder, plan, retries=retries, runs=reused)
    print(one_line(_summary(planned)))
    print(f"submit with: bash {shlex.quote(str(script))}")
    return 0


def _submitted(planned: SweepPlan) -> Plan:
    """Return the plan to store: fleets that wait in a queue must not be planned again."""
    names = {fleet.name for fleet in planned.fleets}
    fleets = [x._replace(limited=x.limited and x.name not in names) for x in planned.plan.fleets]
    return planned.plan._replace(fleets=tuple(fleets))


def _carry_out(
    console: Console, planned: SweepPlan, engine: str, address: str | None, retries: int
) -> SweepResult:
    """Carry out a plan with a display of its state, and write the report."""
    display = SweepDisplay(console, planned)
    print(one_line(_summary(planned)))
    reused = {run.name for run, _ in planned.finished.values()}
    total = len(reused | {fleet.name for fleet in planned.plan.fleets})
    try:
        with (
            interruptible(saves=True) as check,
            progress_bar(console, total + STAGES_AFTER_READING) as show_stage,
            display,
        ):

            def on_status(statuses: Mapping[str, FleetStatus]) -> None:
                check()
                display.update(rows_of(statuses))

            def on_stage(stage: str) -> None:
                display.stop()
                show_stage(stage)

            return run_sweep(planned, engine, address, retries, on_status, on_stage)
    except KeyboardInterrupt:
        report = shlex.join([*program_name().split(), "report", str(planned.folder.path / "runs")])
        print("r2r2: all fleets have ended; run the same command again to resume", file=sys.stderr)
        print(f"r2r2: report of the runs so far: {one_line(report)}", file=sys.stderr)
        raise


class SweepDisplay:
    """A live table in a terminal; without one, a line for each change."""

    def __init__(self, console: Console, planned: SweepPlan):
        self._console, self._view = console, SweepView(planned.folder)
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if is_live else None
        self._printed: dict[str, FleetRow] = {}
        self._drawn = self._refreshed = -math.inf

    def update(self, rows: list[FleetRow]) -> None:
        """Show the state of the fleets."""
        if self._live is None:
            self._print_changes(rows)
            return
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return
        if now - self._refreshed >= REFRESH_SECONDS:
            self._view.refresh(rows)
            self._refreshed = now
        size = Size(self._console.width, self._console.height - 1, self._console.options.ascii_only)
        if not self._live.is_started:
            self._live.start()
        texts = self._view.render(rows, time.time(), size)
        self._live.update(Text("\n", no_wrap=True, overflow="crop").join(texts), refresh=True)
        self._drawn = now

    def _print_changes(self, rows: list[FleetRow]) -> None:
        ended = sum(row.state in ("finished", "set aside") for row in rows)
        for row in rows:
            before = self._printed.get(row.fleet.name)
            key = row.state, row.attempts, row.why
            if key != ("waiting", 0, "") if before is None else key != _key(before):
                print(_change_line(row, f"{ended} of {len(rows)}"), flush=True)
            self._printed[row.fleet.name] = row

    def stop(self) -> None:
        """Leave the last table where it is."""
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def __enter__(self) -> "SweepDisplay":
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def _key(row: FleetRow) -> tuple[str, int, str]:
    return row.state, row.attempts, row.why


def _change_line(row: FleetRow, count: str) -> str:
    """Return a line on a fleet whose state has changed."""
    text = f"{row.state}: {row.fleet.name}"
    if row.state == "finished":
        text += f" in {format_duration(row.seconds)}" if row.seconds else " earlier"
        return f"{text} ({count} fleets)"
    if row.state == "waiting" and row.attempts:
        text = f"failed: {row.fleet.name}, will be tried again"
    elif row.attempts and row.state == "running":
        text += f", attempt {row.attempts + 1}"
    return one_line(f"{text}: {row.why}" if row.why and row.state != "running" else text)


def _print_result(planned: SweepPlan, result: SweepResult, seconds: float) -> None:
    """Print the scores, what is missing and where the report is."""
    if result.scores:
        print(one_line_each(str(result)))
    for name, why in result.set_aside.items():
        log = planned.folder.log(name)
        print(one_line(f"set aside: {name}: {why}; see '{log}'"), file=sys.stderr)
    runs = len(planned.keys)
    text = f"{len(result.finished)} of {runs} runs finished in {format_duration(seconds)}"
    if result.missing:
        text += f", {len(result.missing)} missing"
    if postponed := _run_count(result.postponed):
        text += f" ({postponed} postponed by --budget)"
    print(text)
    if result.report is not None:
        print(f"report: open {shlex.quote(str(result.report / 'index.html'))}")


def one_line_each(text: str) -> str:
    """Return lines of text that are safe to show in a terminal."""
    return "\n".join(map(one_line, text.splitlines()))
