"""A sweep of tiny fleets, and the same one carried out without any engine."""

import dataclasses
import subprocess
import sys

from r2r2.config.resolve import resolve
from r2r2.experiments.plan import Plan, PlannedFleet, fleet_name, write_plan
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.training.run_config import finalize_config

FIELDS = {
    **{"agent": "td7", "env": "Pendulum-v1", "steps": 3_000, "warmup": 100},
    **{"eval_every": 1_000, "eval_episodes": 1, "log_every": 1_000, "width": 16, "latent": 16},
    **{"batch_size": 16},
}


# Processes compile without optimization, and share what they have compiled.
VARIABLES = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


def store_plan(path, fleets=2, cores=1, **fields):
    """Store the plan of a sweep with fleets of one seed; return its folder and the plan."""
    config = finalize_config(resolve(FIELDS | fields))
    configs = [dataclasses.replace(config, seeds=(seed,)) for seed in range(fleets)]
    names = [fleet_name(config) for config in configs]
    planned = tuple(PlannedFleet(*pair) for pair in zip(names, configs, strict=True))
    folder, plan = SweepFolder(path, "tiny"), Plan("tiny", 1.0, cores, planned)
    write_plan(folder.plan_file, plan)
    return folder, plan


def train_directly(folder, plan):
    """Train every fleet of a plan to its end in its own process."""
    for fleet in plan.fleets:
        place = [str(folder.path), folder.name, fleet.name, "--device", "cpu"]
        command = [sys.executable, "-m", "r2r2.experiments.fleet_job", *place]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def results(folder, plan):
    """Return the evaluations and weights of all fleets, as bytes."""
    return {
        path.relative_to(folder.path / "runs").as_posix(): path.read_bytes()
        for fleet in plan.fleets
        for path in sorted(folder.run(fleet.name).rglob("*"))
        if path.name == "evaluations.csv" or path.name.endswith("weights.npz")
    }
