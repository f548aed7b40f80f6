"""What diagnosing an encoder costs, as a part of training at UTD 1.

    python benchmarks/diagnostics.py --out benchmarks/results/NAME.json

Every member is diagnosed once per 10,000 decision steps, which at UTD 1 are as many
updates. Their time is all that training is charged with here: acting and environments
come on top, so the real part is smaller. Calls of updates and diagnoses take turns, and
each diagnosis is set against the updates just before it. Compiling, once in a run, is
apart.
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
from r2r2.config.run import RunConfig
from r2r2.diagnostics.latent_probe import BATCH, LatentProbe
from r2r2.diagnostics.representation import diagnose
from r2r2.storage.versions import versions

AGENTS = ["td7+r2r2", "minphi+r2r2", "simbav2-spl+r2r2"]
STRETCH = RunConfig.eval_every  # updates between two evaluations at UTD 1


def looked_into(fleet: BenchFleet, examiner: LatentProbe) -> float:
    """Seconds of one diagnosis of every member, first states' values included."""
    states, data = jax.block_until_ready((fleet.states, fleet.data(fleet.scales)))
    obs = np.zeros((10, data.rows.obs.shape[-1]))
    start = time.perf_counter()
    for member in range(fleet.size):
        examiner.diagnose(member, data, states, int(fleet.opened[member]))
        examiner.values(member, states, obs)
    return time.perf_counter() - start


def host_part(latent: int) -> float:
    """Seconds of what the host does of one diagnosis."""
    z = np.random.default_rng(0).normal(size=(BATCH, latent)).astype(np.float32)
    start = time.perf_counter()
    diagnose(z, inputs=latent)
    return time.perf_counter() - start


def measured(name: str, members: int, given: argparse.Namespace) -> dict[str, object]:
    """One row of the table."""
    fleet = make_fleet(name, members, given)
    agent, weights = fleet.agent, agent_config(name).representation
    examiner = LatentProbe(agent, weights, list(range(members)))
    first = looked_into(fleet, examiner)
    updates = fleet.round_up(given.updates)
    fleet.seconds(updates)
    trained, looked, host = [], [], []
    for _ in range(given.repeats):
        trained.append(fleet.seconds(updates))
        looked.append(looked_into(fleet, examiner))
        host.append(host_part(agent_config(name).latent))
    stretches = STRETCH / updates * np.array(trained)
    # Of neighbours in time: a machine that is busy slows both.
    percent = 100 * np.array(looked) / stretches
    return {
        "agent": name,
        "members": members,
        "ms_per_diagnosis": round(1e3 * float(np.median(looked)) / members, 2),
        "of_which_host_ms": round(1e3 * float(np.median(host)), 2),
        "stretch_s": round(float(np.median(stretches)), 2),
        "percent": round(float(np.median(percent)), 4),
        "most_percent": round(float(percent.max()), 4),
        "compiled_in_s": round(first - float(np.median(looked)), 2),
    }


def main() -> None:
    """Runs the benchmark and, with --out, keeps its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=AGENTS)
    parser.add_argument("--members", nargs="+", type=int, default=[1])
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=30, help="per call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = []
    for members in given.members:
        for name in given.agents:
            table.append(measured(name, members, given))
            print(table[-1], flush=True)
    if given.out:
        arguments = {k: v for k, v in vars(given).items() if k != "out"}
        result = {"arguments": arguments, "versions": versions(), "table": table}
        result["device"] = jax.devices()[0].device_kind
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
