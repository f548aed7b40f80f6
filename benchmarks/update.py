"""Time per agent-update of a fleet, on whatever device JAX finds.

    python benchmarks/update.py --members 1 5 20 --out benchmarks/results/NAME.json

Agents are interleaved and repeated, so their ratio holds on a noisy machine; the first
call of each, which compiles, is reported apart.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import jax
import numpy as np

from r2r2.config.agents import agent_config
from r2r2.config.simbav2 import SimbaV2Config
from r2r2.envs.members import Spec
from r2r2.interact.normalise import Scales
from r2r2.interact.rollout import Seen
from r2r2.learn.agents.make import make_agent
from r2r2.learn.bursts import Call
from r2r2.learn.fleet import Fleet
from r2r2.learn.update import Lengths
from r2r2.record.versions import versions


def make_fleet(agent: str, members: int, given: argparse.Namespace) -> Fleet:
    """A fleet whose replay holds a thousand random steps."""
    config = agent_config(agent)
    if given.width:
        config = dataclasses.replace(config, width=given.width, latent=given.width)
    if isinstance(config, SimbaV2Config):  # what a task decides, as Humanoid-v5 does
        config = dataclasses.replace(config, critics=2, discount=0.99)
    spec = Spec(given.obs, given.action)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(members, spec.obs_dim))
    agent, lengths = make_agent(config, spec, utd=1), Lengths(given.rows, 10**6)
    fleet = Fleet(agent, spec, range(members), lengths, apart=True)
    fleet.begin(obs)
    for step in range(1_000):
        obs = rng.normal(size=(members, spec.obs_dim))
        action = rng.uniform(-1, 1, (members, spec.action_dim))
        over = np.full(members, step % 100 == 99)
        reward, never = rng.normal(size=members), np.zeros(members, dtype=bool)
        fleet.add(range(members), Seen(action, reward, over, over, obs, obs, never))
    return fleet


def timed(fleet: Fleet, made: int, count: int, scales: Scales | None = None) -> float:
    """Seconds of one call of `count` updates, waited for."""
    call = Call(tuple(range(fleet.size)), count)
    jax.block_until_ready(fleet.states)
    start = time.perf_counter()
    fleet.train(call, np.full(fleet.size, made), scales)
    jax.block_until_ready(fleet.states)
    return time.perf_counter() - start


def main() -> None:
    """Runs the benchmark and, with --out, keeps its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["td7", "td7+r2r2"])
    parser.add_argument("--members", nargs="+", type=int, default=[1, 5, 20])
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--width", type=int, help="the agent's own by default")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=500, help="per call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", help="where the source is no checkout")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = []
    for members in given.members:
        fleets = {agent: make_fleet(agent, members, given) for agent in given.agents}
        first = {agent: timed(fleets[agent], 0, 2) for agent in fleets}
        times: dict[str, list[float]] = {agent: [] for agent in fleets}
        for repeat in range(given.repeats):
            for agent, fleet in fleets.items():
                made = 2 + repeat * given.updates
                times[agent].append(timed(fleet, made, given.updates))
        for agent, seconds in times.items():
            each = 1e6 * np.array(seconds) / given.updates / members
            row = {
                "agent": agent,
                "members": members,
                "us_per_agent_update": round(float(np.median(each)), 1),
                "lowest": round(float(each.min()), 1),
                "highest": round(float(each.max()), 1),
                "first_call_s": round(first[agent], 1),
            }
            print(row, flush=True)
            table.append(row)
    if given.out:
        arguments = {k: v for k, v in vars(given).items() if k not in ("out", "commit")}
        made_with = versions() | ({"commit": given.commit} if given.commit else {})
        result = {"arguments": arguments, "versions": made_with, "table": table}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
