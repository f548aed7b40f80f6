"""Memory of a fleet: how much it needs, and whether the device has it."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent
from r2r2.agents.registry import make_agent, state_shapes
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec
from r2r2.replay.sum_tree import FANOUT

# Fraction of the memory for replay and networks; the rest is for batches, compiled
# programs and the host.
SHARE = 0.8
# Least number of replay rows: its sum tree has as many levels as that of a million
# rows, so that the samples of a run do not depend on its length.
MIN_ROWS = 4 * FANOUT**2


def replay_rows(config: RunConfig) -> int:
    """Return the replay rows per member: what the run can write, a power of two.

    A one-step episode takes two rows, the most per step. Programs are compiled for a
    number of rows, so powers of two keep the number of different programs small.
    """
    rows = MIN_ROWS
    while rows < 2 * config.steps + 2:
        rows *= 2
    return min(config.replay_size, rows)


def row_bytes(spec: Spec) -> float:
    """Return the bytes of a row: observation, action, reward, priority and a flag."""
    numbers = spec.obs_dim + spec.action_dim + 1 + 1 + 2 / FANOUT
    return numbers * jnp.zeros(()).dtype.itemsize + 1


def agent_bytes(agent: Agent) -> int:
    """Return the bytes of one member's networks, targets and moments."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state_shapes(agent)))


def activation_bytes(config: RunConfig, agent: Agent, spec: Spec) -> int:
    """Estimate the bytes of one member's activations for a batch.

    Every matrix gives as many numbers per transition as it has columns; two thirds of
    a state's matrices are moments, which give none.
    """
    matrices = [leaf for leaf in jax.tree.leaves(state_shapes(agent)) if leaf.ndim > 1]
    columns = sum(leaf.size // leaf.shape[-2] for leaf in matrices) / 3
    numbers = columns + 2 * (spec.obs_dim + spec.action_dim)
    return int(config.agent.batch_size * numbers * jnp.zeros(()).dtype.itemsize)


def check_fits(config: RunConfig, spec: Spec, free: int | None = None) -> None:
    """Check that a fleet fits into the memory of the device, or into `free` bytes."""
    agent = make_agent(config.agent, spec, config.utd)
    members, device = len(config.env) * len(config.seeds), jax.devices()[0].device_kind
    available = SHARE * (device_bytes() if free is None else free)
    rows, row, state = replay_rows(config), row_bytes(spec), agent_bytes(agent)
    needed = members * (rows * row + state)
    if needed > available:
        options = [f"--replay-size {int((available / members - state) / row)}"]
        if fewer := int(available / (rows * row + state)):
            options.append(f"{fewer} instead of {members} members")
        if members * state >= available:
            options = ["smaller networks or fewer members"]
        raise UserError(
            f"replay_size: the fleet needs {needed / 1e9:.1f} GB ({members} members, each with "
            f"{rows} rows of {row:.0f} bytes and networks of {state / 1e6:.1f} MB), but {device} "
            f"has {available / 1e9:.1f} GB for it; try {' or '.join(options)}"
        )
    activations = members * activation_bytes(config, agent, spec)
    if activations > available:
        size = config.agent.batch_size
        raise UserError(
            f"agent.batch_size: activations need about {activations / 1e9:.1f} GB ({members} "
            f"members, batches of {size}), but {device} has {available / 1e9:.1f} GB for them; "
            f"expected at most {int(size * available / activations)}"
        )


def device_bytes() -> int:
    """Return the memory of the training device, or what the machine has available."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    limit = Path("/sys/fs/cgroup/memory.max")  # of the container
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(_available(), int(text) if text.isdigit() else 2**62)


def _available() -> int:
    """Return the memory that Linux can provide, which includes reclaimable caches."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
