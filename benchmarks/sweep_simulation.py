"""Simulate the paper's whole grid on 1, 8 and 64 H200s, planned as `r2r2 sweep` plans it.

    python benchmarks/sweep_simulation.py --out benchmarks/results/sweep_simulation.json

297 cells (9 agents, 11 tasks, UTD 1, 10 and 20) with 5 seeds each are planned by `make_plan` and
carried out by a discrete simulation: a fleet starts as soon as a GPU is free, in the order of the
plan. Durations come from rates that were measured on one H200 with 16 cores; `RATES` says where,
and what is extrapolated. docs/scale.md has the results.
"""

import argparse
import dataclasses
import heapq
import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

from r2r2.config.agents import AGENTS
from r2r2.config.common import TaskInfo
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Spec
from r2r2.envs.suites import ACTION_REPEAT, PAPER_TASKS
from r2r2.experiments.agent_sizes import SizeQuery, find_sizes
from r2r2.experiments.costs import ACCELERATOR_EXPONENT, MeasuredCosts, Speed
from r2r2.experiments.experiment import Experiment
from r2r2.experiments.machine import Device, Machine
from r2r2.experiments.plan import Plan, PlannedFleet
from r2r2.experiments.planner import ExperimentCells, make_plan, plan_works
from r2r2.experiments.scheduling import lower_bound

RESULTS = Path(__file__).parent / "results"
KIND, MEMORY, CORES = "NVIDIA H200", 139 * 2**30, 16  # cores per GPU
GPUS = (1, 8, 64)
STARTUP = 60.0  # seconds until the first update: start, tracing, compiling
SEEDS, UTDS = 5, (1, 10, 20)
EPISODE = {"gymnasium": 1000, "dmc": 500}  # decision steps
SIZES = (1, 5, 10, 15, 20)  # members for which rates are given
EVENT_BYTES = 1e6  # log of one run of 500,000 steps: losses, episodes, diagnoses
NOISE = 0.2  # of durations, for the schedule under wrong estimates
# Microseconds per decision step on one core of that machine; Walker2d-v5 was not measured and is
# taken as slow as Ant-v5.
PHYSICS = {
    **{"Hopper-v5": 234, "Humanoid-v5": 378, "Ant-v5": 479, "Walker2d-v5": 479},
    **{"humanoid": 813, "dog": 2861},
}
REFERENCE = Spec(348, 17)  # sizes at which updates were measured
RATES = {
    "updates of td7, minphi, simbav2-spl, each with R2R2": "measured alone and in fleets of 20 at "
    "the sizes of Humanoid-v5 (bench_h200_1.json, bench_h200_20.json; SimbaV2 alone at the sizes "
    "of Hopper-v5 in tf32, fast_and_plain_h200.json); linear in the members between",
    "updates of td7-ln, simbav2": "measured alone (fast_and_plain_h200.json); fleets extrapolated "
    "by the ratio to td7 and simbav2-spl",
    "updates at other sizes, and with one critic on DMC": "extrapolated by floating-point "
    "operations to the power of 0.75",
    "steps without updates": "measured for TD7 on Hopper-v5 in fleets of 1 and 5 "
    "(end_to_end_h200.json), and for steps in lockstep of fleets of 5 (the same file); linear in "
    "the members; physics of other tasks on 16 cores added",
    "overlap of updates and physics": "none assumed",
    "cores": "16 per GPU, as on the measured machine",
}


class UpdateRate(NamedTuple):
    """Microseconds per update of a fleet: `start + members * member`."""

    start: float
    member: float

    def at(self, members: int) -> float:
        """Return the microseconds of one update of all members."""
        return self.start + self.member * members


def load(name: str) -> dict[str, Any]:
    """Return a committed result file."""
    return json.loads((RESULTS / name).read_text())


