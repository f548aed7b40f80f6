r"""Measure how fast whole runs are, against the targets of the project.

    python benchmarks/wall_clock.py --list
    python benchmarks/wall_clock.py --out benchmarks/results/wall_clock_h200.json
    python benchmarks/wall_clock.py --rows hopper-x1 hopper-x5 --limit 300
    python benchmarks/wall_clock.py --smoke              # tiny settings, on a CPU

Each row of the table is measured in a process of its own, which is ended after `--limit` seconds
(by default after twice the row's estimate). A row that fails or takes too long is reported, with
the end of its output and, if it took too long, with what its threads were doing; the others are
measured all the same. Results are written after each row. Speeds come from `r2r2.bench`:
`time_training` for runs and `measure_updates` for updates alone. Programs are cached in `--cache`,
so that a second command is faster; the rows that measure a start without a cache use an empty
folder.

All rows take about 25 minutes on the GPU machine, whose commands end after 600 seconds. There, a
command measures what fits into `--budget` seconds, and the next one continues with `--done`, from
the root of the repository (`COMMIT` is required: the machine's own Git folder may be older):

    PYTHONPATH=src:PACKAGES python benchmarks/wall_clock.py --cache build/xla --commit COMMIT \
        --budget 560 --out $OUT/wall_clock_1.json
    PYTHONPATH=src:PACKAGES python benchmarks/wall_clock.py --cache build/xla --commit COMMIT \
        --budget 560 --done carry/wall_clock_1.json --out $OUT/wall_clock_2.json

The new file has the rows of `--done`, too. `--merge FILES` prints one table of several result files
and, with `--out`, writes them as one.

"Updates alone" are calls of many updates, as `r2r2 bench` times them; the column "(short)" compares
with its calls of as many updates as the UTD, which for agents in lockstep also store and act. The
slowest environment of a step is the mean, over groups of as many random steps as there are members,
of the longest one.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import itertools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DOGS = "dog-run,dog-stand,dog-trot,dog-walk"
ENV_STEPS = 2000  # random steps with which an environment is timed
DUMP_SECONDS = 2.0  # for a process that takes too long to say what its threads do
OUTPUT_LINES = 60  # of a row that fails, in the results
SMALL = ("width", "latent", "model_width", "actor_width", "critic_width", "batch_size")


class Row(NamedTuple):
    """One row of the table: a run, and what is required of it."""

    name: str
    measure: str  # a function in `MEASURES`
    agent: str
    task: str
    members: int  # of every task
    utd: int
    steps: int  # timed decision steps of every member
    unit: str
    must: float
    reach: float
    at_least: bool = True  # otherwise at most
    minutes: float = 2.0  # estimate, on the GPU machine with nothing cached


ROWS = (
    Row("hopper-x1", "speed", "td7+r2r2", "Hopper-v5", 1, 1, 40_000, "steps/s", 1600, 2500,
        minutes=1.2),
    Row("hopper-x5", "speed", "td7+r2r2", "Hopper-v5", 5, 1, 40_000, "steps/s", 5000, 8000,
        minutes=3),
    Row("dogs-x20", "speed", "td7+r2r2", DOGS, 5, 1, 3000, "steps/s", 4000, 5000, minutes=4),
    Row("humanoid-utd20", "share", "td7+r2r2", "Humanoid-v5", 5, 20, 3000, "% of bench", 85, 95,
        minutes=4),
    Row("simbav2-spl-utd10", "share", "simbav2-spl+r2r2", "humanoid-run", 5, 10, 1000,
        "% of bench", 90, 97, minutes=2.5),
    Row("simbav2-step", "overhead", "simbav2", "walker-run", 5, 1, 3000, "us beyond", 400, 200,
        False, 2.2),
    Row("minphi-step", "overhead", "minphi+r2r2", "Hopper-v5", 5, 1, 3000, "us beyond", 400, 200,
        False, 2.5),
    Row("first-step", "first_step", "td7+r2r2", "Hopper-v5", 5, 1, 0, "s", 10, 5, False, 1),
    Row("first-step-cached", "first_step", "td7+r2r2", "Hopper-v5", 5, 1, 0, "s", 5, 3, False, 1),
    Row("first-update-td7", "first_update", "td7+r2r2", "Hopper-v5", 5, 1, 0, "s", 45, 30, False,
        1.5),
    Row("first-update-td7-cached", "first_update", "td7+r2r2", "Hopper-v5", 5, 1, 0, "s", 5, 2,
        False, 1),
    Row("first-update-simbav2-spl", "first_update", "simbav2-spl+r2r2", "humanoid-run", 5, 1, 0,
        "s", 60, 40, False, 2),
    Row("first-update-simbav2-spl-cached", "first_update", "simbav2-spl+r2r2", "humanoid-run", 5,
        1, 0, "s", 5, 2, False, 1),
)  # fmt: skip
NAMES = tuple(row.name for row in ROWS)


class Settings(NamedTuple):
    """How rows are measured."""

    precision: str = "mixed"
    smoke: bool = False


class Found(NamedTuple):
    """The measured value of a row, and what it was computed from."""

    value: float
    details: dict[str, Any]
    short: float | None = None  # the same, compared with calls as short as the run makes them


def scaled_down(row: Row) -> Row:
    """Return a row that takes seconds on a CPU."""
    return row._replace(
        task="Pendulum-v1", members=2, utd=min(row.utd, 2), steps=min(row.steps, 900)
    )


def agent_settings(row: Row, settings: Settings) -> Any:
    """Return the agent's config, resolved for the task."""
    from r2r2.config.agents import agent_config
    from r2r2.config.resolve import resolve
    from r2r2.training.run_config import finalize_config

    fields: dict[str, Any] = {"agent": row.agent, "env": row.task.split(",")}
    if settings.smoke:
        names = {field.name for field in dataclasses.fields(agent_config(row.agent))}
        fields |= {f"agent.{name}": 8 for name in SMALL if name in names}
    return finalize_config(resolve(fields)).agent


