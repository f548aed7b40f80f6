"""Which kernels an update of a fleet is made of on a GPU, and when each of them runs.

    python benchmarks/kernels.py --agent simbav2-spl+r2r2 --out NAME.json

One call is traced as training makes it, its graph whole: kernels that do not need each
other overlap. Of every kernel of the loop a trace has one launch, in whichever turn
that was; starts are counted from the beginning of their turn, whose length is that of
the whole loop over its turns. Tracing itself makes a turn some per cent longer.
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

from r2r2.record.versions import versions

# Without it a graph is taken apart to be traced.
FLAG = "--xla_enable_command_buffers_during_profiling=true"
MARK = "set_while_condition"  # the kernel that ends every turn of a loop
FAMILIES = {
    "products": ("gemm", "nvjet", "cutlass", "splitK"),
    "steps of our own": ("unit_step",),
    "norms and softmax": ("softmax",),
    "copies": ("copy", "memcpy", "Memcpy", "slice", "transpose", "pad", "concatenate"),
    "sums": ("reduce",),
}
OTHERS = "the rest"


class Kernel(NamedTuple):
    """One launch; times are us."""

    start: float
    duration: float
    name: str


def traced(fleet: Any, updates: int) -> list[Kernel]:
    """All kernels of a call, in the order of their starts."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            fleet.seconds(updates)
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(ProfileData.from_file(str(file)).planes)
    return sorted(
        Kernel(event.start_ns / 1e3, event.duration_ns / 1e3, event.name)
        for plane in planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    )


def one_turn(kernels: list[Kernel], turns: int) -> tuple[float, list[Kernel]]:
    """The length of a turn of the loop, and its kernels from its beginning on."""
    marks = [n for n, kernel in enumerate(kernels) if kernel.name == MARK]
    body = kernels[marks[0] + 1 : marks[-1] + 1]
    first, last = body[0].start, body[-1].start + body[-1].duration
    length = (last - first) / turns
    return length, sorted(x._replace(start=(x.start - first) % length) for x in body)


def family(name: str) -> str:
    """What a kernel does, by its name."""
    marks = FAMILIES.items()
    return next((x for x, parts in marks if any(p in name for p in parts)), OTHERS)


def summary(kernels: list[Kernel]) -> dict[str, Any]:
    """Every family's kernels, and their time one after the other."""
    launches, times = Counter[str](), Counter[str]()
    for kernel in kernels:
        launches[family(kernel.name)] += 1
        times[family(kernel.name)] += kernel.duration
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
    updates = fleet.whole_phases(given.updates)
    fleet.seconds(updates)
    length, turn = one_turn(traced(fleet, updates), updates // fleet.phase)
    found = {
        "agent": given.agent,
        "members": given.members,
        "updates_per_turn": fleet.phase,
        "turn_us": round(length, 1),
        "families": summary(turn),
    }
    print(json.dumps(found, indent=1))
    if given.out:
        rows = [(round(x.start, 2), round(x.duration, 2), x.name) for x in turn]
        kept = {"versions": versions(), **found, "timeline": rows}
        given.out.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
