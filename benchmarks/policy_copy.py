"""Measure how long a fleet takes to copy trained policies to the host, once per burst.

    python benchmarks/policy_copy.py --out benchmarks/results/policy_copy.json

TD7+R2R2 at the sizes of two tasks. `before` gathers all leaves of the members that trained and
fetches them leaf by leaf; `leaves` copies only those that actions depend on, leaf by leaf, as on a
CPU; `packed` packs them into one array and fetches that, as from an accelerator. The three take
turns; the lowest time of each is given, because other work on the machine only adds to it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.policy_copy import PolicyCopy, acting_leaves
from r2r2.config.agents import agent_config
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.storage.versions import versions

AGENT = "td7+r2r2"
TASKS = "Hopper-v5", "Humanoid-v5"
GROUPS = (1, 1), (5, 5), (5, 2)  # members of the fleet, and of those the ones that trained


def copies(task: str, size: int, count: int) -> tuple[dict[str, Callable[[], None]], list[float]]:
    """Return the ways to copy `count` of `size` members, and the MB of all and of used leaves."""
    spec = Spec(*PAPER_TASKS[task][1:])
    agent = build_agent(agent_config(AGENT), spec, 1)
    shapes = jax.tree.leaves(jax.eval_shape(agent.behavior_policy, state_shapes(agent)))
    tree = jax.tree.structure(jax.eval_shape(agent.behavior_policy, state_shapes(agent)))
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(size, *x.shape)).astype(x.dtype) for x in shapes]
    trained = jax.tree.unflatten(tree, [jnp.asarray(x) for x in arrays])
    host, who = jax.tree.unflatten(tree, arrays), np.arange(count)
    used = acting_leaves(agent, trained, spec.obs_dim)
    gather = jax.jit(lambda tree, who: jax.tree.map(lambda x: x[who], tree))

    def before() -> None:
        if count == size:
            jax.tree.map(np.array, jax.device_get(trained))
            return
        new = jax.tree.leaves(jax.device_get(gather(trained, who)))
        for policy, part in zip(arrays, new, strict=True):
            policy[who] = part

    ways = {"leaves": PolicyCopy(used, packed=False), "packed": PolicyCopy(used, packed=True)}
    calls: dict[str, Callable[[], None]] = {"before": before}
    for name, copy in ways.items():
        calls[name] = lambda copy=copy: copy(host, trained, who, count)  # type: ignore[misc]
    megabytes = [
        sum(x.nbytes for x in arrays),
        sum(x.nbytes * u for x, u in zip(arrays, used, strict=True)),
    ]
    return calls, [round(number * count / size / 1e6, 2) for number in megabytes]


def measure(task: str, size: int, count: int, repeats: int) -> dict[str, Any]:
    """Time every way in turns."""
    calls, (whole, used) = copies(task, size, count)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # the first compiles
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    us = {f"us_{name}": round(1e6 * min(times[1:])) for name, times in seconds.items()}
    about = {"task": task, "members": size, "trained": count, "mb": whole, "used_mb": used}
    return about | us


def main() -> None:
    """Measure all groups and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for task in TASKS:
        for size, count in GROUPS:
            rows.append(measure(task, size, count, args.repeats))
            print(rows[-1], flush=True)
    if args.out:
        about = {"cores": os.cpu_count(), "agent": AGENT, "versions": versions()}
        args.out.write_text(json.dumps(about | {"copies": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
