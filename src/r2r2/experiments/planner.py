"""Plan a sweep: group runs that can share a program into fleets, in the order of their start."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.envs.spec import Spec
from r2r2.experiments.costs import CostModel, Estimate, load_costs, task_sizes
from r2r2.experiments.experiment import RunKey, run_keys
from r2r2.experiments.machine import MAX_FLEETS_PER_GPU, Machine, memory_share
from r2r2.experiments.plan import Plan, PlannedFleet, fleet_name, with_members
from r2r2.experiments.scheduling import Part, Work, divide, makespan

MEMORY_SHARE = 0.8  # of a device, which fleets may use: as the check before training
# Two fleets share a GPU if updates occupy it for less than this share of their time.
SHARED_BUSY = 0.45
CORES_PER_SLOT = 4  # at least, for fleets that share a GPU: their environments run on cores
MAX_CORES = 8  # of a fleet on a CPU; more do not help small networks
# Where nothing was measured: what a fleet's start takes, as a share of a run's work and in decision
# steps. Compiling the programs of `smoke` took 5 to 20 s, and a step of a member about 1 ms.
GUESSED_START = 0.1
GUESSED_START_STEPS = 10_000

Finished = Mapping[RunKey, tuple[Path, int]]


class ExperimentCells(NamedTuple):
    """The cells of an experiment, as they are to be trained."""

    name: str  # of the experiment
    scale: float  # by which its steps were scaled
    configs: Sequence[RunConfig]  # finalized, with one task each


def make_plan(
    cells: ExperimentCells,
    machine: Machine,
    finished: Finished | None = None,
    stored: Plan | None = None,
    costs: CostModel | None = None,
    *,
    longest: float = math.inf,
) -> Plan:
    """Return the plan for the cells of an experiment.

    Runs whose configs differ in task and seed only, on tasks of equal sizes, share fleets. Fleets
    are as large as memory allows, but small enough to occupy all devices until the end, and
    those that take longest start first. The fleets of a stored plan stay as they are,
    since results depend on the fleet; those of which no run is wanted any more are dropped.

    Args:
        cells: what to train.
        machine: what the fleets run on; its devices are taken as equal.
        finished: runs that need not be trained again, with their folders and steps.
        stored: the plan of an earlier sweep of the same name.
        costs: of fleets; by default `load_costs()`.
        longest: seconds that a new fleet may take at most, unless it is a single run.

    Example:
        >>> from r2r2.experiments.costs import MeasuredCosts
        >>> from r2r2.experiments.machine import Device
        >>> tasks = "dog-run", "dog-walk", "Ant-v5"
        >>> configs = [RunConfig(env=(task,), seeds=(0, 1)) for task in tasks]
        >>> cells = ExperimentCells("demo", 1.0, configs)
        >>> machine = Machine((Device("cpu", "cpu", 2**36),), cores=1)
        >>> plan = make_plan(cells, machine, costs=MeasuredCosts([], "cpu"))
        >>> [(fleet.config.env, fleet.config.seeds) for fleet in plan.fleets]
        [(('dog-run', 'dog-walk'), (0, 1)), (('Ant-v5',), (0, 1))]
    """
    costs = load_costs(machine=machine) if costs is None else costs
    costs.prepare(cells.configs)
    kept = [_with_estimate(fleet, costs) for fleet in _kept_fleets(stored, cells.configs)]
    done = {key: fleet.config.steps for fleet in kept for key in fleet.keys}
    done |= {key: max(steps, done.get(key, 0)) for key, (_, steps) in (finished or {}).items()}
    groups = _groups(cells.configs, done)
    cores, slots = _cores_and_slots(machine, groups, costs)
    if stored is not None:
        cores = stored.cores if kept else cores
        slots = _slots(machine, cores) if machine.devices[0].is_cpu else slots
    works = [_work(group, costs, _fleet_memory(machine, slots), longest) for group in groups]
    parts = divide(works, slots * len(machine.devices))
    fleets = [_fleet(groups[part.work], part, costs) for part in parts]
    new = [fleet._replace(limited=longest < math.inf) for fleet in fleets]
    return Plan(cells.name, cells.scale, cores, (*kept, *new), slots)


def plan_works(cells: Sequence[RunConfig], machine: Machine, costs: CostModel) -> list[Work]:
    """Return the runs of cells as works, for example for `lower_bound`.

    Example:
        >>> from r2r2.experiments.costs import MeasuredCosts
        >>> from r2r2.experiments.machine import this_machine
        >>> cells = [RunConfig(env=("Ant-v5",), seeds=(0, 1))]
        >>> (work,) = plan_works(cells, this_machine(), MeasuredCosts([], "cpu"))
        >>> work.tasks, work.seeds
        (1, 2)
    """
    groups = _groups(cells, {})
    _, slots = _cores_and_slots(machine, groups, costs)
    return [_work(group, costs, _fleet_memory(machine, slots), math.inf) for group in groups]


def _fleet_memory(machine: Machine, slots: int) -> float:
    """Return the memory that a fleet may use: of a GPU, not more than JAX gives its process."""
    share = MEMORY_SHARE / slots
    if not machine.devices[0].is_cpu:
        share = min(share, memory_share(slots))
    return share * min((x.memory for x in machine.devices if x.memory), default=math.inf)


def _kept_fleets(stored: Plan | None, cells: Sequence[RunConfig]) -> list[PlannedFleet]:
    """Return the stored fleets that train a wanted run, extended to its steps where possible."""
    wanted = {key: cell.steps for cell in cells for key in run_keys(cell)}
    kept: list[PlannedFleet] = []
    for fleet in stored.fleets if stored else ():
        steps = [wanted[key] for key in fleet.keys if key in wanted]
        if not steps:
            continue
        most, config = max(steps), fleet.config
        if most <= config.steps:
            kept.append(fleet)
        elif not config.agent.depends_on_run_length:
            kept.append(fleet._replace(config=dataclasses.replace(config, steps=most)))
    return kept


def _with_estimate(fleet: PlannedFleet, costs: CostModel) -> PlannedFleet:
    """Return a fleet with what is now known about its cost."""
    estimate = costs.estimate(fleet.config)
    if math.isnan(estimate.seconds):
        return fleet
    return fleet._replace(seconds=estimate.seconds, memory=estimate.memory)


# Groups of runs that may share fleets


class _Group(NamedTuple):
    config: RunConfig  # of its first run
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]

    def fleet(self, tasks: Iterable[str], seeds: Iterable[int]) -> RunConfig:
        return with_members(self.config, tuple(tasks), tuple(seeds))


def _groups(cells: Sequence[RunConfig], done: Mapping[RunKey, int]) -> list[_Group]:
    """Return the runs that are not done in groups: all tasks of a group with all its seeds."""
    tasks: dict[tuple[RunConfig, Spec, tuple[int, ...]], list[str]] = {}
    for cell in cells:
        keys = run_keys(cell)
        seeds = tuple(key.seed for key in keys if done.get(key, -1) < cell.steps)
        if seeds:
            shared = with_members(cell, (), seeds), task_sizes(cell), seeds
            tasks.setdefault(shared, []).append(cell.env[0])
    return [
        _Group(with_members(config, names[:1], seeds[:1]), tuple(names), seeds)
        for (config, _, seeds), names in tasks.items()
    ]


def _work(group: _Group, costs: CostModel, memory: float, longest: float) -> Work:
    """Return what fleets of a group take, by their members, as far as they are allowed."""
    count = len(group.tasks) * len(group.seeds)
    seconds: list[float] = []
    for members in range(1, count + 1):
        estimate = costs.estimate(_sized(group, members))
        duration = _duration(group.config, members, estimate)
        if seconds and (estimate.memory > memory or duration > longest):
            break
        seconds.append(max(duration, *seconds[-1:], 1e-6))
    return Work(len(group.tasks), len(group.seeds), tuple(seconds))


def _sized(group: _Group, members: int) -> RunConfig:
    """Return a config of the group with so many members, for an estimate only."""
    tasks = group.tasks[: math.gcd(members, len(group.tasks))]
    return group.fleet(tasks, range(members // len(tasks)))


def _duration(config: RunConfig, members: int, estimate: Estimate) -> float:
    """Return seconds, or where nothing was measured a number that is about proportional."""
    if not math.isnan(estimate.seconds):
        return estimate.seconds
    trained = 0 if config.random_only else max(config.steps - config.warmup, 0)
    work = config.steps + 5.0 * trained * config.utd + config.prefill_only_updates
    return GUESSED_START_STEPS + work * (GUESSED_START + members)


def _fleet(group: _Group, part: Part, costs: CostModel) -> PlannedFleet:
    tasks = group.tasks[part.first_task : part.first_task + part.tasks]
    seeds = group.seeds[part.first_seed : part.first_seed + part.seeds]
    config = group.fleet(tasks, seeds)
    memory = costs.estimate(config).memory
    return _with_estimate(PlannedFleet(fleet_name(config), config, memory=memory), costs)


# Cores and slots


def _cores_and_slots(
    machine: Machine, groups: Sequence[_Group], costs: CostModel
) -> tuple[int, int]:
    """Return the cores of a fleet's process, and how many fleets share a device.

    On a CPU, processes with one core each train more in total than one process with all
    cores: fleets of small networks took the same CPU time with one core and with two, and
    hardly less time (width 32: 27 s with one, 30 s with two on busy cores). With fewer runs than
    cores, each gets more cores.
    """
    devices = len(machine.devices)
    runs = sum(len(group.tasks) * len(group.seeds) for group in groups)
    if machine.devices[0].is_cpu:
        cores = min(max(machine.cores // max(runs, 1), 1), MAX_CORES)
        memory = MEMORY_SHARE * machine.devices[0].memory or math.inf
        largest = max((costs.estimate(group.config).memory for group in groups), default=0)
        fitting = int(memory // max(largest, 1)) if memory < math.inf else machine.cores
        return cores, max(min(_slots(machine, cores), fitting), 1)
    shared = MAX_FLEETS_PER_GPU
    has_cores = machine.cores >= shared * CORES_PER_SLOT * devices
    slots = shared if has_cores and _is_idle(groups, costs) else 1
    return max(machine.cores // (devices * slots), 1), slots


def _slots(machine: Machine, cores: int) -> int:
    return max(machine.cores // max(cores, 1), 1)


def _is_idle(groups: Sequence[_Group], costs: CostModel) -> bool:
    """Return whether a GPU would mostly wait for environments, as was measured."""
    estimates = [costs.estimate(group.fleet(group.tasks, group.seeds)) for group in groups]
    seconds = sum(x.seconds for x in estimates)
    if not estimates or math.isnan(seconds):
        return False
    return sum(x.busy * x.seconds for x in estimates) < SHARED_BUSY * seconds


# Time and budgets


def plan_seconds(plan: Plan, machine: Machine) -> float:
    """Return the estimated seconds of all fleets of a plan, NaN if one is unknown.

    Example:
        >>> from r2r2.experiments.machine import this_machine
        >>> plan_seconds(Plan("empty", 1.0, 1, ()), this_machine())
        0.0
    """
    seconds = [fleet.seconds for fleet in plan.fleets]
    return (
        math.nan if any(map(math.isnan, seconds)) else makespan(seconds, count_slots(plan, machine))
    )


def count_slots(plan: Plan, machine: Machine) -> int:
    """Return how many fleets of a plan train on a machine at a time.

    Example:
        >>> from r2r2.experiments.machine import Device
        >>> gpus = tuple(Device(f"gpu:{n}", "NVIDIA H200", 0) for n in range(4))
        >>> count_slots(Plan("empty", 1.0, 1, (), slots=2), Machine(gpus, cores=64))
        8
    """
    return plan.slots * len(machine.devices)


def seconds_left(fleet: PlannedFleet, step: int, costs: CostModel) -> float:
    """Return the estimated seconds of a fleet that resumes from a decision step.

    Its process starts and compiles again.
    """
    if not step:
        return fleet.seconds
    config = fleet.config
    steps, warmup = max(config.steps - step, 0), max(config.warmup - step, 0)
    rest = dataclasses.replace(config, steps=steps, warmup=warmup, prefill_only_updates=0)
    return costs.estimate(rest).seconds


def within_budget(plan: Plan, machine: Machine, seconds: float) -> Plan:
    """Return the plan with only those fleets that will have finished after so many seconds.

    The shortest fleets are taken first, for as many runs as possible.

    Args:
        plan: fleets that are not finished; `make_plan(..., longest=seconds)` makes them short.
        machine: that trains them.
        seconds: the budget.

    Raises:
        UserError: Not even the shortest fleet fits, or nothing is known about its duration.
    """
    known = [fleet for fleet in plan.fleets if not math.isnan(fleet.seconds)]
    if not plan.fleets:
        return plan
    if not known:
        raise UserError(
            "--budget: no speed was measured on this kind of device yet, so nothing is known about "
            "the duration of these runs; expected a finished run: train one of them without "
            "--budget, for example with a small --scale"
        )
    chosen: list[PlannedFleet] = []
    shortest_first = sorted(known, key=lambda fleet: fleet.seconds)
    for fleet in shortest_first:
        times = [x.seconds for x in (*chosen, fleet)]
        if makespan(times, count_slots(plan, machine)) > seconds:
            break
        chosen.append(fleet)
    if not chosen:
        shortest = shortest_first[0]
        raise UserError(
            "--budget: too small for any run; expected at least "
            f"{format_seconds(shortest.seconds)}, which {shortest.name} needs, got "
            f"{format_seconds(seconds)}"
        )
    return plan._replace(fleets=tuple(chosen))


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that `--budget` takes, rounded up.

    Example:
        >>> format_seconds(50.2), format_seconds(1500), format_seconds(9000)
        ('51s', '25m', '2.5h')
    """
    if seconds < 120:
        return f"{math.ceil(seconds)}s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)}m"
    return f"{math.ceil(seconds / 360) / 10:g}h"
