"""The versions, commit, device and machine of a run."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = "r2r2 jax jaxlib numpy mujoco dm_control gymnasium equinox".split()


def versions(device: Any = None) -> dict[str, str]:
    """Return what a result may depend on besides the config, all as text.

    `device` is the JAX device in use, by default the first one.
    """
    import jax  # not for `package_version` and `source_commit`, which also work without it

    # JAX's signatures refer to jaxlib types that mypy does not know.
    untyped_jax: Any = jax
    device = device or untyped_jax.devices()[0]
    devices = untyped_jax.devices(device.platform)
    precision = untyped_jax.config.jax_default_matmul_precision
    return {
        **{name: package_version(name) for name in PACKAGES},
        "commit": source_commit(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "device": str(device.device_kind),
        "device_index": str(devices.index(device)),
        "platform": str(device.platform),
        "device_count": str(len(devices)),
        "matmul_precision": "default" if precision is None else str(precision),
        "machine": platform.machine(),
        "cpu_count": str(os.cpu_count()),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def package_version(package: str) -> str:
    """Return the version of an installed package, or "absent"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def source_commit(package: Path) -> str:
    """Return the commit of the checkout that contains `src/<package>`, or "unknown".

    "+dirty" is appended if a file under `src/` differs from that commit. A package installed in a
    virtual environment has no commit, even if the environment is inside some other repository.
    """
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" != package.resolve().parent:
        return "unknown"
    commit = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--", str(package.parent))
    if commit is None or changes is None:
        return "unknown"
    return f"{commit}+dirty" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in a folder, or None if it fails."""
    # A git hook sets variables that point to the hook's repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        output = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, env=env, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return output.strip()
