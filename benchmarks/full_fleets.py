"""Fleets with a full replay, for the benchmarks in this folder."""

import argparse

from r2r2.agents.registry import build_agent
from r2r2.bench.updates import BenchFleet, random_rows
from r2r2.compute.precision import DEFAULT_OPTIONS, ComputeOptions
from r2r2.config.agents import agent_config
from r2r2.config.common import TaskInfo
from r2r2.envs.spec import Spec


def make_fleet(
    name: str, members: int, args: argparse.Namespace, options: ComputeOptions = DEFAULT_OPTIONS
) -> BenchFleet:
    """Return a fleet whose replay is full of random rows, always the same ones."""
    config, spec = agent_config(name), Spec(args.obs, args.action)
    config = config.for_task(TaskInfo("Humanoid-v5", "gymnasium", lambda: 1000))
    agent = build_agent(config, spec, utd=1)
    fleet = BenchFleet(agent, spec, members, args.rows, options)
    fleet.set_replay(random_rows(spec, members, args.rows))
    return fleet
