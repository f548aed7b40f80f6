"""A run that is killed again and again, against the same run left alone.

    nice -n 5 python benchmarks/soak.py --minutes 60 --seed 0 --commit 1a2b3c4 \
        --out benchmarks/results/soak.json

A fleet of three learns in the real command, `r2r2 train`, which is killed (SIGKILL,
with its workers) a random 10 to 60 seconds after each of its starts, and started again
as it was. After `--minutes` it is left alone until its end. Every weight and every
logged number must then be those of the run that nobody killed; else the exit code is 1.
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

SHORTEST, LONGEST = 10.0, 60.0  # seconds of a life
CHECKPOINTS = "0.03min"  # so often that some kills meet the writing of one
# Small, but with a replay that comes to its end, and bursts beside evaluations.
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


class Life(NamedTuple):
    """One process, from its start to its end."""

    seconds: float
    killed: bool
    logged: int  # the furthest decision step in the log at its end
    kept: int  # the step of the newest good checkpoint then
    half: bool  # whether it was killed while a checkpoint was being written
    damaged: int  # finished checkpoints that were not as written


def command(run: Path, steps: int, checkpoints: str) -> list[str]:
    """What a person would type."""
    fields = FLEET | {"steps": str(steps), "checkpoint-every": checkpoints}
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "r2r2", "train", *words, "--out", str(run)]


def live(words: list[str], output: Path, limit: float | None) -> tuple[float, bool]:
    """Starts a process and kills its whole group at the limit; seconds, and if so."""
    began = time.monotonic()
    caches = os.environ | {"XDG_CACHE_HOME": str(output.parent / "cache")}
    with output.open("ab") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=file, env=caches, start_new_session=True
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
        end = output.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{end}\nthe run ended by itself with exit code {code}")
    return time.monotonic() - began, code is None


def looked_at(run: Path, seconds: float, killed: bool) -> Life:
    """What a process left."""
    logged, half, found = 0, False, None
    damaged: list[str] = []
    if (run / "events.jsonl").exists():
        steps = [event["decision_step"] for event in read_events(run / "events.jsonl")]
        logged = max(steps, default=0)
    if (run / "checkpoints").exists():
        names = [path.name for path in (run / "checkpoints").iterdir()]
        latest = max(names, default="")[:8]
        half = bool(names) and f"{latest}.json" not in names
        found, damaged = latest_valid(run / "checkpoints")
    kept = found.step if found else 0
    return Life(round(seconds, 1), killed, logged, kept, half, len(damaged))


def lives(folder: Path, steps: int, minutes: float, rng: random.Random) -> list[Life]:
    """Starts, kills and starts again, until the run has come to its end."""
    words, table = command(folder / "killed", steps, CHECKPOINTS), list[Life]()
    end = time.monotonic() + 60 * minutes
    while not table or table[-1].killed:
        limit = rng.uniform(SHORTEST, LONGEST) if time.monotonic() < end else None
        seconds, killed = live(words, folder / "killed.txt", limit)
        table.append(looked_at(folder / "killed", seconds, killed))
        print(len(table), table[-1]._asdict(), flush=True)
    return table


def events_of(run: Path) -> list[dict[str, Any]]:
    """What was logged but the time of day, and that the run went on."""
    found = read_events(run / "events.jsonl")
    own = [event for event in found if event["event"] != "resumed"]
    return [{k: x for k, x in event.items() if k != "time"} for event in own]


def differences(one: Path, other: Path) -> list[str]:
    """Everything in which two runs are not the same to the bit."""
    found: list[str] = []
    for member in open_run(one).members:
        a, b = (read_arrays(open_run(run).weights(member)) for run in (one, other))
        found += [
            f"{member}: {name} is in one only" for name in sorted(set(a) ^ set(b))
        ]
        found += [
            f"{member}: {name}"
            for name in sorted(set(a) & set(b))
            if a[name].dtype != b[name].dtype or a[name].tobytes() != b[name].tobytes()
        ]
    pairs = zip(events_of(one), events_of(other), strict=False)
    found += [f"event {n}: {a} | {b}" for n, (a, b) in enumerate(pairs) if a != b][:5]
    if len(events_of(one)) != len(events_of(other)):
        found.append(f"{len(events_of(one))} events | {len(events_of(other))}")
    tables = [(run / "evaluations.csv").read_bytes() for run in (one, other)]
    return found if tables[0] == tables[1] else [*found, "evaluations.csv"]


def sizes(run: Path) -> dict[str, int]:
    """What was compared, counted."""
    arrays = [read_arrays(open_run(run).weights(m)) for m in open_run(run).members]
    kept = (run / "checkpoints").rglob("*")
    return {
        "arrays": sum(map(len, arrays)),
        "numbers": sum(int(np.size(x)) for own in arrays for x in own.values()),
        "events": len(events_of(run)),
        "bytes of checkpoints": sum(path.stat().st_size for path in kept),
    }


def summary(table: list[Life]) -> dict[str, Any]:
    """The killed run in numbers."""
    killed = [life for life in table if life.killed]
    return {
        "lives": len(table),
        "kills": len(killed),
        "kills before the first checkpoint": sum(not life.kept for life in killed),
        "kills in the writing of a checkpoint": sum(life.half for life in killed),
        "checkpoints that were damaged": sum(life.damaged for life in table),
        "steps of a member lost to kills": sum(x.logged - x.kept for x in killed),
        "seconds": round(sum(life.seconds for life in table), 1),
        "seconds with kills": round(sum(life.seconds for life in killed), 1),
    }


def main() -> int:
    """Kills, compares and, with --out, keeps what came of it; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="with kills")
    parser.add_argument("--steps", type=int, default=120_000, help="of every member")
    parser.add_argument("--seed", type=int, default=0, help="of the kills' times")
    parser.add_argument("--commit", help="of the code that is run")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = random.Random(given.seed)
        table = lives(folder, given.steps, given.minutes, rng)
        words = command(folder / "whole", given.steps, "never")
        seconds, _ = live(words, folder / "whole.txt", None)
        different = differences(folder / "killed", folder / "whole")
        result = {
            "equal": not different,
            "different": different[:20],
            **summary(table),
            "seconds of the run left alone": round(seconds, 1),
            "compared": sizes(folder / "killed"),
            "steps": given.steps,
            "fleet": FLEET,
            "checkpoint every": CHECKPOINTS,
            "seed": given.seed,
            "commit": given.commit,
            "platform": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": versions(),
            "table": [life._asdict() for life in table],
        }
    print(json.dumps({k: x for k, x in result.items() if k != "table"}, indent=2))
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
