"""A stand-in for `sbatch` that runs the script at once, task by task, as SLURM would in time.

It copies the script first, as SLURM does. `STUB_FOLDER` has its files: what was submitted, the
tasks that `scontrol requeue` names, `refused` with the name of a script to refuse, and `time_limit`
with a run folder: once that run has started, its task gets USR1.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

STUB = Path(os.environ.get("STUB_FOLDER", "."))


def options_of(script):
    return re.findall(r"^#SBATCH (--[^\n]*)$", script.read_text(), re.MULTILINE)


def send_time_limit(process, seconds=120):
    """Send USR1 to the batch script once the run in `time_limit` has started, only once."""
    limit = STUB / "time_limit"
    run = Path(limit.read_text())
    for _ in range(int(seconds / 0.1)):
        if (run / "events.jsonl").exists() and "evaluation" in (run / "events.jsonl").read_text():
            limit.unlink()
            process.send_signal(signal.SIGUSR1)
            return
        time.sleep(0.1)


def run_task(job, task, command, output):
    variables = {"SLURM_JOB_ID": str(job), "SLURM_ARRAY_JOB_ID": str(job)}
    if task is not None:
        variables["SLURM_ARRAY_TASK_ID"] = str(task)
    path = output.replace("%A", str(job)).replace("%a", str(task)).replace("%j", str(job))
    with open(path, "ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=os.environ | variables, start_new_session=True
        )
        if task is not None and (STUB / "time_limit").exists():
            threading.Thread(target=send_time_limit, args=(process,), daemon=True).start()
        process.wait()


def main():
    given = sys.argv[1:]
    index = next(i for i, text in enumerate(given) if not text.startswith("--"))
    script, arguments = Path(given[index]), given[index + 1 :]
    options = dict(text.partition("=")[::2] for text in (*options_of(script), *given[:index]))
    job = 1 + len(list(STUB.glob("job*.sh")))
    copy = STUB / f"job{job}.sh"
    shutil.copy(script, copy)
    refused = STUB / "refused"
    if refused.exists() and refused.read_text() == script.name:
        sys.exit("sbatch: error: invalid account")
    names = "--dependency", "--partition", "--time"
    with (STUB / "submitted").open("a") as log:
        log.write(" ".join([str(job), script.name, *(options.get(x, "") for x in names)]) + "\n")
    print(f"{job};cluster", flush=True)
    command = ["bash", str(copy), *arguments]
    first, _, last = options.get("--array", "").partition("-")
    tasks = list(range(int(first), int(last) + 1)) if last else [None]
    while tasks:
        run_task(job, tasks.pop(0), command, options["--output"])
        requeued = STUB / "requeued"
        if requeued.exists():
            names = requeued.read_text().split()
            requeued.rename(STUB / "requeued_before")
            tasks += [int(name.partition("_")[2]) for name in names]


if __name__ == "__main__":
    main()
