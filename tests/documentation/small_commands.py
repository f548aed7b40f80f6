"""The scheme by which `r2r2` commands of the documentation become small enough to be run.

Every command of a page runs as it stands, in a folder that has the files of `INPUTS` which the page
names, except for these changes:

- `train`: numbers above those of `LIMITS` are replaced by them; expensive tasks by small ones of
  the same suite (`TASKS`); a run has two members. With --resume, only --steps changes.
- `sweep` trains `tiny.toml` in place of its experiment, without --scale and --budget, unless it
  only plans (--dry-run, SLURM): then `main-table`, the largest, is replaced by `evidence`.
- Other commands get the options of `MORE`, `bench` one agent in one fleet, and `clean` does not
  ask.
- `hf:NAME` is a folder; /FOLDER is one below the working folder; --device gpu is cpu.
- Pictures of `report` and `theory` are empty files, and the flows of `theory` are short.
"""

import re
from pathlib import Path

from r2r2.cli.main import command_parser
from r2r2.experiments.experiment import find_experiment

# By the last part of a field's name; a field that is not given gets its limit as well.
LIMITS = {
    **{"steps": 60, "warmup": 20, "eval_every": 30, "eval_episodes": 1, "max_episode_steps": 20},
    **dict.fromkeys(("width", "latent", "batch_size"), 16),
    **dict.fromkeys(("actor_width", "critic_width", "model_width"), 16),
    **{"critic_blocks": 1, "bins": 21, "probe_batch": 64, "probe_rows": 256},
}
GIVEN_LIMITS = {"utd": 2, "prefill_only_updates": 5}  # only where they are given
TASKS = {r".*-v\d+": ("Hopper-v5",), r"[a-z_]+-[a-z_]+": ("cartpole-swingup", "cartpole-balance")}
CHEAP = ("Hopper-v5", "Pendulum-v1", "cartpole-swingup", "cartpole-balance")
MORE = {
    "eval": ("--episodes", "1", "--workers", "0"),
    "tune": ("--trials", "2", "--workers", "0"),
    "watch": ("--once",),
    "bench": (
        *("--updates", "2", "--repeats", "1", "--short-calls", "1", "--no-bases"),
        *("--width", "16", "--batch-size", "16", "--rows", "64", "--obs", "11", "--action", "3"),
    ),
}


def small(argv: list[str]) -> list[str]:
    """Return the arguments of an `r2r2` command with the changes of the scheme."""
    name, *arguments = [_local(token) for token in argv]
    if name == "clean" and {"--checkpoints", "--unfinished"} & set(arguments):
        return [name, *arguments, "--yes"]
    if name not in ("train", "sweep", "bench") or "--help" in arguments:
        return [name, *arguments, *MORE.get(name, ())]
    return [name, *{"train": _train, "sweep": _sweep, "bench": _bench}[name](arguments)]


def _local(token: str) -> str:
    token = re.sub(r"^hf:", "hub/", token)
    return token.removeprefix("/") if token.startswith("/") else token


def _train(arguments: list[str]) -> list[str]:
    parser = command_parser("train", arguments)
    given = parser.parse(arguments)
    more = {"workers": 0, "device": "cpu"}
    if "resume" in given:
        config = Path(given["resume"], "config.toml").read_text()
        steps = int(re.search(r"^steps = (\d+)$", config, re.MULTILINE)[1])
        more |= {"steps": steps + 20} if "steps" in given else {}
        return [*arguments, *_options(more)]
    for spec in parser.fields.values():
        field = spec.path.rpartition(".")[2]
        limit = LIMITS.get(field, GIVEN_LIMITS.get(field) if spec.path in given else None)
        if limit is not None and not given.get(spec.path, limit + 1) <= limit:
            more[spec.path] = limit
    tasks = _tasks(given.get("env", ()))
    seeds = given.get("seeds", (0, 1))[: 2 if len(tasks) < 2 else 1]
    more |= {"seeds": "".join(f"{seed}," for seed in seeds)}
    more |= {"env": ",".join(tasks)} if tasks else {}
    quick = [] if arguments else ["--quick"]  # which other options would switch off
    return [*quick, *arguments, *_options(more)]


def _tasks(names: tuple[str, ...]) -> list[str]:
    """Return at most two tasks in place of those of a command."""
    tasks: list[str] = []
    for name in names:
        candidates = [name]
        if name not in CHEAP and ":" not in name:
            candidates = next(x for form, x in TASKS.items() if re.fullmatch(form, name))
        tasks += [x for x in candidates if x not in tasks][:1]
    return tasks[:2]


def _sweep(arguments: list[str]) -> list[str]:
    if "--dry-run" in arguments or "slurm" in arguments:
        find_experiment(arguments[0])
        return ["evidence" if x == "main-table" else x for x in arguments]
    options = " ".join(arguments[1:])
    return ["tiny.toml", *re.sub(r"--(scale|budget) \S+", "", options).split()]


def _bench(arguments: list[str]) -> list[str]:
    given = command_parser("bench").parse(arguments)
    agents = given.get("agents", ("td7+r2r2",))[:1]
    members = min(map(int, given.get("members", ("1",))))
    tasks = _tasks(tuple(given[x] for x in ("task",) if x in given))
    task = ["--task", *tasks, "--steps", "400"] if tasks else []
    return [*arguments, *MORE["bench"], "--agents", *agents, "--members", str(members), *task]


def _options(fields: dict[str, object]) -> list[str]:
    return [f"--{path.replace('_', '-')}={value}" for path, value in fields.items()]
