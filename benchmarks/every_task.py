"""Every agent on every task of the paper: one short run of the real loop each.

    python benchmarks/every_task.py --platform gpu --widths real --jobs 4 \
        --agents simbav2 simbav2-spl --out some.json
    python benchmarks/every_task.py --add-to some.json --jobs 7 --out all.json

Widths are the agents' own on the first task of each shape, small on the others;
`--add-to` leaves out what a file has. Jobs are processes that share the cores this one
may use. What is not as it should be has a NO in its row, and the exit code is then 1.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np

from r2r2 import resolve
from r2r2.api import RunOptions, ignore_progress, make_pool
from r2r2.config.agents import AGENTS
from r2r2.config.run import RunConfig
from r2r2.envs.suites import PAPER_TASKS
from r2r2.replay.normalizer import Normalizer, initial_statistics
from r2r2.storage.events import COMMON_FIELDS, read_events
from r2r2.storage.run_folder import create_run
from r2r2.storage.versions import versions
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config, fleet_members
from r2r2.training.run_log import RunLog

Job = tuple[str, str, str]  # agent, task, widths: real or small
Row = dict[str, Any]
LEAST, LIMIT = 500, 400  # updates of a job, its seconds
SIZES = "width latent model_width actor_width critic_width batch_size".split()
# No networks, or such as need not move: assessments may all keep the first policy.
REST = "horizon updates values checkpoint_actor checkpoint_encoder".split()
COLUMNS = "agent task widths device steps utd updates losses networks targets".split()
COLUMNS += "priorities statistics return seconds".split()


def config_of(agent: str, task: str, widths: str) -> RunConfig:
    """The run of a job, with one evaluation at its end.

    TD7 warms up to an episode's end and trains at episodes' ends, but not at the last
    step. So it has UTD 2, and 2,800 steps on Ant, whose policies may stand for 1,000.
    On DMC an episode takes 500: two bursts are made and logged in 1,550 steps.
    """
    td7, dmc = agent.startswith("td7"), PAPER_TASKS[task].suite == "dmc"
    steps = (1_550 if dmc else 2_800 if task == "Ant-v5" else 1_000) if td7 else 1_000
    chosen = {"agent": agent, "env": task, "steps": steps, "warmup": 500}
    chosen |= {"utd": 2 if td7 and not dmc else 1, "replay_size": 5_000}
    chosen |= {"eval_every": steps, "eval_episodes": 1, "log_every": 50}
    if widths == "small":
        own = [name for name in SIZES if hasattr(AGENTS[agent].config, name)]
        chosen |= {f"agent.{name}": 32 for name in own}
    return finalize_config(resolve(chosen))


def parts(state: Any) -> dict[str, Any]:
    """A state's fields by name, those of a state inside it among them."""
    own = jax.device_get(state)._asdict()
    inside = own.pop("base", None)
    return own | (parts(inside) if inside else {})


def still(before: Any, after: Any) -> list[str]:
    """The arrays of a tree that are what they were."""
    same = jax.tree.map(np.array_equal, before, after)
    found = jax.tree_util.tree_leaves_with_path(same)
    return [jax.tree_util.keystr(path) for path, is_same in found if is_same]


def networks(old: Any, new: Any, copied: bool) -> dict[str, str]:
    """Whether every array moved, and targets are apart where not just copied."""
    targets = {x: x.removesuffix("_target") for x in new if x.endswith("_target")}
    targets |= {"fixed_encoder": "encoder"} if "fixed_encoder" in new else {}
    fixed = {x: [x + leaf for leaf in still(old[x], new[x])] for x in new}
    trained = [x for x in new if x not in (*targets, *REST) and "_adam" not in x]
    stuck = [leaf for name in trained for leaf in fixed[name]]
    kept = [leaf for name in targets for leaf in fixed[name]]
    alike = [x for x, online in targets.items() if still(new[x], new[online])]
    wrong = kept or (alike and not copied)
    fine = "moved; just copied" if alike else "moved; apart"
    first = f"NO: still are {stuck}" if stuck else f"all {len(trained)} moved"
    second = f"NO: still are {kept}, as online {alike}" if wrong else fine
    return {"networks": first, "targets": second}


