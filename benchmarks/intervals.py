"""Measure the time of an interval: 50,000 resamples of 11 tasks with 5 runs each.

    python benchmarks/intervals.py --out benchmarks/results/intervals_2cores.json

Reports the minimum of several repeats for every statistic and both kinds of resampling,
and the peak memory, which must not grow with the number of resamples.
"""

import argparse
import functools
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

import r2r2
from r2r2.stats.bootstrap import SAMPLES
from r2r2.storage.versions import versions

LIMIT = 2.0  # seconds
THRESHOLDS = np.linspace(0, 2, 101)


def cases(rng: np.random.Generator) -> dict[str, Callable[[], object]]:
    """Return the functions to time, by name."""
    scores = rng.normal(1, 0.3, (5, 11))
    profile = functools.partial(r2r2.performance_profile, thresholds=THRESHOLDS)
    single = {
        "mean": r2r2.mean_score,
        "median": r2r2.median_score,
        "iqm": r2r2.iqm,
        "optimality gap": r2r2.optimality_gap,
        "profile of 101 thresholds": profile,
    }
    timed: dict[str, Callable[[], object]] = {
        f"{name}, {way}": functools.partial(r2r2.interval, statistic, scores, rng, way)
        for name, statistic in single.items()
        for way in ("stratified", "pooled")
        if (name, way) != ("median", "pooled")
    }
    timed["probability of improvement"] = functools.partial(
        r2r2.comparison_interval, r2r2.probability_of_improvement, scores + 0.1, scores, rng
    )
    return timed


def main() -> None:
    """Run the benchmark and, with --out, write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = []
    for name, case in cases(np.random.default_rng(0)).items():
        seconds = []
        for _ in range(args.tries):
            start = time.perf_counter()
            case()
            seconds.append(time.perf_counter() - start)
        tracemalloc.start()
        case()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        row = {"case": name, "seconds": round(min(seconds), 3), "peak_mib": round(peak / 2**20)}
        print(row, flush=True)
        table.append(row)
    slowest = max(row["seconds"] for row in table)
    print(f"slowest {slowest} s, limit {LIMIT} s")
    if args.out:
        result = {
            "cores": os.cpu_count(),
            "samples": SAMPLES,
            "versions": versions(),
            "table": table,
        }
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
