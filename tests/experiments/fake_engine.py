"""An engine without processes, which ends fleets as it is told."""

import shutil

from r2r2.experiments.engine import FINISHED, FleetEnd
from r2r2.experiments.experiment import Experiment
from r2r2.experiments.plan import Plan, PlannedFleet, fleet_name
from r2r2.training.run_config import finalize_config
from synthetic_runs import write_run

FIELDS = {"steps": 2000, "warmup": 500, "eval_every": 500, "env": "Pendulum-v1"}


def tiny_experiment(name="tiny", **grid):
    """Return an experiment on Pendulum-v1."""
    return Experiment(name, base=FIELDS, grids=({"agent": ["td7", "td7+r2r2"], **grid},))


def tiny_plan(**grid):
    """Return the plan of an experiment with one fleet per cell, by agent."""
    cells = [finalize_config(cell) for cell in tiny_experiment(**grid).cells()]
    fleets = [PlannedFleet(fleet_name(cell), cell) for cell in cells]
    return Plan("tiny", 1.0, 2, tuple(fleets))


class FakeEngine:
    """Finishes fleets, with a run folder, or ends them with the next code of a script.

    `script` has the ends of a fleet's attempts by agent: codes, or pairs of code and `counts`.
    """

    def __init__(self, folder, plan=None, machine=None, script=None, slots=1):
        self.folder, self.script, self.slots = folder, dict(script or {}), slots
        self.running, self.started, self.closed, self.interrupted = {}, [], False, False

    def free_slots(self):
        return self.slots - len(self.running)

    def start(self, fleet, attempt):
        self.started.append((fleet.config.agent.name, attempt))
        self.running[fleet.name] = fleet

    def wait(self, seconds):
        ends = [self._end(fleet) for fleet in self.running.values()]
        self.running = {}
        return ends

    def _end(self, fleet):
        name = fleet.config.agent.name
        code, *counts = self.script[name].pop(0) if self.script.get(name) else (FINISHED,)
        if code == FINISHED:
            path = self.folder.run(fleet.name)
            shutil.rmtree(path, ignore_errors=True)  # of a run that gets more steps
            write_run(path, fleet.config)
        return FleetEnd(fleet.name, code, f"code {code}" if code else "", *counts)

    def interrupt(self):
        self.interrupted = True
        names = {fleet.config.agent.name for fleet in self.running.values()}
        self.script |= {name: [(130,)] for name in names}

    def close(self):
        self.closed = True
