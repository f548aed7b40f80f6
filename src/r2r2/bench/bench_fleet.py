"""A fleet to be timed: its replay is full of random rows, and it trains on request."""

import contextlib
import time
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from r2r2.agents.base import Agent
from r2r2.bench.program_cost import kernels_of
from r2r2.compute.compiled import CompiledUpdates
from r2r2.compute.flops import flops_of
from r2r2.compute.update import RunLengths
from r2r2.compute.update_grouping import UpdateCall, choose_stride
from r2r2.compute.update_loop import longest_stride
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as replay
from r2r2.replay import sum_tree as sumtree
from r2r2.replay.buffer import Rows
from r2r2.replay.normalizer import Scales
from r2r2.training.fleet import Fleet

HORIZON = 1_000_000  # updates of the run that learning rates are made for
BLOCK = 4096  # different rows, over and over: no update could tell


class Cost(NamedTuple):
    """What is known of a program without running it."""

    compile_s: float  # tracing included, nothing cached
    kernels: float | None  # per update of the whole fleet; None: not known
    flops: float  # per update of one member
    program_bytes: int  # beside replay and networks, of the whole fleet


def update_flops(agent: Agent, updates: CompiledUpdates, members: int) -> float:
    """Floating-point operations of one update of one member of a fleet.

    What is due once in a phase is spread over it.
    """
    # Without branches, which are not always taken.
    stride = longest_stride(agent, members)
    traced = updates.traced(members, True, stride)
    return flops_of(traced.jaxpr.jaxpr) / stride / members


@contextlib.contextmanager
def uncached() -> Generator[None]:
    """Programs are compiled here, even those that are kept on the disk."""
    settings: Any = jax.config
    before = settings.jax_enable_compilation_cache
    try:
        settings.update("jax_enable_compilation_cache", False)
        reset_cache()  # whether there is one is asked but once
        yield
    finally:
        settings.update("jax_enable_compilation_cache", before)
        reset_cache()


def random_rows(spec: Spec, members: int, rows: int) -> Rows:
    """Full rings, made where they stay: to fill them step by step takes minutes."""
    result: Rows = jax.jit(partial(_random_rows, spec, members, rows))()
    return result


def _random_rows(spec: Spec, members: int, rows: int) -> Rows:
    first = jnp.zeros((members, spec.obs_dim))
    shapes = jax.eval_shape(partial(replay.init, rows, spec), first).rows
    keys = jax.random.split(jax.random.key(0), len(shapes))
    again = jnp.arange(rows) % min(rows, BLOCK)

    def filled(key: jax.Array, like: Any) -> jax.Array:
        block = (min(rows, BLOCK), *like.shape[2:])
        if like.dtype == bool:
            values = jax.random.bernoulli(key, 0.01, block)
        else:
            values = jax.random.uniform(key, block, like.dtype, -1, 1)
        return jnp.broadcast_to(values[again][None], like.shape)

    return Rows(*map(filled, keys, shapes))


class FullFleet(Fleet):
    """Trains in the programs, groups and strides of a run, on rows that it is lent.

    Several fleets of the same sizes share them, since no update changes a row: so
    agents can take turns on a device that would not hold a replay for each.

    Args:
        agent: the algorithm.
        spec: the task's sizes.
        members: of the fleet.
        rows: of every member's replay.

    Attributes:
        scales: what updates are given, of agents that normalise.
    """

    def __init__(self, agent: Agent, spec: Spec, members: int, rows: int):
        lengths = RunLengths(rows, HORIZON)
        super().__init__(agent, spec, range(members), lengths, act_on_cpu=True)
        self._rows = Rows(*(field[:, :0] for field in self._rows))
        self.opened[:] = rows
        self._made = np.zeros(members, dtype=int)
        self.scales = None
        if agent.normalizes:  # by what changes nothing
            shape = members, spec.obs_dim
            self.scales = Scales(np.zeros(shape), np.ones(shape), np.ones(members))
        priorities = self._learners.priorities
        levels = sumtree.over(np.ones((members, rows)))
        tree = sumtree.SumTree(
            tuple(
                jnp.asarray(level, old.dtype)
                for level, old in zip(levels, priorities.tree.levels, strict=True)
            )
        )
        full = priorities._replace(tree=tree)
        self._learners = self._learners._replace(priorities=full)

    def compile_ahead(self) -> CompiledUpdates:
        """Asks for nothing: what is timed is compiled when that is timed."""
        return self._updates

    def lend(self, rows: Rows) -> None:
        """Has the fleet learn from these."""
        self._rows = rows

    def whole_phases(self, updates: int) -> int:
        """So many updates or a few more: as many as training makes at once."""
        return updates + -updates % self.update_multiple

    def cost(self, updates: int) -> Cost:
        """Compiles what calls of so many updates need, and takes the time."""
        stride = choose_stride(self._call(updates), self._made, self._stride)
        start = time.perf_counter()
        with uncached():
            program = self.program(updates)
        seconds = time.perf_counter() - start
        needs = program.memory_analysis()
        return Cost(
            seconds,
            kernels_of(program.as_text(), stride, self._agent.policy_period),
            update_flops(self._agent, self._updates, self.size),
            int(needs.temp_size_in_bytes) if needs else 0,
        )

    def program(self, updates: int) -> Any:
        """The compiled program of calls of so many updates."""
        stride = choose_stride(self._call(updates), self._made, self._stride)
        return self._updates.of(self.size, True, stride).result()

    def seconds(self, updates: int) -> float:
        """Seconds of one call of so many updates, waited for before and after."""
        _wait((self.learners, self._rows))
        start = time.perf_counter()
        self.train(self._call(updates), self._made, self.scales)
        _wait(self.learners)
        seconds = time.perf_counter() - start
        self._made += updates
        return seconds

    def bytes_of_a_member(self) -> tuple[int, int]:
        """What one member's replay takes on the device, and what its networks take."""
        learners = self.learners
        in_replay = _bytes((self._rows, learners.priorities))
        rest = _bytes((learners.state, learners.metrics, learners.alarm))
        return in_replay // self.size, rest // self.size

    def _call(self, updates: int) -> UpdateCall:
        return UpdateCall(tuple(range(self.size)), updates)


def _wait(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        leaf.block_until_ready()


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
