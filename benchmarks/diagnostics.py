"""Measure the cost of encoder diagnostics as a share of training at UTD 1.

    python benchmarks/diagnostics.py --out benchmarks/results/NAME.json

Every member is diagnosed once per 10,000 decision steps, which at UTD 1 are as many
updates. Only the time of updates is counted: acting and environments take time too, so
the real share is smaller. Calls of updates and diagnoses alternate, and each diagnosis
is compared with the updates just before it. The compile time, which occurs once per run,
is listed separately.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from full_fleets import make_fleet

from r2r2.bench.updates import BenchFleet
from r2r2.config.agents import agent_config
from r2r2.config.run import DiagnosticsConfig, RunConfig
from r2r2.diagnostics.latent_probe import LatentProbe
from r2r2.diagnostics.representation import diagnose
from r2r2.storage.versions import versions

AGENTS = ["td7+r2r2", "minphi+r2r2", "simbav2-spl+r2r2"]
INTERVAL = RunConfig.eval_every  # updates between two evaluations at UTD 1
PROBE = DiagnosticsConfig()


def time_diagnosis(fleet: BenchFleet, probe: LatentProbe) -> float:
    """Return the seconds of one diagnosis of every member, including values of first states."""
    states, data = jax.block_until_ready((fleet.states, fleet.data(fleet.scales)))
    obs = np.zeros((10, data.rows.obs.shape[-1]))
    start = time.perf_counter()
    for member in range(fleet.size):
        probe.diagnose(member, data, states, int(fleet.opened[member]))
        probe.values(member, states, obs)
    return time.perf_counter() - start


def time_host_part(latent: int) -> float:
    """Return the seconds that the host spends on one diagnosis."""
    z = np.random.default_rng(0).normal(size=(PROBE.probe_batch, latent)).astype(np.float32)
    start = time.perf_counter()
    diagnose(z, inputs=latent)
    return time.perf_counter() - start


def measure(name: str, members: int, args: argparse.Namespace) -> dict[str, object]:
    """Return one row of the table."""
    fleet = make_fleet(name, members, args)
    agent, weights = fleet.agent, agent_config(name).representation
    probe = LatentProbe(agent, weights, list(range(members)), PROBE)
    first = time_diagnosis(fleet, probe)
    updates = fleet.round_up(args.updates)
    fleet.seconds(updates)
    trained, diagnosed, host = [], [], []
    for _ in range(args.repeats):
        trained.append(fleet.seconds(updates))
        diagnosed.append(time_diagnosis(fleet, probe))
        host.append(time_host_part(agent_config(name).latent))
    intervals = INTERVAL / updates * np.array(trained)
    # Measured one after the other, because a busy machine slows both.
    percent = 100 * np.array(diagnosed) / intervals
    return {
        "agent": name,
        "members": members,
        "ms_per_diagnosis": round(1e3 * float(np.median(diagnosed)) / members, 2),
        "of_which_host_ms": round(1e3 * float(np.median(host)), 2),
        "stretch_s": round(float(np.median(intervals)), 2),
        "percent": round(float(np.median(percent)), 4),
        "most_percent": round(float(percent.max()), 4),
        "compiled_in_s": round(first - float(np.median(diagnosed)), 2),
    }


def main() -> None:
    """Run the benchmark and, with --out, write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=AGENTS)
    parser.add_argument("--members", nargs="+", type=int, default=[1])
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=30, help="per call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = []
    for members in args.members:
        for name in args.agents:
            table.append(measure(name, members, args))
            print(table[-1], flush=True)
    if args.out:
        arguments = {k: v for k, v in vars(args).items() if k != "out"}
        result = {"arguments": arguments, "versions": versions(), "table": table}
        result["device"] = jax.devices()[0].device_kind
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
