"""What the commands set up in their process, and what it is called."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax


def program() -> str:
    """How this program was called, so that what it says can be pasted."""
    called = Path(sys.argv[0])
    if shutil.which("r2r2"):
        return "r2r2"
    if called.parts[-2:] == ("r2r2", "__main__.py"):
        return "python -m r2r2"
    return sys.argv[0] if called.name == "r2r2" else "r2r2"


def use_this_folder() -> None:
    """As with python -m: `my_robot:Arm-v0` may be a file in the working folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def cache_compiled_programs() -> None:
    """Keeps what takes long to compile in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "r2r2" / "xla"
    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", str(folder))
    settings.update("jax_persistent_cache_min_compile_time_secs", 1.0)
