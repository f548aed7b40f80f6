"""The peak of this device, and the cost of updates: fleets timed in turns on it."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from r2r2.agents.base import Agent, Array
from r2r2.agents.registry import build_agent
from r2r2.bench.program_cost import kernels_per_update
from r2r2.compute.compiled import CompiledUpdates, ProgramKey, flops_of
from r2r2.compute.devices import is_accelerated, training_device
from r2r2.compute.precision import DEFAULT_OPTIONS, ComputeOptions
from r2r2.compute.update import RunLengths
from r2r2.compute.update_loop import UpdateCall, choose_stride, longest_stride
from r2r2.config.agents import agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as replay
from r2r2.replay import sum_tree
from r2r2.replay.buffer import Rows
from r2r2.replay.normalizer import Scales
from r2r2.training.fleet import Fleet, FleetOptions
from r2r2.training.memory import SHARE, agent_bytes, device_bytes, row_bytes
from r2r2.training.rollout import HostTransition

HORIZON = 1_000_000  # updates of a run, for learning rate schedules
DISTINCT_ROWS = 4096  # repeated to fill a replay
SHORT_CALLS = 1, 10, 20  # updates in a call of a fleet in lockstep at that UTD


class TimingStats(NamedTuple):
    """A quantity that was measured several times."""

    median: float
    lowest: float
    highest: float
    each: tuple[float, ...]  # in order of measurement


def timing_stats(values: Sequence[float]) -> TimingStats:
    """Return the statistics of repeated measurements."""
    each = tuple(map(round_significant, values))
    return TimingStats(round_significant(float(np.median(values))), min(each), max(each), each)


def round_significant(value: float) -> float:
    """Round to four significant digits; more are noise."""
    return float(f"{value:.4g}")


class ProblemSize(NamedTuple):
    """The size of the measured operations, large enough to fill the device."""

    matrix: int  # rows and columns of a matrix product
    copied: int  # float32 numbers in a pass over memory


GPU_SIZE, CPU_SIZE = ProblemSize(8192, 2**28), ProblemSize(1024, 2**25)


class Roofline(NamedTuple):
    """The measured peak performance of the device."""

    matrix: int  # rows and columns of the matrix product
    tflops: TimingStats  # of that product, at the default precision
    copied: int  # numbers
    gb_per_s: TimingStats  # read and written in an update of all these numbers


def measure_roofline(size: ProblemSize | None = None, repeats: int = 10) -> Roofline:
    """Measure a matrix product, which limits wide networks, and a pass over memory."""
    default = GPU_SIZE if is_accelerated() else CPU_SIZE
    matrix, copied = size or default
    products = _time_calls(lambda x: x @ x, (matrix, matrix), repeats)
    passes = _time_calls(lambda x: x + 1, (copied,), repeats)
    return Roofline(
        matrix,
        timing_stats([2 * matrix**3 / seconds / 1e12 for seconds in products]),
        copied,
        timing_stats([2 * 4 * copied / seconds / 1e9 for seconds in passes]),
    )


def _time_calls(
    function: Callable[[Array], Array], shape: tuple[int, ...], repeats: int
) -> list[float]:
    """Return the seconds of each call, without the first, which compiles."""
    program, x = jax.jit(function), jnp.ones(shape, jnp.float32)
    seconds: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        program(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


class BenchSizes(NamedTuple):
    """The size and precision of all fleets, and how long each is timed."""

    spec: Spec
    rows: int  # of every member's replay
    updates: int  # per call
    repeats: int  # timed calls of every agent
    precision: str = "tf32"  # of matrix products
    short_calls: tuple[int, ...] = SHORT_CALLS  # updates of calls to be timed as well


class UpdateTiming(NamedTuple):
    """The cost of one fleet's updates."""

    agent: str
    members: int
    us_per_agent_update: TimingStats
    compile_s: float
    kernels_per_update: float | None  # of the whole fleet; None if unknown
    flops_per_update: float  # of one member
    tflops: float
    share_of_ceiling: float  # tflops relative to the device's peak
    replay_bytes_per_member: int
    network_bytes_per_member: int
    program_bytes: int  # of the whole fleet, besides these two
    fleet_bytes: int  # all three


class Overhead(NamedTuple):
    """The cost of R2R2 over its base agent, both timed in the same repeats."""

    agent: str
    base: str
    members: int
    us_per_agent_update: TimingStats
    percent: TimingStats


class CallTiming(NamedTuple):
    """The cost of updates in calls as short as a fleet in lockstep makes at some UTD."""

    agent: str
    members: int
    utd: int
    updates: int  # per call, a multiple of the agent's policy period
    is_step: bool  # the call also stores a transition and acts, as training does
    us_per_agent_update: TimingStats


