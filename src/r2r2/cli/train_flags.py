"""The command line of `r2r2 train`: its own options and every field of the config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.api import DEFAULT_OPTIONS, RunOptions
from r2r2.cli.argparser import HELP_TOKENS, Option, fields_help, split, texts
from r2r2.config.agents import AGENTS, DEFAULT_AGENT
from r2r2.config.errors import UserError
from r2r2.config.fields import (
    ANY,
    FieldSpec,
    Range,
    at_least,
    flatten_config,
    parse_value,
    replace_fields,
)
from r2r2.config.interval import INTERVAL
from r2r2.config.resolve import (
    agent_name,
    default_config,
    quick_config,
    resolve,
    validate,
)
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import NON_RESULT_FIELDS, read_toml
from r2r2.storage.run_folder import open_run
from r2r2.training.run_config import load_config

FILE, FOLDER = Range("the name of a file", bool), Range("the name of a folder", bool)

WORKERS = FieldSpec(
    "workers",
    int,
    "one per core",
    "processes that step environments; 0: all in this one",
    at_least(0),
)

# The options that are no fields of the config.
OWN = {
    leaf.path: leaf
    for leaf in (
        FieldSpec("quick", bool, False, "a task learnt in minutes", ANY),
        FieldSpec("config", str, "", "a TOML file with these fields", FILE),
        FieldSpec("agent", str, DEFAULT_AGENT, ", ".join(AGENTS), ANY),
        FieldSpec("out", str, "runs/<name>", "the run's folder", FOLDER),
        FieldSpec("resume", str, "", "go on with the run in this folder", FOLDER),
        FieldSpec("overwrite", bool, False, "delete a run that is there already", ANY),
        FieldSpec(
            "tensorboard", bool, False, "write TensorBoard's event files too", ANY
        ),
        WORKERS,
        FieldSpec(
            "checkpoint_every",
            str,
            DEFAULT_OPTIONS.checkpoint_every,
            f"how often to keep what --resume needs: {INTERVAL.description}",
            INTERVAL,
        ),
        FieldSpec(
            "checkpoints",
            int,
            DEFAULT_OPTIONS.checkpoints,
            "how many checkpoints are kept, the newest",
            at_least(1),
        ),
    )
}

# Those that do not say what to train.
ASIDE = ("out", *RunOptions._fields)

# Those that may be given beside --resume.
CHANGED = ("steps", *NON_RESULT_FIELDS)
ALONG = (*CHANGED, *(name for name in RunOptions._fields if name != "overwrite"))

HELP = """usage: r2r2 train [--name value]...

Train a fleet: every seed of every task in one compiled program. Without a field of the
config, --config or --resume: --quick. The same command again, or --resume RUN, goes on
with a run that was interrupted; --resume takes --steps, if they are more.
A field may be given by the end of its name where that is unique, as below, or in full:
--lambda-rr is --agent.representation.lambda-rr. A TOML file takes the same names, and
values in TOML's types or as the texts that are given here: utd = 2 or utd = "2".
"""


class TrainCommand(NamedTuple):
    """What `r2r2 train` was asked to do."""

    config: RunConfig
    out: Path | None
    how: RunOptions
    quick: bool


def parse_train(argv: Sequence[str]) -> TrainCommand:
    """Reads the arguments of `r2r2 train`; none at all is `--quick`."""
    options = _options(argv)
    own = _own(options)
    if "resume" in own:
        return _resumed(Path(own["resume"]), own, options)
    layers = _layers(options)
    fields = texts(options, OWN | _table(agent_name(*layers)))
    config = resolve(*layers, {p: v for p, v in fields.items() if p not in OWN})
    out = Path(own["out"]) if "out" in own else None
    return TrainCommand(config, out, _how(own), _quick(own, options))


def _resumed(
    run: Path, own: Mapping[str, Any], options: Sequence[Option]
) -> TrainCommand:
    """The run in a folder, with its own config but for steps and guards."""
    config = load_config(open_run(run))
    table = flatten_config(config)
    given = texts(options, OWN | table)
    for path, text in given.items():
        if path not in ("resume", *ALONG):
            along = ", ".join(f"--{name.replace('_', '-')}" for name in ALONG)
            raise UserError(
                f"{path} is {text!r}, but with --resume the run's own config.toml "
                f"holds; allowed beside it are {along}"
            )
    new = {
        name: parse_value(table[name], given[name]) for name in CHANGED if name in given
    }
    if (steps := new.get("steps", config.steps)) < config.steps:
        raise UserError(
            f"steps is {steps}; allowed with --resume is {config.steps}, as many "
            f"as '{run}' has, or more"
        )
    changed = validate(replace_fields(config, new))
    return TrainCommand(changed, run, _how(own), quick=False)


def _how(own: Mapping[str, Any]) -> RunOptions:
    return RunOptions(**{name: own[name] for name in RunOptions._fields if name in own})


def train_help(argv: Sequence[str]) -> str:
    """The help of `r2r2 train`, with the defaults of the agent that is named."""
    table = _table(agent_name(*_layers(_options(argv))))
    return f"{HELP}\n{fields_help(OWN | table)}\n"


def _options(argv: Sequence[str]) -> list[Option]:
    options, alone = split([token for token in argv if token not in HELP_TOKENS])
    if alone:
        raise UserError(
            f"{alone[0]!r} stands alone; every value needs its --field before"
        )
    # As a TOML file may have it.
    return [("agent", x) if name == "agent.name" else (name, x) for name, x in options]


def _own(options: Sequence[Option]) -> dict[str, Any]:
    mine = [option for option in options if option[0].removeprefix("no_") in OWN]
    return {
        path: parse_value(OWN[path], text) for path, text in texts(mine, OWN).items()
    }


def _layers(options: Sequence[Option]) -> tuple[Mapping[str, Any], ...]:
    """Preset, file, and the agent's name: all that decides which fields there are."""
    own = _own(options)
    said = (
        read_toml(Path(own["config"])) if "config" in own else {},
        {"agent": own["agent"]} if "agent" in own else {},
    )
    return (quick_config(agent_name(*said)) if _quick(own, options) else {}, *said)


def _quick(own: Mapping[str, Any], options: Sequence[Option]) -> bool:
    """Whether the preset was asked for, or nothing that says what to train."""
    bare = all(name.removeprefix("no_") in ASIDE for name, _ in options)
    return bool(own.get("quick", bare))


def _table(agent: str) -> dict[str, FieldSpec]:
    table = flatten_config(default_config(agent))
    del table["agent.name"]  # given as --agent
    return table
