"""Memory of a fleet: how much it needs, and whether the device has it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from r2r2.agents.base import Agent, Array, Batch
from r2r2.agents.registry import build_agent, state_shapes
from r2r2.compute.compiled import inner_jaxprs
from r2r2.compute.devices import training_device
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec
from r2r2.replay.sum_tree import FANOUT
from r2r2.training.host_memory import host_bytes

# Fraction of the memory for replay and networks; the rest is for batches, compiled
# programs and the host.
SHARE = 0.8
# Least number of replay rows: its sum tree has as many levels as that of a million
# rows, so that the samples of a run do not depend on its length.
MIN_ROWS = 4 * FANOUT**2


def replay_rows(config: RunConfig, recorded: int = 0) -> int:
    """Return the replay rows per member: what the run can write, a power of two.

    A one-step episode takes two rows, the most per step. Programs are compiled for a
    number of rows, so powers of two keep the number of different programs small. There is
    room for `recorded` rows, unless batches are mixed with them.
    """
    rows = MIN_ROWS
    while rows < 2 * config.steps + 2 + (0 if config.mix else recorded):
        rows *= 2
    return min(config.replay_size, rows)


def row_bytes(spec: Spec) -> float:
    """Return the bytes of a row: observation, action, reward, priority and a flag."""
    numbers = spec.obs_dim + spec.action_dim + 1 + 1 + 2 / FANOUT
    return numbers * jnp.zeros(()).dtype.itemsize + 1


def agent_bytes(agent: Agent) -> int:
    """Return the bytes of one member's networks, targets and moments."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state_shapes(agent)))


@functools.lru_cache(maxsize=64)
def update_program(config: AgentConfig, spec: Spec, utd: int) -> Any:
    """Return the program of one member's update, as JAX traces it."""
    agent = build_agent(config, spec, utd)

    def update(state: Any, key: Array) -> Any:
        obs, action = (jnp.zeros((agent.batch_size, size)) for size in spec)
        reward = jnp.zeros(agent.batch_size)
        batch = Batch(obs, action, reward, next_obs=obs, terminated=reward > 0)
        return agent.update(state, batch, agent.update_noise(key), jnp.ones((), dtype=int))

    return jax.make_jaxpr(update)(state_shapes(agent), jax.random.key(0)).jaxpr


def update_bytes(config: AgentConfig, spec: Spec, utd: int) -> int:
    """Estimate the bytes that one member's update needs besides its state: activations.

    They are the most that are in use at once if every operation of the update's program
    writes its result to memory. XLA on a CPU was seen to need 0.5 to 1.4 times as much.
    """
    return _peak_bytes(update_program(config, spec, utd))


def _peak_bytes(jaxpr: Any) -> int:
    """Return the most bytes of a program's intermediate values that are in use at once."""
    outputs = {id(x) for x in jaxpr.outvars}  # they replace inputs, or count outside
    last_use = {id(x): n for n, equation in enumerate(jaxpr.eqns) for x in equation.invars}
    live, peak = dict[int, int](), 0
    for number, equation in enumerate(jaxpr.eqns):
        new = {id(x): x.aval.size * x.aval.dtype.itemsize for x in equation.outvars}
        live |= {x: size for x, size in new.items() if x not in outputs}
        inside = max(map(_peak_bytes, inner_jaxprs(equation)), default=0)
        peak = max(peak, sum(live.values()) + inside)
        live = {x: size for x, size in live.items() if last_use.get(x, 0) > number}
    return peak


def mixed_bytes(config: RunConfig, spec: Spec, recorded: int) -> float:
    """Return the bytes of recorded rows that the members share, and of their priorities."""
    members = len(config.env) * len(config.seeds)
    priority = jnp.zeros(()).dtype.itemsize * (1 + 2 / FANOUT)
    return recorded * (row_bytes(spec) + members * priority) if config.mix else 0.0


def check_fits(config: RunConfig, spec: Spec, free: int | None = None, recorded: int = 0) -> None:
    """Check that a fleet fits into the memory of the device, or into `free` bytes.

    `recorded` is the number of rows of recorded transitions.
    """
    agent = build_agent(config.agent, spec, config.utd)
    members, device = len(config.env) * len(config.seeds), training_device().device_kind
    total = device_bytes() if free is None else free
    available = SHARE * total - (mixed := mixed_bytes(config, spec, recorded))
    if available <= 0:
        raise UserError(
            f"{recorded} rows of data need {mixed / 1e9:.1f} GB, but {device} has "
            f"{SHARE * total / 1e9:.1f} GB; expected less data",
            "prefill",
        )
    rows, row, state = replay_rows(config, recorded), row_bytes(spec), agent_bytes(agent)
    if members * state >= available:
        raise UserError(
            f"networks of {members} x {state / 1e9:.1f} GB do not fit, as {device} has "
            f"{available / 1e9:.1f} GB for them; expected smaller networks or fewer members",
            "agent",
        )
    needed = members * (rows * row + state)
    if needed > available:
        options = [f"--replay-size {int((available / members - state) / row)}"]
        if fewer := int(available / (rows * row + state)):
            options.append(f"{fewer} instead of {members} members")
        raise UserError(
            f"the fleet needs {needed / 1e9:.1f} GB ({members} members, each with {rows} rows of "
            f"{row:.0f} bytes and networks of {state / 1e6:.1f} MB), but {device} has "
            f"{available / 1e9:.1f} GB for it; try {' or '.join(options)}",
            "replay_size",
        )
    _check_activations(config, spec, int((total - needed - mixed) / members), device)


def _check_activations(config: RunConfig, spec: Spec, room: int, device: str) -> None:
    """Check that one member's update fits into `room` bytes."""
    agent, size = config.agent, config.agent.batch_size
    if (needed := update_bytes(agent, spec, config.utd)) <= room:
        return
    problem = f"an update needs about {needed / 1e9:.1f} GB per member, but {device} has "
    problem += f"{room / 1e9:.1f} GB for it; expected "
    smallest: Any = {x.name: 2 for x in dataclasses.fields(agent) if x.name == "batch_size"}
    least = update_bytes(dataclasses.replace(agent, **smallest), spec, config.utd)
    if least > room:
        raise UserError(problem + "smaller networks", "agent")
    most = 2 + int((size - 2) * (room - least) / (needed - least))
    raise UserError(problem + f"a batch of at most {most}", "agent.batch_size")


def device_bytes() -> int:
    """Return the memory of the training device, or what the machine has available."""
    stats = training_device().memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return host_bytes()
