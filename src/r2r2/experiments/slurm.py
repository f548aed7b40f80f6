"""SLURM: scripts that train the fleets of a sweep as a job array and then report them.

    slurm/NAME/array.sh     one task per fleet; SLURM keeps a copy when it is submitted
    slurm/NAME/collect.sh   writes the report when the array has ended
    slurm/NAME/submit.sh    submits both

They have no path of the sweep's folder, so it can be moved before they are submitted.
"""

import importlib.util
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from r2r2.config.errors import UserError, invalid_value
from r2r2.experiments.machine import this_machine
from r2r2.experiments.plan import Plan
from r2r2.experiments.runner import RETRIES
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.files import atomic_write, cannot_write

SIGNAL_SECONDS = 300  # before the time limit, to write a checkpoint
HOURS = 24  # time limit of a task, after which it resumes as a new one

# SLURM may send SIGTERM to the script, to all processes of the job, or to none. A fleet ends at
# once at a second signal; so it ignores SIGTERM, and gets one SIGINT from the script. Without
# `set -m`, Bash would let it ignore SIGINT, too.
ARRAY = Template("""\
#!/bin/bash
#SBATCH --job-name=$job
#SBATCH --array=0-$last
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=$cores
$gpu_line#SBATCH --time=$hours:00:00
#SBATCH --signal=B:USR1@$seconds
#SBATCH --requeue
#SBATCH --open-mode=append
# One task per fleet of a sweep, written by 'r2r2 sweep --engine slurm'. Submit it with submit.sh.
set -u
sweeps=$$1
fleets=(
$fleets
)
fleet=$${fleets[$$SLURM_ARRAY_TASK_ID]}
log="$$sweeps/logs/$$fleet.log"
mkdir -p "$$sweeps/logs"

# Before the time limit, the fleet writes a checkpoint, and SLURM starts the task again.
# If SLURM preempts the job (or you cancel it), the fleet writes a checkpoint as well.
set -m
child="" out_of_time="" ending="" signalled=""
end_fleet() {
  ending=1
  if [ -n "$$child" ] && [ -z "$$signalled" ]; then
    signalled=1
    kill -INT "$$child"
  fi
}
trap 'out_of_time=1; end_fleet' USR1
trap end_fleet TERM INT

code=130
for attempt in $attempts; do
  if [ -n "$$ending" ]; then break; fi
  (trap '' TERM && exec $python -m r2r2.experiments.fleet_job "$$sweeps" $sweep "$$fleet" \\
    --attempt "$$attempt" --device $device) >>"$$log" 2>&1 &
  child=$$!
  if [ -n "$$ending" ]; then end_fleet; fi
  wait "$$child"
  code=$$?
  while kill -0 "$$child" 2>/dev/null; do # a signal ended the wait
    wait "$$child"
    code=$$?
  done
  child=""
  if [ "$$code" = 0 ]; then break; fi
done
if [ "$$code" != 0 ] && [ -n "$$out_of_time" ]; then
  scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$${SLURM_ARRAY_TASK_ID}"
fi
exit "$$code"
""")

COLLECT = Template("""\
#!/bin/bash
#SBATCH --job-name=$job-report
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=1:00:00
# The report of a sweep, written by 'r2r2 sweep --engine slurm'. submit.sh submits it.
set -u
sweeps=$$1
fleets=(
$fleets
)
runs=()
for fleet in "$${fleets[@]}"; do
  if [ -d "$$sweeps/runs/$$fleet" ]; then
    runs+=("$$sweeps/runs/$$fleet")
  else
    echo "r2r2: $$fleet has not started"
  fi
done
if [ $${#runs[@]} = 0 ]; then exit 1; fi
exec $python -m r2r2 report "$${runs[@]}" --out "$$sweeps/reports/"$sweep
""")

