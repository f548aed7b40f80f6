"""What one run is: an agent, tasks, seeds, and the protocol around them."""

import dataclasses

from r2r2.config.common import AgentConfig
from r2r2.config.fields import (
    EPISODES,
    LONGEST,
    POSITIVE,
    Range,
    at_least,
    between_whole,
    one_of,
    option,
)
from r2r2.config.td7 import TD7Config


def _unique(values: tuple[object, ...]) -> bool:
    return 0 < len(values) == len(set(values)) and "" not in values


SEEDS = Range(
    f"a count up to {LONGEST} (5 is seeds 0 to 4) or a list of different seeds from 0 "
    "to 2147483647 (3,7,11)",
    lambda seeds: _unique(seeds) and all(0 <= s < 2**31 for s in seeds),
)
TASKS = Range("one task or several different ones, separated by commas", _unique)


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How updates are compiled; changes results by rounding errors only."""

    fast: bool = option(
        True, "compile the optimised update program; if off, run the plain one"
    )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result but versions and the machine.

    `env` and `action_repeat` have no default here: `resolve` fills them in.

    Example:
        >>> RunConfig(env=("Hopper-v5",), seeds=(0, 1)).steps
        500000
    """

    agent: AgentConfig = dataclasses.field(default_factory=TD7Config)
    env: tuple[str, ...] = option(
        (),
        "tasks: Gymnasium ids, module:Id-v0, module:Class, or DMC domain-task",
        TASKS,
    )
    seeds: tuple[int, ...] = option(
        (0,), "how many seeds (5 is 0 to 4), or which (3,7,11)", SEEDS
    )
    steps: int = option(500_000, "decision steps per member", at_least(1))
    utd: int = option(
        1, "update-to-data ratio: gradient updates per decision step", at_least(1)
    )
    warmup: int = option(
        25_000,
        "decision steps of uniform random actions; TD7 goes on with them to the end of "
        "the episode",
        at_least(0),
    )
    replay_size: int = option(1_000_000, "rows of each member's replay", at_least(4))
    action_repeat: int = option(
        0,
        "environment steps per decision; 0 is the suite's own: 1 on Gymnasium, 2 on "
        "DMC",
        at_least(0),
    )
    eval_every: int = option(
        10_000, "decision steps between points of the learning curve", at_least(1)
    )
    eval_episodes: int = option(10, "episodes per evaluation", EPISODES)
    eval_average: int = option(
        1,
        "evaluations averaged into a point, evenly spaced (the release has 2)",
        at_least(1),
    )
    log_every: int = option(
        1_000, "decision steps between lines of losses in the log", at_least(1)
    )
    env_timeout: float = option(
        60.0, "seconds that an environment in a worker may take for a step", POSITIVE
    )
    env_faults: int = option(
        10,
        "failures of a member's environments that are survived before it is stopped",
        between_whole(0, 500),
    )
    precision: str = option(
        "mixed",
        "arithmetic of matrix products on a GPU: mixed (16-bit operands where that is "
        "faster, float32 sums), tf32, or float32; a CPU always uses float32",
        one_of("mixed", "tf32", "float32"),
    )
    compute: ComputeConfig = ComputeConfig()