class FleetResults(NamedTuple):
    """What was measured with fleets of one size."""

    updates: list[UpdateTiming]
    overheads: list[Overhead]
    calls: list[CallTiming]


class Stage(NamedTuple):
    """A part of a benchmark, for the progress display."""

    kind: str  # stages of one kind take about equally long
    text: str


OnStage = Callable[[Stage], None]
Seconds = dict[str, list[float]]  # by agent, per update of one member


def with_bases(agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the agents, each preceded by its base agent if it has one."""
    pairs = [(agent_spec(agent).base, agent) for agent in agents]
    return tuple(dict.fromkeys(x for pair in pairs for x in pair if x is not None))


def update_stages(
    agents: Mapping[str, AgentConfig], members: int, sizes: BenchSizes
) -> list[Stage]:
    """Return the stages of `measure_updates`, in order."""
    fleets, repeats = f"fleets of {members}", sizes.repeats
    compiling = [Stage("compile", f"compiling {agent}, {fleets}") for agent in agents]
    long, short = f"timing calls of {sizes.updates} updates", "timing short calls"
    return [
        *compiling,
        Stage(f"warm {members}", f"warming up {fleets}"),
        *_numbered(f"time {members}", f"{long}, {fleets}", repeats),
        Stage(f"warm short {members}", f"warming up short calls, {fleets}"),
        *_numbered(f"time short {members}", f"{short}, {fleets}", repeats),
    ]


def _numbered(kind: str, text: str, count: int) -> list[Stage]:
    return [Stage(kind, f"{text}, {number} of {count}") for number in range(1, count + 1)]


def check_memory(agents: Mapping[str, AgentConfig], members: int, sizes: BenchSizes) -> None:
    """Raise a UserError if the fleets, which share one replay, do not fit."""
    available, row = SHARE * device_bytes(), row_bytes(sizes.spec)
    built = [build_agent(config, sizes.spec, utd=1) for config in agents.values()]
    networks = sum(map(agent_bytes, built))
    needed = members * (sizes.rows * row + networks)
    if needed > available:
        rows = int((available / members - networks) / row)
        fits = f"--rows {rows}" if rows > 0 else "fewer agents or members"
        raise UserError(
            f"--rows: {sizes.rows} replay rows for fleets of {members} need {needed / 1e9:.1f} GB "
            f"(per member {row:.0f} bytes for each row and {networks / 1e6:.1f} MB for the "
            f"networks of all agents), but {training_device().device_kind} has "
            f"{available / 1e9:.1f} GB available; this fits: {fits}"
        )


def measure_updates(
    agents: Mapping[str, AgentConfig],
    members: int,
    sizes: BenchSizes,
    peak_tflops: float,
    on_stage: OnStage,
) -> FleetResults:
    """Time fleets of all agents in turns, so that other load affects them equally."""
    stages = iter(update_stages(agents, members, sizes))
    fleets: dict[str, BenchFleet] = {}
    costs: dict[str, ProgramCost] = {}
    for name, config in agents.items():
        on_stage(next(stages))
        fleets[name] = _bench_fleet(config, members, sizes)
        costs[name] = fleets[name].compile_cost(sizes.updates)
    turns = _Turns(fleets, random_rows(sizes.spec, members, sizes.rows), stages, on_stage)
    seconds = turns.time([sizes.updates], sizes.repeats, BenchFleet.seconds)[sizes.updates]
    timings = [
        _update_timing(name, fleets[name], costs[name], seconds[name], peak_tflops)
        for name in fleets
    ]
    fused = any(fleet.fuses_steps for fleet in fleets.values())
    wanted = [utd for utd in sizes.short_calls if fused or utd != sizes.updates]
    short = {sizes.updates: seconds} | turns.time(wanted, sizes.repeats, BenchFleet.call_seconds)
    calls = [
        _call_timing(name, fleets[name], utd, short[utd][name])
        for name in fleets
        for utd in sizes.short_calls
    ]
    return FleetResults(timings, _overheads(seconds, members), calls)


def _bench_fleet(config: AgentConfig, members: int, sizes: BenchSizes) -> "BenchFleet":
    agent = build_agent(config, sizes.spec, utd=1)
    options = ComputeOptions(precision=sizes.precision)
    checkpoints = config.policy_checkpoints
    return BenchFleet(agent, sizes.spec, members, sizes.rows, options, checkpoints)


class _Turns:
    """Fleets that share one replay and are timed in turns."""

    def __init__(
        self,
        fleets: Mapping[str, "BenchFleet"],
        rows: Rows,
        stages: Iterator[Stage],
        on_stage: OnStage,
    ):
        self._fleets, self._rows, self._stages, self._on_stage = fleets, rows, stages, on_stage

    def time(
        self, calls: Sequence[int], repeats: int, seconds_of: Callable[["BenchFleet", int], float]
    ) -> dict[int, Seconds]:
        """Time calls of so many updates, after one untimed round."""
        seconds: dict[int, Seconds] = {call: {name: [] for name in self._fleets} for call in calls}
        for number in range(repeats + 1):
            self._on_stage(next(self._stages))
            # The order alternates, so that no agent gains from its position.
            for name in list(self._fleets)[:: -1 if number and number % 2 == 0 else 1]:
                for call in calls:
                    seconds[call][name].append(self._time(self._fleets[name], call, seconds_of))
        return {
            call: {name: times[1:] for name, times in each.items()}
            for call, each in seconds.items()
        }

    def _time(
        self, fleet: "BenchFleet", call: int, seconds_of: Callable[["BenchFleet", int], float]
    ) -> float:
        """Return the seconds per update of one member."""
        fleet.set_replay(self._rows)
        count = fleet.round_up(call)
        seconds = seconds_of(fleet, count) / count / fleet.size
        self._rows = fleet.take_replay()  # a step in lockstep stores a transition in them
        return seconds


def _call_timing(name: str, fleet: "BenchFleet", utd: int, seconds: list[float]) -> CallTiming:
    stats = timing_stats([1e6 * x for x in seconds])
    return CallTiming(name, fleet.size, utd, fleet.round_up(utd), fleet.fuses_steps, stats)


def _update_timing(
    name: str, fleet: "BenchFleet", cost: "ProgramCost", seconds: list[float], peak_tflops: float
) -> UpdateTiming:
    stats = timing_stats([1e6 * x for x in seconds])
    tflops = cost.flops / (stats.median / 1e6) / 1e12
    replay_bytes, network_bytes = fleet.bytes_per_member()
    return UpdateTiming(
        name,
        fleet.size,
        stats,
        round_significant(cost.compile_s),
        cost.kernels,
        cost.flops,
        round_significant(tflops),
        round_significant(tflops / peak_tflops),
        replay_bytes,
        network_bytes,
        cost.program_bytes,
        fleet.size * (replay_bytes + network_bytes) + cost.program_bytes,
    )


def _overheads(seconds: Seconds, members: int) -> list[Overhead]:
    """Compare every agent with its base, repeat by repeat, if both were timed."""
    overheads: list[Overhead] = []
    for agent, agent_seconds in seconds.items():
        base = agent_spec(agent).base
        if base is None or base not in seconds:
            continue
        pairs = list(zip(agent_seconds, seconds[base], strict=True))
        extra = timing_stats([1e6 * (x - y) for x, y in pairs])
        percent = timing_stats([100 * (x / y - 1) for x, y in pairs])
        overheads.append(Overhead(agent, base, members, extra, percent))
    return overheads


# A fleet to be timed


class ProgramCost(NamedTuple):
    """The cost of a program that is known before it runs."""

    compile_s: float  # with tracing and without the cache
    kernels: float | None  # per update of the whole fleet; None if unknown
    flops: float  # per update of one member
    program_bytes: int  # of the whole fleet, besides replay and networks


class BenchFleet(Fleet):
    """A fleet with a full replay, which trains with the programs of a real run.

    Updates do not change replay rows, so several fleets of equal sizes can share them:
    agents take turns on a device that could not hold a replay for each. `scales` is an
    identity normalization for agents that normalize, else None. Without policy checkpoints,
    a fleet on an accelerator makes short calls as it does in lockstep.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        members: int,
        rows: int,
        options: ComputeOptions = DEFAULT_OPTIONS,
        policy_checkpoints: bool = True,
    ):
        lengths = RunLengths(rows, HORIZON)
        fleet_options = FleetOptions(policy_checkpoints, options)
        super().__init__(agent, spec, range(members), lengths, fleet_options)
        self._rows = Rows(*(field[:, :0] for field in self._rows))
        self.opened[:] = rows
        self._done = np.zeros(members, dtype=int)
        self.scales = None
        if agent.normalizes:
            shape = members, spec.obs_dim
            self.scales = Scales(np.zeros(shape), np.ones(shape), np.ones(members))
        priorities = self._state.rest.priorities
        equal = sum_tree.build_levels(np.ones((members, rows)))
        levels = zip(equal, priorities.tree.levels, strict=True)
        tree = sum_tree.SumTree(tuple(jnp.asarray(x, old.dtype) for x, old in levels))
        self._set_priorities(priorities._replace(tree=tree))

    def compile_ahead(self) -> CompiledUpdates:
        """Compile nothing; `compile_cost` times the compilation."""
        return self._updates

    def set_replay(self, rows: Rows) -> None:
        """Train on these rows."""
        self._rows = rows

    def take_replay(self) -> Rows:
        """Return the rows as the last call left them."""
        return self._rows

    def round_up(self, updates: int) -> int:
        """Round a number of updates up to one that training makes in one call."""
        return updates + -updates % self.update_period

    def compile_cost(self, updates: int) -> ProgramCost:
        """Compile the program for calls of this many updates and return its cost."""
        updates = self.round_up(updates)
        start = time.perf_counter()
        with compilation_cache_disabled():
            program = self.program(updates)
        seconds = time.perf_counter() - start
        memory = program.memory_analysis()
        stride, period = self._call_stride(updates), self.agent.policy_period
        return ProgramCost(
            seconds,
            kernels_per_update(program.as_text(), stride, period),
            update_flops(self.agent, self._updates, self.size),
            int(memory.temp_size_in_bytes) if memory else 0,
        )

    def program(self, updates: int) -> Any:
        """Return the compiled program for calls of this many updates."""
        key = ProgramKey(self.size, True, self._call_stride(updates))
        return self._updates.program(key).result()

    def seconds(self, updates: int) -> float:
        """Return the seconds of one call, from an idle device to an idle device."""
        _block((self._state, self._rows))
        start = time.perf_counter()
        self.train([self._call(updates)], self._done, self.scales)
        self.wait()
        _block(self._state)
        seconds = time.perf_counter() - start
        self._done += updates
        return seconds

    def call_seconds(self, updates: int) -> float:
        """Return the seconds of a call as short as training makes it."""
        return self.step_seconds(updates) if self.fuses_steps else self.seconds(updates)

    def step_seconds(self, updates: int) -> float:
        """Return the seconds of a step in lockstep: store, update, act, read the actions."""
        obs, action = self._rows.obs.shape[-1], self._rows.action.shape[-1]
        vector, flags = np.full((self.size, obs), 0.5), np.zeros(self.size, dtype=bool)
        actions, rewards = np.zeros((self.size, action)), np.ones(self.size)
        step = HostTransition(actions, rewards, flags, flags, vector, vector, flags)
        self.add(range(self.size), step)
        _block((self._state, self._rows))
        start = time.perf_counter()
        self.update_and_act(updates, self._done, self._done, self.scales, vector)
        seconds = time.perf_counter() - start
        self._done += updates
        return seconds

    def bytes_per_member(self) -> tuple[int, int]:
        """Return the device memory of a member's replay and of its networks."""
        learners = self.learners
        replay_bytes = _total_bytes((self._rows, learners.priorities))
        others = (learners.state, learners.metrics, learners.alarm)
        return replay_bytes // self.size, _total_bytes(others) // self.size

    def _call(self, updates: int) -> UpdateCall:
        return UpdateCall(tuple(range(self.size)), updates)

    def _call_stride(self, updates: int) -> int:
        return choose_stride(self._call(updates), self._done, self._stride)


