"""Run every agent on every task of the paper once, for a short time.

    python benchmarks/every_task.py --platform gpu --widths real --jobs 4 \
        --agents simbav2 simbav2-spl --out some.json
    python benchmarks/every_task.py --add-to some.json --jobs 7 --out all.json

The networks have their default widths on the first task of each shape, and small ones
on the others. `--add-to` skips the rows that a file already has. Jobs are processes
that share the available cores. A failed check is marked with NO in its row, and the
exit code is then 1.
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
from r2r2.api import RunOptions, make_pool
from r2r2.config.agents import AGENTS
from r2r2.config.run import RunConfig
from r2r2.envs.suites import PAPER_TASKS
from r2r2.replay.normalizer import Normalizer, initial_statistics
from r2r2.storage.events import COMMON_FIELDS, read_events
from r2r2.storage.run_folder import create_run
from r2r2.storage.versions import versions
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config
from r2r2.training.run_log import RunLog
from r2r2.training.saved_config import fleet_members

Job = tuple[str, str, str]  # agent, task, widths: real or small
Row = dict[str, Any]
MIN_UPDATES, MAX_SECONDS = 500, 400  # of a job
SIZES = "width latent model_width actor_width critic_width batch_size".split()
# Not networks, or networks that may remain unchanged.
NOT_TRAINED = "horizon updates values checkpoint_actor checkpoint_encoder".split()
COLUMNS = "agent task widths device steps utd updates losses networks targets".split()
COLUMNS += "priorities statistics return seconds".split()


def config_of(agent: str, task: str, widths: str) -> RunConfig:
    """Return the config of a job, with one evaluation at the end.

    TD7 warms up until the end of an episode and updates at the ends of episodes, but
    not after the last step. It therefore uses UTD 2, and 2,800 steps on Ant, where an
    episode may take 1,000. On DMC an episode takes 500, so that 1,550 steps contain
    two bursts.
    """
    td7, dmc = agent.startswith("td7"), PAPER_TASKS[task].suite == "dmc"
    steps = (1_550 if dmc else 2_800 if task == "Ant-v5" else 1_000) if td7 else 1_000
    values = {"agent": agent, "env": task, "steps": steps, "warmup": 500}
    values |= {"utd": 2 if td7 and not dmc else 1, "replay_size": 5_000}
    values |= {"eval_every": steps, "eval_episodes": 1, "log_every": 50}
    if widths == "small":
        names = [name for name in SIZES if hasattr(AGENTS[agent].config, name)]
        values |= {f"agent.{name}": 32 for name in names}
    return finalize_config(resolve(values))


def state_fields(state: Any) -> dict[str, Any]:
    """Return the fields of a state by name, including those of its base state."""
    fields = jax.device_get(state)._asdict()
    base = fields.pop("base", None)
    return fields | (state_fields(base) if base else {})


def unchanged(before: Any, after: Any) -> list[str]:
    """Return the names of the arrays of a tree that did not change."""
    same = jax.tree.map(np.array_equal, before, after)
    leaves = jax.tree_util.tree_leaves_with_path(same)
    return [jax.tree_util.keystr(path) for path, is_same in leaves if is_same]


def check_networks(old: Any, new: Any, copied: bool) -> dict[str, str]:
    """Check that every array changed, and that targets differ unless just copied."""
    targets = {x: x.removesuffix("_target") for x in new if x.endswith("_target")}
    targets |= {"fixed_encoder": "encoder"} if "fixed_encoder" in new else {}
    fixed = {x: [x + leaf for leaf in unchanged(old[x], new[x])] for x in new}
    trained = [x for x in new if x not in (*targets, *NOT_TRAINED) and "_adam" not in x]
    stuck = [leaf for name in trained for leaf in fixed[name]]
    kept = [leaf for name in targets for leaf in fixed[name]]
    alike = [x for x, online in targets.items() if unchanged(new[x], new[online])]
    wrong = kept or (alike and not copied)
    fine = "moved; just copied" if alike else "moved; apart"
    first = f"NO: unchanged are {stuck}" if stuck else f"all {len(trained)} moved"
    second = f"NO: unchanged are {kept}, equal to online {alike}" if wrong else fine
    return {"networks": first, "targets": second}


def check_data(training: Training, config: RunConfig) -> dict[str, str]:
    """Check that LAP's priorities and the normalizer's statistics changed."""
    checks = {"priorities": "-", "statistics": "-"}
    if hasattr(config.agent, "min_priority"):
        weights = np.asarray(training.state.fleet.learners.priorities.tree.weights)
        low, high = weights[weights > 0].min(), weights.max()
        # With small rewards all errors may be below the minimum, with priority 1.
        checks["priorities"] = f"{low:.3g} to {high:.3g}" if low < high else f"all {low}"
    if isinstance(training.state.normalizer, Normalizer):
        now = training.state.normalizer.statistics
        stuck = unchanged(initial_statistics(1, now.obs.mean.shape[1]), now)
        stuck += [] if round(now.obs.samples[0]) == config.steps else ["count"]
        checks["statistics"] = f"NO: unchanged are {stuck}" if stuck else "moved"
    return checks


def check_log(events: list[Row]) -> Row:
    """Return the first and last losses, and the return of the evaluation."""
    lines = [e for e in events if e["event"] == "losses"]
    (point,) = [float(e["mean"]) for e in events if e["event"] == "evaluation"]
    table = {x: [float(e[x]) for e in lines] for x in lines[0] if x not in COMMON_FIELDS}
    finite = np.isfinite([point, *np.ravel([*table.values()])]).all()
    fine = f"{len(lines)} finite lines" if finite and len(lines) > 1 else "NO"
    ends = {name: f"{x[0]:.4g} to {x[-1]:.4g}" for name, x in table.items()}
    return {"logged": ends, "log": fine, "return": round(point, 2)}


def run(job: Job) -> Row:
    """Run a job and check what changed."""
    config = config_of(*job)
    members = fleet_members(config)
    with tempfile.TemporaryDirectory() as temporary:
        folder = create_run(Path(temporary) / "run", "", [members[0].name], False)
        with (
            make_pool(config, options=RunOptions(workers=0)) as pool,
            RunLog(config, folder, members, "") as log,
        ):
            training = Training(config, pool, log)
            training.begin()
            old = state_fields(training.state.fleet.states)
            training.run(lambda _: None)
        events = read_events(folder.events)
    updates = int(training.state.schedule.done[0])
    copied = updates % getattr(config.agent, "target_period", MIN_UPDATES + updates) == 0
    return {
        "device": jax.devices()[0].device_kind,
        "steps": int(training.state.rollout.steps[0]),
        "utd": config.utd,
        "updates": updates if updates >= MIN_UPDATES else f"NO: {updates}",
        **check_log(events),
        **check_networks(old, state_fields(training.state.fleet.states), copied),
        **check_data(training, config),
        "versions": versions(),
    }


def run_in_process(job: Job, options: argparse.Namespace, free: Any) -> Row:
    """Run a job in a process on cores that no other job uses, and return its row."""
    start, cores = time.perf_counter(), free.get()
    variables = {
        "JAX_PLATFORMS": "cuda,cpu" if options.platform == "gpu" else "cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / options.jobs:.3f}",
        "JAX_TRACEBACK_FILTERING": "off",  # its note would replace the last line
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--job", json.dumps([job, cores])]
    settings = {"env": os.environ | variables, "capture_output": True, "timeout": MAX_SECONDS}
    try:
        output = subprocess.run(command, **settings, check=True, text=True).stdout
        row = json.loads(output.splitlines()[-1])
    except subprocess.TimeoutExpired:
        row = {"error": f"NO: not done in {MAX_SECONDS} s"}
    except subprocess.CalledProcessError as error:
        output = f"exit code {error.returncode}\n{error.stderr}".strip()
        row = {"error": f"NO: {output.splitlines()[-1][:300]}"}
    free.put(cores)
    wrong = [f"{name} {x}" for name, x in row.items() if str(x).startswith("NO")]
    row |= {"wrong": wrong, "seconds": round(time.perf_counter() - start, 1)}
    return dict(zip(COLUMNS, job, strict=False)) | row


def plan_jobs(options: argparse.Namespace, rows: list[Row]) -> list[Job]:
    """Return the requested jobs, the long ones first."""
    first = {task[1:]: name for name, task in reversed(PAPER_TASKS.items())}.values()
    plan = {x: "real" if x in first else "small" for x in options.tasks or PAPER_TASKS}
    if options.tasks and options.widths != "all":
        plan = dict.fromkeys(options.tasks, options.widths)
    done = [(row["agent"], row["task"]) for row in rows]
    jobs = [(x, y, plan[y]) for y in sorted(plan, key=plan.get) for x in options.agents]
    return [x for x in jobs if options.widths in ("all", x[2]) and x[:2] not in done]


def run_all(jobs: list[Job], options: argparse.Namespace, result: Row) -> None:
    """Run all jobs, several at once, and write the result after each."""
    cores, free = sorted(os.sched_getaffinity(0)), queue.Queue()
    order = [(task, agent) for task in PAPER_TASKS for agent in AGENTS]
    each, start = max(1, len(cores) // options.jobs), time.perf_counter()
    for n in range(options.jobs):
        free.put(cores[n * each : (n + 1) * each] or cores)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(run_in_process, job, options, free) for job in jobs]
        for n, future in enumerate(as_completed(futures), start=1):
            row = future.result()
            result["table"].append(row)
            if job_versions := row.pop("versions", None):
                commit = job_versions.pop("commit")
                row["commit"] = options.commit or commit
                result["versions"][job_versions["platform"]] = job_versions
            remaining = (time.perf_counter() - start) * (len(jobs) / n - 1)
            print(f"{n}/{len(jobs)}", *[row[x] for x in COLUMNS[:3]], end=": ")
            print(row["wrong"] or "ok", f"({row['seconds']} s), remaining", end=" ")
            print(f"{remaining:.0f} s", flush=True)
            result["table"].sort(key=lambda x: order.index((x["task"], x["agent"])))
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")


def line_of(row: Row) -> str:
    """Return a row of the table as text."""
    losses = [f"{k[5:]} {v}" for k, v in row.get("logged", {}).items() if k[:5] == "loss/"]
    row = {"losses": row.get("error", "; ".join(losses))} | row
    return " | ".join(str(row.get(name, "")) for name in COLUMNS)


def main() -> int:
    """Run the requested jobs, or a single one in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=[*AGENTS])
    parser.add_argument("--tasks", nargs="+", choices=PAPER_TASKS)
    parser.add_argument("--widths", choices=("real", "small", "all"), default="all")
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--commit", help="commit to record when not in a git checkout")
    parser.add_argument("--add-to", type=Path, help="result file to complete")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        os.sched_setaffinity(0, options.job[1])
        print(json.dumps(run(options.job[0])))
        return 0
    empty = {"versions": {}, "table": []}
    result = json.loads(options.add_to.read_text()) if options.add_to else empty
    run_all(plan_jobs(options, result["table"]), options, result)
    print(f"{' | '.join(COLUMNS)}\n{'--- | ' * (len(COLUMNS) - 1)}---")
    print(*map(line_of, result["table"]), sep="\n")
    bad = sum(bool(row["wrong"]) for row in result["table"])
    print(f"\n{bad} of {len(result['table'])} runs failed a check")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
