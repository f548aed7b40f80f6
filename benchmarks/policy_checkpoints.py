"""Show by which episodes TD7's policy checkpoints were chosen, and how well they are evaluated.

    python benchmarks/policy_checkpoints.py runs/td7 runs/td7+r2r2
    python benchmarks/policy_checkpoints.py runs/td7 --last 0.2 --out checkpoints.json

With one episode per assessment, a policy becomes the checkpoint if one training episode is at least
as good as the one that chose the last checkpoint. For each seed: the number of checkpoints, the
return of the episode that chose the last one, the last evaluation, and the mean return of the
training episodes (with exploration noise) in the last part of the run.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from r2r2.storage.events import read_events


def member_events(run: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the events of a run by member, then by kind."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for event in read_events(run / "events.jsonl"):
        if event["member"] is not None:
            found.setdefault(event["member"], {}).setdefault(event["event"], []).append(event)
    return found


def summarize(events: dict[str, list[dict[str, Any]]], last: float) -> dict[str, float]:
    """Return the numbers of one member."""
    episodes, checkpoints = events["episode"], events.get("policy_checkpoint", [])
    begin = (1 - last) * episodes[-1]["decision_step"]
    late = [x["return"] for x in episodes if x["decision_step"] > begin]
    returns = {x["decision_step"]: x["return"] for x in episodes}
    chosen = returns[checkpoints[-1]["decision_step"]] if checkpoints else float("nan")
    evaluation = events["evaluation"][-1]
    return {
        "checkpoints": len(checkpoints),
        "episode_that_chose_the_last": round(chosen, 1),
        "last_evaluation": round(evaluation["mean"], 1),
        "training_mean": round(float(np.mean(late)), 1),
        "training_median": round(float(np.median(late)), 1),
    }


def main() -> None:
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--last", type=float, default=0.2, help="part of the run, by its end")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    results = {
        run.name: {name: summarize(x, args.last) for name, x in member_events(run).items()}
        for run in args.runs
    }
    for run, members in results.items():
        print(run, "", *next(iter(members.values())), sep="  ")
        for name, numbers in members.items():
            print("", name, *numbers.values(), sep="  ")
        means = np.mean([list(x.values()) for x in members.values()], axis=0)
        print("", "mean", *means.round(1), sep="  ")
    if args.out:
        args.out.write_text(json.dumps({"last": args.last, "runs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