def update_flops(agent: Agent, updates: CompiledUpdates, members: int) -> float:
    """Return the operations per update of one member, averaged over the policy period."""
    # The longest stride has no branches, whose operations could not be averaged.
    stride = longest_stride(agent, members)
    traced = updates.traced(ProgramKey(members, True, stride))
    return flops_of(traced.jaxpr.jaxpr) / stride / members


@contextlib.contextmanager
def compilation_cache_disabled() -> Generator[None]:
    """Compile programs in this block even if they are in the cache."""
    settings: Any = jax.config
    before = settings.jax_enable_compilation_cache
    try:
        settings.update("jax_enable_compilation_cache", False)
        reset_cache()  # JAX checks only once whether there is a cache
        yield
    finally:
        settings.update("jax_enable_compilation_cache", before)
        reset_cache()


@partial(jax.jit, static_argnums=(0, 1, 2))
def random_rows(spec: Spec, members: int, rows: int) -> Rows:
    """Return full replays, created on the device."""
    first = jnp.zeros((members, spec.obs_dim))
    shapes = jax.eval_shape(partial(replay.init, rows, spec), first).rows
    keys = jax.random.split(jax.random.key(0), len(shapes))
    distinct = min(rows, DISTINCT_ROWS)
    index = jnp.arange(rows) % distinct

    def random_field(key: jax.Array, like: Any) -> jax.Array:
        shape = (distinct, *like.shape[2:])
        if like.dtype == bool:
            values = jax.random.bernoulli(key, 0.01, shape)
        else:
            values = jax.random.uniform(key, shape, like.dtype, -1, 1)
        return jnp.broadcast_to(values[index][None], like.shape)

    return Rows(*map(random_field, keys, shapes))


def _block(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        leaf.block_until_ready()


def _total_bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
