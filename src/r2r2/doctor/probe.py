"""The child process of `r2r2 doctor`: prints what it finds as lines of JSON."""

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def imports(modules: list[str]) -> None:
    """Import modules and print the error of each one, if any."""
    for name in modules:
        _print_attempt(name, partial(importlib.import_module, name))


def tasks(names: list[str]) -> None:
    """Make tasks, reset them, and print the error of each one, if any."""
    for name in names:
        _print_attempt(name, partial(_reset, name))


def _reset(task: str) -> None:
    from r2r2.envs.make import make_env

    make_env(task, action_repeat=1).reset(seed=0)


def device(_: list[str]) -> None:
    """Compute something on JAX's default device and print what it is."""
    import jax
    import jax.numpy as jnp

    settings: Any = jax
    first = settings.devices()[0]
    ones = jnp.ones((64, 64))
    (ones @ ones).block_until_ready()
    stats = first.memory_stats() or {}
    facts = {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": len(settings.devices()),
        "memory": stats.get("bytes_limit"),
    }
    print(json.dumps(facts), flush=True)


def _print_attempt(name: str, attempt: Callable[[], Any]) -> None:
    error = ""
    try:
        attempt()
    except BaseException as exception:
        error = " ".join(f"{type(exception).__name__}: {exception}".split())
    print(json.dumps({"name": name, "error": error}), flush=True)


if __name__ == "__main__":
    {"imports": imports, "tasks": tasks, "device": device}[sys.argv[1]](sys.argv[2:])
