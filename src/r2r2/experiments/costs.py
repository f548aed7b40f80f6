"""What a fleet costs: seconds and memory, estimated from measured speeds; JAX is not imported.

Speeds are measured by training itself: the `time` events of runs say how long a fleet took for its
decision steps and updates. `record_speed` keeps them in the user's cache folder, so that a new
sweep is planned with the speeds of earlier ones and of `r2r2 bench --task`. `load_costs` also reads
the runs below a folder, finished or not.

The seconds of a fleet are

    start-up + steps x step(m) + updates x update(m)

where `step(m)` and `update(m)` are the seconds that a fleet of m members needs for one decision
step and one update of all its members. They are interpolated between measured fleet sizes. Beyond
those, a CPU needs time proportional to m, and an accelerator to m + 2: on an H200, one update of
twenty members takes as long as 5 (TD7) to 9 (SimbaV2) of one (benchmarks/results/bench_h200_*),
which is m + 3.6 and m + 1.4.

What was not measured is estimated from the nearest agent and task on the same kind of device. Its
time per update is multiplied by the ratio of floating-point operations, on an accelerator by this
ratio to the power of 0.75 (a SimbaV2-SPL has 10.1 times the operations of a TD7, and twenty of them
take 5.7 times as long on an H200). On a CPU each update counts 5e7 operations more, because small
networks take most of their time for other things: one core took 0.3 ms for the 6.4e6 operations of
a TD7 of `smoke`, and about 20 ms for the 3.3e9 of one of the usual size. The time per step is taken
as it is, although tasks differ. Such estimates have `measured=False`.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from r2r2.config.common import AgentConfig
from r2r2.config.errors import UserError
from r2r2.config.fields import NO_ARGS
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.envs.vector.pool import try_task
from r2r2.experiments.agent_sizes import AgentSizes, SizeQuery, find_sizes
from r2r2.experiments.machine import Machine, this_machine
from r2r2.storage.disk_usage import find_runs
from r2r2.storage.events import read_events
from r2r2.storage.files import atomic_write, cache_folder, is_number, read_json_object
from r2r2.training.saved_config import find_config

SPEEDS_FILE, SPEEDS_KIND, SPEEDS_FORMAT = "speeds.json", "r2r2 speeds", 1
MAX_SPEEDS = 500  # in the cache file; the oldest are dropped
RECENT = 5  # latest measurements of one thing, whose median counts
ACCELERATOR_OFFSET = 2.0  # an accelerator's time grows like m + 2
ACCELERATOR_EXPONENT = 0.75  # of the ratio of operations between agents
CPU_OVERHEAD = 5e7  # operations of an update that take as long as all else does
MIN_STEPS = 50  # of a measurement: fewer say nothing
STATE_BYTES = 200e6  # per member, of an agent that cannot be built here: SimbaV2's default
MARGIN = 1.3  # on memory: programs, transfers, fragmentation
UNKNOWN = AgentSizes(*[math.nan] * 5)  # of an agent that cannot be built here


class Estimate(NamedTuple):
    """What a fleet is estimated to need."""

    seconds: float  # NaN: nothing was measured on this kind of device
    memory: int  # bytes on the device
    measured: bool  # the same agent on the same task was measured on this kind of device
    busy: float = 1.0  # share of the time in which updates occupy the device


class CostModel(Protocol):
    """Estimates what fleets cost."""

    def prepare(self, configs: Iterable[RunConfig]) -> None:
        """Look up at once what estimates of these configs need; optional, but faster."""
        ...

    def estimate(self, config: RunConfig) -> Estimate:
        """Return what a fleet with this finalized config needs."""
        ...


def load_costs(folder: Path | None = None, machine: Machine | None = None) -> "MeasuredCosts":
    """Return the costs on a machine, from the user's cache and from runs below a folder.

    Args:
        folder: runs below it, finished or running, are read as well.
        machine: for whose kind of device to estimate; by default this one.

    Example:
        >>> costs = load_costs()
        >>> costs.estimate(RunConfig(env=("Hopper-v5",), seeds=(0, 1))).memory > 10**8
        True
    """
    speeds = [*_read_cache()]
    if folder is not None:
        known = {(x.toml, x.seconds) for x in speeds}
        runs = [speed for run in find_runs(folder) if (speed := measure_speed(run))]
        speeds += [x for x in runs if (x.toml, x.seconds) not in known]
    return MeasuredCosts(speeds, (machine or this_machine()).devices[0].kind)


class Speed(NamedTuple):
    """The measured speed of one fleet."""

    toml: str  # its config
    spec: Spec
    device: str  # kind of device
    cores: int  # of the machine
    seconds: float  # of the run, all in all
    startup: float  # seconds until its programs were compiled
    step: float  # seconds of the fleet per decision step, without updates
    update: float  # seconds of the fleet per update of all members
    when: float = 0.0  # seconds since 1970

    @property
    def config(self) -> RunConfig:
        """The config of the fleet."""
        return resolve_toml(self.toml)


# Measuring


def measure_speed(run: Path) -> Speed | None:
    """Return the speed of a run, or None if its events do not say it or it made no updates.

    Rates are those between the first and the last `time` event with updates, so that
    compiling does not count; a run with one such event gives its averages.
    """
    config = find_config(run)
    versions = read_json_object(run / "versions.json") or {}
    if config is None or "env_from_python" in versions:
        return None
    try:
        events = _time_events(run / "events.jsonl")
        spec = task_sizes(config)
    except UserError:
        return None
    if not events or events[-1]["decision_step"] < MIN_STEPS:
        return None
    first = next((x for x in events if x["update_step"] > 0), events[0])
    startup, step, update = _rates(first, events[-1])
    if not update:
        return None
    cores = str(versions.get("cpu_count", ""))
    return Speed(
        toml=to_toml(config),
        spec=spec,
        device=str(versions.get("device", "")),
        cores=int(cores) if cores.isdigit() else 1,
        seconds=round(events[-1]["time"], 3),
        startup=startup,
        step=step,
        update=update,
        when=round(time.time(), 1),
    )


FIELDS = ("time", "decision_step", "update_step", "wall", "updates", "compiling")


def _time_events(path: Path) -> list[dict[str, float]]:
    """Return the `time` events of the last process that trained a run."""
    events: list[dict[str, float]] = []
    for event in read_events(path) if path.exists() else []:
        if event["event"] != "time" or not all(is_number(event.get(x)) for x in FIELDS):
            continue
        fields = {name: float(cast(float, event[name])) for name in FIELDS}
        if events and fields["wall"] < events[-1]["wall"]:
            events.clear()  # the run was resumed
        events.append(fields)
    return events


def _rates(first: Mapping[str, float], last: Mapping[str, float]) -> tuple[float, float, float]:
    """Return the seconds of start-up, per decision step and per update."""
    if last["decision_step"] - first["decision_step"] < MIN_STEPS:
        first = dict.fromkeys(FIELDS, 0.0)
    change = {name: last[name] - first[name] for name in FIELDS}
    in_updates = max(change["updates"] - change["compiling"], 0.0)
    others = max(change["wall"] - max(change["updates"], change["compiling"]), 0.0)
    update = in_updates / change["update_step"] if change["update_step"] else 0.0
    step = others / change["decision_step"]
    startup = last["time"] - last["decision_step"] * step - last["update_step"] * update
    return max(startup, 0.0), step, update


def record_speed(run: Path, slowdown: float = 1.0) -> Speed | None:
    """Record the speed of a run in the user's cache, and return it.

    A run that says nothing about its speed, or a cache that cannot be written, is no error.

    Args:
        run: its folder.
        slowdown: factor on its times, if it had more cores than a fleet of a sweep has.
    """
    speed = measure_speed(run)
    if speed is None:
        return None
    speed = speed._replace(step=speed.step * slowdown, update=speed.update * slowdown)
    speeds = [x for x in _read_cache() if (x.toml, x.seconds) != (speed.toml, speed.seconds)]
    speeds = [*speeds, speed][-MAX_SPEEDS:]
    table = [{**x._asdict(), "spec": list(x.spec)} for x in speeds]
    facts = {"kind": SPEEDS_KIND, "format": SPEEDS_FORMAT, "speeds": table}
    path = cache_folder() / SPEEDS_FILE
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(facts, indent=1) + "\n")
    return speed


def _read_cache() -> list[Speed]:
    """Return the speeds in the cache file; whatever is damaged is left out."""
    fields = read_json_object(cache_folder() / SPEEDS_FILE) or {}
    speeds = fields.get("speeds")
    if fields.get("format") != SPEEDS_FORMAT or not isinstance(speeds, list):
        return []
    parsed = [_parse_speed(x) for x in cast("list[object]", speeds)]
    return [speed for speed in parsed if speed is not None]


def _parse_speed(value: object) -> Speed | None:
    try:
        fields = cast("dict[str, Any]", value)
        speed = Speed(**{**fields, "spec": Spec(*fields["spec"])})
        resolve_toml(speed.toml)
    except (TypeError, KeyError, ValueError, RecursionError, UserError):
        return None
    numbers = speed.seconds, speed.startup, speed.step, speed.update, speed.when
    is_valid = all(is_number(x) and x >= 0 for x in numbers) and speed.update > 0
    return speed if is_valid else None


def task_sizes(config: RunConfig) -> Spec:
    """Return the sizes of a config's first task; another than the paper's is built once.

    Example:
        >>> task_sizes(RunConfig(env=("dog-run",)))
        Spec(obs_dim=223, action_dim=38)
    """
    task = config.env[0]
    if task in PAPER_TASKS and config.env_args == NO_ARGS:
        return Spec(*PAPER_TASKS[task][1:])
    return try_task(task, None, config.env_timeout, False, config.env_args).spec


# Estimating


class _Rates(NamedTuple):
    """Measurements of one agent on one task."""

    speeds: Mapping[int, tuple[Speed, ...]]  # by members, ascending
    measured: bool  # this agent on this task, not just a similar one
    factor: float  # on seconds per update

    def median(self, members: int, field: str) -> float:
        """Return the median of a field, at one of the measured fleet sizes."""
        return float(np.median([getattr(x, field) for x in self.speeds[members]]))


class MeasuredCosts:
    """The cost model from measured speeds on one kind of device.

    Memory is that of replay, networks and activations, times 1.3 for compiled programs and
    whatever else; JAX computes the sizes of networks in a subprocess, once per agent.

    Example:
        >>> config = RunConfig(env=("Hopper-v5",), utd=2, steps=1000, warmup=0)
        >>> speed = Speed(to_toml(config), Spec(11, 3), "cpu", 2, 70.0, 10.0, 0.02, 0.02)
        >>> round(MeasuredCosts([speed], "cpu").estimate(config).seconds)
        70
    """

    def __init__(self, speeds: Sequence[Speed], kind: str):
        self._is_cpu = kind == "cpu"
        usable = sorted((x for x in speeds if x.device == kind), key=lambda x: x.when)
        self._speeds = [(x, x.config) for x in usable]
        self._sizes: dict[SizeQuery, AgentSizes] = {}
        self._rates: dict[tuple[object, ...], _Rates] = {}

    @property
    def count(self) -> int:
        """The number of measurements on this kind of device."""
        return len(self._speeds)

    def prepare(self, configs: Iterable[RunConfig]) -> None:
        """Look up the sizes of the agents of all configs at once."""
        queries = {SizeQuery(config.agent, task_sizes(config)) for config in configs}
        if queries <= self._sizes.keys():
            return
        queries |= {SizeQuery(config.agent, speed.spec) for speed, config in self._speeds}
        missing = {x.key: x for x in queries if x not in self._sizes}
        found = find_sizes(missing.values())
        self._sizes |= {query: found.get(key, UNKNOWN) for key, query in missing.items()}

    def estimate(self, config: RunConfig) -> Estimate:
        """Return what a fleet with this config needs."""
        self.prepare([config])
        rates = self._find_rates(config)
        members = _count(config)
        memory = self._memory(config, members)
        if rates is None:
            return Estimate(math.nan, memory, False)
        startup, step, update = (
            self._at(members, rates, field) for field in ("startup", "step", "update")
        )
        update *= rates.factor
        trained = 0 if config.random_only else max(config.steps - config.warmup, 0)
        updating = update * (trained * config.utd + config.prefill_only_updates)
        seconds = startup + step * config.steps + updating
        return Estimate(seconds, memory, rates.measured, updating / max(seconds, 1e-9))

    def _memory(self, config: RunConfig, members: int) -> int:
        sizes = self._sizes[SizeQuery(config.agent, spec := task_sizes(config))]
        if math.isnan(sizes.state):  # not built here
            sizes = AgentSizes(STATE_BYTES, STATE_BYTES, math.nan, 4.0 * (sum(spec) + 3), 0)
        rows = max(sizes.min_rows, 1.0)
        while rows < 2 * config.steps + 2:
            rows *= 2
        rows = min(rows, config.replay_size or math.inf)
        return int(MARGIN * members * (rows * sizes.row + sizes.state + sizes.update))

    def _at(self, members: int, rates: _Rates, field: str) -> float:
        """Return a rate of a fleet of a size, from those of measured sizes."""
        sizes = list(rates.speeds)
        inside = min(max(members, sizes[0]), sizes[-1])
        value = float(np.interp(inside, sizes, [rates.median(x, field) for x in sizes]))
        if field == "startup":
            return value
        offset = 0.0 if self._is_cpu else ACCELERATOR_OFFSET
        return value * (members + offset) / (inside + offset)

    def _find_rates(self, config: RunConfig) -> _Rates | None:
        """Return the measurements that are nearest to a config, None without any."""
        if not self._speeds:
            return None
        key = config.agent, config.env, config.env_args, config.utd, _program(config)
        if key not in self._rates:
            self._rates[key] = self._nearest(config)
        return self._rates[key]

    def _nearest(self, config: RunConfig) -> _Rates:
        spec = task_sizes(config)
        own = self._flops(config.agent, spec)
        flops = [self._flops(other.agent, speed.spec) for speed, other in self._speeds]
        # An agent that cannot be built here counts as one of equal size.
        pairs = [(own, x) if own > 0 and x > 0 else (1.0, 1.0) for x in flops]
        ratios = [new / old for new, old in pairs]
        distances = [
            (
                *(other.agent.name != config.agent.name, speed.spec != spec),
                *(_program(other) != _program(config), abs(math.log(ratio)) > 0.01),
                round(abs(math.log(ratio)), 2),
                not {*config.env} & {*other.env},
                abs(math.log(config.utd / other.utd)),
            )
            for (speed, other), ratio in zip(self._speeds, ratios, strict=True)
        ]
        best = min(distances)
        chosen = [n for n, x in enumerate(distances) if x == best]
        by_size: dict[int, list[Speed]] = {}
        for speed, other in (self._speeds[n] for n in chosen):  # oldest first
            by_size.setdefault(_count(other), []).append(speed)
        recent = {size: tuple(by_size[size][-RECENT:]) for size in sorted(by_size)}
        return _Rates(recent, not any(best[:-1]), self._factor(*pairs[chosen[0]]))

    def _flops(self, agent: AgentConfig, spec: Spec) -> float:
        """Return the operations of an update, NaN if the agent cannot be built here."""
        return self._sizes[SizeQuery(agent, spec)].flops

    def _factor(self, flops: float, measured: float) -> float:
        """Return how many times as long an update takes as one with the measured operations."""
        if self._is_cpu:
            return (flops + CPU_OVERHEAD) / (measured + CPU_OVERHEAD)
        return float((flops / measured) ** ACCELERATOR_EXPONENT)


def _program(config: RunConfig) -> tuple[str, bool]:
    """Return the fields of a run that change the programs of its updates."""
    return config.precision, config.compute.fast


def _count(config: RunConfig) -> int:
    return len(config.env) * len(config.seeds)
