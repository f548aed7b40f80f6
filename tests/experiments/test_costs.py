"""Estimates from measured speeds."""

import dataclasses
import json
import math

import pytest

from r2r2.config.resolve import default_config
from r2r2.config.toml_io import to_toml
from r2r2.envs.spec import Spec
from r2r2.experiments import agent_sizes, costs
from r2r2.experiments.agent_sizes import SizeQuery, find_sizes, trace_sizes
from r2r2.experiments.costs import (
    MeasuredCosts,
    Speed,
    load_costs,
    measure_speed,
    record_speed,
    task_sizes,
)
from r2r2.experiments.machine import Device, Machine
from r2r2.storage.events import EventLog, StepCounts
from r2r2.storage.files import cache_folder
from r2r2.storage.run_folder import create_run
from r2r2.training.memory import agent_bytes, build_agent, replay_rows, row_bytes, update_bytes
from r2r2.training.saved_config import fleet_members

CPU = Machine((Device("cpu", "cpu", 2**34),), 2)
HOPPER = Spec(11, 3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Use an empty cache; agents are traced in this process, which takes less time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        agent_sizes, "_trace", lambda queries: {x.key: trace_sizes(x) for x in queries}
    )


def config(agent="td7", members=1, env=("Hopper-v5",), agent_fields=None, **fields):
    run = default_config(agent)
    small = {"width": 16, "latent": 16, "batch_size": 8} | (agent_fields or {})
    sized = dataclasses.replace(run.agent, **small)
    fields = {"steps": 1000, "warmup": 0, "replay_size": 10_000} | fields
    return dataclasses.replace(run, agent=sized, env=env, seeds=tuple(range(members)), **fields)


def speed(run, step=0.01, update=0.02, startup=10.0, device="cpu", when=0.0):
    return Speed(to_toml(run), HOPPER, device, 2, 1.0, startup, step, update, when)


def seconds(speeds, run, kind="cpu"):
    return MeasuredCosts(speeds, kind).estimate(run).seconds


def test_a_measured_fleet_takes_what_it_took():
    run = config(utd=3, warmup=200)
    estimate = MeasuredCosts([speed(run)], "cpu").estimate(run)
    assert estimate.seconds == pytest.approx(10 + 1000 * 0.01 + 800 * 3 * 0.02)
    assert estimate.measured
    assert estimate.busy == pytest.approx(48 / 68)


def test_other_steps_and_utd_follow_from_the_same_rates():
    run = config(utd=20, steps=5000)
    estimate = MeasuredCosts([speed(config())], "cpu").estimate(run)
    assert estimate.seconds == pytest.approx(10 + 50 + 5000 * 20 * 0.02)
    assert estimate.measured


def test_without_measurements_nothing_is_known():
    estimate = MeasuredCosts([], "cpu").estimate(config())
    assert math.isnan(estimate.seconds)
    assert not estimate.measured
    assert estimate.memory > 0
    gpu = speed(config(), device="NVIDIA H200")
    assert math.isnan(seconds([gpu], config(), "cpu"))


def test_a_cpu_takes_time_proportional_to_members():
    speeds = [speed(config(members=2))]
    for members in (1, 4, 20):
        expected = 10 + (10 + 20) * members / 2
        assert seconds(speeds, config(members=members)) == pytest.approx(expected)


def test_an_accelerator_is_more_efficient_with_many_members():
    speeds = [speed(config(members=1), device="NVIDIA H200")]
    expected = 10 + (10 + 20) * (20 + 2) / 3
    assert seconds(speeds, config(members=20), "NVIDIA H200") == pytest.approx(expected)


def test_fleet_sizes_between_measured_ones_are_interpolated():
    speeds = [
        speed(config(members=1), update=0.2),
        speed(config(members=5), update=0.4),
        speed(config(members=20), update=1.0),
    ]
    assert seconds(speeds, config(members=3)) == pytest.approx(20 + 300)
    assert seconds(speeds, config(members=5)) == pytest.approx(20 + 400)
    assert seconds(speeds, config(members=40)) == pytest.approx(10 + 20 + 2000)


def test_the_median_of_recent_measurements_counts():
    old = [speed(config(), update=9.0, when=n) for n in range(5)]
    new = [speed(config(), update=x, when=10 + n) for n, x in enumerate((1, 2, 3, 4, 90.0))]
    assert seconds([*new, *old], config()) == pytest.approx(20 + 3000)


