"""Time of one step of a fleet's environments in worker processes.

    python benchmarks/pool.py --out benchmarks/results/NAME.json

A step of the pool is done when its slowest member is. Beside it stands the slowest
environment's own step, alone in this process: members one after the other, in the same
run. Medians, random actions; the pool's steps include the resets that fall into them.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from r2r2.envs.make import episode_seed, make_env
from r2r2.envs.members import Member
from r2r2.envs.pool import EnvPool, Place, Turn, cores, crew_size
from r2r2.envs.suites import default_action_repeat
from r2r2.envs.troupe import Recipe
from r2r2.record.versions import versions

SHARE, ALLOWANCE = 1.3, 150.0  # of the environment's own step, and microseconds on top


def own_step(member: Member, repeat: int, steps: int) -> float:
    """Median microseconds of a member's environment, without resets."""
    env = make_env(member.task, repeat)
    rng, times, index = np.random.default_rng(member.seed), [], 0
    env.reset(seed=episode_seed(member.seed, "train", index))
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape)
        start = time.perf_counter()
        *_, terminated, truncated, _ = env.step(action)
        times.append(time.perf_counter() - start)
        if terminated or truncated:
            index += 1
            env.reset(seed=episode_seed(member.seed, "train", index))
    env.close()
    return float(np.median(times)) * 1e6


def pool_steps(members: list[Member], repeat: int, steps: int, workers: int) -> list:
    """Microseconds of every step of all members."""
    places = [Place(m, Recipe(m.task, repeat), "training") for m in members]
    rng, times, slots = np.random.default_rng(0), [], range(len(members))
    with EnvPool(places, workers) as pool:
        seeds = [episode_seed(m.seed, "train", 0) for m in members]
        pool.reset(slots, seeds)
        for _ in range(steps):
            actions = rng.uniform(-1, 1, (len(members), pool.spec.action_dim))
            start = time.perf_counter()
            pool.step(Turn(slots, actions, seeds))
            times.append((time.perf_counter() - start) * 1e6)
    return times


def measure(task: str, given: argparse.Namespace) -> dict[str, float | str | bool]:
    """One row of the table."""
    repeat = default_action_repeat(task)
    members = [Member(task, seed) for seed in range(given.members)]
    own = max(own_step(member, repeat, given.steps // 4) for member in members)
    workers = crew_size(None)
    times = pool_steps(members, repeat, given.steps, workers)
    here = pool_steps(members, repeat, given.steps // 10, 0)
    allowed = SHARE * own + ALLOWANCE
    median = float(np.median(times))
    return {
        "task": task,
        "members": given.members,
        "workers": min(workers, given.members),
        "own_us": round(own, 1),
        "pool_us": round(median, 1),
        "pool_us_p95": round(float(np.quantile(times, 0.95)), 1),
        "in_process_us": round(float(np.median(here)), 1),
        "allowed_us": round(allowed, 1),
        "within": median <= allowed,
    }


def main() -> None:
    """Runs the benchmark and, with --out, keeps its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["Hopper-v5", "dog-run"])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--commit", help="where there is no git")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = [measure(task, given) for task in given.tasks]
    for row in table:
        print(row, flush=True)
    if given.out:
        kind = versions() | ({"commit": given.commit} if given.commit else {})
        result = {"cores": cores(), "versions": kind, "table": table}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
