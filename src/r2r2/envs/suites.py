"""Which tasks there are, and which suite a task's id belongs to."""

import importlib.util
from typing import Literal, NamedTuple

import gymnasium

from r2r2.config.errors import UserError, did_you_mean
from r2r2.envs.dm_control import dm_suite

Suite = Literal["gymnasium", "dmc"]


class PaperTask(NamedTuple):
    """A task of the paper and its sizes."""

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

# Gymnasium's continuous tasks by the module without which they cannot be built.
# Its MuJoCo tasks import imageio, though only to save rendered frames.
CONTINUOUS = {
    "numpy": ("MountainCarContinuous-v0", "Pendulum-v1"),
    "imageio": (
        "Ant-v5",
        "HalfCheetah-v5",
        "Hopper-v5",
        "Humanoid-v5",
        "HumanoidStandup-v5",
        "InvertedDoublePendulum-v5",
        "InvertedPendulum-v5",
        "Pusher-v5",
        "Reacher-v5",
        "Swimmer-v5",
        "Walker2d-v5",
    ),
    "Box2D": (
        "BipedalWalker-v3",
        "BipedalWalkerHardcore-v3",
        "LunarLanderContinuous-v3",
    ),
}

# Its actions reach to 1e10, its episodes never end, and its model is drawn when it is
# built, out of a seed's reach.
REFUSED_DOMAIN = "lqr"


def find_suite(task: str) -> Suite:
    """The suite a task's id belongs to.

    `package.module:Id-v0` is Gymnasium's by its form: nothing is imported, so that a
    run can be reported where its environment's package is missing.

    Raises:
        UserError: No suite has the task.

    Example:
        >>> find_suite("Hopper-v5"), find_suite("ball_in_cup-catch")
        ('gymnasium', 'dmc')
    """
    if task in PAPER_TASKS:
        return PAPER_TASKS[task].suite
    if ":" in task or task in gymnasium.registry:
        return "gymnasium"
    if dmc_parts(task) in dm_suite().ALL_TASKS:
        return "dmc"
    names = [name for names in known_tasks().values() for name in names]
    near = did_you_mean(task, [*gymnasium.registry, *names], most=1)
    raise UserError(
        f"env is {task!r}, which is neither a Gymnasium id nor a DMC domain-task"
        f"{near} ('r2r2 list envs' shows them)"
    )


def dmc_parts(task: str) -> tuple[str, str]:
    """The domain and the task in a DMC id; domains have no hyphen.

    Example:
        >>> dmc_parts("cartpole-swingup")
        ('cartpole', 'swingup')
    """
    domain, _, name = task.partition("-")
    return domain, name


def default_action_repeat(task: str) -> int:
    """How often the paper repeats an action in this task's suite.

    Example:
        >>> default_action_repeat("dog-run")
        2
    """
    return ACTION_REPEAT[find_suite(task)]


def known_tasks() -> dict[Suite, tuple[str, ...]]:
    """The tasks that can be run here, by suite, for listing.

    Other Gymnasium ids may work too: whether one has continuous actions shows only
    when it is built, and none is built here.
    """
    usable = [
        name
        for module, names in CONTINUOUS.items()
        if importlib.util.find_spec(module)
        for name in names
    ]
    control = [
        f"{domain}-{name}"
        for domain, name in dm_suite().ALL_TASKS
        if domain != REFUSED_DOMAIN
    ]
    return {"gymnasium": tuple(sorted(usable)), "dmc": tuple(sorted(control))}