def update_rates() -> dict[str, UpdateRate]:
    """Return the rates of all agents at the reference sizes."""
    alone, fleet = (
        {x["agent"]: x["us_per_agent_update"]["median"] for x in load(name)["updates"]}
        for name in ("bench_h200_1.json", "bench_h200_20.json")
    )
    tf32 = {x["agent"]: x["us_per_update_fast"] for x in load("fast_and_plain_h200.json")["table"]}
    alone |= {name: us for name, us in tf32.items() if name.startswith("simbav2")}
    bases = {"td7-ln": "td7", "td7-ln+r2r2": "td7+r2r2", "simbav2": "simbav2-spl"}
    for name, base in bases.items():
        ratio = tf32[name] / tf32[base]
        alone[name], fleet[name] = ratio * alone[base], ratio * fleet[base]
    rates = {}
    for name in AGENTS:
        member = (20 * fleet[name] - alone[name]) / 19
        rates[name] = UpdateRate(alone[name] - member, member)
    return rates


def step_us(config: RunConfig, members: int) -> float:
    """Return the microseconds of one decision step of a fleet, without updates."""
    results = load("end_to_end_h200.json")
    if config.agent.policy_checkpoints:
        one, five = (
            1e6 * x["members"] / x["decision_steps_per_s"] * (1 - x["shares"]["updates"])
            for x in results["after"]["runs"]
        )
        loop = one + (five - one) / 4 * (members - 1)
    else:
        runs = results["fused_steps"]["runs"]
        waits = [x["fused_call_us"] - x["in_calls_of_250_us"] for x in runs]
        loop = sum(waits) / len(waits) * max(members / 5, 1.0)
    task = config.env[0]
    physics = PHYSICS.get(task) or PHYSICS[task.split("-")[0]]
    evaluated = config.eval_episodes * EPISODE[PAPER_TASKS[task].suite] / config.eval_every
    return loop + physics * max(1.0, members * (1 + evaluated) / CORES)


def paper_cells() -> list[RunConfig]:
    """Return the finalized cells of the paper's grid."""
    grid = {"agent": [*AGENTS], "env": [*PAPER_TASKS], "utd": [*UTDS], "seeds": SEEDS}
    return [_finalized(cell) for cell in Experiment("paper", grids=(grid,)).cells()]


def _finalized(cell: RunConfig) -> RunConfig:
    (task,) = cell.env
    suite = PAPER_TASKS[task].suite
    agent = cell.agent.for_task(TaskInfo(task, suite, lambda: EPISODE[suite]))
    size = agent.default_replay_size(task)
    repeat = ACTION_REPEAT[suite]
    return dataclasses.replace(cell, agent=agent, replay_size=size, action_repeat=repeat)


def speeds(cells: list[RunConfig]) -> list[Speed]:
    """Return the rates as if every agent had been measured on every task."""
    rates = update_rates()
    chosen = [cell for cell in cells if cell.utd == 1]
    two = {x.agent.name: x.agent for x in chosen if x.env == ("Humanoid-v5",)}
    queries = [SizeQuery(cell.agent, _spec(cell)) for cell in chosen]
    sizes = find_sizes([*queries, *(SizeQuery(x, REFERENCE) for x in two.values())])
    measured = []
    for cell, query in zip(chosen, queries, strict=True):
        reference = sizes[SizeQuery(two[cell.agent.name], REFERENCE).key].flops
        factor = (sizes[query.key].flops / reference) ** ACCELERATOR_EXPONENT
        for members in SIZES:
            config = dataclasses.replace(cell, seeds=tuple(range(members)))
            update = factor * rates[cell.agent.name].at(members) / 1e6
            step = step_us(cell, members) / 1e6
            fields = to_toml(config), query.spec, KIND, CORES
            measured.append(Speed(*fields, math.nan, STARTUP, step, update))
    return measured


def _spec(config: RunConfig) -> Spec:
    return Spec(*PAPER_TASKS[config.env[0]][1:])


# Simulation


def simulate(fleets: list[PlannedFleet], gpus: int, noise: float = 0.0) -> dict[str, float]:
    """Return the end of the last fleet, and how long GPUs waited for it, in hours."""
    rng = random.Random(0)
    free = [0.0] * gpus
    for fleet in fleets:
        seconds = fleet.seconds * math.exp(rng.gauss(0, noise))
        heapq.heapreplace(free, free[0] + seconds)
    end = max(free)
    return {"hours": end / 3600, "idle_at_the_end": 1 - sum(free) / end / gpus}


