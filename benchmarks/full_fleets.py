"""Fleets that are ready to be timed, for the benchmarks beside this file."""

import argparse

from r2r2.agents.registry import make_agent
from r2r2.bench.updates import BenchFleet, random_rows
from r2r2.config.agents import agent_config
from r2r2.config.common import TaskInfo
from r2r2.envs.spec import Spec


def make_fleet(name: str, members: int, given: argparse.Namespace) -> BenchFleet:
    """A fleet whose replay is full of random rows; the same one every time."""
    config, spec = agent_config(name), Spec(given.obs, given.action)
    config = config.for_task(TaskInfo("Humanoid-v5", "gymnasium", lambda: 1000))
    fleet = BenchFleet(make_agent(config, spec, utd=1), spec, members, given.rows)
    fleet.set_replay(random_rows(spec, members, given.rows))
    return fleet
