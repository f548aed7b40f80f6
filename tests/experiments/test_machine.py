"""The devices, cores and memory that a plan uses."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from r2r2.experiments import machine
from r2r2.experiments.machine import available_cores, this_machine
from r2r2.training import host_memory

OUTPUT = """\
0, GPU-aaa1, NVIDIA H200, 143771
1, GPU-aab2, NVIDIA H200, 143771
2, GPU-ccc3, NVIDIA RTX A6000, [N/A]
"""


@pytest.fixture
def gpus(monkeypatch):
    """Let nvidia-smi report three GPUs that JAX supports."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_jax_has_gpus", lambda: True)
    done = SimpleNamespace(stdout=OUTPUT)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)


def test_all_gpus_are_used(gpus):
    devices = this_machine().devices
    assert [x.name for x in devices] == ["gpu:0", "gpu:1", "gpu:2"]
    assert [x.kind for x in devices] == ["NVIDIA H200"] * 2 + ["NVIDIA RTX A6000"]
    assert [x.memory for x in devices] == [143771 * 2**20] * 2 + [0]
    assert not any(x.is_cpu for x in devices)
    # Numbers could be those of other GPUs: CUDA counts the fastest first.
    assert [x.cuda for x in devices] == ["GPU-aaa1", "GPU-aab2", "GPU-ccc3"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", ["2", "0"]),
        (" 1 , 2", ["1", "2"]),
        ("GPU-c", ["GPU-c"]),
        ("MIG-1f,MIG-2e", ["MIG-1f", "MIG-2e"]),
        ("1,7,0", ["1"]),  # as CUDA does: nothing after an invalid entry
        ("1,GPU-aab", ["1"]),  # the same GPU again
        ("GPU-aa", []),  # ambiguous
    ],
)
def test_visible_devices_are_respected(gpus, monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = this_machine().devices
    assert [x.cuda for x in devices if not x.is_cpu] == expected
    assert [x.name for x in devices] == [f"gpu:{n}" for n in range(len(expected))] or ["cpu"]


@pytest.mark.parametrize("visible", ["", "-1"])
def test_without_visible_gpus_the_cpu_is_used(gpus, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (device,) = this_machine().devices
    assert device.is_cpu
    assert device.memory > 2**20


def test_gpus_are_found_without_nvidia_smi(gpus, monkeypatch, tmp_path):
    def missing(*_, **__):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(machine.subprocess, "run", missing)
    folder = tmp_path / "0000:01:00.0"
    folder.mkdir()
    (folder / "information").write_text("Model: \t NVIDIA H200\nGPU UUID: \t GPU-1\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path)
    (device,) = this_machine().devices
    assert device == ("gpu:0", "NVIDIA H200", 0, "GPU-1")


def test_the_share_of_memory_is_that_of_the_user(monkeypatch):
    for name in machine.MEMORY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert [machine.memory_share(n) for n in (1, 2)] == [0.75, 0.45]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert [machine.memory_share(n) for n in (1, 2)] == [0.5, 0.25]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "half")
    assert machine.memory_share(1) == 0.75


def test_gpus_that_jax_does_not_support_are_not_used(gpus, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert this_machine().devices[0].is_cpu


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000\n", 6), ("250000 100000\n", 2), ("50000 100000\n", 1)]
)
def test_the_quota_of_a_container_limits_cores(monkeypatch, tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(6)))
    assert available_cores() == cores


def test_the_limit_of_a_container_limits_memory(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("123456789\n")
    monkeypatch.setattr(host_memory, "CGROUP_FILES", (tmp_path / "memory.max",))
    assert host_memory.host_bytes() == 123456789
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory.host_bytes() > 123456789


def test_planning_does_not_import_jax():
    code = "import sys; from r2r2.experiments import costs, planner; print('jax' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.strip() == "False"
