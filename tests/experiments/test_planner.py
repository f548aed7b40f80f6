"""Plans: which runs share a fleet, what is kept, and what fits into a budget."""

import dataclasses
import json
import math
import time
from pathlib import Path

import pytest

from r2r2.config.agents import AGENTS
from r2r2.config.common import TaskInfo
from r2r2.config.errors import UserError
from r2r2.config.resolve import default_config
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.experiments.costs import Estimate, MeasuredCosts, Speed
from r2r2.experiments.experiment import Experiment, run_keys
from r2r2.experiments.machine import Device, Machine
from r2r2.experiments.plan import Plan, PlannedFleet, fleet_name, read_plan, write_plan
from r2r2.experiments.planner import (
    ExperimentCells,
    make_plan,
    plan_seconds,
    plan_works,
    seconds_left,
    within_budget,
)
from r2r2.experiments.scheduling import lower_bound, makespan

GB = 10**9
ONE_CORE = Machine((Device("cpu", "cpu", 64 * GB),), 1)
TOML = 'env = ["Ant-v5"]\nsteps = 1000\nwarmup = 200\nagent = "td7"\n'
SPEED = Speed(TOML, Spec(105, 8), "cpu", 1, 31.0, 5.0, 0.01, 0.02)


class Costs:
    """Known costs: seconds are `start + members * steps * utd * rate`."""

    def __init__(self, start=0.0, rate=0.01, memory=GB // 10, busy=1.0):
        self.start, self.rate, self.memory, self.busy = start, rate, memory, busy

    def prepare(self, configs):
        pass

    def estimate(self, config):
        members = len(config.env) * len(config.seeds)
        seconds = self.start + members * config.steps * config.utd * self.rate
        return Estimate(seconds, members * self.memory, True, self.busy)


UNKNOWN = Costs(rate=math.nan)


def gpus(count, cores=16, memory=80 * GB):
    devices = [Device(f"gpu:{n}", "NVIDIA H200", memory, str(n)) for n in range(count)]
    return Machine(tuple(devices), cores * count)


def cell(env="Ant-v5", agent="td7", seeds=2, **fields):
    fields = {"steps": 1000, "warmup": 0, "replay_size": 10_000} | fields
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else seeds
    return dataclasses.replace(default_config(agent), env=(env,), seeds=seeds, **fields)


def plan_of(cells, machine=ONE_CORE, costs=None, **options):
    named = ExperimentCells("test", 1.0, cells)
    return make_plan(named, machine, costs=costs or Costs(), **options)


def members(plan):
    return [(fleet.config.env, fleet.config.seeds) for fleet in plan.fleets]


def keys(plan):
    return sorted(key for fleet in plan.fleets for key in fleet.keys)


def test_tasks_of_equal_sizes_share_a_fleet():
    plan = plan_of([cell(x) for x in ("dog-run", "dog-walk", "Ant-v5", "humanoid-run")])
    expected = [
        (("dog-run", "dog-walk"), (0, 1)),
        (("Ant-v5",), (0, 1)),
        (("humanoid-run",), (0, 1)),
    ]
    assert sorted(members(plan)) == sorted(expected)


@pytest.mark.parametrize(
    "changes", [{"utd": 2}, {"agent": "td7+r2r2"}, {"steps": 900}, {"replay_size": 5000}]
)
def test_runs_that_differ_otherwise_do_not(changes):
    plan = plan_of([cell("dog-run"), cell("dog-walk", **changes)])
    assert len(plan.fleets) == 2


def test_short_runs_share_fleets_where_nothing_was_measured():
    def count(steps):
        cells = [cell(seeds=4, steps=steps, utd=utd) for utd in (1, 2)]
        return len(plan_of(cells, ONE_CORE._replace(cores=2), UNKNOWN).fleets)

    assert count(400) == 2  # to start takes longer than to train
    assert count(400_000) > 2


def test_fleets_are_full_products():
    plan = plan_of([cell("dog-run", seeds=(0, 1)), cell("dog-walk", seeds=(1, 0))])
    assert len(plan.fleets) == 2  # the order of members is part of a fleet
    plan = plan_of([cell("dog-run", seeds=3), cell("dog-walk", seeds=3), cell("dog-trot", seeds=2)])
    assert sorted(members(plan)) == [(("dog-run", "dog-walk"), (0, 1, 2)), (("dog-trot",), (0, 1))]


def test_memory_limits_the_members():
    small = ONE_CORE._replace(devices=(Device("cpu", "cpu", GB),))
    plan = plan_of([cell(seeds=20)], small)  # 0.1 GB each, 0.8 GB for fleets
    assert len(plan.fleets) == 3
    assert all(fleet.memory <= 0.8 * GB for fleet in plan.fleets)
    assert len(keys(plan)) == 20
    unknown = gpus(1, memory=0)
    assert len(plan_of([cell(seeds=20)], unknown).fleets) == 1


def test_a_fleet_gets_no_more_of_a_gpu_than_jax_does(monkeypatch):
    one = gpus(1, memory=GB)  # 7 members of 0.1 GB: 0.75 of it
    assert max(len(x.keys) for x in plan_of([cell(seeds=20)], one).fleets) == 7
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.35")
    assert max(len(x.keys) for x in plan_of([cell(seeds=20)], one).fleets) == 3
    partly = one._replace(devices=(*one.devices, *gpus(1, memory=0).devices))  # one unknown
    assert max(len(x.keys) for x in plan_of([cell(seeds=20)], partly).fleets) <= 3


def test_a_run_that_does_not_fit_is_planned_alone():
    tiny = ONE_CORE._replace(devices=(Device("cpu", "cpu", 1000),))
    assert [x.config.seeds for x in plan_of([cell(seeds=2)], tiny).fleets] == [(0,), (1,)]


def test_all_devices_are_used():
    plan = plan_of([cell("dog-run", seeds=5), cell("dog-walk", seeds=5)], gpus(4))
    assert len(plan.fleets) >= 4
    bound = lower_bound(plan_works([fleet.config for fleet in plan.fleets], gpus(4), Costs()), 4)
    assert plan_seconds(plan, gpus(4)) <= 1.2 * bound
    assert plan.slots == 1


def test_large_fleets_are_kept_where_they_are_efficient():
    plan = plan_of([cell(seeds=5)], gpus(2), Costs(start=1000.0))
    assert len(plan.fleets) == 2
    assert len(plan_of([cell(seeds=5)], gpus(1), Costs(start=1000.0)).fleets) == 1


def test_the_longest_fleets_start_first():
    plan = plan_of([cell(utd=x) for x in (1, 20, 10)])
    assert [fleet.config.utd for fleet in plan.fleets] == [20, 10, 1]
    plan = plan_of([cell(utd=x) for x in (1, 20, 10)], costs=UNKNOWN)
    assert [fleet.config.utd for fleet in plan.fleets] == [20, 10, 1]
    assert math.isnan(plan.fleets[0].seconds)


def test_a_cpu_trains_one_fleet_per_core():
    machine = ONE_CORE._replace(cores=8)
    plan = plan_of([cell(seeds=16)], machine)
    assert (plan.cores, plan.slots) == (1, 8)
    assert [len(fleet.config.seeds) for fleet in plan.fleets] == [2] * 8
    plan = plan_of([cell(seeds=2)], machine)
    assert (plan.cores, plan.slots) == (4, 2)
    little = machine._replace(devices=(Device("cpu", "cpu", GB // 2),))
    assert plan_of([cell(seeds=20)], little).slots == 4


def test_fleets_share_a_gpu_that_would_be_idle():
    assert plan_of([cell(seeds=4)], gpus(1), Costs(busy=0.2)).slots == 2
    assert plan_of([cell(seeds=4)], gpus(1), Costs(busy=0.8)).slots == 1
    assert plan_of([cell(seeds=4)], gpus(1, cores=4), Costs(busy=0.2)).slots == 1
    assert plan_of([cell(seeds=4)], gpus(1), UNKNOWN).slots == 1


# Stored plans and finished runs


def test_a_stored_plan_stays_as_it_is():
    first = plan_of([cell("dog-run", seeds=3)])
    more = [cell("dog-run", seeds=5), cell("dog-walk", seeds=5)]
    machine = ONE_CORE._replace(cores=8)
    plan = plan_of(more, machine, stored=first, costs=Costs())
    assert plan.fleets[0] == first.fleets[0]
    assert plan.cores == first.cores
    assert plan.slots == 8
    assert keys(plan) == sorted(key for x in more for key in run_keys(x))
    assert len({fleet.name for fleet in plan.fleets}) == len(plan.fleets)
    assert plan_of(more, machine, stored=plan, costs=Costs()) == plan


def test_fleets_without_wanted_runs_are_dropped():
    both = plan_of([cell("Ant-v5"), cell("dog-run", seeds=3)])
    plan = plan_of([cell("dog-run", seeds=1)], ONE_CORE, stored=both, costs=Costs())
    assert members(plan) == [(("dog-run",), (0, 1, 2))]


def test_a_stored_fleet_is_extended_to_more_steps():
    first = plan_of([cell()])
    plan = plan_of([cell(steps=2000)], ONE_CORE, stored=first, costs=Costs())
    assert [x.config.steps for x in plan.fleets] == [2000]
    assert plan.fleets[0].name == first.fleets[0].name
    assert plan.fleets[0].seconds == pytest.approx(2 * first.fleets[0].seconds)


def test_a_fleet_that_cannot_be_extended_is_replaced():
    first = plan_of([cell(agent="simbav2")])
    longer = [cell(agent="simbav2", steps=2000)]
    plan = plan_of(longer, ONE_CORE, stored=first, costs=Costs())
    assert [x.config.steps for x in plan.fleets] == [2000]
    assert plan.fleets[0].name != first.fleets[0].name


def test_finished_runs_are_not_planned_again():
    cells = [cell("dog-run", seeds=3), cell("dog-walk", seeds=3)]
    done = {key: (Path("a"), 1000) for key in run_keys(cells[0])}
    plan = plan_of(cells, ONE_CORE, finished=done, costs=Costs())
    assert members(plan) == [(("dog-walk",), (0, 1, 2))]
    short = {key: (Path("a"), 999) for key in run_keys(cells[0])}
    plan = plan_of(cells, ONE_CORE, finished=short, costs=Costs())
    assert len(keys(plan)) == 6


def test_estimates_of_stored_fleets_are_renewed():
    first = plan_of([cell()], costs=UNKNOWN)
    plan = plan_of([cell()], ONE_CORE, stored=first, costs=Costs())
    assert plan.fleets[0].seconds == pytest.approx(20)
    again = plan_of([cell()], ONE_CORE, stored=plan, costs=UNKNOWN)
    assert again.fleets[0].seconds == pytest.approx(20)


def test_a_plan_is_stored_with_its_slots(tmp_path):
    plan = plan_of([cell(seeds=20)], ONE_CORE._replace(cores=4))
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    fields = json.loads((tmp_path / "plan.json").read_text())
    del fields["slots"]
    (tmp_path / "plan.json").write_text(json.dumps(fields))
    assert read_plan(tmp_path / "plan.json") == plan._replace(slots=1)


# Names


def test_names_say_seeds_and_are_short():
    names = [fleet_name(cell(seeds=x)) for x in (5, (3,), (3, 7, 11), (1, 0))]
    endings = ["_s0-4", "_s3", "_s3.7.11", "_s1.0"]
    assert all(name.endswith(end) for name, end in zip(names, endings, strict=True))
    many = [fleet_name(cell(seeds=tuple(range(x, 2000, 7)))) for x in (0, 1)]
    assert many[0] != many[1]
    long = fleet_name(dataclasses.replace(cell(), env=tuple(f"{x * 90}:E-v0" for x in "abc")))
    assert max(map(len, [*names, *many, long])) <= 150
    assert long.endswith("_s0-1")


# Budgets


def fleets(*seconds):
    return tuple(PlannedFleet(f"f{n}", cell(), x) for n, x in enumerate(seconds))


def chosen(plan, budget, machine=ONE_CORE):
    return [fleet.name for fleet in within_budget(plan, machine, budget).fleets]


def test_only_fleets_that_will_finish_are_started():
    plan = Plan("test", 1.0, 1, fleets(100.0, 10.0, 40.0, math.nan, 30.0))
    assert chosen(plan, 10) == ["f1"]
    assert chosen(plan, 85) == ["f1", "f4", "f2"]
    assert chosen(plan, 1000) == ["f1", "f4", "f2", "f0"]
    assert chosen(plan, 50, gpus(2)) == ["f1", "f4", "f2"]
    two = plan._replace(slots=2)
    assert makespan([10, 30, 40], 2) == 50
    assert chosen(two, 50) == ["f1", "f4", "f2"]


def test_what_is_done_already_does_not_count():
    costs = MeasuredCosts([SPEED], "cpu")  # 5 s to start, 0.01 s per step, 0.02 s per update
    config = SPEED.config
    fleet = PlannedFleet("fleet", config, costs.estimate(config).seconds)
    assert fleet.seconds == pytest.approx(5 + 1000 * 0.01 + 800 * 0.02)
    assert seconds_left(fleet, 0, costs) == fleet.seconds
    assert seconds_left(fleet, 100, costs) == pytest.approx(5 + 900 * 0.01 + 800 * 0.02)
    assert seconds_left(fleet, 900, costs) == pytest.approx(5 + 100 * 0.01 + 100 * 0.02)


def test_a_budget_that_is_too_small_says_what_is_needed():
    plan = Plan("test", 1.0, 1, fleets(4000.0, 1500.0))
    with pytest.raises(UserError, match="at least 25m, which f1 needs, got 60s"):
        within_budget(plan, ONE_CORE, 60)


def test_a_budget_needs_measurements():
    plan = Plan("test", 1.0, 1, fleets(math.nan))
    with pytest.raises(UserError, match="no speed was measured"):
        within_budget(plan, ONE_CORE, 60)
    assert within_budget(Plan("test", 1.0, 1, ()), ONE_CORE, 60).fleets == ()


def test_new_fleets_are_short_enough_for_a_budget():
    plan = plan_of([cell(seeds=10)], longest=35.0)  # 10 s per run
    assert max(fleet.seconds for fleet in plan.fleets) <= 35
    assert len(chosen(plan, 35)) == 1
    alone = plan_of([cell(seeds=2)], longest=5.0)
    assert [x.config.seeds for x in alone.fleets] == [(0,), (1,)]


# The paper


def paper_cells():
    grid = {"agent": [*AGENTS], "env": [*PAPER_TASKS], "utd": [1, 10, 20], "seeds": 5}
    cells = Experiment("paper", grids=(grid,)).cells()
    for number, x in enumerate(cells):
        suite = PAPER_TASKS[x.env[0]].suite
        length = {"gymnasium": 1000, "dmc": 500}[suite]
        agent = x.agent.for_task(TaskInfo(x.env[0], suite, lambda length=length: length))
        cells[number] = dataclasses.replace(x, agent=agent)
    return cells


def test_the_whole_grid_of_the_paper_is_planned_in_seconds():
    cells = paper_cells()
    assert len(cells) == 297
    start = time.process_time()
    costs = Costs(start=60.0, rate=5e-5)
    one, many = (plan_of(cells, gpus(n), costs) for n in (1, 64))
    assert time.process_time() - start < 20
    assert len(one.fleets) == 162
    for plan, count in ((one, 1), (many, 64)):
        assert len(keys(plan)) == len({*keys(plan)}) == 1485
        assert len({fleet.name for fleet in plan.fleets}) == len(plan.fleets)
        bound = lower_bound(plan_works(cells, gpus(count), costs), count)
        assert plan_seconds(plan, gpus(count)) <= 1.15 * bound
