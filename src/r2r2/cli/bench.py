"""`r2r2 bench`: how fast this device trains, as tables and as a JSON file."""

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from r2r2.api import enable_compilation_cache
from r2r2.bench.end_to_end import EndToEnd, TrainingSetup, check_setup, time_training
from r2r2.bench.updates import (
    SHORT_CALLS,
    BenchSizes,
    OnStage,
    Stage,
    check_memory,
    measure_roofline,
    measure_updates,
    update_stages,
    with_bases,
)
from r2r2.cli.argparser import FILE, STRINGS, ArgumentParser, field_table
from r2r2.cli.bench_display import BenchProgress, Measurements, print_results
from r2r2.cli.main import add_working_folder_to_path, program_name, use_command_device
from r2r2.cli.train import DEVICE_OPTION
from r2r2.compute.devices import is_accelerated, training_device
from r2r2.config.agents import agent_config
from r2r2.config.common import REPLAY_SIZE, AgentConfig, TaskInfo
from r2r2.config.errors import UserError, did_you_mean, invalid_value
from r2r2.config.fields import (
    ANY,
    ANY_DEVICE,
    FieldSpec,
    Range,
    at_least,
    integer_between,
    parse_value,
    size,
)
from r2r2.config.run import PRECISIONS, RunConfig
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.experiments.costs import record_speed
from r2r2.storage.files import StorageError, atomic_write, reason
from r2r2.storage.versions import versions
from r2r2.training.loop import UPDATES_PER_CALL

NAMES = Range("different names", lambda x: len(set(x)) == len(x))
NUMBERS = NAMES._replace(description="different integers")
MEMBER_COUNT = FieldSpec("--members", int, 1, "", integer_between(1, 1000))
SHORT_CALL = FieldSpec("--short-calls", int, 1, "", integer_between(1, 1000))
WIDTHS = ("width", "latent", "model_width", "actor_width", "critic_width")
CPU_UPDATES = 20  # updates per call on a CPU, where each takes 100 times as long
CPU_ROWS = 50_000
ROWS = f"{REPLAY_SIZE}, CPU {CPU_ROWS}"
UPDATES = f"{UPDATES_PER_CALL}, CPU {CPU_UPDATES}"
GPU_REPEATS, CPU_REPEATS = 10, 5
REPEATS = f"{GPU_REPEATS}, CPU {CPU_REPEATS}"

FIELDS = field_table(
    ("agents", STRINGS, ("td7", "td7+r2r2"), "agents to benchmark", NAMES),
    ("members", STRINGS, ("1", "5"), "fleet sizes", NUMBERS),
    ("bases", bool, True, "benchmark an R2R2 agent's base as well", ANY),
    ("env", str, "Humanoid-v5", "paper task to take the sizes from", ANY),
    ("obs", int, "as the task", "observation size", size(1)),
    ("action", int, "as the task", "action size", size(1)),
    ("width", int, "as the agent", "units of all layers and latents", size(2)),
    ("batch_size", int, "as the agent", "transitions per update", size(2)),
    ("rows", int, ROWS, "replay rows per member (all filled)", at_least(4)),
    ("updates", int, UPDATES, "updates per compiled call", at_least(1)),
    ("short_calls", STRINGS, tuple(map(str, SHORT_CALLS)), "updates of short calls", NUMBERS),
    ("repeats", int, REPEATS, "timed calls", integer_between(1, 10_000)),
    ("precision", str, RunConfig.precision, "tf32, mixed or float32, as in train", PRECISIONS),
    ("task", str, "", "also train on this task and time the parts", ANY),
    ("steps", int, 2000, "timed decision steps with --task", at_least(1)),
    ("utd", int, 1, "updates per decision step with --task", at_least(1)),
    DEVICE_OPTION,
    ("out", str, "", "JSON file for all results", FILE),
    ("commit", str, "", "commit to record when not in a git checkout", ANY),
)

