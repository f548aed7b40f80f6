"""The choice of the device to train on."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from r2r2 import RunOptions, UserError, resolve, train
from r2r2.compute import devices, loop_packing
from r2r2.compute.devices import (
    find_device,
    host_device,
    is_accelerated,
    platform,
    training_device,
    use_device,
)
from r2r2.storage.versions import versions


class Device:
    """A device that nothing can be computed on."""

    def __init__(self, kind, name):
        self.platform, self.device_kind = kind, name


@pytest.fixture
def machine(monkeypatch):
    """A machine with a CPU and two GPUs, of which JAX takes the first."""
    cpu, first, second = Device("cpu", "CPU"), Device("gpu", "H200"), Device("gpu", "A100")
    by_kind = {None: [first, second], "gpu": [first, second], "cpu": [cpu]}

    def jax_devices(kind=None):
        if kind not in by_kind:
            raise RuntimeError(f"Unknown backend {kind}")
        return by_kind[kind]

    config = SimpleNamespace(jax_default_device=None)
    config.update = lambda name, value: setattr(config, name, value)
    pretended = SimpleNamespace(devices=jax_devices, config=config)
    monkeypatch.setattr(devices, "_untyped_jax", pretended)
    return cpu, first, second


def test_default_is_the_first_device_of_jax(machine):
    cpu, first, _ = machine
    with use_device("auto"):
        assert (training_device(), host_device()) == (first, cpu)
    assert (platform(), is_accelerated()) == ("gpu", True)


@pytest.mark.parametrize(("name", "index"), [("gpu", 1), ("gpu:0", 1), ("gpu:1", 2)])
def test_gpus_are_numbered(machine, name, index):
    cpu, *_ = machine
    with use_device(name):
        assert training_device() is machine[index]
        assert host_device() is cpu
        assert loop_packing.packs()
    assert training_device() is machine[1]


def test_cpu_of_a_machine_with_gpus_is_like_one_without(machine):
    cpu, *_ = machine
    with use_device("cpu"):
        assert training_device() is host_device() is cpu
        assert (platform(), is_accelerated(), loop_packing.packs()) == ("cpu", False, False)


@pytest.mark.parametrize("name", ["gpu:2", "tpu", "cpu:1"])
def test_missing_devices_are_named_with_those_that_exist(machine, name):
    seen = r"gpu:0 \(H200\), gpu:1 \(A100\), cpu \(CPU\)"
    with pytest.raises(UserError, match=f"device: .*expected one of {seen}, got '{name}'"):
        find_device(name)


@pytest.mark.parametrize("name", ["", "cuda", "gpu:", "gpu:x", "gpu1", "gpu:-1", "CPU", "gpu:1 "])
def test_invalid_names_are_refused(name):
    with pytest.raises(UserError, match="device: expected cpu, gpu, one of several such as gpu:1"):
        find_device(name)


def test_no_run_folder_is_made_for_a_missing_device(tmp_path):
    config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True})
    with pytest.raises(UserError, match=r"device: JAX does not see it; expected one of cpu"):
        train(config, tmp_path / "run", options=RunOptions(device="tpu:7"))
    assert not (tmp_path / "run").exists()


def test_choice_holds_in_all_threads_and_ends_with_the_block():
    seen = []
    before = jax.config.jax_default_device
    with pytest.raises(ValueError, match="stop"), use_device("cpu"):  # noqa: PT012
        thread = threading.Thread(target=lambda: seen.append(training_device()))
        thread.start()
        thread.join()
        assert jax.config.jax_default_device is seen[0]
        raise ValueError("stop")
    assert jax.config.jax_default_device is before
    assert seen == [jax.devices("cpu")[0]]
    assert jnp.zeros(1).devices() == {jax.devices()[0]}


def test_versions_record_the_device():
    device = jax.devices("cpu")[0]
    record = versions(device)
    assert (record["platform"], record["device"]) == ("cpu", device.device_kind)
    assert (record["device_index"], record["device_count"]) == ("0", str(len(jax.devices("cpu"))))


PROGRAM = """
import sys
import json
import jax
import numpy as np
from r2r2 import RunOptions, resolve, train
from r2r2.training.fleet import Fleet
assert len(jax.devices()) == 2
used = []
original = Fleet.__init__
def init(self, *args, **kwargs):
    original(self, *args, **kwargs)
    used.append(self)
Fleet.__init__ = init
fields = {"env": "Pendulum-v1", "agent": sys.argv[1], "steps": 260, "warmup": 210, "seeds": 2,
    "eval_every": 100, "eval_episodes": 1, "batch_size": 8}
small = {"td7": {"width": 8, "latent": 8}, "simbav2": {"actor_width": 8, "critic_width": 8}}
weights = {}
for device in ("cpu:0", "cpu:1"):
    options = RunOptions(workers=0, device=device)
    result = train(resolve(fields, small[sys.argv[1]]), sys.argv[2] + device, options=options)
    assert not used[-1].async_updates and not used[-1].accelerated
    leaves = jax.tree.leaves(used[-1].states)
    expected = jax.devices()[int(device[-1])]
    assert {d for leaf in leaves for d in leaf.devices()} == {expected}, device
    assert used[-1]._rows.obs.devices() == {expected}
    record = json.loads((result.folder.path / "versions.json").read_text())
    assert (record["platform"], record["device_index"]) == ("cpu", device[-1])
    path = result.folder.weights(result.folder.members[0])
    weights[device] = np.load(path)
for name in weights["cpu:0"].files:
    np.testing.assert_array_equal(weights["cpu:0"][name], weights["cpu:1"][name])
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["td7", "simbav2"])
def test_second_device_trains_to_the_same_bits(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    command = [sys.executable, "-c", PROGRAM, agent, f"{tmp_path}/"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("same")