SUBMIT = """\
#!/bin/bash
# Submit the sweep; arguments are options of sbatch for its tasks, and replace those of array.sh:
#   bash submit.sh --partition=gpu --time=12:00:00 --mem=32G
# Options of the partition and the account are also those of the report; write them with '='.
# Submitted again, it resumes the fleets that are not finished.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sweeps=$(cd "$here/../.." && pwd)
shared=()
for option in "$@"; do
  case $option in
    --partition=* | --account=* | --qos=* | --clusters=* | --reservation=* | --mail-*=*)
      shared+=("$option")
      ;;
  esac
done
array=$(sbatch --parsable --output="$here/%A_%a.out" "$@" "$here/array.sh" "$sweeps")
array=${array%%;*} # without the name of the cluster
if report=$(sbatch --parsable --output="$here/report_%j.out" --dependency="afterany:$array" \\
  "${shared[@]+"${shared[@]}"}" "$here/collect.sh" "$sweeps"); then
  echo "r2r2: submitted the array $array and the report ${report%%;*}"
else
  echo "r2r2: error: submitted the array $array, but not the report; when the array has ended:" \\
    "bash '$here/collect.sh' '$sweeps'" >&2
  exit 1
fi
"""


def write_job_scripts(
    folder: SweepFolder,
    plan: Plan,
    *,
    gpus: int | None = None,
    hours: int = HOURS,
    retries: int = RETRIES,
    runs: Iterable[str] = (),
) -> Path:
    """Write the scripts of a sweep and return the one to run, `submit.sh`.

    Args:
        folder: the files of the sweep; its plan is stored.
        plan: the fleets to train.
        gpus: of each fleet, 0 or 1; None: 1 if JAX here supports GPUs.
        hours: the time limit of a task, which then resumes.
        retries: attempts after the first for a fleet that fails, in one task.
        runs: names of other run folders for the report, such as finished ones.

    Raises:
        UserError: There are no fleets, an argument is invalid, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from r2r2.experiments.plan import PlannedFleet
        >>> plan = Plan("small", 1.0, 4, (PlannedFleet("td7_Hopper-v5_utd1", None),))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     script = write_job_scripts(SweepFolder(Path(path), "small"), plan, gpus=1)
        ...     sorted(file.name for file in script.parent.iterdir())
        ['array.sh', 'collect.sh', 'submit.sh']
    """
    if not plan.fleets:
        raise UserError(f"{folder.name}: expected at least one fleet to train, got none")
    if gpus not in (None, 0, 1):
        raise invalid_value("gpus", "0 or 1", gpus)
    if hours < 1:
        raise invalid_value("hours", "an integer >= 1", hours)
    uses_gpu = _trains_on_gpu() if gpus is None else bool(gpus)
    scripts = folder.path / "slurm" / folder.name
    stored, waiting = ([x.name for x in one.fleets] for one in (folder.plan() or plan, plan))
    fields = _common_fields(folder)
    array = ARRAY.substitute(
        fields,
        last=len(waiting) - 1,
        cores=max(plan.cores, 1),
        gpu_line="#SBATCH --gres=gpu:1\n" if uses_gpu else "",
        hours=hours,
        seconds=SIGNAL_SECONDS,
        attempts=" ".join(map(str, range(1, retries + 2))),
        device="gpu" if uses_gpu else "cpu",
        fleets=_lines(waiting),
    )
    collect = COLLECT.substitute(fields, fleets=_lines([*stored, *waiting, *runs]))
    try:
        scripts.mkdir(parents=True, exist_ok=True)
        for name, text in (("array", array), ("collect", collect), ("submit", SUBMIT)):
            atomic_write(scripts / f"{name}.sh", text)
    except OSError as error:
        raise cannot_write(scripts, error) from error
    return scripts / "submit.sh"


def _common_fields(folder: SweepFolder) -> dict[str, str]:
    return {
        "job": f"r2r2-{folder.name}",
        "sweep": shlex.quote(folder.name),
        "python": shlex.quote(sys.executable),
    }


def _lines(names: Sequence[str]) -> str:
    """Return names as lines of an array in Bash, each once."""
    return "\n".join(f"  {shlex.quote(name)}" for name in dict.fromkeys(names))


def _trains_on_gpu() -> bool:
    """Return whether fleets should train on GPUs; machines to submit from often have none."""
    if this_machine().devices[0].name != "cpu":
        return True
    try:
        return any(
            importlib.util.find_spec(f"jax_plugins.{name}") is not None
            for name in ("xla_cuda12", "xla_cuda13", "xla_rocm7")
        )
    except ModuleNotFoundError:  # JAX has no plugins
        return False
