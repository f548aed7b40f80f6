"""Measure how precision and compilation change the numbers of training.

    python benchmarks/precision.py --out benchmarks/results/NAME.json

Losses: the same members make the same updates on the same rows twice, in the precision
of training (on an H200: TF32, and float16 operands in SimbaV2) and in full float32. For
comparison, the difference between members, which differ only in their seeds.

States: a few updates in float64, to which TF32 and float16 do not apply, by the fast
path, by the plain path and on a CPU. Only the order of sums differs, so the three must
agree to many digits; a GPU graph in which dependent kernels overlap would not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from full_fleets import make_fleet

from r2r2.compute.precision import ComputeOptions
from r2r2.storage.versions import versions

POINTS = 20  # of a curve
DOUBLE = "--double"  # the second process, on a CPU


def curves(name: str, precision: str, args: argparse.Namespace) -> Any:
    """Return mean losses of every member over parts of the run, [points, members]."""
    options, points = ComputeOptions(precision=precision), []
    fleet = make_fleet(name, args.members, args, options)
    updates = fleet.round_up(args.updates // POINTS)
    for _ in range(POINTS):
        fleet.seconds(updates)
        points.append(fleet.read_metrics())
    losses = [metric for metric in points[0] if metric.startswith("loss/")]
    return {metric: np.stack([x[metric] for x in points]) for metric in losses}


def compare_losses(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return differences of losses, relative to their mean absolute value."""
    fast, full = (curves(name, x, args) for x in ("mixed", "float32"))
    table = []
    for metric, exact in full.items():
        size = np.abs(exact).mean()
        between = np.abs(exact - np.roll(exact, 1, axis=1)).mean(axis=1) / size
        error = np.abs(fast[metric] - exact).mean(axis=1) / size
        row = {
            "agent": name,
            "loss": metric,
            "of_precision_first": error[0],
            "of_precision_mean": error.mean(),
            "of_precision_last": error[-1],
            "of_seed_mean": between.mean(),
            "of_seed_last": between[-1],
            "mean_last_fast": fast[metric][-1].mean(),
            "mean_last_float32": exact[-1].mean(),
        }
        table.append({k: _short(v) for k, v in row.items()})
        print(table[-1], flush=True)
    return table


def _short(value: Any) -> Any:
    return value if isinstance(value, str) else float(f"{value:.4g}")


def double_state(name: str, args: argparse.Namespace, fast: bool = True) -> list[np.ndarray]:
    """Return all networks and moments after a few updates in float64."""
    fleet = make_fleet(name, args.members, args, ComputeOptions(fast))
    fleet.seconds(fleet.round_up(args.double_updates))
    leaves = jax.tree.leaves(jax.device_get(fleet.states))
    return [np.asarray(leaf) for leaf in leaves]


def difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Return the largest difference in any array, relative to its largest entry."""
    return max(
        float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-12))
        for x, y in zip(first, second, strict=True)
    )


def compare_states(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return differences of the programs in float64."""
    fast, plain = (double_state(name, args, path) for path in (True, False))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cpu.npz"
        command = [sys.executable, __file__, DOUBLE, str(file), "--agents", name]
        for field in ("members", "obs", "action", "rows", "double_updates"):
            option = f"--{field.replace('_', '-')}"
            command += [option, str(getattr(args, field))]
        subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)
        with np.load(file) as saved:
            on_cpu = [saved[key] for key in saved.files]
    row = {
        "agent": name,
        "as_jax_compiles_it": _short(difference(fast, plain)),
        "on_a_cpu": _short(difference(fast, on_cpu)),
    }
    print(row, flush=True)
    return row


def main() -> None:
    """Run the benchmark and, with --out, write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["td7+r2r2"])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--obs", type=int, default=348, help="default: Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--double-updates", type=int, default=20, help="0: skip the states")
    parser.add_argument("--commit", default="", help="if not in a git checkout")
    parser.add_argument("--out", type=Path)
    parser.add_argument(DOUBLE, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.double:
        jax.config.update("jax_enable_x64", True)
        np.savez(args.double, *double_state(args.agents[0], args))
        return
    losses = [row for name in args.agents for row in compare_losses(name, args)]
    jax.config.update("jax_enable_x64", True)
    jax.clear_caches()
    states = [compare_states(name, args) for name in args.agents if args.double_updates]
    if args.out:
        known = versions() | ({"commit": args.commit} if args.commit else {})
        result: dict[str, Any] = {
            "command": " ".join(["python", *sys.argv]),
            "versions": known,
            "device": jax.devices()[0].device_kind,
            "losses": losses,
            "float64_states": states,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