def train_timed(row: Row, settings: Settings) -> Any:
    """Return the speed of training."""
    from r2r2.bench.end_to_end import TrainingSetup, time_training

    setup = TrainingSetup(row.task, row.members, row.utd, row.steps, settings.precision)
    return time_training(agent_settings(row, settings), setup, lambda _: None)


def time_updates(row: Row, settings: Settings) -> Any:
    """Return the timings of updates alone: long calls, and those of this UTD."""
    from r2r2.bench import updates as bench
    from r2r2.envs.make import make_env, spec_of

    bench.compilation_cache_disabled = contextlib.nullcontext  # how long it takes is not used
    env = make_env(row.task.split(",")[0], 1)
    spec = spec_of(env)
    env.close()
    rows, updates, repeats = (300, 4, 2) if settings.smoke else (1_000_000, 250, 10)
    sizes = bench.BenchSizes(spec, rows, updates, repeats, settings.precision, (row.utd,))
    agents = {row.agent: agent_settings(row, settings)}
    return bench.measure_updates(agents, row.members, sizes, 1.0, lambda _: None)


def slowest_env_us(row: Row, settings: Settings) -> float:
    """Return the time of the slowest of as many random steps as there are members."""
    import numpy as np

    from r2r2.config.resolve import resolve
    from r2r2.envs.make import make_env, spec_of
    from r2r2.training.run_config import finalize_config

    config = finalize_config(resolve({"env": row.task, "agent": row.agent}))
    env = make_env(row.task, config.action_repeat)
    random, count = np.random.default_rng(0), ENV_STEPS // (10 if settings.smoke else 1)
    actions = random.uniform(-1, 1, (count, spec_of(env).action_dim)).astype(np.float32)
    env.reset(seed=0)
    seconds = list[float]()
    for action in actions:
        start = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        seconds.append(time.perf_counter() - start)
    env.close()
    whole = len(seconds) // row.members * row.members
    return 1e6 * float(np.reshape(seconds[:whole], (-1, row.members)).max(1).mean())


def measure_speed(row: Row, settings: Settings) -> Found:
    """Measure decision steps per second of all members."""
    result = train_timed(row, settings)
    return Found(result.decision_steps_per_s, {"training": result._asdict()})


def measure_share(row: Row, settings: Settings) -> Found:
    """Measure the updates per second of training, in percent of updates alone."""
    fleets, result = time_updates(row, settings), train_timed(row, settings)
    long, short = (100 * result.updates_per_s * us / 1e6 for us in medians_us(fleets))
    return Found(long, {"training": result._asdict()} | update_details(fleets), short)


