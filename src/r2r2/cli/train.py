"""`r2r2 train`: the options, the run with its progress display, and the result."""

import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from r2r2.api import (
    DEFAULT_OPTIONS,
    Result,
    RunFailed,
    RunOptions,
    early_end_reason,
    enable_compilation_cache,
    ended_run,
    run_path,
    train_finalized,
)
from r2r2.cli.argparser import FILE, FOLDER, ArgumentParser, field_table
from r2r2.cli.main import (
    add_working_folder_to_path,
    program_name,
    use_command_device,
    warn_of_damage,
)
from r2r2.compute.devices import training_device
from r2r2.config.agents import AGENTS, DEFAULT_AGENT
from r2r2.config.errors import UserError
from r2r2.config.fields import (
    ANY,
    ANY_DEVICE,
    DEVICE,
    INTERVAL,
    Interval,
    Range,
    at_least,
    flatten_config,
    parse_interval,
    replace_fields,
)
from r2r2.config.resolve import (
    QUICK_TARGET,
    QUICK_TASK,
    agent_name,
    default_config,
    quick_config,
    resolve,
    validate,
)
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import CHECKSUM_SUFFIX, NON_RESULT_FIELDS, changed_fields, read_toml
from r2r2.envs.output import lossy_output
from r2r2.progress import TrainingDisplay, format_returns
from r2r2.stats.scores import LAST_NAME, Method, Results, make_cells
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import open_run
from r2r2.training.loop import Progress
from r2r2.training.recovery import NOT_FINITE
from r2r2.training.run_config import finalize_config, task_default_config
from r2r2.training.saved_config import check_env_given, fleet_members, load_config
from r2r2.training.signals import exit_code, interruptible
from r2r2.training.time_account import describe_event

PROJECT = Range("the name of a project", bool)
WORKERS = ("workers", int, "one per core", "processes for environments", at_least(0))
DEVICE_OPTION = ("device", str, ANY_DEVICE, "cpu, gpu or gpu:1", DEVICE)
EVERY, KEPT = DEFAULT_OPTIONS.checkpoint_every, DEFAULT_OPTIONS.checkpoints

# Options that are not fields of the config.
CLI_ONLY = field_table(
    ("agent", str, DEFAULT_AGENT, "agent, or module:NAME", ANY),
    ("config", str, "", "TOML file with config fields", FILE),
    ("quick", bool, False, "small preset: cartpole-swingup in minutes", ANY),
    ("resume", str, "", "resume the run in this folder", FOLDER),
    ("out", str, "runs/<name>", "run folder", FOLDER),
    ("overwrite", bool, False, "delete an existing run first", ANY),
    ("retry_failed", bool, False, "also continue stopped members", ANY),
    ("checkpoint_every", str, EVERY, "10min, 5000 (steps) or never", INTERVAL),
    ("checkpoints", int, KEPT, "number of checkpoints to keep", at_least(1)),
    ("tensorboard", bool, False, "write TensorBoard files as well", ANY),
    ("wandb", bool, False, "log to Weights & Biases as well", ANY),
    ("wandb_project", str, DEFAULT_OPTIONS.wandb_project, "W&B project of --wandb", PROJECT),
    DEVICE_OPTION,
    WORKERS,
)

# Options that do not say what to train: with these alone, --quick is used.
NON_CONFIG = ("out", *RunOptions._fields)

# Options that can be given with --resume.
CHANGEABLE = ("steps", *NON_RESULT_FIELDS)
WITH_RESUME = (*CHANGEABLE, *(x for x in RunOptions._fields if x in CLI_ONLY and x != "overwrite"))

GROUPS = {  # of options in the help
    "run": "agent config quick resume seeds steps utd warmup overlap_acting random_only "
    "replay_size stop_at_return precision device",
    "data to start from": (
        "prefill prefill_sha256 prefill_only_updates mix init_from init_from_sha256"
    ),
    "environment": (
        "env env_args action_repeat max_episode_steps workers env_timeout env_faults retry_failed"
    ),
    "evaluation": "eval_every eval_episodes eval_average",
    "checkpoints": "checkpoint_every checkpoints",
    "output": "out overwrite tensorboard wandb wandb_project log_every",
}

DESCRIPTION = """\
Train a fleet: every seed of every task in one compiled program. Repeating a
command resumes its run where it stopped, and so does --resume RUN, which also
accepts a larger --steps. With no config options given, --quick is used.

Defaults are in brackets. An option is a field of the config; its full name
works as well (--agent.representation.lambda-rr), and so do TOML files with the
same names. 'r2r2 train --agent NAME --help' shows the fields of an agent:
"""

EXAMPLES = """\
  r2r2 train
  r2r2 train --env Hopper-v5 --utd 20 --seeds 5
  r2r2 train --agent simbav2-spl+r2r2 --env dog-run,dog-walk --seeds 3,7,11
  r2r2 train --config study.toml --lambda-rr 0
  r2r2 train --env Hopper-v5 --prefill data.npz --mix 0.5
  r2r2 train --env my_robot:Arm-v0 --agent my_agents:MyAgent
  r2r2 train --env Hopper-v5 --env-args '{"forward_reward_weight": 2}'
  r2r2 train --resume RUN --steps 800_000
"""


