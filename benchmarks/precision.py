"""What fast products and one graph of kernels do to the numbers of training.

    python benchmarks/precision.py --out benchmarks/results/NAME.json

Losses: the same members make the same updates on the same rows twice, with the
products of training (on an H200: TF32, and SimbaV2's float16 operands) and with full
float32. Beside their difference stands that between members, who differ in seed alone.

States: a few updates in float64, in which TF32 and float16 have no part, as training
compiles them, as JAX would without our options, and on a CPU. What differs is the order
of sums, so the three must agree to many digits; a graph that let two kernels overlap
which need each other would not.
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

from r2r2.compute import compiled as programs
from r2r2.storage.versions import versions

POINTS = 20  # of a curve
DOUBLE = "--double"  # the second process, on a CPU


def curves(name: str, precision: str | None, given: argparse.Namespace) -> Any:
    """Mean losses of every member over stretches of updates, [points, members]."""
    with jax.default_matmul_precision(precision):
        fleet, found = make_fleet(name, given.members, given), []
        each = fleet.round_up(given.updates // POINTS)
        for _ in range(POINTS):
            fleet.seconds(each)
            found.append(fleet.read_metrics())
    losses = [metric for metric in found[0] if metric.startswith("loss/")]
    return {metric: np.stack([x[metric] for x in found]) for metric in losses}


def compared(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """How far losses are apart, relative to their size."""
    fast, full = (curves(name, x, given) for x in (None, "highest"))
    table = []
    for metric, exact in full.items():
        size = np.abs(exact).mean()
        between = np.abs(exact - np.roll(exact, 1, axis=1)).mean(axis=1) / size
        apart = np.abs(fast[metric] - exact).mean(axis=1) / size
        row = {
            "agent": name,
            "loss": metric,
            "of_precision_first": apart[0],
            "of_precision_mean": apart.mean(),
            "of_precision_last": apart[-1],
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


def double_state(name: str, given: argparse.Namespace) -> list[np.ndarray]:
    """All networks and moments after a few updates in float64."""
    fleet = make_fleet(name, given.members, given)
    fleet.seconds(fleet.round_up(given.double_updates))
    leaves = jax.tree.leaves(jax.device_get(fleet.states))
    return [np.asarray(leaf) for leaf in leaves]


def apart(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference in any array, relative to its largest entry."""
    return max(
        float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-12))
        for x, y in zip(ours, theirs, strict=True)
    )


def exact(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """How far the compiled programs are apart in float64."""
    trained = double_state(name, given)
    own, programs.compiled = programs.compiled, lambda lowered, _: lowered.compile()
    plain = double_state(name, given)
    programs.compiled = own
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cpu.npz"
        command = [sys.executable, __file__, DOUBLE, str(file), "--agents", name]
        for field in ("members", "obs", "action", "rows", "double_updates"):
            option = f"--{field.replace('_', '-')}"
            command += [option, str(getattr(given, field))]
        subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)
        with np.load(file) as saved:
            on_cpu = [saved[key] for key in saved.files]
    row = {
        "agent": name,
        "as_jax_compiles_it": _short(apart(trained, plain)),
        "on_a_cpu": _short(apart(trained, on_cpu)),
    }
    print(row, flush=True)
    return row


def main() -> None:
    """Runs the benchmark and, with --out, keeps its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["td7+r2r2"])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--double-updates", type=int, default=20, help="0: no states")
    parser.add_argument("--commit", default="", help="where no checkout says it")
    parser.add_argument("--out", type=Path)
    parser.add_argument(DOUBLE, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.double:
        jax.config.update("jax_enable_x64", True)
        np.savez(given.double, *double_state(given.agents[0], given))
        return
    losses = [row for name in given.agents for row in compared(name, given)]
    jax.config.update("jax_enable_x64", True)
    jax.clear_caches()
    states = [exact(name, given) for name in given.agents if given.double_updates]
    if given.out:
        known = versions() | ({"commit": given.commit} if given.commit else {})
        result: dict[str, Any] = {
            "command": " ".join(["python", *sys.argv]),
            "versions": known,
            "device": jax.devices()[0].device_kind,
            "losses": losses,
            "float64_states": states,
        }
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
