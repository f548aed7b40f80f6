"""The device that members train on: JAX's default one, or the one that the user chose."""

import contextlib
from collections.abc import Generator
from typing import Any, cast

import jax

from r2r2.config.errors import UserError, invalid_value
from r2r2.config.fields import ANY_DEVICE, DEVICE

# JAX's signatures refer to jaxlib types that mypy does not know.
_untyped_jax = cast("Any", jax)


def training_device() -> Any:
    """Return the device of programs whose arguments are on no device yet."""
    device = _untyped_jax.config.jax_default_device or _untyped_jax.devices()[0]
    return _untyped_jax.devices(device)[0] if isinstance(device, str) else device


def platform() -> str:
    """Return the kind of device to train on: 'cpu', 'gpu' or 'tpu'."""
    return str(training_device().platform)


def is_accelerated() -> bool:
    """Return whether members train on an accelerator, beside the CPU."""
    return platform() != "cpu"


def host_device() -> Any:
    """Return the CPU as a device: the one to train on if it is one, else JAX's first."""
    return _untyped_jax.devices("cpu")[0] if is_accelerated() else training_device()


@contextlib.contextmanager
def use_device(name: str) -> Generator[None]:
    """Train on the device of this name inside the block.

    It is set for all threads, because programs are also compiled and run in other ones.

    Example:
        >>> with use_device("cpu"):
        ...     platform(), is_accelerated()
        ('cpu', False)
    """
    if name == ANY_DEVICE:
        yield
        return
    device, config = find_device(name), _untyped_jax.config
    before = config.jax_default_device
    config.update("jax_default_device", device)
    try:
        yield
    finally:
        config.update("jax_default_device", before)


def find_device(name: str) -> Any:
    """Return the device that a text such as `cpu`, `gpu` or `gpu:1` names."""
    if not DEVICE.is_valid(name):
        raise invalid_value("device", DEVICE.description, name)
    kind, _, index = name.partition(":")
    devices = _devices(kind)
    if int(index or 0) >= len(devices):
        seen = dict.fromkeys([*_devices(None), *_devices("cpu")])
        names = ", ".join(f"{_label(x)} ({x.device_kind})" for x in seen)
        raise UserError(f"JAX does not see it; expected one of {names}, got {name!r}", "device")
    return devices[int(index or 0)]


def _label(device: Any) -> str:
    devices = _devices(device.platform)
    return f"{device.platform}:{devices.index(device)}" if len(devices) > 1 else device.platform


def _devices(kind: str | None) -> list[Any]:
    try:
        return list(_untyped_jax.devices(kind))
    except RuntimeError:  # no such platform
        return []
