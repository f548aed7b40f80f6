"""Measure what the host adds to runs beside an accelerator, on a machine without one.

    python benchmarks/host_overhead.py --out benchmarks/results/host_overhead.json
    python benchmarks/host_overhead.py --only bursts

The real training loop runs with a simulated device. A call of updates only sleeps, for as long as
it takes on an H200 (TD7: 143 us and 63 us per member for each update, from `r2r2 bench`, and
`--call-us` per call), or in lockstep not at all. Environments sleep, too, so that workers need few
cores. What remains is the host's own work:

- bursts, TD7: the time for which the device waits although updates are pending, per burst. Groups
  of five members are simulated; an episode has 100 steps on average.
- lockstep, Minimalist phi: the time of the loop's own code per step of five members, without the
  call of updates and the environments.

Times are those of this machine's cores. Two checkouts can be compared on one machine, in turns,
each with its own version of this script.
"""

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from r2r2.bench import end_to_end
from r2r2.bench.end_to_end import TrainingSetup, time_training
from r2r2.compute.compiled import CompiledUpdates, GroupInputs, LockstepPrograms, LockstepResult
from r2r2.config.resolve import resolve
from r2r2.storage.versions import versions
from r2r2.training import fleet, loop
from r2r2.training.fleet import Fleet
from r2r2.training.time_account import LOGGING, REST, TRANSFER

TASK = "host_overhead:SleepingEnv"
FIXED_US, MEMBER_US = 143.0, 63.0  # per update of TD7 on an H200
ENV_US, EPISODE = 300.0, 100  # of a step; mean decision steps
SLEEP_US = 60.0  # by which a sleep takes longer than asked for
GROUPS = (1, 2, 3, 5)
MEMBERS, STEPS = 5, 6000
SMALL = {"agent.width": 16, "agent.latent": 16}  # of networks, which are not used


class SleepingEnv(gymnasium.Env[Any, Any]):
    """Sleeps in every step; the length of an episode is drawn when it begins."""

    observation_space = Box(-np.inf, np.inf, (11,), np.float64)
    action_space = Box(-1, 1, (3,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the first observation."""
        super().reset(seed=seed)
        length = self.np_random.lognormal(np.log(EPISODE) - 0.125, 0.5)
        self._left = int(np.clip(length, 8, 1000))
        return np.full(11, 0.1), {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        sleep_us(ENV_US)
        self._left -= 1
        return np.full(11, 0.1), 1.0, self._left <= 0, False, {}


def sleep_us(us: float) -> None:
    """Sleep for about so many microseconds."""
    time.sleep(max(us - SLEEP_US, 0.0) * 1e-6)


def ready() -> Future[None]:
    """Return a compiled program, of which nothing is used."""
    program: Future[None] = Future()
    program.set_result(None)
    return program


class SimulatedDevice:
    """Takes the place of the programs of a fleet, and notes when it waits."""

    def __init__(self, call_us: float):
        self._call_us, self._schedule, self._free_since = call_us, None, 0.0
        self.waits = list[float]()  # seconds, between two bursts, with updates pending
        self.times: Any = None

    def install(self) -> None:
        """Let all fleets of this process run on the simulated device."""
        make_state, init = loop.make_state, Fleet.__init__

        def seen_state(*args: Any, **options: Any) -> Any:
            state = make_state(*args, **options)
            self._schedule, self.times = state.schedule, state.times
            return state

        def accelerated(own: Any, *args: Any, **options: Any) -> None:
            init(own, *args, **options)
            own.accelerated = True
            own.async_updates = own._acts_on_host
            own.fuses_steps = not own._acts_on_host

        replaced: Any = Fleet, CompiledUpdates, LockstepPrograms
        replaced[0].__init__ = accelerated
        loop.make_state, fleet.run_calls = seen_state, self.run_calls
        replaced[1].program = replaced[2].program = lambda *_: ready()
        replaced[1].program_for = lambda _, members, *rest: (
            next(size for size in GROUPS if size >= members), ready()
        )  # fmt: skip
        for programs in replaced[1:]:
            programs.request = programs.wait = lambda own, *_: own
        replaced[1].request_optional = lambda *_: None
        replaced[2].step = self.step

    def run_calls(self, calls: Any, data: Any, state: Any) -> Any:
        """Sleep as long as calls of updates take."""
        if self._free_since:
            self.waits.append(time.perf_counter() - self._free_since)
        for call in calls:
            group = GroupInputs(*call.inputs)
            per_update = FIXED_US + MEMBER_US * len(group.member)
            sleep_us(self._call_us + int(group.updates[0]) * per_update)
        self._free_since = time.perf_counter() if self._schedule.pending.any() else 0.0
        return state

    def step(self, program: Any, rows: Any, learners: Any, inputs: Any) -> LockstepResult:
        """Return no change, and actions of 0."""
        return LockstepResult(rows, learners, np.zeros((len(inputs.floats), 4)))


def measure(agent: str) -> Any:
    """Train on the device that is installed and return the speed."""
    config = resolve({"agent": agent, "env": TASK} | SMALL)
    return time_training(config.agent, TrainingSetup(TASK, MEMBERS, 1, STEPS), lambda _: None)


def measure_bursts(device: SimulatedDevice) -> dict[str, float]:
    """Return how long the device waits between two bursts although updates are pending."""
    speed = measure("td7+r2r2")
    waits = [1e3 * seconds for seconds in device.waits[len(device.waits) // 3 :]]
    return {
        "device_waits_ms_median": round(statistics.median(waits), 2),
        "device_waits_ms_mean": round(statistics.fmean(waits), 2),
        "bursts": len(waits),
        "decision_steps_per_s": speed.decision_steps_per_s,
    }


def measure_lockstep(_: SimulatedDevice) -> dict[str, float]:
    """Return the time of the loop's own code per step of the fleet."""
    speed = measure("minphi+r2r2")
    step_us = 1e6 * speed.members / speed.decision_steps_per_s
    own = sum(speed.shares[part] for part in (LOGGING, REST, TRANSFER))
    return {"loop_us_per_step": round(own * step_us, 1), "fleet_step_us": round(step_us, 1)}


MEASURES = {"bursts": measure_bursts, "lockstep": measure_lockstep}


def main() -> None:
    """Measure each part in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--call-us", type=float, default=400.0, help="of every call of updates")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))  # where workers find the environment
    end_to_end.PERIOD = 500  # warm-up
    results = dict[str, Any]()
    for name in args.only:
        device = SimulatedDevice(args.call_us)
        device.install()
        results[name] = MEASURES[name](device)
        print(f"{name}: {results[name]}", flush=True)
    about = {"cores": os.cpu_count(), "versions": versions()}
    if args.out:
        args.out.write_text(json.dumps(results | about, indent=1) + "\n")


if __name__ == "__main__":
    main()
