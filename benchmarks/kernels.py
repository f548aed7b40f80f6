"""List the kernels of one turn of the update loop on a GPU, and their run times.

    python benchmarks/kernels.py --agent simbav2-spl+r2r2 --out NAME.json

One call is traced as training makes it, as one graph: independent kernels overlap and
take longer than alone. A trace has one launch of every kernel of the loop, from any of
its turns, so their sum is that of a turn. Not included are copies by the driver, which
have no names, and the few kernels before the first product and after the last.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
from full_fleets import make_fleet
from jax.profiler import ProfileData

from r2r2.bench.program_cost import kernel_names
from r2r2.storage.versions import versions

# Without this flag the profiler splits graphs.
FLAG = "--xla_enable_command_buffers_during_profiling=true"
PRODUCTS, OWN, OTHERS = "products", "steps of our own", "the rest"
FAMILIES = {
    PRODUCTS: ("gemm", "nvjet", "cutlass", "splitK"),
    OWN: ("unit_step",),
    "norms and softmax": ("softmax",),
    "sums": ("reduce",),
    "copies": ("copy", "slice", "transpose", "pad", "concatenate"),
}


class Kernel(NamedTuple):
    """One launch; times are us."""

    start: float
    us: float
    name: str


def traced(fleet: Any, updates: int) -> list[Kernel]:
    """Return all kernels of a call."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            fleet.seconds(updates)
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(ProfileData.from_file(str(file)).planes)
    return [
        Kernel(event.start_ns / 1e3, event.duration_ns / 1e3, event.name)
        for plane in planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def of_the_loop(kernels: list[Kernel], names: set[str]) -> list[Kernel]:
    """Return the kernels of the update loop, the longest first.

    Kernels of the same name may run before and after the loop, where weights are
    transposed; there are no products there.
    """
    known = {PRODUCTS, OWN}  # whose names come from libraries
    loop = [x for x in kernels if x.name in names or family(x.name) in known]
    starts = [x.start for x in loop if family(x.name) == PRODUCTS]
    inside = (x for x in loop if min(starts) <= x.start <= max(starts))
    return sorted(inside, key=lambda x: x.us, reverse=True)


def family(name: str) -> str:
    """Return what a kernel does, by its name."""
    marks = FAMILIES.items()
    return next((x for x, parts in marks if any(p in name for p in parts)), OTHERS)


def summary(kernels: list[Kernel]) -> dict[str, Any]:
    """Return the number of kernels of every family, and their total time."""
    launches, times = Counter[str](), Counter[str]()
    for kernel in kernels:
        launches[family(kernel.name)] += 1
        times[family(kernel.name)] += kernel.us
    return {
        name: {"kernels": launches[name], "us": round(us, 1)} for name, us in times.most_common()
    }


def main() -> None:
    """Trace a fleet and, with --out, write every kernel of a turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="simbav2-spl+r2r2")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--updates", type=int, default=64)
    parser.add_argument("--obs", type=int, default=348, help="default: Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    if jax.default_backend() != "gpu":
        parser.error("this benchmark needs a GPU")
    fleet = make_fleet(args.agent, args.members, args)
    updates = fleet.round_up(args.updates)
    fleet.seconds(updates)
    names = kernel_names(fleet.program(updates).as_text())
    turn = of_the_loop(traced(fleet, updates), names)
    result = {
        "agent": args.agent,
        "members": args.members,
        "updates_per_turn": fleet.update_period,
        "families": summary(turn),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        each = [(round(kernel.us, 2), kernel.name) for kernel in turn]
        kept = {"versions": versions(), **result, "kernels": each}
        args.out.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
