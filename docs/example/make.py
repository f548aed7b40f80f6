"""Train small agents on a small computer and create the example report.

    python docs/example/make.py

Takes about 15 minutes on two busy cores. Trains TD7 with and without R2R2 at UTD 1 and
10, and R2R2 without either of its terms, each as one fleet of three seeds on two tasks.
Networks and budget are small, so the report labels all results as scaled down. Runs are
kept in `runs/example`; finished runs are not repeated.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS, REPORT = Path("runs/example"), Path("docs/example_report")
MAX_BYTES = 3_000_000  # the report is committed

SMALL = {
    "env": "cartpole-balance,cartpole-swingup",
    "seeds": 3,
    "steps": 6_000,
    "warmup": 1_000,
    "eval_every": 500,
    "eval_episodes": 2,
    "width": 32,
    "latent": 32,
    "batch_size": 64,
    "discount": 0.98,
    "encoder_rate": 1e-3,
    "critic_rate": 1e-3,
    "actor_rate": 1e-3,
    "target_period": 100,
    "exploration_noise": 0.3,
    "checkpoint_every": "never",
}
STUDY = {
    "td7_utd1": {"agent": "td7", "utd": 1},
    "td7_utd10": {"agent": "td7", "utd": 10},
    "r2r2_utd1": {"agent": "td7+r2r2", "utd": 1},
    "r2r2_utd10": {"agent": "td7+r2r2", "utd": 10},
    "no_redundancy_utd1": {"agent": "td7+r2r2", "utd": 1, "lambda_rr": 0},
    "no_variance_utd1": {"agent": "td7+r2r2", "utd": 1, "lambda_var": 0},
}


def main() -> None:
    """Train missing runs, then create the report."""
    os.chdir(ROOT)  # paths in the report are relative to the repository
    start = time.monotonic()
    for name, fields in STUDY.items():
        options = [f"--{field}={value}" for field, value in (SMALL | fields).items()]
        r2r2("train", *options, "--out", str(RUNS / name))
        print(f"{name}: finished after {time.monotonic() - start:.0f} s", flush=True)
    r2r2("report", str(RUNS), "--out", str(REPORT))
    files = [path for path in REPORT.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {size / 1e6:.1f} MB, in {REPORT}")
    if size > MAX_BYTES:
        shutil.rmtree(REPORT)
        sys.exit(f"report deleted: larger than {MAX_BYTES / 1e6:.1f} MB")


def r2r2(*argv: str) -> None:
    """Run one r2r2 command and show its output."""
    subprocess.run([sys.executable, "-m", "r2r2", *argv], check=True)


if __name__ == "__main__":
    main()