def test_an_agent_that_was_not_measured_is_estimated_by_its_operations():
    wide = config(agent_fields={"width": 64, "latent": 64})
    sizes = [trace_sizes(SizeQuery(x.agent, HOPPER)) for x in (wide, config())]
    ratio = sizes[0].flops / sizes[1].flops
    assert ratio > 4
    on_cpu = (sizes[0].flops + 5e7) / (sizes[1].flops + 5e7)
    for kind, factor in (("cpu", on_cpu), ("NVIDIA H200", ratio**0.75)):
        estimate = MeasuredCosts([speed(config(), device=kind)], kind).estimate(wide)
        assert estimate.seconds == pytest.approx(20 + 20 * factor)
        assert not estimate.measured


def test_large_networks_are_not_estimated_from_the_overhead_of_small_ones():
    """As measured on one core: 0.3 ms with a width of 32, 20 ms with the usual one."""
    small = config(agent_fields={"width": 32, "latent": 32, "batch_size": 32})
    usual = config(agent_fields={"width": 256, "latent": 256, "batch_size": 256})
    estimate = MeasuredCosts([speed(small, update=3e-4, step=0.0, startup=0.0)], "cpu")
    assert 0.01 < estimate.estimate(usual).seconds / usual.steps < 0.04


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H200"])
def test_an_agent_of_unknown_size_takes_as_long_as_a_measured_one(monkeypatch, kind):
    costs = MeasuredCosts([speed(config(), device=kind)], kind)
    unknown = config("td7-ln")
    known = SizeQuery(config().agent, HOPPER)
    monkeypatch.setattr(agent_sizes, "_trace", lambda _: {known.key: trace_sizes(known)})
    assert costs.estimate(unknown).seconds == costs.estimate(config()).seconds


def test_the_nearest_agent_is_taken():
    other = speed(config("td7-ln"), update=5.0)
    assert seconds([speed(config()), other], config()) == pytest.approx(10 + 10 + 20)
    ant = MeasuredCosts([speed(config())], "cpu").estimate(config(env=("Ant-v5",)))
    assert not ant.measured
    assert ant.seconds > 40  # its observations are larger


def test_memory_is_that_of_replay_networks_and_activations():
    run = config(members=4)
    agent = build_agent(run.agent, HOPPER, 1)
    member = replay_rows(run) * row_bytes(HOPPER) + agent_bytes(agent)
    member += update_bytes(run.agent, HOPPER, 1)
    assert MeasuredCosts([], "cpu").estimate(run).memory == int(1.3 * 4 * member)


def test_an_agent_that_cannot_be_built_has_the_memory_of_a_large_one(monkeypatch):
    monkeypatch.setattr(agent_sizes, "_trace", lambda _: {})
    estimate = MeasuredCosts([speed(config())], "cpu").estimate(config(members=3))
    assert estimate.memory > 3 * 4e8
    assert estimate.seconds == pytest.approx(10 + 90)


def test_sizes_are_traced_once(monkeypatch):
    query = SizeQuery(config().agent, HOPPER)
    first = find_sizes([query])
    monkeypatch.setattr(agent_sizes, "_trace", lambda _: pytest.fail("traced again"))
    assert find_sizes([query]) == first
    (cache_folder() / "sizes.json").write_text('{"x": [1, 2], "y": "z"}')
    monkeypatch.setattr(agent_sizes, "_trace", lambda queries: {})
    assert find_sizes([query]) == {}


def test_sizes_are_traced_in_a_subprocess(monkeypatch):
    monkeypatch.undo()
    query = SizeQuery(config().agent, HOPPER)
    assert agent_sizes._trace([query]) == {query.key: trace_sizes(query)}


# Measuring


def write_run(path, run, times, device="cpu"):
    members = [x.name for x in fleet_members(run)]
    versions = {"device": device, "platform": "cpu", "cpu_count": "2"}
    folder = create_run(path, to_toml(run), members, False, versions)
    with EventLog(folder.events, iter([0.0, *(x["time"] for x in times)]).__next__) as log:
        for fields in times:
            steps = StepCounts(fields["steps"], fields["steps"], fields["updates"])
            rest = {"updates": fields["updating"], "wall": fields["wall"], "bound": "updates"}
            log.write("time", steps, None, {**rest, "compiling": fields["compiling"]})
    return path


