"""The plan of a sweep, stored once: which runs are trained together as fleets, and where."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from r2r2.config.errors import UserError
from r2r2.config.resolve import resolve_toml
from r2r2.config.run import RunConfig
from r2r2.config.toml_io import run_name, to_toml
from r2r2.experiments.experiment import RunKey, run_keys
from r2r2.storage.files import atomic_write, cannot_write, is_number, read_json_object

PLAN_KIND, PLAN_FORMAT = "r2r2 sweep plan", 1
MAX_NAME = 150  # characters of a fleet's name; file systems allow 255
MAX_SEED_TEXT = 40


class PlannedFleet(NamedTuple):
    """A fleet of a sweep: its run folder, and what it was estimated to need."""

    name: str  # of its run folder
    config: RunConfig  # finalized; `env` and `seeds` are its members
    seconds: float = math.nan  # estimated; NaN: nothing comparable was measured
    memory: int = 0  # bytes on the device, estimated
    limited: bool = False  # planned for a budget, so that it may be smaller than it should be

    @property
    def keys(self) -> list[RunKey]:
        """The runs that the fleet trains."""
        return run_keys(self.config)


class Plan(NamedTuple):
    """The fleets of a sweep in the order in which they start."""

    experiment: str
    scale: float  # of steps, schedules and evaluation; 1: as the experiment says
    cores: int  # CPU cores of each fleet's process, on which results on a CPU depend
    fleets: tuple[PlannedFleet, ...]
    slots: int = 1  # fleets that train on a device at a time

    def find(self, name: str) -> PlannedFleet:
        """Return the fleet with a run folder of this name."""
        for fleet in self.fleets:
            if fleet.name == name:
                return fleet
        raise UserError(f"{name}: not a fleet of the sweep {self.experiment!r}")


def fleet_name(config: RunConfig) -> str:
    """Return the name of a fleet's folder, which says what it trains.

    It has the seeds, so that fleets with other seeds, also of other sweeps in the same folder,
    have other names. It has the steps if the run could not be extended to more steps.

    Example:
        >>> name = fleet_name(RunConfig(env=("Hopper-v5",), seeds=(0, 1, 2)))
        >>> name.split("_")[:3], name.split("_")[-1]
        (['td7+r2r2', 'Hopper-v5', 'utd1'], 's0-2')
    """
    name, _, digest = run_name(config).rpartition("_")
    seeds = f"s{_seed_text(config.seeds)}"
    if config.agent.depends_on_run_length:
        seeds += f"_n{config.steps}"
    rest = f"_{digest}_{seeds}"
    return f"{name[: MAX_NAME - len(rest)]}{rest}"


def _seed_text(seeds: Sequence[int]) -> str:
    """Return seeds as in a file name: `0-4`, `3.7.11`, or `40x1f0c6a2b` if that is too long."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    text = ".".join(map(str, seeds))
    if len(text) <= MAX_SEED_TEXT:
        return text
    return f"{len(seeds)}x{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan atomically."""
    fleets = [
        {
            "name": fleet.name,
            "seconds": None if math.isnan(fleet.seconds) else round(fleet.seconds, 1),
            "memory": fleet.memory,
            **({"limited": True} if fleet.limited else {}),
            "config": to_toml(fleet.config),
        }
        for fleet in plan.fleets
    ]
    facts = {"kind": PLAN_KIND, "format": PLAN_FORMAT, "experiment": plan.experiment}
    facts |= {"scale": plan.scale, "cores": plan.cores, "slots": plan.slots, "fleets": fleets}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def read_plan(path: Path) -> Plan | None:
    """Return the plan in a file, or None if there is no file.

    Raises:
        UserError: The file is not a plan, or is damaged.
    """
    if not path.exists():
        return None
    fields = read_json_object(path) or {}
    if fields.get("kind") != PLAN_KIND:
        raise UserError(f"{path}: damaged or not the plan of a sweep")
    if fields.get("format") != PLAN_FORMAT:
        got = fields.get("format")
        raise UserError(f"{path}: unsupported format; expected {PLAN_FORMAT}, got {got}")
    try:
        fleets = tuple(map(_parse_fleet, cast("list[Mapping[str, Any]]", fields["fleets"])))
        scale, cores = float(cast(Any, fields["scale"])), int(cast(Any, fields["cores"]))
        slots = max(int(cast(Any, fields.get("slots", 1))), 1)
        return Plan(str(fields["experiment"]), scale, cores, fleets, slots)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}") from None


def _parse_fleet(fields: Mapping[str, Any]) -> PlannedFleet:
    seconds = fields["seconds"] if is_number(fields["seconds"]) else math.nan
    name = str(fields["name"])
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"{name!r} is not a folder name")
    config, memory = resolve_toml(fields["config"]), int(fields["memory"])
    return PlannedFleet(name, config, seconds, memory, fields.get("limited") is True)


def with_members(config: RunConfig, tasks: Sequence[str], seeds: Sequence[int]) -> RunConfig:
    """Return the config of a fleet with these members."""
    return dataclasses.replace(config, env=tuple(tasks), seeds=tuple(seeds))
