"""Settings of a run: an agent, tasks, seeds, and the training protocol."""

import dataclasses
import math
import re

from r2r2.config.agents import DEFAULT_AGENT, agent_config
from r2r2.config.common import AgentConfig
from r2r2.config.fields import (
    EPISODES,
    FINITE_OR_NEVER,
    MAX_COUNT,
    MAX_INT,
    NO_ARGS,
    POSITIVE,
    JsonObject,
    Range,
    at_least,
    fraction_below,
    integer_between,
    one_of,
    option,
    size,
)


def _unique(values: tuple[object, ...]) -> bool:
    return 0 < len(values) == len(set(values)) and "" not in values


SEEDS = Range(
    f"a count up to {MAX_COUNT} (5 means seeds 0 to 4) or different seeds from 0 to "
    f"{MAX_INT} (3,7,11)",
    lambda seeds: _unique(seeds) and all(0 <= seed <= MAX_INT for seed in seeds),
)
PRECISIONS = one_of("tf32", "mixed", "float32")
SOURCE = Range("a path", lambda text: "\0" not in text)
SHA256 = Range(
    "64 hexadecimal digits, or nothing (automatic)",
    lambda text: re.fullmatch("([0-9a-f]{64})?", text) is not None,
)
TASKS = Range("one or more different tasks, separated by commas", _unique)


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How updates are compiled; results change by rounding errors only."""

    fast: bool = option(True, "use the optimized update; off: plain JAX")


@dataclasses.dataclass(frozen=True)
class DiagnosticsConfig:
    """The observations whose latents are diagnosed; training does not depend on them."""

    probe_batch: int = option(
        4096, "observations per diagnosis of an encoder", integer_between(2, 65_536)
    )
    # By default past TD7's warm-up of random actions, and reached after 5 of 50 evaluations.
    probe_rows: int = option(40_960, "first replay rows that they are sampled from", size(2))


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Every setting that a run's result depends on, except versions and hardware.

    `env` has no default. `action_repeat`, `replay_size` and some fields of agents are 0
    by default, which means automatic: `train` sets them by the agent and the task. It also
    computes the checksums of `prefill` and `init_from`.

    Example:
        >>> config = RunConfig(env=("Hopper-v5",), seeds=(0, 1))
        >>> config.agent.name, config.steps
        ('td7+r2r2', 500000)
    """

    agent: AgentConfig = dataclasses.field(default_factory=lambda: agent_config(DEFAULT_AGENT))
    env: tuple[str, ...] = option(
        (), "Gymnasium ids, DMC domain-task, module:Id or module:Class", TASKS
    )
    seeds: tuple[int, ...] = option((0,), "a count (5: seeds 0 to 4) or a list (3,7,11)", SEEDS)
    steps: int = option(500_000, "decision steps per member", at_least(1))
    utd: int = option(1, "gradient updates per decision step", at_least(1))
    warmup: int = option(
        25_000,
        "decision steps of random actions before training; TD7 then also finishes the episode",
        at_least(0),
    )
    overlap_acting: bool = option(
        False,
        "act with the policy of the previous step, so that environments step during updates; for "
        "agents without policy checkpoints",
    )
    random_only: bool = option(False, "take random actions to the end and make no updates")
    replay_size: int = option(
        0,
        "replay rows per member; 0: 1,000,000, or 100,000 for Minimalist phi",
        Range("0 (automatic) or an integer >= 4", lambda x: x == 0 or 4 <= x <= MAX_INT),
    )
    prefill: str = option(
        "",
        "transitions to start with: an .npz file, a Minari dataset's folder or minari:NAME",
        SOURCE,
    )
    prefill_sha256: str = option("", "checksum of these transitions; empty: computed", SHA256)
    prefill_only_updates: int = option(
        0, "updates on these transitions before the first environment step", at_least(0)
    )
    mix: float = option(
        0.0,
        "share of every batch that is drawn from these transitions; 0: they are part of the "
        "replay, and are overwritten as its oldest rows",
        fraction_below(1),
    )
    init_from: str = option(
        "",
        "start from a trained member's networks: RUN, or RUN:TASK:SEED of several members",
        SOURCE,
    )
    init_from_sha256: str = option("", "checksum of these networks; empty: computed", SHA256)
    action_repeat: int = option(
        0, "environment steps per decision; 0: 1 on Gymnasium, 2 on DMC", at_least(0)
    )
    max_episode_steps: int = option(
        0, "environment steps until an episode is truncated; 0: the task's own limit", at_least(0)
    )
    env_args: JsonObject = option(NO_ARGS, "keyword arguments of the environment, as a JSON object")
    eval_every: int = option(10_000, "decision steps between evaluation points", at_least(1))
    eval_episodes: int = option(10, "episodes per evaluation", EPISODES)
    eval_average: int = option(1, "evaluations averaged per point (release: 2)", at_least(1))
    stop_at_return: float = option(
        math.inf,
        "end the run when the last evaluation point of every member is at least this; inf: never",
        FINITE_OR_NEVER,
    )
    log_every: int = option(1_000, "decision steps between logged losses", at_least(1))
    env_timeout: float = option(60.0, "time limit of a call in a worker, in seconds", POSITIVE)
    env_faults: int = option(
        10, "environment failures before a member stops", integer_between(0, 500)
    )
    precision: str = option(
        "tf32",
        "matrix products on a GPU: tf32, mixed (16-bit operands in SimbaV2's large "
        "layers), or float32; a CPU always computes in float32",
        PRECISIONS,
    )
    compute: ComputeConfig = ComputeConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
