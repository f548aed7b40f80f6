"""Which kernels a turn of the loop of updates launches on a GPU, and how long they run.

    python benchmarks/kernels.py --agent simbav2-spl+r2r2 --out NAME.json

One call is traced as training makes it, its graph whole: kernels that do not need each
other overlap, and take longer than they would alone. Of every kernel of the loop a
trace has one launch, in whichever turn that was, so the sum of them is that of a turn.
Left out are copies by the driver, which have no names, and the few kernels that run
before the first product and after the last.
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

# Without it a graph is taken apart to be traced.
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
    """All kernels of a call."""
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
    """Those of the loop of updates, the longest first.

    A kernel of the same text may be part of what comes before and after, where weights
    are turned; there are no products there.
    """
    known = {PRODUCTS, OWN}  # libraries call theirs as they like
    own = [x for x in kernels if x.name in names or family(x.name) in known]
    starts = [x.start for x in own if family(x.name) == PRODUCTS]
    inside = (x for x in own if min(starts) <= x.start <= max(starts))
    return sorted(inside, key=lambda x: x.us, reverse=True)


def family(name: str) -> str:
    """What a kernel does, by its name."""
    marks = FAMILIES.items()
    return next((x for x, parts in marks if any(p in name for p in parts)), OTHERS)


def summary(kernels: list[Kernel]) -> dict[str, Any]:
    """Every family's kernels, and their time one after the other."""
    launches, times = Counter[str](), Counter[str]()
    for kernel in kernels:
        launches[family(kernel.name)] += 1
        times[family(kernel.name)] += kernel.us
    return {
        name: {"kernels": launches[name], "us": round(us, 1)}
        for name, us in times.most_common()
    }


def main() -> None:
    """Traces a fleet and, with --out, keeps every kernel of a turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="simbav2-spl+r2r2")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--updates", type=int, default=64)
    parser.add_argument("--obs", type=int, default=348, help="Humanoid-v5's")
    parser.add_argument("--action", type=int, default=17)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    if jax.default_backend() != "gpu":
        parser.error("there is no GPU: a CPU launches no kernels")
    fleet = make_fleet(given.agent, given.members, given)
    updates = fleet.round_up(given.updates)
    fleet.seconds(updates)
    names = kernel_names(fleet.program(updates).as_text())
    turn = of_the_loop(traced(fleet, updates), names)
    found = {
        "agent": given.agent,
        "members": given.members,
        "updates_per_turn": fleet.update_period,
        "families": summary(turn),
    }
    print(json.dumps(found, indent=1))
    if given.out:
        each = [(round(kernel.us, 2), kernel.name) for kernel in turn]
        kept = {"versions": versions(), **found, "kernels": each}
        given.out.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
