"""Measure the return and the time of the preset `--quick` for each seed.

    python benchmarks/quick.py --seeds 5 --out benchmarks/results/quick.json

Each seed is a separate run, started as by a new user: `r2r2 train` in a fresh
process, without a cache of compiled programs. On a machine that also does other work, the
CPU seconds of its processes say more than the seconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from r2r2.config.resolve import QUICK_TARGET
from r2r2.storage.evaluations import read_evaluations
from r2r2.storage.versions import versions


def main() -> None:
    """Run the benchmark and, with --out, write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "r2r2", "train", "--quick"]
            command += ["--seeds", f"{seed},", "--out", f"{folder}/run"]
            start, cpu_start = time.perf_counter(), child_cpu_seconds()
            subprocess.run(
                command,
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"XDG_CACHE_HOME": folder},
            )
            seconds = time.perf_counter() - start
            points = read_evaluations(Path(folder) / "run" / "evaluations.csv")
        cpu_seconds = child_cpu_seconds() - cpu_start
        row = {"seed": seed, "return": points[-1].value, "seconds": round(seconds, 1)}
        row |= {"cpu_seconds": round(cpu_seconds, 1), "load": round(os.getloadavg()[0], 1)}
        print(row, flush=True)
        table.append(row)
    passed = sum(row["return"] >= QUICK_TARGET for row in table)
    print(f"{passed} of {len(table)} seeds reach {QUICK_TARGET}")
    if args.out:
        result = {"cores": os.cpu_count(), "versions": versions(), "table": table}
        args.out.write_text(json.dumps(result, indent=2) + "\n")


def child_cpu_seconds() -> float:
    """Return the CPU time of all processes that have been started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
