"""Compare the learning curves of one agent in two precisions.

Train both on a GPU, with the same seeds and the length of the published run, so that
the learning-rate schedule is the published one; the first 100,000 environment steps are
enough for the comparison:

    r2r2 train --agent simbav2 --env cheetah-run --seeds 5 --utd 2 --steps 500_000 \
        --eval-every 5000 --precision mixed --out mixed  # and tf32
    python benchmarks/precision_learning.py --a mixed/evaluations.csv \
        --b tf32/evaluations.csv --published CURVES.csv --out comparison.json

`--a` and `--b` take several files, for example of different seeds. `--published` is a
CSV file with the columns exp, env, seed, env_step, avg_return.
"""

import argparse
import csv
import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2r2.storage.evaluations import read_evaluations

RESAMPLES = 20_000
MOST_SPLITS = 10**6  # of an exact permutation test
Floats = NDArray[np.float64]
Row = dict[str, Any]


def returns_by_step(paths: list[Path]) -> dict[int, Floats]:
    """Return the returns of all seeds by environment step, where no seed is missing."""
    values: dict[int, dict[int, float]] = defaultdict(dict)
    for row in itertools.chain.from_iterable(map(read_evaluations, paths)):
        if row.metric == "return":
            values[row.env_step][row.seed] = row.value
    seeds = {seed for by_seed in values.values() for seed in by_seed}
    return {
        step: np.array([by_seed[seed] for seed in sorted(by_seed)])
        for step, by_seed in sorted(values.items())
        if set(by_seed) == seeds
    }


def published_returns(path: Path, experiment: str, task: str) -> dict[int, Floats]:
    """Return published returns by environment step, one value per seed."""
    values: dict[int, list[float]] = defaultdict(list)
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        for row in csv.DictReader(file):
            if row["exp"] == experiment and row["env"] == task:
                values[int(row["env_step"])].append(float(row["avg_return"]))
    return {step: np.array(found) for step, found in values.items()}


def bootstrap_interval(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of the difference of means over seeds."""
    rng = np.random.default_rng(0)
    means = [x[rng.integers(0, len(x), (RESAMPLES, len(x)))].mean(axis=1) for x in (a, b)]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    return float(low), float(high)


def permutation_p(a: Floats, b: Floats) -> float:
    """Return the two-sided p value of a permutation test of the difference of means."""
    pooled, observed = np.concatenate([a, b]), abs(a.mean() - b.mean())
    splits = itertools.islice(itertools.combinations(range(len(pooled)), len(a)), MOST_SPLITS)
    chosen = pooled[np.array(list(splits))].sum(axis=1)
    rest = (pooled.sum() - chosen) / len(b)
    return float(np.mean(np.abs(chosen / len(a) - rest) >= observed - 1e-9))


def compare(label: str, a: Floats, b: Floats, published: Floats | None) -> dict[str, Any]:
    """Return one row of the comparison."""
    return {
        "env_steps": label,
        "a": {"mean": float(a.mean()), "std": float(a.std(ddof=1)), "seeds": len(a)},
        "b": {"mean": float(b.mean()), "std": float(b.std(ddof=1)), "seeds": len(b)},
        "difference": float(a.mean() - b.mean()),
        "interval_95": bootstrap_interval(a, b),
        "p": permutation_p(a, b),
        "published": None
        if published is None
        else {"mean": float(published.mean()), "std": float(published.std(ddof=1))},
    }


def as_markdown(row: Row) -> str:
    """Return a row as a line of a Markdown table."""
    a, b, low_high, published = (row[name] for name in ("a", "b", "interval_95", "published"))
    beside = f"{published['mean']:.0f} ± {published['std']:.0f}" if published else ""
    return (
        f"| {row['env_steps']} | {a['mean']:.0f} ± {a['std']:.0f} "
        f"| {b['mean']:.0f} ± {b['std']:.0f} | {row['difference']:+.0f} "
        f"[{low_high[0]:+.0f}, {low_high[1]:+.0f}] | {row['p']:.2f} | {beside} |"
    )


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--a", type=Path, nargs="+", required=True)
    parser.add_argument("--b", type=Path, nargs="+", required=True)
    parser.add_argument("--names", nargs=2, default=["mixed", "tf32"])
    parser.add_argument("--published", type=Path)
    parser.add_argument("--experiment", default="simbav2_utd2")
    parser.add_argument("--task", default="cheetah-run")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    a, b = returns_by_step(given.a), returns_by_step(given.b)
    published = (
        published_returns(given.published, given.experiment, given.task) if given.published else {}
    )
    steps = [step for step in a if step in b]
    rows = [compare(f"{s:,}", a[s], b[s], published.get(s)) for s in steps]
    for label, some in (("last 3 points", steps[-3:]), ("all but the first", steps[1:])):
        means = [np.mean([x[s] for s in some], axis=0) for x in (a, b)]
        rows.append(compare(label, *means, None))
    first, second = given.names
    print(f"| env steps | {first} | {second} | difference, 95 % | p | published |")
    print("|---|---|---|---|---|---|")
    print("\n".join(map(as_markdown, rows)))
    if given.out:
        result = {"a": first, "b": second, "task": given.task, "rows": rows}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
