"""Measure the cost of acting in a worker, without JAX: us per action, and us per row.

    python benchmarks/acting.py --out benchmarks/results/acting.json

Actions are those of the traced NumPy programs that workers run, at the default widths of each
agent and the sizes of two tasks, on one core. The action of an agent in lockstep is the greedy one
of its evaluations; TD7's is the exploring one. A row is one step of a worker's loop: it looks for
commands, acts at random, steps an environment that does nothing, and writes the row; its time is
measured without that environment. `policy MB` are the parameters that travel to a worker for every
new policy. The lowest of several repeats is given: other work on the machine only adds to it.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import gymnasium
import jax
import numpy as np

from r2r2.agents.registry import build_agent, state_shapes
from r2r2.config.agents import AGENTS
from r2r2.config.resolve import resolve
from r2r2.envs.spec import Member, Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.envs.vector import ipc
from r2r2.envs.vector.step_types import EnvFactory
from r2r2.envs.vector.streams import (
    RANDOM,
    StreamLayout,
    StreamPlan,
    StreamTable,
    create_streams,
    map_streams,
)
from r2r2.envs.vector.worker_main import LocalEnvs
from r2r2.policy.actor import Actor
from r2r2.storage.versions import versions
from r2r2.training.acting import make_actors
from r2r2.training.run_config import finalize_config

TASKS = "Hopper-v5", "Humanoid-v5"


class NoEnv(gymnasium.Env[Any, Any]):
    """An environment that does nothing, with the sizes of Hopper-v5."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self._obs = np.zeros(11)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return zeros."""
        return self._obs, {}

    def step(self, action: Any) -> Any:
        """Return zeros."""
        return self._obs, 0.0, False, False, {}


def lowest_us(function: Any, count: int, repeats: int) -> float:
    """Return the lowest time of a call, in us."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(count):
            function()
        times.append(time.thread_time() - start)
    return 1e6 * min(times) / count


def time_action(agent: str, task: str, repeats: int) -> dict[str, Any]:
    """Time the actions of an agent with the sizes of a task."""
    config = finalize_config(resolve({"agent": agent, "env": task}))
    spec = Spec(*PAPER_TASKS[task][1:])
    actors = make_actors(config, [Member(task, 0)], spec)
    policy_spec = actors.explore or actors.greedy
    record = build_agent(config.agent, spec, 1)
    random = np.random.default_rng(0)
    parameters = [
        random.normal(0, 0.1, shape).astype(dtype)
        for shape, dtype in zip(policy_spec.shapes, policy_spec.dtypes, strict=True)
    ]
    if policy_spec.normalizes:
        parameters[-1] = np.ones(spec.obs_dim)
    actor, obs = Actor(policy_spec, parameters), random.normal(size=spec.obs_dim)
    inputs = [obs]
    if actors.explore:
        inputs.append(random.normal(size=actors.noise).astype(np.float32))
    states = state_shapes(record)
    leaves = jax.tree.leaves(jax.eval_shape(record.behavior_policy, states))
    return {
        "agent": agent,
        "task": task,
        "us_per_action": round(lowest_us(lambda: actor(*inputs), 20, 20 * repeats), 1),
        "operations": len(policy_spec.program.operations),
        "policy_mb": round(policy_spec.nbytes / 1e6, 3),
        "whole_policy_mb": round(sum(x.size * x.dtype.itemsize for x in leaves) / 1e6, 3),
    }


def time_rows(repeats: int) -> float:
    """Time one turn of a worker's loop, without acting by a policy and without physics."""
    config = finalize_config(resolve({"agent": "td7", "env": "Hopper-v5"}))
    spec = Spec(*PAPER_TASKS["Hopper-v5"][1:])
    layout = StreamLayout((0,), 1, spec, make_actors(config, [Member("Hopper-v5", 0)], spec))
    memory, streams = ipc.create_memory(1, spec), create_streams(layout)
    arrays, shared = ipc.map_arrays(memory, 1, spec), map_streams(streams, layout)
    envs = LocalEnvs({0: EnvFactory("none", 1, NoEnv)})
    envs.attach(layout, arrays, shared)
    envs.run({0: ipc.RESET}, arrays, 0, {})
    table = StreamTable(layout, arrays, shared)
    table.start(0, StreamPlan(RANDOM, 0, 10**9, 1))
    env = envs.env(0)
    action = np.zeros(3)

    def turn() -> None:
        if envs.can_play():
            envs.play_next(arrays, 0)

    def turns() -> None:
        for _ in range(200):
            turn()
        table.take(0, 200)

    take = lowest_us(turns, 1, 20 * repeats) / 200
    return round(take - lowest_us(lambda: env.step(action), 200, repeats), 2)


def main() -> None:
    """Measure all agents and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", default=list(AGENTS))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = time_rows(args.repeats)
    print(f"worker's loop: {rows} us per row", flush=True)
    table = []
    for task in TASKS:
        for agent in args.agents:
            table.append(time_action(agent, task, args.repeats))
            print(table[-1], flush=True)
    if args.out:
        about = {"cores": os.cpu_count(), "versions": versions(), "us_per_row": rows}
        args.out.write_text(json.dumps(about | {"actions": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