def result(cells: list[RunConfig], costs: MeasuredCosts, gpus: int) -> dict[str, Any]:
    """Return what becomes of the grid on so many GPUs."""
    devices = [Device(f"gpu:{n}", KIND, MEMORY) for n in range(gpus)]
    machine = Machine(tuple(devices), gpus * CORES)
    plan = make_plan(ExperimentCells("paper", 1.0, cells), machine, costs=costs)
    bound = lower_bound(plan_works(cells, machine, costs), gpus * plan.slots)
    seconds = sum(fleet.seconds for fleet in plan.fleets)
    busy = sum(costs.estimate(x.config).busy * x.seconds for x in plan.fleets)
    whole = make_plan(
        ExperimentCells("paper", 1.0, cells), Machine(tuple(devices[:1]), CORES), costs=costs
    )
    simulated = simulate([*plan.fleets], gpus * plan.slots)
    end = simulated["hours"] * 3600
    return {
        "gpus": gpus,
        "fleets": len(plan.fleets),
        "members_per_fleet": len(cells) * SEEDS / len(plan.fleets),
        "hours": simulated["hours"],
        "days": simulated["hours"] / 24,
        "lower_bound_hours": bound / 3600,
        "over_lower_bound": end / bound - 1,
        "gpu_hours": seconds / 3600,
        "occupied": seconds / end / gpus,  # a fleet is on the GPU
        "in_updates": busy / end / gpus,  # the GPU makes updates
        "idle_at_the_end": simulated["idle_at_the_end"],
        "lost_to_splitting": seconds / sum(x.seconds for x in whole.fleets) - 1,
        "hours_with_noise": simulate([*plan.fleets], gpus * plan.slots, NOISE)["hours"],
        "largest_fleet_gb": max(x.memory for x in plan.fleets) / 1e9,
        "storage_while_training_gb": running_bytes(plan, gpus) / 1e9,
    }


# Storage


def member_bytes(config: RunConfig) -> dict[str, float]:
    """Return the bytes of one run: its checkpoints, and what remains without them."""
    query = SizeQuery(config.agent, _spec(config))
    sizes = find_sizes([query])[query.key]
    rows = min(config.steps, config.replay_size)
    # As seen in a run of TD7: a checkpoint has 1.2 times the bytes of the networks besides the
    # replay, which two checkpoints share; the final and the best weights have 1.1 times.
    return {
        "checkpoints": rows * sizes.row + 2 * 1.2 * sizes.state,
        "results": 1.1 * sizes.state + EVENT_BYTES,
    }


def running_bytes(plan: Plan, gpus: int) -> float:
    """Return the checkpoints of the largest fleets that may train at the same time."""
    fleets = [
        member_bytes(x.config)["checkpoints"] * len(x.config.env) * len(x.config.seeds)
        for x in plan.fleets
    ]
    return sum(sorted(fleets)[-gpus * plan.slots :])


def storage(cells: list[RunConfig]) -> dict[str, float]:
    """Return the gigabytes of all runs."""
    each = [member_bytes(cell) for cell in cells]
    return {f"{name}_gb": SEEDS * sum(x[name] for x in each) / 1e9 for name in each[0]}


def main() -> None:
    """Simulate the grid and, with --out, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cells = paper_cells()
    costs = MeasuredCosts(speeds(cells), KIND)
    updates = sum(SEEDS * (x.steps - x.warmup) * x.utd for x in cells)
    facts = {
        "cells": len(cells),
        "runs": len(cells) * SEEDS,
        "agent_updates": updates,
        "rates": RATES,
        "update_us": {
            name: {str(m): rate.at(m) / m for m in (1, 5, 20)}
            for name, rate in update_rates().items()
        },
        "storage": storage(cells),
        "table": [result(cells, costs, gpus) for gpus in GPUS],
    }
    text = json.dumps(_rounded(facts), indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
