"""What updates cost: fleets of several agents timed in turns on the device at hand."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from r2r2.agents.registry import make_agent
from r2r2.bench.bench_fleet import Cost, FullFleet, random_rows
from r2r2.bench.timing_stats import Spread, rounded, spread_of
from r2r2.config.agents import agent_spec
from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.training.memory import SHARE, agent_bytes, device_bytes, row_bytes


class Sizes(NamedTuple):
    """How large all fleets are, and how long each is timed."""

    spec: Spec
    rows: int  # of every member's replay
    updates: int  # of one call, as training makes them
    repeats: int  # calls that are timed, of every agent in turn


class Timing(NamedTuple):
    """What one fleet's updates cost."""

    agent: str
    members: int
    us_per_agent_update: Spread
    compile_s: float
    kernels_per_update: float | None  # of the whole fleet; None: not known
    flops_per_update: float  # of one member
    tflops: float
    share_of_ceiling: float
    replay_bytes_per_member: int
    network_bytes_per_member: int
    program_bytes: int  # of the whole fleet, beside the two
    fleet_bytes: int  # the three together


class Overhead(NamedTuple):
    """What R2R2 adds to its base, both timed one after the other in every repeat."""

    agent: str
    base: str
    members: int
    us_per_agent_update: Spread
    percent: Spread


class Stage(NamedTuple):
    """A piece of a benchmark that begins, for a bar."""

    kind: str  # those of one kind take about the same time
    what: str


Watch = Callable[[Stage], None]
Seconds = dict[str, list[float]]  # by agent, of one update of one member


def with_bases(agents: tuple[str, ...]) -> tuple[str, ...]:
    """The agents, those with R2R2 behind their bases, which are added if need be.

    Example:
        >>> with_bases(("td7+r2r2", "simbav2"))
        ('td7', 'td7+r2r2', 'simbav2')
    """
    pairs = [(agent_spec(agent).base, agent) for agent in agents]
    return tuple(dict.fromkeys(x for pair in pairs for x in pair if x is not None))


def stages(
    agents: Mapping[str, AgentConfig], members: int, repeats: int
) -> list[Stage]:
    """All that `measure` tells of, in order."""
    fleets = f"fleets of {members}"
    compiling = [Stage("compile", f"compiling {agent}, {fleets}") for agent in agents]
    timing = [
        Stage(f"time {members}", f"timing {fleets}, {number} of {repeats}")
        for number in range(1, repeats + 1)
    ]
    return [*compiling, Stage(f"warm {members}", f"warming up {fleets}"), *timing]


def check_room(agents: Mapping[str, AgentConfig], members: int, sizes: Sizes) -> None:
    """Refuses fleets that the device has no room for; they share one replay.

    Raises:
        UserError: It has not.
    """
    room, row = SHARE * device_bytes(), row_bytes(sizes.spec)
    made = [make_agent(config, sizes.spec, utd=1) for config in agents.values()]
    networks = sum(map(agent_bytes, made))
    need = members * (sizes.rows * row + networks)
    if need > room:
        rows = int((room / members - networks) / row)
        fits = f"--rows {rows}" if rows > 0 else "fewer agents or members"
        raise UserError(
            f"rows is {sizes.rows}; fleets of {members} that take turns need "
            f"{need / 1e9:.1f} GB (for each member one replay with rows of {row:.0f} "
            f"bytes, and networks of {networks / 1e6:.1f} MB for all agents), and "
            f"{jax.devices()[0].device_kind} has {room / 1e9:.1f} GB for it; what "
            f"would fit: {fits}"
        )


def measure(
    agents: Mapping[str, AgentConfig],
    members: int,
    sizes: Sizes,
    ceiling: float,
    watch: Watch,
) -> tuple[list[Timing], list[Overhead]]:
    """Times fleets of all agents in turns, so that a busy machine slows them alike.

    Args:
        agents: by name.
        members: of each fleet.
        sizes: of all of them.
        ceiling: TFLOP/s of which shares are told.
        watch: told what begins.
    """
    told = iter(stages(agents, members, sizes.repeats))
    fleets: dict[str, FullFleet] = {}
    costs: dict[str, Cost] = {}
    for name, config in agents.items():
        watch(next(told))
        agent = make_agent(config, sizes.spec, utd=1)
        fleets[name] = FullFleet(agent, sizes.spec, members, sizes.rows)
        costs[name] = fleets[name].cost(fleets[name].whole_phases(sizes.updates))
    rows = random_rows(sizes.spec, members, sizes.rows)
    for fleet in fleets.values():
        fleet.lend(rows)
    watch(next(told))
    _turn(fleets, sizes.updates)
    seconds: Seconds = {name: [] for name in fleets}
    for number, stage in enumerate(told):
        watch(stage)
        for name, taken in _turn(fleets, sizes.updates, number % 2 == 1).items():
            seconds[name].append(taken)
    timings = [
        _timing(name, fleets[name], costs[name], seconds[name], ceiling)
        for name in fleets
    ]
    return timings, _overheads(seconds, members)


def _turn(
    fleets: Mapping[str, FullFleet], updates: int, backwards: bool = False
) -> dict[str, float]:
    """One call of each fleet; seconds of one update of one member of each.

    Every other turn goes backwards: who comes first has no advantage.
    """
    taken: dict[str, float] = {}
    for name in list(fleets)[:: -1 if backwards else 1]:
        count = fleets[name].whole_phases(updates)
        taken[name] = fleets[name].seconds(count) / count / fleets[name].size
    return taken


def _timing(
    name: str, fleet: FullFleet, cost: Cost, seconds: list[float], ceiling: float
) -> Timing:
    each = spread_of([1e6 * x for x in seconds])
    tflops = cost.flops / (each.median / 1e6) / 1e12
    replay, networks = fleet.bytes_of_a_member()
    return Timing(
        name,
        fleet.size,
        each,
        rounded(cost.compile_s),
        cost.kernels,
        cost.flops,
        rounded(tflops),
        rounded(tflops / ceiling),
        replay,
        networks,
        cost.program_bytes,
        fleet.size * (replay + networks) + cost.program_bytes,
    )


def _overheads(seconds: Seconds, members: int) -> list[Overhead]:
    """Of every agent whose base was timed too, repeat by repeat."""
    found: list[Overhead] = []
    for agent, own in seconds.items():
        if (base := agent_spec(agent).base) is None or base not in seconds:
            continue
        pairs = list(zip(own, seconds[base], strict=True))
        more = spread_of([1e6 * (x - y) for x, y in pairs])
        percent = spread_of([100 * (x / y - 1) for x, y in pairs])
        found.append(Overhead(agent, base, members, more, percent))
    return found
