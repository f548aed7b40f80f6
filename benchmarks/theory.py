"""Train the small agents that docs/theory.md compares, and write what their encoders learnt.

    python benchmarks/theory.py sphere --out benchmarks/results/theory_sphere_2cores.json
    python benchmarks/theory.py utd --out benchmarks/results/theory_utd_2cores.json

`sphere` trains `simbav2-spl` and `simbav2-spl+r2r2` with four thresholds of the variance hinge:
1 (the paper's), 1/sqrt(d) (the most that all coordinates can have on the unit sphere), and 0.75
and 0.5 of that; each with the paper's weight of 0.01 and with a weight of 1.
`utd` trains `td7` and `td7+r2r2`, also zero-centred, at UTD 1 and 20. Every run is one fleet of
three seeds on walker-walk. Each study takes about 15 minutes on two busy cores. Runs are kept in
`runs/theory`, for `r2r2 theory`; finished runs are not repeated.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2r2.saved_run import load
from r2r2.storage.versions import versions

LATENT = 32
SMALL = {
    "env": "walker-walk",
    "seeds": 3,
    "warmup": 1_000,
    "eval_every": 1_000,
    "eval_episodes": 2,
    "latent": LATENT,
    "checkpoint_every": "never",
}
SIMBA = {
    "steps": 4_000,
    "actor_width": 32,
    "critic_width": 64,
    "critic_blocks": 1,
    "model_width": 64,
    "batch_size": 128,
}
TD7 = {"steps": 3_000, "width": 32, "batch_size": 64}
ROOT = math.sqrt(LATENT)
THRESHOLDS = {"1": 1.0, "1_root": 1 / ROOT, "0.75_root": 0.75 / ROOT, "0.5_root": 0.5 / ROOT}
WEIGHTS = (0.01, 1.0)
UTDS = (1, 20)
MEASURED = ("effective_rank", "spread", "deviation", "variance_hinge", "redundancy")
Fields = dict[str, Any]


def studies() -> dict[str, dict[str, Fields]]:
    """Return the fields of each run of each study, by its folder."""
    sphere: dict[str, Fields] = {"base": {"agent": "simbav2-spl"}}
    for weight in WEIGHTS:
        for name, threshold in THRESHOLDS.items():
            fields = {"lambda_var": weight, "variance_threshold": threshold}
            sphere[f"weight_{weight:g}_threshold_{name}"] = {"agent": "simbav2-spl+r2r2", **fields}
    utd: dict[str, Fields] = {}
    for rate in UTDS:
        utd[f"base_utd{rate}"] = {"agent": "td7", "utd": rate}
        utd[f"r2r2_utd{rate}"] = {"agent": "td7+r2r2", "utd": rate}
        utd[f"zero_centred_utd{rate}"] = utd[f"r2r2_utd{rate}"] | {"zero_centred": True}
    return {
        "sphere": {name: SMALL | SIMBA | fields for name, fields in sphere.items()},
        "utd": {name: SMALL | TD7 | fields for name, fields in utd.items()},
    }


def main() -> None:
    """Train the missing runs of a study and, with --out, write what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=list(studies()))
    parser.add_argument("--runs", type=Path, default=Path("runs/theory"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = []
    for name, fields in studies()[given.study].items():
        options = [f"--{field}={value}" for field, value in fields.items()]
        folder = given.runs / given.study / name
        command = [sys.executable, "-m", "r2r2", "train", *options, "--out", str(folder)]
        subprocess.run(command, check=True)
        table.append({"run": name, "fields": fields, "seeds": measure(folder)})
    print_table(table)
    if given.out:
        result = {"cores": os.cpu_count(), "versions": versions(), "table": table}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def measure(path: Path) -> list[dict[str, Any]]:
    """Return the last diagnosis and the returns of each seed of a run."""
    run, rows = load(path), []
    for member in run.members:
        last = run.diagnostics().where(member=member.name)[-1]
        points = run.evaluations().where(seed=member.seed)
        row = {"seed": member.seed, "decision_step": last["decision_step"]}
        row |= {name: last[name] for name in MEASURED}
        row["constant_share"] = 1 - last["spread"] ** 2
        row["returns"] = [point["value"] for point in points]
        rows.append(row)
    return rows


def print_table(table: list[Mapping[str, Any]]) -> None:
    """Print the mean over seeds of each run, and the range."""
    names = ("constant_share", "effective_rank", "deviation", "variance_hinge")
    print(f"{'run':>24}", *(f"{name:>26}" for name in (*names, "last return")))
    for row in table:
        columns = [[seed[name] for seed in row["seeds"]] for name in names]
        columns.append([seed["returns"][-1] for seed in row["seeds"]])
        texts = [f"{sum(x) / len(x):.4g} ({min(x):.4g} to {max(x):.4g})" for x in columns]
        print(f"{row['run']:>24}", *(f"{text:>26}" for text in texts))


if __name__ == "__main__":
    main()
