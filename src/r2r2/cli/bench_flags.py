"""The command line of `r2r2 bench`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from r2r2.bench.end_to_end import Course
from r2r2.bench.updates import Sizes, with_bases
from r2r2.cli.argparser import Option, fields_help, split, texts
from r2r2.cli.train_flags import FILE
from r2r2.config.agents import agent_config
from r2r2.config.common import AgentConfig, TaskInfo
from r2r2.config.errors import UserError, did_you_mean
from r2r2.config.fields import (
    ANY,
    FieldSpec,
    Range,
    at_least,
    between_whole,
    parse_value,
    size,
)
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.training.loop import UPDATES_PER_CALL


def _different(values: tuple[str, ...]) -> bool:
    return len(set(values)) == len(values)


NAMES = Range("one name or several different ones", _different)
NUMBERS = Range("one whole number or several different ones", _different)
MOST = 1000  # members; more is a slip
WIDTHS = ("width", "latent", "model_width", "actor_width", "critic_width")
SLOWER = 20  # updates of a call on a CPU, where each takes a hundred times as long

FIELDS = {
    leaf.path: leaf
    for leaf in (
        FieldSpec(
            "agents", tuple[str, ...], ("td7", "td7+r2r2"), "whom to time", NAMES
        ),
        FieldSpec("members", tuple[str, ...], ("1",), "sizes of their fleets", NUMBERS),
        FieldSpec(
            "bases", bool, True, "time the base of an agent with R2R2 as well", ANY
        ),
        FieldSpec(
            "env", str, "Humanoid-v5", "the paper's task whose sizes to take", ANY
        ),
        FieldSpec("obs", int, "the task's", "numbers of an observation", size(1)),
        FieldSpec("action", int, "the task's", "numbers of an action", size(1)),
        FieldSpec(
            "width", int, "the agent's", "units of all layers and latents", size(2)
        ),
        FieldSpec("batch_size", int, "the agent's", "transitions per update", size(2)),
        FieldSpec(
            "rows",
            int,
            "1000000, on a CPU 50000",
            "of every member's replay, all of them full",
            at_least(4),
        ),
        FieldSpec(
            "updates",
            int,
            f"{UPDATES_PER_CALL}, on a CPU {SLOWER}",
            "in one call; training makes so many",
            at_least(1),
        ),
        FieldSpec("repeats", int, 10, "calls that are timed", between_whole(1, 10_000)),
        FieldSpec("task", str, "", "train on this task too, and time its parts", ANY),
        FieldSpec(
            "steps", int, 2000, "decision steps that are timed there", at_least(1)
        ),
        FieldSpec("utd", int, 1, "updates per decision step there", at_least(1)),
        FieldSpec("out", str, "", "a JSON file for all that was found", FILE),
        FieldSpec(
            "commit", str, "", "said in the file, where no checkout says it", ANY
        ),
    )
}
LISTS = ("agents", "members")

HELP = """usage: r2r2 bench [--name value]...

Time the updates of agents on this device, in the very programs that train them, without
building an environment. The fleets of one size take turns, repeat by repeat, so that a
machine that is busy with other things slows all of them alike. Names after --agents and
--members are separated by spaces or commas:

  r2r2 bench                                  TD7 without and with R2R2, one member
  r2r2 bench --agents td7+r2r2 minphi+r2r2 --members 1 20 --out bench.json
  r2r2 bench --env dog-run --width 512        other sizes
  r2r2 bench --task Hopper-v5                 a short real training as well: decision
                                              steps/s, and the shares of its parts

For every fleet: microseconds per update of one member (median, lowest and highest of
all repeats), time to compile, kernels and floating-point operations per update, TFLOP/s
and their share of what a large matrix product reaches in the same process, memory; then
what R2R2 adds to its base. docs/performance.md says how to read it.
"""


class BenchCommand(NamedTuple):
    """What `r2r2 bench` was asked to do."""

    agents: dict[str, AgentConfig]  # that were named
    timed: dict[str, AgentConfig]  # those and their bases
    members: tuple[int, ...]
    sizes: Sizes
    course: Course | None  # of the largest fleets
    out: Path | None
    commit: str


def bench_help() -> str:
    """The help of `r2r2 bench`."""
    return f"{HELP}\n{fields_help(FIELDS, top='options')}\n"


def parse_bench(argv: Sequence[str]) -> BenchCommand:
    """Reads the arguments of `r2r2 bench`."""
    given = {
        path: parse_value(FIELDS[path], text)
        for path, text in texts(_options(argv), FIELDS).items()
    }
    values = {path: given.get(path, leaf.value) for path, leaf in FIELDS.items()}
    spec = _task(values["env"])
    members = tuple(_count(text) for text in values["members"])
    names = tuple(values["agents"])
    for name in names:
        agent_config(name)
    everyone = with_bases(names) if values["bases"] else names
    configs = {name: _config(name, values["env"], given) for name in everyone}
    return BenchCommand(
        {name: configs[name] for name in names},
        configs,
        members,
        _sizes(spec, values["repeats"], given),
        _course(values, given, max(members)),
        Path(values["out"]) if values["out"] else None,
        values["commit"],
    )


def _options(argv: Sequence[str]) -> list[Option]:
    """Options of which two may have several values, with spaces between them."""
    joined: list[str] = []
    several = False
    for token in argv:
        if token.startswith("--"):
            several = token.removeprefix("--") in LISTS
            joined.append(token)
        elif several and not joined[-1].startswith("--"):
            joined[-1] += f",{token}"
        else:
            joined.append(token)
    options, alone = split(joined)
    if alone:
        raise UserError(
            f"{alone[0]!r} stands alone; every value needs its --field before"
        )
    return list(options)


def _count(text: str) -> int:
    return int(
        parse_value(FieldSpec("members", int, 1, "", between_whole(1, MOST)), text)
    )


def _task(name: str) -> Spec:
    if name not in PAPER_TASKS:
        raise UserError(
            f"env is {name!r}; allowed are {', '.join(PAPER_TASKS)}, or any sizes, by "
            f"--obs and --action{did_you_mean(name, PAPER_TASKS, most=1)}"
        )
    return Spec(*PAPER_TASKS[name][1:])


def _sizes(spec: Spec, repeats: int, given: dict[str, Any]) -> Sizes:
    slow = jax.default_backend() == "cpu"
    return Sizes(
        Spec(given.get("obs", spec.obs_dim), given.get("action", spec.action_dim)),
        given.get("rows", 50_000 if slow else RunConfig.replay_size),
        given.get("updates", SLOWER if slow else UPDATES_PER_CALL),
        repeats,
    )


def _config(name: str, task: str, given: dict[str, Any]) -> AgentConfig:
    """An agent with the widths that were given, and what the task decides of it."""
    config = agent_config(name)
    own = {field.name for field in dataclasses.fields(config)}
    changes = {x: given["width"] for x in WIDTHS if x in own and "width" in given}
    if "batch_size" in given:
        changes["batch_size"] = given["batch_size"]
    # The time of an update does not depend on the length of an episode.
    info = TaskInfo(task, PAPER_TASKS[task].suite, lambda: 1000)
    return dataclasses.replace(config, **changes).for_task(info)


def _course(
    values: dict[str, Any], given: dict[str, Any], members: int
) -> Course | None:
    if values["task"]:
        return Course(values["task"], members, values["utd"], values["steps"])
    for name in ("steps", "utd"):
        if name in given:
            raise UserError(
                f"{name} is {given[name]}, but without --task nothing is trained; "
                "allowed is none, or a task as in --task Hopper-v5"
            )
    return None
