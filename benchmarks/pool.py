"""Measure the time of a pool step of a fleet's environments in worker processes.

    python benchmarks/pool.py --out benchmarks/results/NAME.json

A pool step takes as long as its slowest environment. It is compared with the step of a
single environment in this process, measured in alternating blocks because the speed of
the machine varies, and with the slowest environment of the same pool step, timed inside
the workers. The figures are medians over random actions; pool steps include resets.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

from r2r2.envs.dm_control import DMCEnv
from r2r2.envs.make import adapt_env, episode_seed
from r2r2.envs.spec import Member
from r2r2.envs.suites import default_action_repeat, find_suite, split_dmc_task
from r2r2.envs.vector.pool import EnvPool, available_cores, worker_count
from r2r2.envs.vector.step_types import EnvFactory, EnvSlot, StepRequest
from r2r2.storage.versions import versions
from r2r2.training.evaluation import eval_slots

MAX_RATIO, MAX_OVERHEAD = 1.3, 150.0  # of the environment step; microseconds
BLOCK = 100  # steps


class Stopwatch(gymnasium.Wrapper):
    """Returns the duration of each step in microseconds as the reward."""

    def step(self, action: np.ndarray) -> tuple:
        """Step and measure the time."""
        start = time.perf_counter()
        obs, _, terminated, truncated, info = self.env.step(action)
        duration = (time.perf_counter() - start) * 1e6
        return obs, duration, terminated, truncated, info


def timed_env_builder(task: str) -> Callable[[], gymnasium.Env]:
    """Return a function that builds a timed environment."""
    if find_suite(task) == "dmc":
        return lambda: Stopwatch(DMCEnv(*split_dmc_task(task)))
    return lambda: Stopwatch(gymnasium.make(task, disable_env_checker=True))


class SingleEnv:
    """One environment stepped in this process."""

    def __init__(self, task: str, repeat: int):
        self._env = adapt_env(task, timed_env_builder(task)(), repeat)
        self._rng, self._episode, self.durations = np.random.default_rng(0), 0, []
        self._env.reset(seed=episode_seed(0, "train", 0))

    def play(self, steps: int) -> None:
        """Take some steps and record their durations."""
        for _ in range(steps):
            action = self._rng.uniform(-1, 1, self._env.action_space.shape)
            _, duration, terminated, truncated, _ = self._env.step(action)
            self.durations.append(duration)
            if terminated or truncated:
                self._episode += 1
                self._env.reset(seed=episode_seed(0, "train", self._episode))


def measure(task: str, options: argparse.Namespace) -> dict[str, float | str | bool]:
    """Return one row of the table."""
    repeat = default_action_repeat(task)
    members = [Member(task, seed) for seed in range(options.members)]
    factory = EnvFactory(task, repeat, timed_env_builder(task))
    env_slots = [EnvSlot(member, factory, "training") for member in members]
    env_slots += eval_slots(members, [factory] * len(members), episodes=10)  # as in a run
    single, pool_times, slowest = SingleEnv(task, repeat), [], []
    rng, slots = np.random.default_rng(0), range(len(members))
    with EnvPool(env_slots, worker_count(None)) as pool:
        seeds = [episode_seed(m.seed, "train", 0) for m in members]
        pool.reset(slots, seeds)
        for _ in range(options.steps // BLOCK):
            single.play(BLOCK)
            for _ in range(BLOCK):
                actions = rng.uniform(-1, 1, (len(members), pool.spec.action_dim))
                start = time.perf_counter()
                step = pool.step(StepRequest(slots, actions, seeds))
                pool_times.append((time.perf_counter() - start) * 1e6)
                slowest.append(step.reward.max())
    single_time = float(np.median(single.durations))
    median, slowest_time = float(np.median(pool_times)), float(np.median(slowest))
    return {
        "task": task,
        "members": options.members,
        "workers": worker_count(None),
        "own_us": round(single_time, 1),
        "slowest_of_turn_us": round(slowest_time, 1),
        "pool_us": round(median, 1),
        "pool_us_p95": round(float(np.quantile(pool_times, 0.95)), 1),
        "overhead_us": round(float(np.median(np.subtract(pool_times, slowest))), 1),
        "within_of_slowest": median <= MAX_RATIO * slowest_time + MAX_OVERHEAD,
        "within_of_alone": median <= MAX_RATIO * single_time + MAX_OVERHEAD,
    }


def main() -> None:
    """Run the benchmark and write its table with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["Hopper-v5", "dog-run"])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--commit", help="commit to record when not in a git checkout")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = [measure(task, options) for task in options.tasks]
    for row in table:
        print(row, flush=True)
    if options.out:
        commit = {"commit": options.commit} if options.commit else {}
        result = {"cores": available_cores(), "versions": versions() | commit, "table": table}
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