def measure_overhead(row: Row, settings: Settings) -> Found:
    """Measure what a fleet step takes beyond 1.1 times its updates and its slowest environment."""
    fleets, result = time_updates(row, settings), train_timed(row, settings)
    step = 1e6 * row.members / result.decision_steps_per_s
    slowest, each = slowest_env_us(row, settings), row.members * row.utd
    long, short = (step - 1.1 * us * each - slowest for us in medians_us(fleets))
    parts = {"fleet_step_us": step, "updates_us": medians_us(fleets)[0] * each}
    parts |= {"slowest_env_us": slowest}
    return Found(long, parts | {"training": result._asdict()} | update_details(fleets), short)


def medians_us(fleets: Any) -> tuple[float, float]:
    """Return us per agent-update, in long calls and in short ones."""
    return fleets.updates[0].us_per_agent_update.median, fleets.calls[0].us_per_agent_update.median


def update_details(fleets: Any) -> dict[str, Any]:
    """Return the timings of updates as JSON values."""
    (long,), (short,) = fleets.updates, fleets.calls
    return {
        "long_calls_us_per_agent_update": long.us_per_agent_update._asdict(),
        "short_calls": short._asdict()
        | {"us_per_agent_update": short.us_per_agent_update._asdict()},
    }


def measure_first_step(row: Row, settings: Settings) -> Found:
    """Measure the time from the start of the process to the first environment step."""
    moments = time_start(row, settings, until_updates=False)
    return Found(moments["environments_started"], moments)


def measure_first_update(row: Row, settings: Settings) -> Found:
    """Measure the time from the end of warm-up to the end of the first call of updates."""
    moments = time_start(row, settings, until_updates=True)
    return Found(moments["first_updates"] - moments["warmup_ended"], moments)


class StartTimer:
    """Notes when a run reaches its first moments, in seconds since its process was started.

    They are noted where they happen: progress is reported only from time to time, and not while
    the loop waits for a program.
    """

    def __init__(self, until_updates: bool):
        self._start = float(os.environ["WALL_CLOCK_START"])
        self._last = "first_updates" if until_updates else "first_recorded_step"
        self.moments: dict[str, float] = {}

    def install(self) -> None:
        """Note the moments of the next run of this process."""
        from r2r2 import api
        from r2r2.training.fleet import Fleet
        from r2r2.training.schedule import Schedule

        api.begin_episodes = self.timed(api.begin_episodes, "environments_started")
        Schedule.record_step = self.timed(
            Schedule.record_step, "first_recorded_step", "warmup_ended"
        )
        for method in ("_fetch", "update_and_act"):  # one of them makes all updates of an agent
            setattr(Fleet, method, self.timed(getattr(Fleet, method), "first_updates"))

    def note(self, name: str) -> None:
        """Note that something happens for the first time."""
        self.moments.setdefault(name, round(time.time() - self._start, 3))

    def on_progress(self, _: Any) -> None:
        """Interrupt the run after the last moment."""
        if self._last in self.moments:
            raise KeyboardInterrupt

    def timed(self, function: Callable[..., Any], name: str, warm: str = "") -> Callable[..., Any]:
        """Return a function whose first end is noted.

        A method of a schedule notes as `warm` the first end after some member's warm-up.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.note(name)
            if warm and args[0].warm.any():
                self.note(warm)
            return result

        return call


def time_start(row: Row, settings: Settings, until_updates: bool) -> dict[str, float]:
    """Start a run as `r2r2 train` does; return seconds since the process was started.

    Workers step their environments as soon as their episodes have begun; `first_recorded_step` is
    when the main process has taken one.
    """
    from r2r2 import api, resolve

    timer = StartTimer(until_updates)
    timer.install()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        options = api.RunOptions(checkpoint_every="never")
        config = resolve(start_fields(row, settings))
        api.train(config, f"{folder}/run", on_progress=timer.on_progress, options=options)
    return timer.moments


def start_fields(row: Row, settings: Settings) -> dict[str, Any]:
    """Return the config of a run whose start is timed: the default one."""
    from r2r2.config.agents import agent_config

    fields: dict[str, Any] = {
        "agent": row.agent,
        "env": row.task.split(","),
        "seeds": row.members,
        "utd": row.utd,
        "precision": settings.precision,
    }
    if settings.smoke:
        names = {field.name for field in dataclasses.fields(agent_config(row.agent))}
        fields |= {f"agent.{name}": 8 for name in SMALL if name in names}
        fields |= {"warmup": 210, "steps": 900, "eval_every": 900, "eval_episodes": 1}
    return fields


MEASURES: dict[str, Callable[[Row, Settings], Found]] = {
    "speed": measure_speed,
    "share": measure_share,
    "overhead": measure_overhead,
    "first_step": measure_first_step,
    "first_update": measure_first_update,
}


def run_worker(name: str, settings: Settings, out: Path) -> None:
    """Measure one row in this process and write it to a file."""
    import jax

    from r2r2.api import enable_compilation_cache
    from r2r2.bench import end_to_end
    from r2r2.storage.versions import versions

    faulthandler.register(signal.SIGUSR1)
    enable_compilation_cache()
    row = next(row for row in ROWS if row.name == name)
    if settings.smoke:
        end_to_end.PERIOD, row = 200, scaled_down(row)
    try:
        found = MEASURES[row.measure](row, settings)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    device = jax.devices()[0].device_kind
    result = {"value": found.value, "short": found.short, "details": found.details}
    result["row"] = row._asdict()
    out.write_text(json.dumps(result | {"versions": versions(), "device": device}))


def measure_in_process(
    name: str, args: argparse.Namespace, cache: Path, limit: float
) -> dict[str, Any]:
    """Measure a row in a new process, with a cache of programs and a time limit."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "row.json", Path(folder) / "output.txt"
        start = time.perf_counter()
        process = start_process(name, out, args, cache, log)
        problem = wait_or_end(process, limit)
        seconds = round(time.perf_counter() - start, 1)
        lines = log.read_text(errors="replace").strip().splitlines()
        if not problem and not out.exists():
            problem = lines[-1] if lines else f"exit code {process.returncode}"
        if problem:
            return {"problem": problem, "took_s": seconds, "output": lines[-OUTPUT_LINES:]}
        return json.loads(out.read_text()) | {"took_s": seconds}