def data(training: Training, config: RunConfig) -> dict[str, str]:
    """Whether LAP's priorities and the normaliser's statistics moved."""
    seen = {"priorities": "-", "statistics": "-"}
    if hasattr(config.agent, "min_priority"):
        weights = np.asarray(training.state.fleet.learners.priorities.tree.weights)
        low, high = weights[weights > 0].min(), weights.max()
        # Errors below LAP's smallest, as small rewards make them, are priorities of 1.
        seen["priorities"] = f"{low:.3g} to {high:.3g}" if low < high else f"all {low}"
    if isinstance(training.state.normalizer, Normalizer):
        now = training.state.normalizer.statistics
        stuck = still(initial_statistics(1, now.obs.mean.shape[1]), now)
        stuck += [] if round(now.obs.samples[0]) == config.steps else ["count"]
        seen["statistics"] = f"NO: still are {stuck}" if stuck else "moved"
    return seen


def logged(events: list[Row]) -> Row:
    """The first and the last line of losses, and the evaluation's return."""
    lines = [e for e in events if e["event"] == "losses"]
    (point,) = [float(e["mean"]) for e in events if e["event"] == "evaluation"]
    table = {
        x: [float(e[x]) for e in lines] for x in lines[0] if x not in COMMON_FIELDS
    }
    finite = np.isfinite([point, *np.ravel([*table.values()])]).all()
    fine = f"{len(lines)} finite lines" if finite and len(lines) > 1 else "NO"
    ends = {name: f"{x[0]:.4g} to {x[-1]:.4g}" for name, x in table.items()}
    return {"logged": ends, "log": fine, "return": round(point, 2)}


def run(job: Job) -> Row:
    """One run, and what moved in it."""
    config = config_of(*job)
    members = fleet_members(config)
    with tempfile.TemporaryDirectory() as place:
        folder = create_run(Path(place) / "run", "", [members[0].name], False)
        with (
            make_pool(config, options=RunOptions(workers=0)) as pool,
            RunLog(config, folder, members, "") as journal,
        ):
            training = Training(config, pool, journal)
            training.begin()
            old = parts(training.state.fleet.states)
            training.run(ignore_progress)
        events = read_events(folder.events)
    made = int(training.state.schedule.done[0])
    copied = made % getattr(config.agent, "target_period", LEAST + made) == 0
    return {
        "device": jax.devices()[0].device_kind,
        "steps": int(training.state.rollout.steps[0]),
        "utd": config.utd,
        "updates": made if made >= LEAST else f"NO: {made}",
        **logged(events),
        **networks(old, parts(training.state.fleet.states), copied),
        **data(training, config),
        "versions": versions(),
    }


def row_of(job: Job, given: argparse.Namespace, free: Any) -> Row:
    """A job's row, made by a process on cores that no other job has."""
    start, cores = time.perf_counter(), free.get()
    settings = {
        "JAX_PLATFORMS": "cuda,cpu" if given.platform == "gpu" else "cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / given.jobs:.3f}",
        "JAX_TRACEBACK_FILTERING": "off",  # what it adds would hide the last line
        "OMP_NUM_THREADS": "1",
    }
    call = [sys.executable, __file__, "--order", json.dumps([job, cores])]
    how = {"env": os.environ | settings, "capture_output": True, "timeout": LIMIT}
    try:
        said = subprocess.run(call, **how, check=True, text=True).stdout
        row = json.loads(said.splitlines()[-1])
    except subprocess.TimeoutExpired:
        row = {"error": f"NO: not done in {LIMIT} s"}
    except subprocess.CalledProcessError as error:
        said = f"exit code {error.returncode}\n{error.stderr}".strip()
        row = {"error": f"NO: {said.splitlines()[-1][:300]}"}
    free.put(cores)
    wrong = [f"{name} {x}" for name, x in row.items() if str(x).startswith("NO")]
    row |= {"wrong": wrong, "seconds": round(time.perf_counter() - start, 1)}
    return dict(zip(COLUMNS, job, strict=False)) | row


