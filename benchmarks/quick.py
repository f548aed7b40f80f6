"""Measure the return and the time of the preset `--quick` for each seed.

    python benchmarks/quick.py --seeds 5 --out benchmarks/results/quick.json

Each seed is a separate run, started as by a new user: `r2r2 train` in a fresh
process, without a cache of compiled programs.
"""

import argparse
import json
import os
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
            start = time.perf_counter()
            subprocess.run(
                command,
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"XDG_CACHE_HOME": folder},
            )
            seconds = time.perf_counter() - start
            points = read_evaluations(Path(folder) / "run" / "evaluations.csv")
        row = {"seed": seed, "return": points[-1].value, "seconds": round(seconds, 1)}
        print(row, flush=True)
        table.append(row)
    passed = sum(row["return"] >= QUICK_TARGET for row in table)
    print(f"{passed} of {len(table)} seeds reach {QUICK_TARGET}")
    if args.out:
        result = {"cores": os.cpu_count(), "versions": versions(), "table": table}
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