PARSER = ArgumentParser(
    "bench",
    "[--option VALUE]...",
    """\
Measure how fast this device trains: time the updates of agents in the programs
that training uses, without building an environment, in long calls and in calls
as short as training makes them. Fleets of the same size are timed in turns, so
that other load on the machine slows all of them alike. With --task, the speed
of training is recorded; 'r2r2 paper' and 'r2r2 sweep' estimate times from it.
docs/update_speed.md explains the results.
""",
    """\
  r2r2 bench
  r2r2 bench --agents td7+r2r2 minphi+r2r2 --members 1 20 --out bench.json
  r2r2 bench --env dog-run --width 512
  r2r2 bench --task Hopper-v5      also time a short training run
""",
    FIELDS,
)

ROOFLINE = Stage("ceiling", "measuring the peak of the device")
TENTHS = 10  # of a training run, for the progress display


class BenchCommand(NamedTuple):
    """A parsed `r2r2 bench` command line."""

    agents: dict[str, AgentConfig]  # the named ones
    timed: dict[str, AgentConfig]  # the named ones and their bases
    members: tuple[int, ...]
    sizes: BenchSizes
    setup: TrainingSetup | None  # for the largest fleets
    out: Path | None
    commit: str


def parse_bench(argv: Sequence[str]) -> BenchCommand:
    """Parse the arguments of `r2r2 bench`."""
    given = PARSER.parse(argv)
    values = {path: given.get(path, spec.value) for path, spec in FIELDS.items()}
    sizes = _sizes(values, given)
    members = tuple(int(parse_value(MEMBER_COUNT, x)) for x in values["members"])
    setup = None
    if task := values["task"]:
        settings = [values[name] for name in ("utd", "steps", "precision")]
        setup = TrainingSetup(task, max(members), *settings)
    elif unused := [name for name in ("steps", "utd") if name in given]:
        raise UserError(f"--{unused[0]}: only used with --task, as in --task Hopper-v5")
    names = tuple(values["agents"])
    timed = with_bases(names) if values["bases"] else names
    configs = {name: _config(name, values["env"], given) for name in timed}
    return BenchCommand(
        {name: configs[name] for name in names},
        configs,
        members,
        sizes,
        setup,
        Path(values["out"]) if values["out"] else None,
        values["commit"],
    )


def _sizes(values: Mapping[str, Any], given: Mapping[str, Any]) -> BenchSizes:
    if (name := values["env"]) not in PAPER_TASKS:
        near = did_you_mean(name, PAPER_TASKS, most=1)
        expected = f"one of {', '.join(PAPER_TASKS)}, or --obs and --action"
        raise invalid_value("--env", expected, name, near)
    task, on_cpu = PAPER_TASKS[name], not is_accelerated()
    return BenchSizes(
        Spec(given.get("obs", task.obs_dim), given.get("action", task.action_dim)),
        given.get("rows", CPU_ROWS if on_cpu else REPLAY_SIZE),
        given.get("updates", CPU_UPDATES if on_cpu else UPDATES_PER_CALL),
        given.get("repeats", CPU_REPEATS if on_cpu else GPU_REPEATS),
        values["precision"],
        tuple(int(parse_value(SHORT_CALL, x)) for x in values["short_calls"]),
    )


def _config(name: str, task: str, given: Mapping[str, Any]) -> AgentConfig:
    """Return an agent's config with the given widths and what the task decides."""
    config = agent_config(name)
    fields = {field.name for field in dataclasses.fields(config)}
    changes = {x: given["width"] for x in WIDTHS if x in fields and "width" in given}
    if "batch_size" in given:
        changes["batch_size"] = given["batch_size"]
    # The time of an update does not depend on the length of an episode.
    info = TaskInfo(task, PAPER_TASKS[task].suite, lambda: 1000)
    return dataclasses.replace(config, **changes).for_task(info)


def run(argv: list[str]) -> int:
    """Run `r2r2 bench` and return its exit code."""
    select = ArgumentParser("bench", "", fields={"device": FIELDS["device"]})
    given = select.parse(argv, partial=True)  # other defaults depend on the device
    with use_command_device(given.get("device", ANY_DEVICE)):
        return _run(argv)


