"""Plan a sweep: group runs that can share a program into fleets, in the order of their start."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.experiments.experiment import RunKey, run_keys
from r2r2.experiments.machine import Machine
from r2r2.experiments.plan import Plan, PlannedFleet, name_fleets, with_members


def make_plan(
    name: str,
    scale: float,
    cells: Sequence[RunConfig],
    machine: Machine,
    finished: Mapping[RunKey, tuple[Path, int]] | None = None,
    stored: Plan | None = None,
) -> Plan:
    """Return the plan for the cells of an experiment.

    Args:
        name: of the experiment.
        scale: by which its steps were scaled.
        cells: finalized configs with one task each.
        machine: what the fleets run on.
        finished: runs that need not be trained again, with their folders and steps.
        stored: the plan of an earlier sweep of the same name, whose fleets stay as they are.
    """
    finished = finished or {}
    kept = [] if stored is None else list(stored.fleets)
    done = {key for fleet in kept for key in fleet.keys} | {*finished}
    configs: list[RunConfig] = []
    for cell in cells:
        seeds = [key.seed for key in run_keys(cell) if key not in done]
        if seeds:
            configs.append(with_members(cell, cell.env, seeds))
    names = name_fleets([*(fleet.config for fleet in kept), *configs])[len(kept) :]
    new = [PlannedFleet(*pair) for pair in zip(names, configs, strict=True)]
    return Plan(name, scale, machine.cores, (*kept, *new))


def within_budget(plan: Plan, machine: Machine, seconds: float) -> Plan:
    """Return the plan with the fleets that are expected to finish one after another in time."""
    fleets: list[PlannedFleet] = []
    for fleet in plan.fleets:
        if sum(x.seconds for x in fleets) + fleet.seconds <= seconds:
            fleets.append(fleet)
    if not fleets and plan.fleets:
        least = min(fleet.seconds for fleet in plan.fleets)
        raise UserError(f"expected at least {least:.0f} s for the smallest fleet", "budget")
    return plan._replace(fleets=tuple(fleets))
