import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_sweep import VARIABLES, results, store_plan, train_directly

from r2r2.config.errors import UserError
from r2r2.experiments.slurm import write_job_scripts
from r2r2.experiments.sweep_folder import finished_runs

STUB = Path(__file__).with_name("sbatch_stub.py")


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """The folder of a stand-in for SLURM, whose programs are on the path."""
    folder = tmp_path / "stub"
    programs = {
        "sbatch": f'exec {shlex.quote(sys.executable)} {shlex.quote(str(STUB))} "$@"',
        "scontrol": '[ "$1" = requeue ] && echo "$2" >> "$STUB_FOLDER/requeued"',
    }
    (folder / "bin").mkdir(parents=True)
    for name, command in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_FOLDER", str(folder))
    return folder


def submit(script, *options):
    """Run `submit.sh`, which waits for the jobs here; return what it prints."""
    command = ["bash", str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    outputs = [path.read_text() for path in sorted(script.parent.glob("*.out"))]
    assert done.returncode == 0, done.stderr + "".join(outputs)
    return done.stdout


@pytest.mark.slow
def test_the_scripts_train_and_report_a_sweep(tmp_path, stub, monkeypatch):
    for name, value in {**VARIABLES, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}.items():
        monkeypatch.setenv(name, value)
    folder, plan = store_plan(tmp_path / "my sweeps")
    direct, first = store_plan(tmp_path / "direct", fleets=1)
    train_directly(direct, first)
    (stub / "time_limit").write_text(str(folder.run(plan.fleets[0].name)))

    output = submit(write_job_scripts(folder, plan, gpus=0), "--partition=long", "--time=9:00:00")

    assert "submitted the array 1 and the report 2" in output
    submitted = (stub / "submitted").read_text().splitlines()
    assert submitted == ["1 array.sh  long 9:00:00", "2 collect.sh afterany:1 long 1:00:00"]
    assert (stub / "requeued_before").read_text() == "1_0\n"  # the first task, at its time limit
    log = folder.log(plan.fleets[0].name).read_text()
    assert "writing a checkpoint" in log
    assert "resuming from step" in log
    assert len(finished_runs(folder.path)) == 2
    interrupted = results(folder, plan._replace(fleets=plan.fleets[:1]))
    undisturbed = results(direct, first)
    assert len(undisturbed) == 3
    assert [*interrupted.values()] == [*undisturbed.values()]  # in the order of file names
    assert (folder.report / "index.html").exists()


# A program in place of Python: notes its arguments, and ends as `CODES` says


FAKE = """\
#!/bin/bash
printf '%s|' "$@" >> "$STUB_FOLDER/calls"
echo >> "$STUB_FOLDER/calls"
if [ "$2" = r2r2 ]; then exit 0; fi
read -r code < "$STUB_FOLDER/codes"
sed -i 1d "$STUB_FOLDER/codes"
exit "${code:-0}"
"""


@pytest.fixture
def scripts(tmp_path, stub, monkeypatch):
    """The scripts of two fleets, with a program in place of Python."""
    program = stub / "my python"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    folder, plan = store_plan(tmp_path / "my $sweeps")
    return folder, plan, write_job_scripts(folder, plan, gpus=1, runs=["other"])


def read_calls(stub):
    return [line.split("|")[:-1] for line in (stub / "calls").read_text().splitlines()]


def test_a_task_retries_a_fleet_that_fails(scripts, stub):
    folder, plan, script = scripts
    first, second = (fleet.name for fleet in plan.fleets)
    (stub / "codes").write_text("1\n0\n2\n2\n2\n")
    folder.run(first).mkdir(parents=True)
    folder.run("other").mkdir(parents=True)
    submit(script)
    calls = read_calls(stub)
    assert [(call[4], call[6]) for call in calls[:-1]] == [
        *((first, "1"), (first, "2")),
        *((second, "1"), (second, "2"), (second, "3")),
    ]
    job = ["-m", "r2r2.experiments.fleet_job", str(folder.path), "tiny", first]
    assert calls[0] == [*job, "--attempt", "1", "--device", "gpu"]
    runs = [str(folder.run(name)) for name in (first, "other")]
    assert calls[-1] == ["-m", "r2r2", "report", *runs, "--out", str(folder.report)]
    (output,) = script.parent.glob("report_*.out")
    assert f"{second} has not started" in output.read_text()


def test_retries_are_in_the_script(scripts, stub):
    folder, plan, _ = scripts
    (stub / "codes").write_text("1\n0\n")
    submit(write_job_scripts(folder, plan, gpus=0, retries=0))
    assert [call[6] for call in read_calls(stub)[:2]] == ["1", "1"]


def test_a_report_that_is_refused_does_not_hide_the_array(scripts, stub):
    (stub / "refused").write_text("collect.sh")
    (stub / "codes").write_text("0\n0\n")
    done = subprocess.run(["bash", str(scripts[2])], capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    assert "submitted the array 1, but not the report" in done.stderr


def test_the_folder_can_be_moved_before_it_is_submitted(scripts, stub):
    folder, _, script = scripts
    moved = folder.path.rename(folder.path.with_name("moved"))
    (stub / "codes").write_text("")
    submit(moved / script.relative_to(folder.path))
    assert read_calls(stub)[0][2] == str(moved)


def test_what_is_submitted_does_not_change_with_the_next_plan(scripts, stub):
    folder, plan, script = scripts
    write_job_scripts(folder, plan._replace(fleets=plan.fleets[1:]), gpus=0)
    array = (script.parent / "array.sh").read_text()
    assert "--array=0-0" in array
    assert "--gres" not in array
    assert plan.fleets[0].name not in array
    collect = (script.parent / "collect.sh").read_text()
    assert plan.fleets[0].name in collect  # the stored plan has both


def test_resources_are_in_the_script(tmp_path):
    folder, plan = store_plan(tmp_path, cores=6)
    array = (write_job_scripts(folder, plan, gpus=1, hours=8).parent / "array.sh").read_text()
    lines = [line for line in array.splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        "#SBATCH --job-name=r2r2-tiny",
        "#SBATCH --array=0-1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --time=8:00:00",
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]


@pytest.mark.parametrize("options", [{"gpus": 2}, {"hours": 0}])
def test_invalid_options_write_nothing(tmp_path, options):
    folder, plan = store_plan(tmp_path)
    with pytest.raises(UserError, match="expected"):
        write_job_scripts(folder, plan, **options)
    assert os.listdir(tmp_path) == ["plans"]


def test_without_fleets_there_is_nothing_to_write(tmp_path):
    folder, plan = store_plan(tmp_path)
    with pytest.raises(UserError, match="at least one fleet"):
        write_job_scripts(folder, plan._replace(fleets=()))