def start_process(
    name: str, out: Path, args: argparse.Namespace, cache: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a process that measures a row, with a cache of programs."""
    command = [sys.executable, __file__, "--worker", name, "--out", str(out)]
    command += ["--precision", args.precision, *(["--smoke"] if args.smoke else [])]
    env = os.environ | {
        "XDG_CACHE_HOME": str(cache.resolve()),
        "WALL_CLOCK_START": str(time.time()),
    }
    with log.open("w") as output:
        return subprocess.Popen(
            command, env=env, stdout=output, stderr=output, start_new_session=True
        )


def wait_or_end(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for a process and return what went wrong; after `limit` seconds end it and its own."""
    try:
        process.wait(limit)
        return ""
    except subprocess.TimeoutExpired:
        return f"took more than {limit:.0f} s"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)  # it prints where its threads are
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DUMP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure_row(
    row: Row, args: argparse.Namespace, filled: dict[str, Path], folder: Path, left: float
) -> dict[str, Any]:
    """Measure a row within `left` seconds.

    `filled` has the caches that starts without a cache have left, by row.
    """
    if left < 60 * row.minutes and not args.smoke:
        return {
            "problem": f"not started: {left:.0f} s were left, it takes about {row.minutes:g} min"
        }
    limit = min(left, args.limit or 120 * row.minutes)
    if row.measure not in ("first_step", "first_update"):
        return measure_in_process(row.name, args, args.cache, limit)
    name = row.name.removesuffix("-cached")
    if name in filled:
        return measure_in_process(row.name, args, filled[name], limit)
    cache = folder / name if name == row.name else args.cache
    first = measure_in_process(row.name, args, cache, limit)
    if "problem" in first:
        return first
    filled[name] = cache
    if name == row.name:
        return first
    return measure_in_process(row.name, args, cache, max(1.0, min(limit, left - first["took_s"])))


def verdict(row: Row, value: float) -> str:
    """Return whether a value meets the targets of its row."""
    sign = 1 if row.at_least else -1
    if sign * value >= sign * row.reach:
        return "reached"
    return "pass" if sign * value >= sign * row.must else "MISSED"


