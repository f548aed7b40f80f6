"""`r2r2 doctor`: each thing is broken once, and its advice is read."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from r2r2.doctor import child, devices, packages, resources
from r2r2.doctor.child import Answer
from r2r2.doctor.report import examine, without_names

CPU = Answer([{"platform": "cpu", "kind": "cpu", "count": 1, "memory": None}], "", "")
GPU = Answer([{"platform": "gpu", "kind": "NVIDIA H200", "count": 2, "memory": 10**11}], "", "")
SMI = """#!/bin/sh
case "$*" in
  *uuid*) echo "0, GPU-aaa1, NVIDIA H200, 143771" ;;
  *) echo "570.1, {free}, 143771" ;;
esac
"""
IMPORT_ERRORS = packages.import_errors
MODULES = {"jaxlib": "0.10.2", "jax": "0.10.2"}


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    """Replace everything slow by a machine without a GPU on which all works."""
    for name in devices.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(packages, "import_errors", lambda _: {})
    monkeypatch.setattr(packages, "installation_problems", list)
    monkeypatch.setattr(devices, "run_check", lambda *_, **__: CPU)
    monkeypatch.setattr(devices, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(devices, "nvidia_gpus", list)
    monkeypatch.setattr("r2r2.envs.rendering.backend_error", lambda _: "")
    monkeypatch.setattr(resources, "LITTLE_DISK", 0)
    monkeypatch.setattr(resources, "LITTLE_MEMORY", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return monkeypatch


@pytest.fixture
def driver(quiet, tmp_path):
    """Put a nvidia-smi that reports one GPU on the path; return a function that sets its memory."""
    from r2r2.experiments.machine import nvidia_gpus

    def install(free=140000):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(SMI.format(free=free))
        program.chmod(0o755)

    install()
    quiet.setattr(devices, "nvidia_gpus", nvidia_gpus)
    quiet.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return install


def versions(monkeypatch, **changed):
    """Let packages have other versions; None is one that is not installed."""
    found = metadata.version

    def version(name):
        value = changed.get(name.replace("-", "_"), "")
        if value is None:
            raise metadata.PackageNotFoundError(name)
        return value or found(name)

    monkeypatch.setattr(metadata, "version", version)


def one_problem():
    """Return the only problem as (subject, what, advice), and whether it stops training."""
    (problem,) = (report := examine())["problems"]
    assert report["can_train"] is not problem["stops_training"]
    assert "\n" not in problem["advice"]
    return tuple(problem.values())


def test_a_machine_without_problems(cli, quiet):
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    assert out.endswith("\nno problems found\n")
    assert "cpu (cpu); not a GPU: no NVIDIA GPU or driver found" in out
    assert "jax " in out
    assert f"python       {sys.version.split()[0]}" in out


def test_long_lists_are_broken_between_their_items(cli, quiet):
    rows = cli("doctor")[1].splitlines()
    labels = [row[:13].strip() for row in rows]
    extras = rows[labels.index("extras") : labels.index("others")]
    assert len(extras) > 1
    assert max(map(len, extras)) <= 80
    assert {row[:13] for row in extras} == {f"{'extras':13}", " " * 13}
    assert all(row.count("(") == row.count(")") > 0 for row in extras)


def test_json_is_one_document_with_the_same_facts(cli, quiet):
    code, out, _ = cli("doctor", "--json")
    report = json.loads(out)
    assert (code, report["can_train"], report["problems"]) == (0, True, [])
    assert list(report) == [
        *("r2r2", "commit", "python", "platform", "packages", "extras", "others", "device"),
        *("rendering", "cache", "disk", "machine", "environment", "problems", "can_train"),
    ]
    (jax,) = [x for x in report["packages"] if x["name"] == "jax"]
    assert jax["version"] == jax["known_to_work"] == metadata.version("jax")
    assert set(report["extras"]) >= {"cuda", "onnx", "ray", "tune"}
    assert "dev" not in report["extras"]


def test_an_error_has_exit_code_1_and_is_printed_before_warnings(cli, quiet):
    versions(quiet, equinox=None)
    quiet.setattr("r2r2.envs.rendering.backend_error", lambda _: "libEGL.so.1 is missing")
    code, out, _ = cli("doctor")
    assert code == 1
    assert out.index("error: equinox: not installed\n  advice: install it: pip") < out.index(
        "warning: rendering: no OpenGL back end works"
    )
    assert out.endswith("training does not work; see the errors above\n")


@pytest.mark.parametrize(
    ("name", "version", "what"),
    [
        ("equinox", None, "not installed"),
        ("mujoco", "4.0.0", "version 4.0.0 is not supported; expected <4,>=3.17"),
        ("dm_control", "1.0.39", "version 1.0.39 is not supported; expected ==1.0.50"),
    ],
)
def test_missing_and_unsupported_packages(quiet, name, version, what):
    versions(quiet, **{name: version})
    name = name.replace("_", "-")
    known = packages.known_versions()[name]
    assert one_problem() == (name, what, f"install it: pip install '{name}=={known}'", True)


def test_packages_that_cannot_be_imported(quiet):
    quiet.setattr(packages, "import_errors", lambda _: {"mujoco": "ImportError: libGL"})
    _, what, advice, stops = one_problem()
    assert what.endswith("does not work (ImportError: libGL)")
    assert advice.startswith("reinstall it: pip install --force-reinstall 'mujoco==")
    assert stops


def test_a_back_end_that_cannot_be_loaded(quiet):
    """Three packages fail, in other words each; the problem is the variable."""
    failing = {"gymnasium": "glGetError", "mujoco": "glGetError", "dm-control": "MUJOCO_GL: x"}
    asked = []

    def errors(check, subjects, variables):
        asked.append((check, list(subjects), variables))
        return failing if check == "imports" and not variables else {}

    quiet.setattr(packages, "import_errors", IMPORT_ERRORS)
    quiet.setattr(packages, "_errors", errors)
    assert {x["subject"] for x in examine()["problems"]} == {"gymnasium", "mujoco", "MUJOCO_GL"}
    quiet.setenv("MUJOCO_GL", "osmesa")
    subject, what, advice, stops = one_problem()
    assert (subject, stops) == ("MUJOCO_GL", True)
    assert what == "gymnasium, mujoco, dm-control cannot load the back end 'osmesa' (glGetError)"
    assert advice.startswith("unset MUJOCO_GL")
    assert asked[-2] == ("imports", ["numpy", *failing], {"MUJOCO_GL": "disable"})


def test_a_broken_package_is_not_blamed_on_the_back_end(quiet):
    quiet.setattr(packages, "import_errors", IMPORT_ERRORS)
    quiet.setattr(packages, "_errors", lambda check, *_: {"mujoco": "ImportError: libGL"})
    quiet.setenv("MUJOCO_GL", "egl")
    assert one_problem()[0] == "mujoco"


def test_without_jax_no_device_is_looked_for(quiet):
    versions(quiet, jax=None)
    quiet.setattr(devices, "run_check", lambda *_: 1 / 0)
    assert one_problem()[0] == "jax"


def test_without_the_package_that_reads_versions(quiet):
    quiet.setitem(sys.modules, "packaging.requirements", None)
    quiet.delitem(sys.modules, "packaging", raising=False)
    quiet.setitem(sys.modules, "packaging", None)
    subject, what, _, stops = one_problem()
    assert (subject.split(".")[0], what, stops) == ("packaging", "not installed", True)


def test_an_unsupported_python(quiet):
    quiet.setattr(packages, "python_required", lambda: ">=3.99")
    subject, what, advice, stops = one_problem()
    assert (subject, stops) == ("python", True)
    assert what.endswith("is not supported; expected >=3.99")
    assert "python3.12" in advice


def test_an_editable_installation_of_another_version(monkeypatch):
    versions(monkeypatch, r2r2="0.0.9")
    (problem,) = packages.installation_problems()
    assert "but version 0.0.9 was installed" in problem.what
    assert not problem.stops_training


def test_a_package_of_an_extra_that_is_too_old(quiet):
    versions(quiet, optuna="4.0.0")
    subject, what, _, stops = one_problem()
    assert (subject, stops) == ("optuna", False)
    assert "not supported by the extra tune; expected <6,>=5" in what


def test_a_wheel_reads_the_metadata_of_the_installation(monkeypatch, tmp_path):
    class Facts(dict):
        def get_all(self, _):
            return ["tune"]

    (tmp_path / "constraints.txt").write_text("# known\njax==0.10.1\n")
    monkeypatch.setattr(packages, "PACKAGE", tmp_path)
    monkeypatch.setattr(metadata, "requires", lambda _: ["jax>=0.10", "optuna; extra == 'tune'"])
    monkeypatch.setattr(metadata, "metadata", lambda _: Facts({"Requires-Python": ">=3.11"}))
    packages.known_versions.cache_clear()
    wanted = packages.requirements()
    known = packages.known_versions()
    packages.known_versions.cache_clear()
    assert {extra: [x.name for x in found] for extra, found in wanted.items()} == {
        "": ["jax"],
        "tune": ["optuna"],
    }
    assert (known, packages.python_required()) == ({"jax": "0.10.1"}, ">=3.11")


def test_a_gpu_that_is_used_is_no_problem(driver, quiet):
    quiet.setattr(devices, "run_check", lambda *_: GPU)
    report = examine()
    assert report["problems"] == []
    assert report["device"]["why_not_gpu"] is None
    assert report["device"]["driver"] == {"gpus": ["NVIDIA H200"], "visible": 1, "version": "570.1"}


def test_a_driver_without_the_cuda_plugin(driver, quiet):
    versions(quiet, **MODULES, jax_cuda12_plugin=None, jax_cuda13_plugin=None)
    subject, what, advice, stops = one_problem()
    assert (subject, stops) == ("gpu", False)
    assert "NVIDIA H200 is not used: the driver was found, but the CUDA plugin" in what
    assert advice == "pip install 'jax[cuda12]==0.10.2'"


def test_a_plugin_of_another_version(driver, quiet):
    versions(quiet, **MODULES, jax_cuda12_plugin="0.9.1")
    _, what, advice, _ = one_problem()
    assert "the CUDA plugin of JAX is 0.9.1, but jaxlib is 0.10.2" in what
    assert advice == "pip install 'jax[cuda12]==0.10.2'"


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("JAX_PLATFORMS", "cpu", "JAX_PLATFORMS is set to 'cpu'"),
        ("CUDA_VISIBLE_DEVICES", "", "CUDA_VISIBLE_DEVICES='' hides all GPUs"),
        ("CUDA_VISIBLE_DEVICES", "7", "CUDA_VISIBLE_DEVICES='7' hides all GPUs"),
    ],
)
def test_variables_that_hide_a_gpu(driver, quiet, variable, value, what):
    quiet.setenv(variable, value)
    _, found, advice, _ = one_problem()
    assert what in found
    assert advice.startswith(f"unset {variable}")
    assert examine()["environment"] == {variable: value}


@pytest.mark.parametrize(
    ("log", "what", "advice"),
    [
        ("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY", "its memory is full", "see nvidia-smi"),
        (
            "x\nUnable to initialize backend 'cuda': driver too old\nend\n",
            "JAX could not start CUDA (Unable to initialize backend 'cuda': driver too old)",
            "check with nvidia-smi that driver 570.1 works",
        ),
    ],
)
def test_a_gpu_that_jax_cannot_start(driver, quiet, log, what, advice):
    versions(quiet, **MODULES, jax_cuda12_plugin="0.10.2")
    quiet.setattr(devices, "run_check", lambda *_: CPU._replace(log=log))
    problem = one_problem()
    assert what in problem[1]
    assert problem[2].startswith(advice)


def test_a_gpu_whose_memory_is_used_by_others(driver, quiet):
    driver(free=14377)
    quiet.setattr(devices, "run_check", lambda *_: GPU)
    assert one_problem()[1] == "10% of a GPU's memory is free; JAX reserves three quarters"


def test_hardware_without_a_driver(quiet, tmp_path):
    card = tmp_path / "pci" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    subject, what, advice, stops = one_problem()
    assert (subject, what, stops) == (
        "gpu",
        "there is an NVIDIA GPU, but no driver for it was found",
        False,
    )
    assert "--gpus all" in advice
    (card / "class").write_text("0x040300\n")  # its sound chip
    assert examine()["problems"] == []


@pytest.mark.parametrize(
    ("platforms", "log", "advice"),
    [
        ("tpu", "RuntimeError: no TPU", "unset JAX_PLATFORMS"),
        ("", "RuntimeError: bad", "set JAX_PLATFORMS=cpu"),
        ("cuda", "RESOURCE_EXHAUSTED: out of memory", "free memory of the device"),
    ],
)
def test_jax_that_cannot_compute_stops_training(quiet, platforms, log, advice):
    if platforms:
        quiet.setenv("JAX_PLATFORMS", platforms)
    quiet.setattr(devices, "run_check", lambda *_: Answer([], log, log))
    subject, what, found, stops = one_problem()
    assert (subject, stops) == ("device", True)
    assert log in what
    assert found.startswith(advice)


def test_a_cache_that_cannot_be_written(quiet, tmp_path):
    (tmp_path / "file").write_text("")  # also root cannot write below a file
    quiet.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    report = examine()
    (problem,) = report["problems"]
    assert not report["cache"]["writable"]
    assert problem["advice"] == "set XDG_CACHE_HOME to a folder that you can write"
    assert not problem["stops_training"]


def test_the_size_of_the_cache_and_that_it_is_not_created(quiet, tmp_path):
    assert examine()["cache"]["bytes"] == 0
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache" / "r2r2" / "xla").mkdir(parents=True)
    (tmp_path / "cache" / "r2r2" / "xla" / "program").write_bytes(b"12345")
    assert examine()["cache"]["bytes"] == 5


def test_a_working_folder_that_cannot_be_written(quiet):
    quiet.setattr(resources, "write_error", lambda path: "read-only" if path == Path.cwd() else "")
    subject, what, _, stops = one_problem()
    assert (subject, what, stops) == (
        "disk",
        "the working folder cannot be written (read-only)",
        True,
    )


@pytest.mark.parametrize(("free", "stops"), [(10**9, False), (10**8, True)])
def test_little_disk(quiet, free, stops):
    quiet.setattr(resources, "LITTLE_DISK", 5 * 10**9)
    usage = resources.shutil.disk_usage(".")._replace(free=free)
    quiet.setattr(resources.shutil, "disk_usage", lambda _: usage)
    problem = one_problem()
    assert problem[0] == "disk"
    assert "r2r2 clean" in problem[2]
    assert problem[3] is stops


def test_little_memory(quiet):
    quiet.setattr(resources, "LITTLE_MEMORY", 10**18)
    assert one_problem()[0] == "memory"


def test_a_back_end_that_the_user_chose_and_that_fails(quiet):
    quiet.setattr("r2r2.envs.rendering.backend_error", lambda x: "" if x == "egl" else "missing")
    assert examine()["problems"] == []
    quiet.setenv("MUJOCO_GL", "osmesa")
    subject, what, advice, _ = one_problem()
    assert (subject, advice) == ("MUJOCO_GL", "unset MUJOCO_GL")
    assert "'osmesa' does not work" in what


def test_names_of_the_user_are_left_out(monkeypatch):
    monkeypatch.setenv("HOME", "/users/ada")
    monkeypatch.setenv("USER", "alovelace")
    report = {
        "a": ["/users/ada/.cache", "/users/adam"],
        "b": {"c": "/data/alovelace/x:/tmp", "d": 3},
    }
    assert without_names(report) == {
        "a": ["~/.cache", "/users/adam"],
        "b": {"c": "/data/<user>/x:/tmp", "d": 3},
    }


def test_the_report_has_no_home_folder(quiet, tmp_path):
    quiet.setenv("HOME", str(tmp_path))
    quiet.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/dump")
    text = json.dumps(examine())
    assert str(tmp_path) not in text
    assert "--xla_dump_to=~/dump" in text
    assert '"~/cache/r2r2"' in text


def test_children_report_crashes_and_hangs(tmp_path, monkeypatch):
    code = {
        "crashing": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
        "hanging": "import time\ntime.sleep(60)",
        "failing": "raise OSError('no such\\nlibrary')",
        "fine": "print('{]')",
    }
    for name, text in code.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    facts = [
        {"name": "fine", "error": ""},
        {"name": "failing", "error": "OSError: no such library"},
    ]
    answer = child.run_check(["imports", "fine", "failing", "crashing", "json"])
    assert (answer.facts, answer.failure) == (facts, "the process was ended by SIGILL")
    assert child.run_check(["imports", "hanging"], time_limit=1.0).failure == "no answer after 1 s"
    monkeypatch.setattr(packages, "MODULES", {"equinox": "crashing", "rich": "failing"})
    found = [packages.Package(x, "1", "", "") for x in ("rich", "equinox", "cloudpickle")]
    assert packages.import_errors(found) == {
        "rich": "OSError: no such library",
        "equinox": "the process was ended by SIGILL",
    }


def test_the_doctor_works_without_any_package():
    """Without the installed packages (-S) it says which one is missing."""
    command = [sys.executable, "-S", "-m", "r2r2", "doctor"]
    answer = child.subprocess.run(
        command,
        env={"PYTHONPATH": str(packages.PACKAGE.parent), "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "error: packaging: not installed\n  advice: install it: pip install" in answer.stdout


@pytest.mark.slow
def test_this_machine_can_train(cli):
    code, out, err = cli("doctor", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["device"]["used"]["count"] >= 1
    assert set(report["rendering"]) == {"egl", "osmesa", "glfw"}
    assert not any(problem["stops_training"] for problem in report["problems"])
