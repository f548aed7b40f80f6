"""Whether a fleet fits its device, said before training starts."""

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

# The rest is for batches, compiled programs and the host's own needs.
SHARE = 0.8
# Rows of a replay, if nobody asks for fewer: with as many levels of sums as there are
# over a million, so that what a run draws does not depend on its length.
FEWEST = 4 * FANOUT**2


def replay_rows(config: RunConfig) -> int:
    """Rows to allocate per member: what the run can write, at the next power of two.

    An episode of one step takes two rows, the most per step there can be. Programs are
    compiled for a number of rows: of all lengths of runs they are for a few.
    """
    rows = FEWEST
    while rows < 2 * config.steps + 2:
        rows *= 2
    return min(config.replay_size, rows)


def row_bytes(spec: Spec) -> float:
    """Bytes of one row: observation, action, reward, priority with sums, a flag."""
    numbers = spec.obs_dim + spec.action_dim + 1 + 1 + 2 / FANOUT
    return numbers * jnp.zeros(()).dtype.itemsize + 1


def state_bytes(config: RunConfig, spec: Spec) -> int:
    """Bytes of one member's networks, targets and moments."""
    return agent_bytes(make_agent(config.agent, spec, config.utd))


def agent_bytes(agent: Agent) -> int:
    """Bytes of the state of one member with this agent."""
    shapes = jax.tree.leaves(state_shapes(agent))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)


def batch_bytes(config: RunConfig, spec: Spec) -> int:
    """Bytes of what a member's networks make of a batch, roughly.

    Every matrix gives as many numbers per transition as it has columns; of a state's
    matrices two thirds are moments, which give none.
    """
    shapes = state_shapes(make_agent(config.agent, spec, config.utd))
    matrices = [leaf for leaf in jax.tree.leaves(shapes) if leaf.ndim > 1]
    columns = sum(leaf.size // leaf.shape[-2] for leaf in matrices) / 3
    numbers = columns + 2 * (spec.obs_dim + spec.action_dim)
    return int(config.agent.batch_size * numbers * jnp.zeros(()).dtype.itemsize)


def check_fits(config: RunConfig, spec: Spec, free: int | None = None) -> None:
    """Refuses a fleet that is larger than the device.

    Args:
        config: the run.
        spec: the task's sizes.
        free: bytes of the device; measured if not given.
    """
    members = len(config.env) * len(config.seeds)
    rows, row, state = replay_rows(config), row_bytes(spec), state_bytes(config, spec)
    room = SHARE * (device_bytes() if free is None else free)
    need = members * (rows * row + state)
    if need <= room:
        _check_batch(config, spec, room)
        return
    fits = [f"replay_size {int((room / members - state) / row)}"]
    if fewer := int(room / (rows * row + state)):
        fits.append(f"{fewer} instead of {members} members")
    if members * state >= room:
        fits = ["smaller networks or fewer members"]
    raise UserError(
        f"replay_size is {config.replay_size}; the fleet takes {need / 1e9:.1f} GB "
        f"(members: {members}; each {rows} rows of {row:.0f} bytes and networks of "
        f"{state / 1e6:.1f} MB), and {jax.devices()[0].device_kind} has "
        f"{room / 1e9:.1f} GB for it; what would fit: {' or '.join(fits)}"
    )


def _check_batch(config: RunConfig, spec: Spec, room: float) -> None:
    members, each = len(config.env) * len(config.seeds), batch_bytes(config, spec)
    if members * each > room:
        raise UserError(
            f"agent.batch_size is {config.agent.batch_size}; what networks make of "
            f"batches takes about {members * each / 1e9:.1f} GB (members: {members}), "
            f"and {jax.devices()[0].device_kind} has {room / 1e9:.1f} GB for it; what "
            f"would fit: {int(config.agent.batch_size * room / (members * each))}"
        )


def device_bytes() -> int:
    """Memory of the device that trains: its own, or what the machine has left."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return min(_available(), _container_limit())


def _available() -> int:
    """What Linux could hand out; it counts caches, which the free pages leave out."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_limit() -> int:
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return int(text) if text.isdigit() else 2**62