def _run(argv: list[str]) -> int:
    command = parse_bench(argv)
    add_working_folder_to_path()
    _check(command)
    enable_compilation_cache()
    console = Console(emoji=False)
    with BenchProgress(console, _stages(command)) as bar:
        results = _measure(command, bar)
    print_results(console, results, is_accelerated())
    if command.setup is not None:
        name = program_name()
        print(f"'{name} paper' and '{name} sweep' now estimate times from this training")
    if command.out is not None:
        line = shlex.join([*program_name().split(), "bench", *argv])
        text = json.dumps(_as_json(command, line, results), indent=1, allow_nan=False)
        try:
            atomic_write(command.out, f"{text}\n")
        except OSError as error:
            raise StorageError(f"{command.out}: cannot write: {reason(error)}") from error
        print(f"all repeats are in '{command.out}'")
    return 0


def _check(command: BenchCommand) -> None:
    """Reject what could only fail after minutes."""
    if (out := command.out) is not None:
        if out.is_dir():
            raise UserError(f"--out: '{out}' is a folder; expected a file")
        if not out.parent.is_dir():
            raise UserError(f"--out: the folder '{out.parent}' does not exist")
        if not os.access(out.parent, os.W_OK):
            raise UserError(f"--out: the folder '{out.parent}' is not writable")
    for members in command.members:
        check_memory(command.timed, members, command.sizes)
    if command.setup is not None:
        for agent in command.agents.values():
            check_setup(agent, command.setup)


def _stages(command: BenchCommand) -> list[Stage]:
    """Return everything that will be reported to the progress display."""
    stages = [ROOFLINE]
    for members in command.members:
        stages += update_stages(command.timed, members, command.sizes)
    if command.setup is not None:
        for name in command.agents:
            stages += _training_stages(name, command.setup)
    return stages


def _training_stages(agent: str, setup: TrainingSetup) -> list[Stage]:
    start = Stage("start training", f"starting {agent} on {setup.task}")
    what = f"training {agent} on {setup.task}"
    return [start, *[Stage(what, f"{what}, timed")] * TENTHS]


def _measure(command: BenchCommand, on_stage: OnStage) -> Measurements:
    on_stage(ROOFLINE)
    results = Measurements(measure_roofline(), [], [], [], [])
    tflops = results.ceiling.tflops.median
    for members in command.members:
        fleets = measure_updates(command.timed, members, command.sizes, tflops, on_stage)
        results.updates.extend(fleets.updates)
        results.overheads.extend(fleets.overheads)
        results.short_calls.extend(fleets.calls)
    if (setup := command.setup) is not None:
        for name, agent in command.agents.items():
            start, *tenths = _training_stages(name, setup)
            on_stage(start)
            on_fraction = partial(_report_tenths, tenths, on_stage)
            results.end_to_end.append(time_training(agent, setup, on_fraction, _record))
            on_fraction(1.0)
    return results


def _record(run: Path, result: EndToEnd) -> None:
    """Record the speed of a timed run for the estimates of `r2r2 paper` and `r2r2 sweep`.

    A sweep gives each fleet one core of a CPU. There the run would take as many CPU seconds.
    """
    record_speed(run, 1.0 if is_accelerated() else max(result.busy_cores, 1.0))


def _report_tenths(left: list[Stage], on_stage: OnStage, fraction: float) -> None:
    """Report the tenths of a training run up to the current one."""
    while left and len(left) >= TENTHS - int(fraction * TENTHS):
        on_stage(left.pop())


def _as_json(command: BenchCommand, line: str, results: Measurements) -> Any:
    stats = training_device().memory_stats() or {}
    on_cpu = not is_accelerated()
    commit = {"commit": command.commit} if command.commit else {}
    return {
        "command": line,
        "versions": versions(training_device()) | commit,
        "sizes": _plain(command.sizes),
        "agents": {x: dataclasses.asdict(y) for x, y in command.timed.items()},
        "kernels_are": "computations fused by XLA" if on_cpu else "kernels launched",
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
        **_plain(results),
    }


def _plain(value: Any) -> Any:
    """Return nested named tuples as dictionaries and lists."""
    if hasattr(value, "_asdict"):
        return {name: _plain(x) for name, x in value._asdict().items()}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value
