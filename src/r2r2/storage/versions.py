"""What a run was made with: versions, commit, device and machine."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import jax

PACKAGES = (
    "r2r2",
    "jax",
    "jaxlib",
    "numpy",
    "mujoco",
    "dm_control",
    "gymnasium",
    "equinox",
    "optax",
)

# The types of JAX's own signatures lean on jaxlib's, which are unknown.
_untyped_jax = cast("Any", jax)


def versions() -> dict[str, str]:
    """Everything on which, with the config, a result may depend; all as text."""
    devices = _untyped_jax.devices()
    precision = _untyped_jax.config.jax_default_matmul_precision
    return {
        **{name: version_of(name) for name in PACKAGES},
        "commit": commit_of(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "device": str(devices[0].device_kind),
        "platform": str(devices[0].platform),
        "device_count": str(len(devices)),
        "matmul_precision": "default" if precision is None else str(precision),
        "machine": platform.machine(),
        "cpu_count": str(os.cpu_count()),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def version_of(package: str) -> str:
    """The version of an installed package, or "absent".

    Example:
        >>> version_of("no-such-package")
        'absent'
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def commit_of(package: Path) -> str:
    """The commit of the checkout whose `src/` holds a package, or "unknown".

    It ends in "+dirty" when something under `src/` differs from that commit. A package
    that lies in a virtual environment has no commit, even where the environment lies in
    some repository: that repository is another's.
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
    """What git answers about the repository around a folder, or None."""
    # Inside a hook git names the hook's own repository in its environment.
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            env=clean,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip()
