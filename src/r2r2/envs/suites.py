"""The known tasks and the suites they belong to."""

import importlib.util
import re
from typing import Literal, NamedTuple

import gymnasium

from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.dm_control import dm_suite

Suite = Literal["gymnasium", "dmc"]


class PaperTask(NamedTuple):
    """Suite and sizes of a task in the paper."""

    suite: Suite
    obs_dim: int
    action_dim: int


PAPER_TASKS: dict[str, PaperTask] = {
    "Ant-v5": PaperTask("gymnasium", 105, 8),
    "Hopper-v5": PaperTask("gymnasium", 11, 3),
    "Humanoid-v5": PaperTask("gymnasium", 348, 17),
    "Walker2d-v5": PaperTask("gymnasium", 17, 6),
    "dog-run": PaperTask("dmc", 223, 38),
    "dog-stand": PaperTask("dmc", 223, 38),
    "dog-trot": PaperTask("dmc", 223, 38),
    "dog-walk": PaperTask("dmc", 223, 38),
    "humanoid-run": PaperTask("dmc", 67, 21),
    "humanoid-stand": PaperTask("dmc", 67, 21),
    "humanoid-walk": PaperTask("dmc", 67, 21),
}

ACTION_REPEAT: dict[Suite, int] = {"gymnasium": 1, "dmc": 2}  # the paper's protocol

# Gymnasium's continuous tasks by the module they require. Its MuJoCo tasks import
# imageio, though only to save rendered frames.
CONTINUOUS = {
    "numpy": "MountainCarContinuous-v0 Pendulum-v1",
    "imageio": "Ant-v5 HalfCheetah-v5 Hopper-v5 Humanoid-v5 HumanoidStandup-v5"
    " InvertedDoublePendulum-v5 InvertedPendulum-v5 Pusher-v5 Reacher-v5 Swimmer-v5 Walker2d-v5",
    "Box2D": "BipedalWalker-v3 BipedalWalkerHardcore-v3 LunarLanderContinuous-v3",
}

# Its actions are bounded only by 1e10, its episodes never end, and its model is drawn
# when it is built, independently of the seed.
UNSUPPORTED_DOMAIN = "lqr"


def find_suite(task: str) -> Suite:
    """Return the suite of a task.

    `package.module:Id-v0` counts as Gymnasium's without being imported, so that a run
    can be reported where the package of its environment is not installed.
    """
    if task in PAPER_TASKS:
        return PAPER_TASKS[task].suite
    if ":" in task or task in gymnasium.registry:
        return "gymnasium"
    if split_dmc_task(task) in dm_suite().ALL_TASKS:
        return "dmc"
    names = [name for names in known_tasks().values() for name in names]
    raise UserError(
        "unknown task; expected a Gymnasium id or a DMC domain-task (see 'r2r2 list envs')"
        f"{did_you_mean(task, [*gymnasium.registry, *names], most=1)}",
        f"env {task!r}",
    )


def is_builtin(task: str) -> bool:
    """Return whether a task comes with Gymnasium or dm_control, and is known to work."""
    if ":" in task:
        return False
    dmc = find_suite(task) == "dmc"
    return dmc or str(gymnasium.registry[task].entry_point).startswith("gymnasium.")


def split_dmc_task(task: str) -> tuple[str, str]:
    """Split a DMC id into domain and task; domains contain no hyphen."""
    domain, _, name = task.partition("-")
    return domain, name


# The robots of HumanoidBench, whose tasks are named like `h1-walk-v0`.
HUMANOID_BENCH = r"(?:h1|g1)(?:hand|strong|touch|simplehand|torso)?"


def clean_task_name(name: str) -> str:
    """Return the usual spelling of a task in a published file; other names as they are.

    Example:
        >>> [clean_task_name(name) for name in ("dog_run", "Ant_v4", "h1_sit_simple_v0", "dog-run")]
        ['dog-run', 'Ant-v4', 'h1-sit_simple-v0', 'dog-run']
    """
    if versioned := re.fullmatch(r"([^:]+)_(v[0-9]+)", name):
        stem = re.sub(f"^({HUMANOID_BENCH})_", r"\1-", versioned[1])
        return f"{stem}-{versioned[2]}"
    if ":" in name or name in gymnasium.registry:
        return name
    spellings = {"_".join(pair): "-".join(pair) for pair in dm_suite().ALL_TASKS}
    return spellings.get(name.replace("-", "_"), name)


def default_action_repeat(task: str) -> int:
    """Return the action repeat that the paper uses in the task's suite."""
    return ACTION_REPEAT[find_suite(task)]


def known_tasks() -> dict[Suite, tuple[str, ...]]:
    """Return the tasks known to run with the installed packages, by suite; others may too."""
    usable = filter(importlib.util.find_spec, CONTINUOUS)
    tasks = sorted(name for module in usable for name in CONTINUOUS[module].split())
    control = [task for task in dm_suite().ALL_TASKS if task[0] != UNSUPPORTED_DOMAIN]
    return {"gymnasium": tuple(tasks), "dmc": tuple(sorted(map("-".join, control)))}
