"""Compare a run that is killed repeatedly with an uninterrupted one.

    nice -n 5 python benchmarks/soak.py --minutes 60 --seed 0 --commit 1a2b3c4 \
        --out benchmarks/results/soak.json

`r2r2 train` with three seeds is killed (SIGKILL, with its workers) a random 10 to 60
seconds after each start, and started again with the same command. After `--minutes` it
runs until its end. Every weight and every logged number must then equal those of an
uninterrupted run; otherwise the exit code is 1.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from r2r2.storage.arrays import read_arrays
from r2r2.storage.checkpoints import latest_valid
from r2r2.storage.events import read_events
from r2r2.storage.run_folder import open_run
from r2r2.storage.versions import versions

MIN_SECONDS, MAX_SECONDS = 10.0, 60.0  # until a process is killed
CHECKPOINT_EVERY = "0.03min"  # often enough that some kills interrupt the writing
# Small, but the replay buffer wraps around and updates overlap with evaluations.
FLEET = {
    "agent": "td7+r2r2",
    "env": "Hopper-v5",
    "seeds": "3",
    "utd": "2",
    "warmup": "1000",
    "replay-size": "20000",
    "eval-every": "2000",
    "eval-average": "2",
    "eval-episodes": "3",
    "log-every": "100",
    "width": "32",
    "latent": "32",
    "batch-size": "32",
}


class ProcessRecord(NamedTuple):
    """One process of the run."""

    seconds: float
    killed: bool
    logged: int  # last decision step in the log
    kept: int  # step of the newest valid checkpoint
    half: bool  # killed while a checkpoint was being written
    damaged: int  # complete checkpoints with wrong content


def command(run: Path, steps: int, checkpoints: str) -> list[str]:
    """Return the command line of the run."""
    fields = FLEET | {"steps": str(steps), "checkpoint-every": checkpoints}
    flags = [part for name, value in fields.items() for part in (f"--{name}", value)]
    return [sys.executable, "-m", "r2r2", "train", *flags, "--out", str(run)]


def run_process(argv: list[str], output: Path, limit: float | None) -> tuple[float, bool]:
    """Run a process, kill its group at the limit; return seconds and if killed."""
    start = time.monotonic()
    environ = os.environ | {"XDG_CACHE_HOME": str(output.parent / "cache")}
    with output.open("ab") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=file, env=environ, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code not in (None, 0):
        tail = output.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{tail}\nthe run exited with code {code}")
    return time.monotonic() - start, code is None


def inspect_run(run: Path, seconds: float, killed: bool) -> ProcessRecord:
    """Return the record of a process from the folder it left."""
    logged, half, checkpoint = 0, False, None
    damaged: list[str] = []
    if (run / "events.jsonl").exists():
        steps = [event["decision_step"] for event in read_events(run / "events.jsonl")]
        logged = max(steps, default=0)
    if (run / "checkpoints").exists():
        names = [path.name for path in (run / "checkpoints").iterdir()]
        latest = max(names, default="")[:8]
        half = bool(names) and f"{latest}.json" not in names
        checkpoint, damaged = latest_valid(run / "checkpoints")
    kept = checkpoint.step if checkpoint else 0
    return ProcessRecord(round(seconds, 1), killed, logged, kept, half, len(damaged))


def run_with_kills(
    folder: Path, steps: int, minutes: float, rng: random.Random
) -> list[ProcessRecord]:
    """Start and kill the run until the time is over, then let it finish."""
    argv, table = (command(folder / "killed", steps, CHECKPOINT_EVERY), list[ProcessRecord]())
    end = time.monotonic() + 60 * minutes
    while not table or table[-1].killed:
        limit = rng.uniform(MIN_SECONDS, MAX_SECONDS) if time.monotonic() < end else None
        seconds, killed = run_process(argv, folder / "killed.txt", limit)
        table.append(inspect_run(folder / "killed", seconds, killed))
        print(len(table), table[-1]._asdict(), flush=True)
    return table


def events_of(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run except resumptions, without their times."""
    events = read_events(run / "events.jsonl")
    kept = [event for event in events if event["event"] != "resumed"]
    return [{k: x for k, x in event.items() if k != "time"} for event in kept]


def differences(one: Path, other: Path) -> list[str]:
    """Return everything in which two runs are not bit-exactly equal."""
    different: list[str] = []
    for member in open_run(one).members:
        a, b = (read_arrays(open_run(run).weights(member)) for run in (one, other))
        different += [f"{member}: {name} exists only once" for name in sorted(set(a) ^ set(b))]
        different += [
            f"{member}: {name}"
            for name in sorted(set(a) & set(b))
            if a[name].dtype != b[name].dtype or a[name].tobytes() != b[name].tobytes()
        ]
    pairs = zip(events_of(one), events_of(other), strict=False)
    different += [f"event {n}: {a} | {b}" for n, (a, b) in enumerate(pairs) if a != b][:5]
    if len(events_of(one)) != len(events_of(other)):
        different.append(f"{len(events_of(one))} events | {len(events_of(other))}")
    tables = [(run / "evaluations.csv").read_bytes() for run in (one, other)]
    return different if tables[0] == tables[1] else [*different, "evaluations.csv"]


def sizes(run: Path) -> dict[str, int]:
    """Return the amount of data that was compared."""
    arrays = [read_arrays(open_run(run).weights(m)) for m in open_run(run).members]
    files = (run / "checkpoints").rglob("*")
    return {
        "arrays": sum(map(len, arrays)),
        "numbers": sum(int(np.size(x)) for member in arrays for x in member.values()),
        "events": len(events_of(run)),
        "bytes of checkpoints": sum(path.stat().st_size for path in files),
    }


def summary(table: list[ProcessRecord]) -> dict[str, Any]:
    """Return statistics of the killed run."""
    killed = [record for record in table if record.killed]
    return {
        "lives": len(table),
        "kills": len(killed),
        "kills before the first checkpoint": sum(not record.kept for record in killed),
        "kills in the writing of a checkpoint": sum(record.half for record in killed),
        "checkpoints that were damaged": sum(record.damaged for record in table),
        "steps of a member lost to kills": sum(x.logged - x.kept for x in killed),
        "seconds": round(sum(record.seconds for record in table), 1),
        "seconds with kills": round(sum(record.seconds for record in killed), 1),
    }


def main() -> int:
    """Run both runs, compare them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="time with kills")
    parser.add_argument("--steps", type=int, default=120_000, help="per member")
    parser.add_argument("--seed", type=int, default=0, help="of the kill times")
    parser.add_argument("--commit", help="commit to record")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = random.Random(options.seed)
        table = run_with_kills(folder, options.steps, options.minutes, rng)
        argv = command(folder / "whole", options.steps, "never")
        seconds, _ = run_process(argv, folder / "whole.txt", None)
        different = differences(folder / "killed", folder / "whole")
        result = {
            "equal": not different,
            "different": different[:20],
            **summary(table),
            "seconds of the run left alone": round(seconds, 1),
            "compared": sizes(folder / "killed"),
            "steps": options.steps,
            "fleet": FLEET,
            "checkpoint every": CHECKPOINT_EVERY,
            "seed": options.seed,
            "commit": options.commit,
            "platform": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": versions(),
            "table": [record._asdict() for record in table],
        }
    print(json.dumps({k: x for k, x in result.items() if k != "table"}, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