def time_event(time, steps, updates, wall, updating, compiling):
    return locals()


EVENTS = [
    time_event(time=12.0, steps=100, updates=0, wall=2.0, updating=0.0, compiling=0.0),
    time_event(time=40.0, steps=200, updates=100, wall=30.0, updating=22.0, compiling=20.0),
    time_event(time=90.0, steps=700, updates=600, wall=80.0, updating=62.0, compiling=20.0),
]


def test_the_speed_of_a_run_is_that_after_compiling(tmp_path):
    measured = measure_speed(write_run(tmp_path / "run", config(members=2), EVENTS))
    assert measured.update == pytest.approx(40 / 500)
    assert measured.step == pytest.approx(10 / 500)
    assert measured.startup == pytest.approx(90 - 700 * 0.02 - 600 * 0.08)
    assert measured.spec == HOPPER
    assert (measured.device, measured.cores) == ("cpu", 2)


def test_the_speed_of_a_resumed_run_is_that_of_its_last_process(tmp_path):
    again = [
        time_event(time=100.0, steps=800, updates=700, wall=8.0, updating=4.0, compiling=0.0),
        time_event(time=110.0, steps=900, updates=800, wall=18.0, updating=9.0, compiling=0.0),
    ]
    measured = measure_speed(write_run(tmp_path / "run", config(), [*EVENTS, *again]))
    assert measured.update == pytest.approx(0.05)
    assert measured.step == pytest.approx(0.05)


def test_a_single_event_gives_averages(tmp_path):
    measured = measure_speed(write_run(tmp_path / "run", config(), EVENTS[1:2]))
    assert measured.update == pytest.approx(2 / 100)
    assert measured.step == pytest.approx(8 / 200)


def test_a_run_without_updates_says_nothing_about_their_speed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = write_run(tmp_path / "run", config(random_only=True), EVENTS[:1])
    assert record_speed(run) is None
    old = speed(config(), update=0.0)  # as an earlier version recorded it
    table = {**old._asdict(), "spec": list(old.spec)}
    assert costs._parse_speed(table) is None
    assert costs._parse_speed({**table, "update": 0.1}) is not None


@pytest.mark.parametrize("events", [[], [{**EVENTS[0], "steps": 10}]])
def test_a_run_that_has_hardly_begun_says_nothing(tmp_path, events):
    assert measure_speed(write_run(tmp_path / "run", config(), events)) is None
    assert record_speed(tmp_path / "run") is None
    assert measure_speed(tmp_path / "missing") is None


def test_speeds_are_recorded_for_later_plans(tmp_path):
    run = config(members=2)
    path = write_run(tmp_path / "runs" / "a", run, EVENTS)
    assert load_costs(machine=CPU).count == 0
    assert load_costs(tmp_path / "runs", CPU).count == 1
    measured = record_speed(path)
    record_speed(path)
    assert load_costs(machine=CPU).count == 1
    assert load_costs(tmp_path / "runs", CPU).count == 1  # the same run
    expected = measured.startup + 1000 * (measured.step + measured.update)
    assert load_costs(machine=CPU).estimate(run).seconds == pytest.approx(expected)


def test_a_run_with_more_cores_than_a_fleet_has_is_recorded_as_slower(tmp_path):
    run = config(members=2)
    path = write_run(tmp_path / "run", run, EVENTS)
    measured, slower = measure_speed(path), record_speed(path, 1.5)
    assert (slower.step, slower.update) == (measured.step * 1.5, measured.update * 1.5)
    (known,) = costs._read_cache()
    assert known.update == slower.update
    assert known.startup == measured.startup


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"format": 1, "speeds": 3}', '{"format": 1, "speeds": [1, {"toml": ""}]}'],
)
def test_a_damaged_cache_is_ignored(tmp_path, content):
    cache_folder().mkdir(parents=True)
    (cache_folder() / "speeds.json").write_text(content)
    assert load_costs(machine=CPU).count == 0
    assert record_speed(write_run(tmp_path / "run", config(), EVENTS)) is not None
    assert len(json.loads((cache_folder() / "speeds.json").read_text())["speeds"]) == 1


def test_sizes_of_tasks_that_the_paper_does_not_have():
    assert task_sizes(config(env=("Pendulum-v1",))) == Spec(3, 1)