class TrainCommand(NamedTuple):
    """A parsed `r2r2 train` command line."""

    config: RunConfig
    out: Path | None
    options: RunOptions
    quick: bool


def make_parser(argv: Sequence[str]) -> ArgumentParser:
    """Return the parser with the fields of the agent that a command line selects."""
    add_working_folder_to_path()
    return _parser(default_config(agent_name(*_layers(_select(argv)))))


def _parser(config: RunConfig) -> ArgumentParser:
    """Return a parser for the fields of a config and the other options."""
    fields = flatten_config(config)
    del fields["agent.name"]  # given as --agent
    agents = textwrap.indent(textwrap.fill(", ".join(AGENTS), 76), "  ")
    parser = ArgumentParser("train", "[--option VALUE]...", DESCRIPTION + agents, EXAMPLES)
    specs = CLI_ONLY | fields
    groups = {
        title: {path: specs.pop(path) for path in paths.split() if path in specs}
        for title, paths in GROUPS.items()
    }
    for path, spec in specs.items():
        title = path.rpartition(".")[0].removeprefix("agent.") or "run"
        groups.setdefault(title, {})[path] = spec
    parser.add_fields(groups)
    return parser


def _select(argv: Sequence[str]) -> dict[str, Any]:
    """Return the options that decide which fields there are."""
    fields = {name: CLI_ONLY[name] for name in ("agent", "config", "resume")}
    return ArgumentParser("train", "", fields=fields).parse(argv, partial=True)


