"""Time of one step of a fleet's environments in worker processes.

    python benchmarks/pool.py --out benchmarks/results/NAME.json

A step of the pool is done when its slowest member is. Beside it stand an environment's
own step, alone in this process, in blocks that alternate with the pool's on a machine
whose speed changes; and the slowest own step among those of the same turn, timed inside
the workers. Medians over random actions; resets fall into the pool's steps.
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

SHARE, ALLOWANCE = 1.3, 150.0  # of the environment's own step, and microseconds on top
BLOCK = 100  # steps


class Stopwatch(gymnasium.Wrapper):
    """Gives the microseconds of its own step as the reward."""

    def step(self, action: np.ndarray) -> tuple:
        """Steps, timed."""
        start = time.perf_counter()
        obs, _, terminated, truncated, info = self.env.step(action)
        spent = (time.perf_counter() - start) * 1e6
        return obs, spent, terminated, truncated, info


def source_of(task: str) -> Callable[[], gymnasium.Env]:
    """What builds a timed environment of a task."""
    if find_suite(task) == "dmc":
        return lambda: Stopwatch(DMCEnv(*split_dmc_task(task)))
    return lambda: Stopwatch(gymnasium.make(task, disable_env_checker=True))


class Alone:
    """One environment stepped in this process, as the pool's are."""

    def __init__(self, task: str, repeat: int):
        self._env = adapt_env(task, source_of(task)(), repeat)
        self._rng, self._episode, self.times = np.random.default_rng(0), 0, []
        self._env.reset(seed=episode_seed(0, "train", 0))

    def play(self, steps: int) -> None:
        """Takes so many steps, and notes their own times."""
        for _ in range(steps):
            action = self._rng.uniform(-1, 1, self._env.action_space.shape)
            _, spent, terminated, truncated, _ = self._env.step(action)
            self.times.append(spent)
            if terminated or truncated:
                self._episode += 1
                self._env.reset(seed=episode_seed(0, "train", self._episode))


def measure(task: str, given: argparse.Namespace) -> dict[str, float | str | bool]:
    """One row of the table."""
    repeat = default_action_repeat(task)
    members = [Member(task, seed) for seed in range(given.members)]
    factory = EnvFactory(task, repeat, source_of(task))
    places = [EnvSlot(member, factory, "training") for member in members]
    places += eval_slots(members, [factory] * len(members), episodes=10)  # as in a run
    alone, turns, slowest = Alone(task, repeat), [], []
    rng, slots = np.random.default_rng(0), range(len(members))
    with EnvPool(places, worker_count(None)) as pool:
        seeds = [episode_seed(m.seed, "train", 0) for m in members]
        pool.reset(slots, seeds)
        for _ in range(given.steps // BLOCK):
            alone.play(BLOCK)
            for _ in range(BLOCK):
                actions = rng.uniform(-1, 1, (len(members), pool.spec.action_dim))
                start = time.perf_counter()
                step = pool.step(StepRequest(slots, actions, seeds))
                turns.append((time.perf_counter() - start) * 1e6)
                slowest.append(step.reward.max())
    own, median = float(np.median(alone.times)), float(np.median(turns))
    together = float(np.median(slowest))
    return {
        "task": task,
        "members": given.members,
        "workers": worker_count(None),
        "own_us": round(own, 1),
        "slowest_of_turn_us": round(together, 1),
        "pool_us": round(median, 1),
        "pool_us_p95": round(float(np.quantile(turns, 0.95)), 1),
        "overhead_us": round(float(np.median(np.subtract(turns, slowest))), 1),
        "within_of_slowest": median <= SHARE * together + ALLOWANCE,
        "within_of_alone": median <= SHARE * own + ALLOWANCE,
    }


def main() -> None:
    """Runs the benchmark and, with --out, keeps its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["Hopper-v5", "dog-run"])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--commit", help="where the source is no checkout")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = [measure(task, given) for task in given.tasks]
    for row in table:
        print(row, flush=True)
    if given.out:
        made_with = versions() | ({"commit": given.commit} if given.commit else {})
        result = {"cores": available_cores(), "versions": made_with, "table": table}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
