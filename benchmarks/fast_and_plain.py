"""Run the fast and the plain path of every agent on the same data; compare and time.

    python benchmarks/fast_and_plain.py --out benchmarks/results/NAME.json

For each agent and number of members, two fleets with the same seeds and replay make the
same updates, one by each path. The table has the largest relative difference of any
loss and of any array of networks and moments, and the time per update of one member.
In float32 differences are rounding errors, which grow with the updates; `--x64` shows
that the paths compute the same.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from r2r2.agents.registry import build_agent
from r2r2.bench.updates import BenchFleet, random_rows
from r2r2.compute.precision import ComputeOptions
from r2r2.config.agents import AGENTS, agent_config
from r2r2.config.common import TaskInfo
from r2r2.envs.spec import Spec
from r2r2.storage.versions import versions

QUICK = ["td7+r2r2", "minphi+r2r2", "simbav2-spl+r2r2"]
TASK = TaskInfo("Hopper-v5", "gymnasium", lambda: 1000)
SMALL = ("width", "model_width", "actor_width", "critic_width", "latent", "batch_size")


def make_fleets(name: str, members: int, args: argparse.Namespace) -> list[BenchFleet]:
    """Return a fleet for the fast path and one for the plain path."""
    config = agent_config(name).for_task(TASK)
    if args.tiny:
        fields = {field: 16 for field in SMALL if hasattr(config, field)}
        config = type(config)(**{**vars(config), **fields})
    spec, fleets = Spec(args.obs, args.action), []
    for fast in (True, False):
        options = ComputeOptions(fast, args.precision)
        agent = build_agent(config, spec, utd=1)
        fleet = BenchFleet(agent, spec, members, args.rows, options)
        fleet.set_replay(random_rows(spec, members, args.rows))
        fleets.append(fleet)
    return fleets


def compile_all(fleets: list[BenchFleet], updates: int) -> None:
    """Compile the programs of all fleets, several at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for program in [pool.submit(fleet.program, fleet.round_up(updates)) for fleet in fleets]:
            program.result()


def difference(fast: Any, plain: Any) -> float:
    """Return the largest difference of two trees, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(fast), jax.tree.leaves(plain), strict=True)
    arrays = [(np.asarray(x, float), np.asarray(y, float)) for x, y in pairs]
    return max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-12)) for x, y in arrays)


def compare(name: str, fleets: list[BenchFleet], args: argparse.Namespace) -> Any:
    """Return one row of the table."""
    fast, plain = fleets
    members, updates = fast.size, fast.round_up(args.updates)
    for fleet in fleets:
        fleet.seconds(updates)
    losses = [fleet.read_metrics() for fleet in fleets]
    losses = [{k: v for k, v in x.items() if k in losses[1]} for x in losses]
    states = jax.device_get([fleet.states for fleet in fleets])
    row = {
        "agent": name,
        "members": members,
        "updates": updates,
        "loss_difference": _short(difference(*losses)),
        "state_difference": _short(difference(*states)),
    }
    for path, fleet in (("fast", fast), ("plain", plain)):
        timed = fleet.round_up(args.timed_updates)
        seconds = min(fleet.seconds(timed) for _ in range(3))
        row[f"us_per_update_{path}"] = _short(1e6 * seconds / timed / members)
    print(json.dumps(row), flush=True)
    return row


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Compare all agents and, with --out, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", nargs="+", default=list(AGENTS))
    parser.add_argument("--quick", action="store_true", help=" ".join(QUICK))
    parser.add_argument("--members", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--obs", type=int, default=11, help="default: Hopper-v5's")
    parser.add_argument("--action", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="replay rows")
    parser.add_argument("--updates", type=int, default=20, help="to compare")
    parser.add_argument("--timed-updates", type=int, default=500)
    parser.add_argument("--precision", default="mixed", help="mixed, tf32 or float32")
    parser.add_argument("--x64", action="store_true", help="compute in float64")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, for a test")
    parser.add_argument("--commit", default="", help="if not in a git checkout")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", args.x64)
    names = QUICK if args.quick else args.agents
    start, table = time.perf_counter(), []
    cases = [(name, members) for members in args.members for name in names]
    fleets = [(name, make_fleets(name, members, args)) for name, members in cases]
    compile_all([fleet for _, pair in fleets for fleet in pair], args.updates)
    print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    while fleets:
        table.append(compare(*fleets.pop(0), args))
    print(f"done in {time.perf_counter() - start:.0f} s", flush=True)
    if args.out:
        known = versions() | ({"commit": args.commit} if args.commit else {})
        result = {
            "command": " ".join(["python", *sys.argv]),
            "versions": known,
            "device": jax.devices()[0].device_kind,
            "precision": "float64" if args.x64 else args.precision,
            "table": table,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