def _layers(selected: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the config file, and the agent of the command line."""
    file = read_toml(Path(selected["config"])) if "config" in selected else {}
    return file, {"agent": selected["agent"]} if "agent" in selected else {}


def parse_train(argv: Sequence[str]) -> TrainCommand:
    """Parse the arguments of `r2r2 train`."""
    add_working_folder_to_path()
    selected = _select(argv)
    if "resume" in selected:
        return _parse_resume(Path(selected["resume"]), argv)
    layers = _layers(selected)
    agent = agent_name(*layers)
    given = _parser(default_config(agent)).parse(argv)
    quick = given.get("quick", all(name in NON_CONFIG for name in given))
    fields = {path: x for path, x in given.items() if path not in CLI_ONLY}
    config = resolve(quick_config(agent) if quick else {}, *layers, fields)
    out = Path(given["out"]) if "out" in given else None
    return TrainCommand(config, out, _run_options(given), quick)


def _parse_resume(run: Path, argv: Sequence[str]) -> TrainCommand:
    """Return the command that resumes a run with its own config."""
    config = load_config(open_run(run))
    given = _parser(config).parse(argv)
    if others := [path for path in given if path not in ("resume", *WITH_RESUME)]:
        names = (x.rpartition(".")[2] for x in (others[0], *WITH_RESUME))
        option, *allowed = (f"--{name.replace('_', '-')}" for name in names)
        raise UserError(
            f"{option}: not allowed with --resume, which uses the config of the run; "
            f"expected only {', '.join(allowed)}"
        )
    changes = {name: given[name] for name in CHANGEABLE if name in given}
    for name in ("prefill", "init_from"):
        if name in changes and not getattr(config, name):
            problem = f"'{run}' did not start from any; expected a new run, got --resume"
            raise UserError(problem, name)
    if (steps := changes.get("steps", config.steps)) < config.steps:
        raise UserError(
            f"--steps: --resume accepts a larger --steps; expected at least "
            f"{config.steps}, the steps of '{run}', got {steps}"
        )
    changed = validate(replace_fields(config, changes))
    return TrainCommand(changed, run, _run_options(given), quick=False)


def _run_options(given: Mapping[str, Any]) -> RunOptions:
    if "wandb_project" in given and not given.get("wandb"):
        raise UserError("--wandb-project: only used with --wandb")
    return RunOptions(**{x: given[x] for x in RunOptions._fields if x in given})


def run(argv: list[str]) -> int:
    """Run `r2r2 train` and return its exit code."""
    command = parse_train(argv)
    if command.out is not None and not command.options.overwrite:
        check_env_given(command.out, None)
    config = finalize_config(command.config)
    path = run_path(config, command.out)
    if folder := ended_run(config, path, command.options):
        warn_of_damage(path)
        stopped = folder.stopped()
        if len(stopped) < len(folder.members):
            why = early_end_reason(folder)
            print(f"{path} is already finished with the same config{why and f': {why}'}.")
        return _print_end(path, stopped, failed=len(stopped) == len(folder.members))
    with use_command_device(command.options.device), lossy_output():
        enable_compilation_cache()
        return _train(config, path, command)


def _train(config: RunConfig, path: Path, command: TrainCommand) -> int:
    """Train, print the result, and return the exit code."""
    tasks = [member.task for member in fleet_members(config)]
    bar = TrainingDisplay(config.steps, tasks, Console(emoji=False), _opening(config, path))
    options = command.options
    saves = parse_interval(options.checkpoint_every) != Interval()
    calls, step = 0, 0
    with interruptible(saves) as check:

        def on_progress(progress: Progress) -> None:
            nonlocal calls, step
            calls, step = calls + 1, int(progress.decisions.min())
            check()
            bar(progress)

        try:
            with bar:
                result = train_finalized(
                    config, path, on_progress=on_progress, options=options, on_message=bar.say
                )
        except RunFailed as failure:
            result = failure.result
        except KeyboardInterrupt as interruption:
            if not calls:
                raise
            # The first call comes before the loop, when no checkpoint can be written.
            text = _interrupted(path, step if calls > 1 else None, saves)
            print(f"r2r2: {text}", file=sys.stderr)
            return exit_code(interruption)
    if result.interrupted:  # by Ctrl-C in a callback
        print(f"r2r2: {_interrupted(path, step, saves)}", file=sys.stderr)
        return exit_code(KeyboardInterrupt())
    failed = len(result.stopped) == len(result.members)
    if not failed:
        _print_returns(result, command.quick)
        _print_time(result)
    return _print_end(path, result.stopped, failed)


def _interrupted(path: Path, step: int | None, saves: bool) -> str:
    """Return what an interrupted run left, with a command that can be pasted."""
    where = "before its first step" if step is None else f"at step {step}"
    what = "resume"
    if step is not None and not saves:
        where, what = f"{where} without a checkpoint", "start over"
    command = f"{program_name()} train --resume {shlex.quote(str(path))}"
    return f"'{path}' stopped {where}; {what} with: {command}"


def print_stopped(stopped: Mapping[str, str]) -> None:
    """Print the members of a run that were stopped."""
    for name, reason in stopped.items():
        print(f"r2r2: {name} was stopped: {reason}", file=sys.stderr)


def _opening(config: RunConfig, path: Path) -> str:
    """Return the lines shown before a run."""
    lines = [
        f"[bold]{config.agent.name}[/] on {', '.join(config.env)}, UTD {config.utd}, "
        f"seeds {','.join(map(str, config.seeds))}",
        f"  {training_device().device_kind}, run folder {escape(str(path))}",
    ]
    changed = changed_fields(config, task_default_config(config))
    for shown_first in ("env", "seeds", "utd", "action_repeat"):
        changed.pop(shown_first, None)
    changed = {path: x for path, x in changed.items() if not path.endswith(CHECKSUM_SUFFIX)}
    if shown := [f"{path.rpartition('.')[2]}={value}" for path, value in changed.items()]:
        lines.append(f"  changed: {escape(', '.join(shown))}")
    if config.random_only:
        lines.append("  random actions only: there will be no updates")
    return "\n".join(lines)


def _print_returns(result: Result, quick: bool) -> None:
    """Print the returns of every task over its finished members."""
    scores = _mean_returns(result)
    for task in dict.fromkeys(member.task for member in result.members):
        finished = [x.task == task and x.name not in result.stopped for x in result.members]
        line = f"{task}: {LAST_NAME} {format_returns(result.returns[finished])}"
        line += f"; {scores[task]}" if task in scores else ""
        if task in result.random:
            line += f"; random policy {result.random[task]:.1f}"
        if quick and task == QUICK_TASK["env"]:
            line += f"; --quick target: {QUICK_TARGET}"
        print(line)


def _print_time(result: Result) -> None:
    """Print where the time of the run went."""
    path = result.folder.events
    events = read_events(path) if path.exists() else []
    if times := [event for event in events if event["event"] == "time"]:
        print(f"time: {describe_event(times[-1])}")


def _mean_returns(result: Result) -> dict[str, str]:
    """Return the scores of tasks with several evaluations, as a report names and computes them."""
    path = result.folder.evaluations
    finished = [(m.task, m.seed) for m in result.members if m.name not in result.stopped]
    rows = read_evaluations(path) if path.exists() else []
    rows = [row for row in rows if (row.env_name, row.seed) in finished]
    return {
        cell.task: f"{cell.score_name} {format_returns(cell.scores)}"
        for cell in make_cells([Results(Method(""), rows)])
        if any(seed.points > 1 for seed in cell.seeds)
    }


def _print_end(path: Path, stopped: Mapping[str, str], failed: bool) -> int:
    """Print the stopped members of a run and what to do next; return the exit code."""
    print_stopped(stopped)
    if failed:
        report = path / next(iter(stopped)) / "stopped.json"
        message = f"{path}: failed; every member was stopped, see '{report}'"
        print(f"r2r2: error: {message}", file=sys.stderr)
    run = shlex.quote(str(path))
    if stopped and not failed:
        print(f"  details:  {path / next(iter(stopped)) / 'stopped.json'}")
    if not failed:
        print(f"  evaluate: {program_name()} eval {run}")
        if (path / "curve.png").exists():
            print(f"  curve:    {path / 'curve.png'}")
    if any(why != NOT_FINITE for why in stopped.values()):
        print(f"  retry:    {program_name()} train --resume {run} --retry-failed")
    if stopped:
        config = shlex.quote(str(path / "config.toml"))
        print(f"  restart:  {program_name()} train --config {config} --out {run} --overwrite")
    return 1 if stopped else 0