def planned(given: argparse.Namespace, there: list[Row]) -> list[Job]:
    """The jobs asked for, the long ones first; tasks named get the widths named."""
    first = {task[1:]: name for name, task in reversed(PAPER_TASKS.items())}.values()
    plan = {x: "real" if x in first else "small" for x in given.tasks or PAPER_TASKS}
    if given.tasks and given.widths != "all":
        plan = dict.fromkeys(given.tasks, given.widths)
    done = [(row["agent"], row["task"]) for row in there]
    jobs = [(x, y, plan[y]) for y in sorted(plan, key=plan.get) for x in given.agents]
    return [x for x in jobs if given.widths in ("all", x[2]) and x[:2] not in done]


def run_all(jobs: list[Job], given: argparse.Namespace, result: Row) -> None:
    """Adds the rows of all jobs to a result, a few made at once; kept after each."""
    cores, free = sorted(os.sched_getaffinity(0)), queue.Queue()
    order = [(task, agent) for task in PAPER_TASKS for agent in AGENTS]
    each, start = max(1, len(cores) // given.jobs), time.perf_counter()
    for n in range(given.jobs):
        free.put(cores[n * each : (n + 1) * each] or cores)
    with ThreadPoolExecutor(given.jobs) as pool:
        under_way = [pool.submit(row_of, job, given, free) for job in jobs]
        for n, future in enumerate(as_completed(under_way), start=1):
            row = future.result()
            result["table"].append(row)
            if made_with := row.pop("versions", None):
                commit = made_with.pop("commit")
                row["commit"] = given.commit or commit
                result["versions"][made_with["platform"]] = made_with
            to_go = (time.perf_counter() - start) * (len(jobs) / n - 1)
            print(f"{n}/{len(jobs)}", *[row[x] for x in COLUMNS[:3]], end=": ")
            print(row["wrong"] or "fine", f"({row['seconds']} s), to go", end=" ")
            print(f"{to_go:.0f} s at this pace", flush=True)
            result["table"].sort(key=lambda x: order.index((x["task"], x["agent"])))
            if given.out:
                given.out.write_text(json.dumps(result, indent=1) + "\n")


def line_of(row: Row) -> str:
    """A row of the table as people read it."""
    losses = [
        f"{k[5:]} {v}" for k, v in row.get("logged", {}).items() if k[:5] == "loss/"
    ]
    row = {"losses": row.get("error", "; ".join(losses))} | row
    return " | ".join(str(row.get(name, "")) for name in COLUMNS)


def main() -> int:
    """Runs the jobs asked for, or the one ordered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=[*AGENTS])
    parser.add_argument("--tasks", nargs="+", choices=PAPER_TASKS)
    parser.add_argument("--widths", choices=("real", "small", "all"), default="all")
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="at once")
    parser.add_argument("--commit", help="where the source is no checkout")
    parser.add_argument("--add-to", type=Path, help="a result that this completes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--order", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.order:
        os.sched_setaffinity(0, given.order[1])
        print(json.dumps(run(given.order[0])))
        return 0
    nothing = {"versions": {}, "table": []}
    result = json.loads(given.add_to.read_text()) if given.add_to else nothing
    run_all(planned(given, result["table"]), given, result)
    print(f"{' | '.join(COLUMNS)}\n{'--- | ' * (len(COLUMNS) - 1)}---")
    print(*map(line_of, result["table"]), sep="\n")
    bad = sum(bool(row["wrong"]) for row in result["table"])
    print(f"\n{bad} of {len(result['table'])} runs are not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