def format_table(results: dict[str, dict[str, Any]]) -> str:
    """Return all rows with their targets and what was measured.

    "(short)" compares with calls of updates that are as short as those of the run.
    """
    lines = [("row", "measured", "(short)", "must", "reach for", "unit", "verdict")]
    for row in ROWS:
        bound = ">=" if row.at_least else "<="
        targets = f"{bound} {row.must:,g}", f"{row.reach:,g}", row.unit
        result = results.get(row.name, {"problem": "not measured"})
        if "problem" in result:
            lines.append((row.name, "-", "-", *targets, result["problem"]))
        else:
            values = result["value"], result.get("short")
            smoke = " (smoke)" if result["row"]["task"] != row.task else ""
            lines.append((row.name, *map(show, values), *targets, verdict(row, values[0]) + smoke))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def show(value: float | None) -> str:
    """Return a value of the table as text."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


class Results(NamedTuple):
    """What was measured, or why not, and by which commands."""

    rows: dict[str, dict[str, Any]]  # by name
    commands: list[str]
    commits: list[str]


def read_results(files: Sequence[Path]) -> Results:
    """Return the results of several files, the later ones over the earlier."""
    read = [json.loads(path.read_text()) for path in files]
    return Results(
        {name: row for each in read for name, row in each["rows"].items()},
        list(itertools.chain.from_iterable(each["commands"] for each in read)),
        sorted({each["commit"] for each in read}),
    )


def write_results(out: Path | None, results: Results) -> None:
    """Write all results so far, with the commands and the commit."""
    if out is not None:
        about = {"commands": results.commands, "commit": ", ".join(results.commits)}
        about |= {"cores": os.cpu_count(), "rows": results.rows}
        out.write_text(json.dumps(about, indent=1) + "\n")


def merge_results(files: Sequence[Path], out: Path | None) -> None:
    """Print one table of several result files."""
    results = read_results(files)
    write_results(out, results)
    print(format_table(results.rows))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=NAMES, default=NAMES, metavar="ROW")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument(
        "--limit", type=float, help="seconds per measurement; by default twice a row's estimate"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=math.inf,
        help="seconds; rows that may not fit are not begun",
    )
    parser.add_argument(
        "--done",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="results to continue: only the other rows are measured",
    )
    parser.add_argument("--precision", default="mixed", help="tf32, mixed or float32")
    parser.add_argument("--smoke", action="store_true", help="tiny settings; no real results")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache").expanduser())
    parser.add_argument("--out", type=Path, help="JSON file for all results")
    parser.add_argument("--commit", default="", help="commit to record when not in a checkout")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--worker", choices=NAMES, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the rows one after the other."""
    args = parse(argv)
    if args.worker:
        run_worker(args.worker, Settings(args.precision, args.smoke), args.out)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # with its processes
    if args.merge:
        merge_results(args.merge, args.out)
        return
    done = read_results(args.done)
    measured = {name: row for name, row in done.rows.items() if "problem" not in row}
    chosen = [row for row in ROWS if row.name in args.rows and row.name not in measured]
    if args.list:
        for row in chosen:
            run = f"{row.agent} on {row.task}, {row.members} members, UTD {row.utd}"
            print(f"{row.name:32}about {row.minutes:g} min: {run}")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = shlex.join(["python", "benchmarks/wall_clock.py", *(argv or sys.argv[1:])])
        commits = dict.fromkeys([*done.commits, args.commit])
        about = Results(measured, [*done.commands, command], list(commits))
        measure_rows(chosen, args, about, Path(folder))


def measure_rows(
    rows: Sequence[Row], args: argparse.Namespace, results: Results, folder: Path
) -> None:
    """Measure rows, print the table, and write it after each row."""
    filled, end = dict[str, Path](), time.monotonic() + args.budget
    write_results(args.out, results)
    for row in rows:
        print(f"{row.name}: measuring, about {row.minutes:g} min", flush=True)
        found = measure_row(row, args, filled, folder, end - time.monotonic())
        results.rows[row.name] = found
        shown = {k: v for k, v in found.items() if k in ("value", "short", "problem", "took_s")}
        print("\n".join([*found.get("output", []), f"{row.name}: {shown}"]), flush=True)
        write_results(args.out, results)
    print(format_table(results.rows))


if __name__ == "__main__":
    main()
