import dataclasses
from functools import cache, partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import build_agent
from r2r2.bench import updates as bench
from r2r2.bench.updates import (
    BenchFleet,
    BenchSizes,
    ProblemSize,
    ProgramCost,
    check_memory,
    measure_roofline,
    measure_updates,
    random_rows,
    update_flops,
    update_stages,
    with_bases,
)
from r2r2.compute import update
from r2r2.compute.compiled import CompiledUpdates
from r2r2.compute.precision import DEFAULT_OPTIONS
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring

SPEC = Spec(obs_dim=4, action_dim=2)
SIZES = BenchSizes(SPEC, rows=300, updates=2, repeats=4)


def tiny(name, width=8):
    small = {"width": width, "latent": width, "batch_size": 8}
    return dataclasses.replace(agent_config(name), **small)


@pytest.fixture(scope="module")
def trained():
    """A fleet of two after one call."""
    agent = build_agent(tiny("td7+r2r2"), SPEC, 1)
    fleet = BenchFleet(agent, SPEC, 2, SIZES.rows)
    fleet.set_replay(random_rows(SPEC, 2, SIZES.rows))
    before = np.asarray(fleet.learners.priorities.tree.weights)
    cost = fleet.compile_cost(2)
    return fleet, before, cost, fleet.seconds(2)


@pytest.mark.slow
def test_replay_is_full(trained):
    fleet, weights, _, _ = trained
    assert weights[:, : SIZES.rows].min() == weights.max() == 1
    rows = fleet._rows
    assert rows.obs.shape == (2, SIZES.rows, 4)
    assert np.unique(np.asarray(rows.obs[0, :, 0])).size == SIZES.rows
    assert rows.terminated.dtype == bool


@pytest.mark.slow
def test_call_trains_with_one_program(trained):
    fleet, _, _, seconds = trained
    assert seconds > 0
    fleet.compile_ahead()
    assert list(fleet._updates._compiled) == [(2, True, fleet._stride)]
    losses = fleet.learners.metrics["loss/critic"]
    assert losses.times.tolist() == [2, 2]
    assert np.isfinite(losses.total).all()


@pytest.mark.slow
def test_program_cost_is_known_before_running(trained):
    cost = trained[2]
    assert cost.compile_s > 0
    assert cost.kernels > 20
    assert cost.program_bytes > 0
    assert cost.flops > 1000


@pytest.mark.slow
def test_bytes_are_those_of_the_arrays(trained):
    replay, networks = trained[0].bytes_per_member()
    rows = SIZES.rows * ((4 + 2 + 1) * 4 + 1)
    assert rows + 4 * SIZES.rows <= replay < 1.2 * (rows + 4 * SIZES.rows)
    assert networks > 1000


@cache
def flops_of_an_update(width, members=1, **changes):
    """Return the flops of td7+r2r2, from shapes only."""
    config = dataclasses.replace(tiny("td7+r2r2", width), **changes)
    agent = build_agent(config, SPEC, 1)
    keys = jnp.stack([jax.random.key(seed) for seed in range(members)])
    obs = jnp.zeros((members, SPEC.obs_dim))
    replay = jax.eval_shape(partial(ring.init, SIZES.rows, SPEC), obs)
    states = jax.eval_shape(partial(update.initial_states, agent), keys, jnp.ones(()))
    learners = jax.eval_shape(partial(update.init, agent), states, replay)
    example = update.Data(replay.rows), learners, keys
    programs = CompiledUpdates(agent, example, DEFAULT_OPTIONS)
    return update_flops(agent, programs, members)


@pytest.mark.slow
def test_flops_grow_with_width_not_with_fleet_size():
    narrow = flops_of_an_update(width=8)
    assert 4 < flops_of_an_update(width=32) / narrow < 16
    assert flops_of_an_update(width=8, members=3) == narrow


def test_delayed_policy_updates_are_averaged():
    every_time = flops_of_an_update(width=8, policy_delay=1)
    assert every_time > 1.05 * flops_of_an_update(width=8)


@pytest.mark.slow
def test_updates_are_rounded_up_to_policy_periods(trained):
    assert [trained[0].round_up(count) for count in (1, 2, 3)] == [2, 2, 4]


class FakeFleet:
    """A fleet whose calls take given times."""

    calls: ClassVar = []
    short_calls: ClassVar = []
    replay: ClassVar = 0
    seconds_of: ClassVar = {"td7": [9.0, 1.0, 2.0, 4.0], "td7+r2r2": [9.0, 1.5, 2.2, 4.4]}

    fuses_steps = False

    def __init__(self, agent, spec, members, rows, options, checkpoints):
        assert options.precision == SIZES.precision
        assert checkpoints
        self.name, self.size = agent, members
        self.left = iter(self.seconds_of[agent])

    def round_up(self, updates):
        return updates

    def compile_cost(self, updates):
        return ProgramCost(compile_s=7.0, kernels=200.0, flops=5e6, program_bytes=100)

    def set_replay(self, rows):
        assert rows == self.replay

    def take_replay(self):
        FakeFleet.replay += 1  # as if a step had been stored
        return self.replay

    def seconds(self, updates):
        self.calls.append(self.name)
        return next(self.left)

    def call_seconds(self, updates):
        self.short_calls.append((self.name, updates))
        return updates * (2.0 if self.name == "td7" else 3.0) + 1

    def bytes_per_member(self):
        return 1000, 20


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(bench, "BenchFleet", FakeFleet)
    monkeypatch.setattr(bench, "build_agent", lambda config, spec, utd: config.name)
    monkeypatch.setattr(bench, "random_rows", lambda *_: 0)
    for name, value in {"calls": [], "short_calls": [], "replay": 0}.items():
        monkeypatch.setattr(FakeFleet, name, value)
    agents = {name: agent_config(name) for name in ("td7", "td7+r2r2")}
    started = []
    sizes = BenchSizes(SPEC, rows=300, updates=10, repeats=3)
    result = measure_updates(agents, 5, sizes, 0.5, on_stage=started.append)
    return agents, started, result


def test_agents_take_turns_in_alternating_order(measured):
    assert FakeFleet.calls == ["td7", "td7+r2r2"] * 2 + ["td7+r2r2", "td7", "td7", "td7+r2r2"]


def test_timing_is_the_median_without_the_first_call(measured):
    base, _ = measured[2][0]
    # Seconds of a call over its 10 updates of 5 members, in us.
    assert base.us_per_agent_update == (40_000, 20_000, 80_000, (2e4, 4e4, 8e4))
    assert (base.agent, base.members, base.compile_s) == ("td7", 5, 7.0)


def test_share_is_relative_to_the_measured_peak(measured):
    base, _ = measured[2][0]
    assert base.tflops == pytest.approx(5e6 / 0.04 / 1e12)
    assert base.share_of_ceiling == pytest.approx(base.tflops / 0.5)
    assert base.fleet_bytes == 5 * 1020 + 100


def test_overhead_is_computed_within_each_repeat(measured):
    (overhead,) = measured[2][1]
    assert (overhead.agent, overhead.base) == ("td7+r2r2", "td7")
    assert overhead.percent.each == pytest.approx((50.0, 10.0, 10.0))
    assert overhead.percent[:3] == pytest.approx((10.0, 10.0, 50.0))
    assert overhead.us_per_agent_update.each == pytest.approx((1e4, 4e3, 8e3))


def test_stages_are_reported_in_order(measured):
    agents, started, _ = measured
    assert started == update_stages(agents, 5, BenchSizes(SPEC, 300, updates=10, repeats=3))
    kinds = ["compile"] * 2 + ["warm 5"] + ["time 5"] * 3 + ["warm short 5"] + ["time short 5"] * 3
    assert [stage.kind for stage in started] == kinds


def test_short_calls_are_timed_beside_long_ones(measured):
    calls = measured[2].calls
    assert [(x.agent, x.members, x.utd) for x in calls] == [
        (agent, 5, utd) for agent in ("td7", "td7+r2r2") for utd in (1, 10, 20)
    ]
    # A call that is as long as the long one is not timed again.
    assert set(FakeFleet.short_calls) == {(x.agent, x.utd) for x in calls if x.utd != 10}
    assert [x.us_per_agent_update.median for x in calls[:3]] == [6e5, 4e4, 4.1e5]
    assert not any(call.is_step for call in calls)
    assert all(len(call.us_per_agent_update.each) == 3 for call in calls)


@pytest.mark.slow
def test_short_call_in_lockstep_stores_updates_and_acts():
    config = dataclasses.replace(
        agent_config("minphi+r2r2"), width=8, model_width=8, latent=8, batch_size=8
    )
    fleet = BenchFleet(build_agent(config, SPEC, 1), SPEC, 2, SIZES.rows, policy_checkpoints=False)
    rows = random_rows(SPEC, 2, SIZES.rows)
    before = np.asarray(rows.reward)
    fleet.set_replay(rows)
    assert fleet.call_seconds(2) > 0  # on a CPU training makes separate calls
    assert (np.asarray(fleet.take_replay().reward) == before).all()
    fleet.fuses_steps = True
    assert [fleet.call_seconds(count) > 0 for count in (1, 2, 1)] == [True] * 3
    changed = (np.asarray(fleet.take_replay().reward) != before).sum(axis=1)
    assert changed.tolist() == [3, 3]
    assert fleet.learners.metrics["loss/critic"].times.tolist() == [6, 6]


def test_bases_are_added_before_their_agents_once():
    agents = ("minphi+r2r2", "td7+r2r2", "td7")
    assert with_bases(agents) == ("minphi", "minphi+r2r2", "td7", "td7+r2r2")


def test_fleets_that_do_not_fit_are_rejected(monkeypatch):
    agents = {name: tiny(name) for name in ("td7", "td7+r2r2")}
    monkeypatch.setattr(bench, "device_bytes", lambda: 10**6)
    check_memory(agents, 1, SIZES)
    with pytest.raises(UserError, match=r"^--rows: 99999 .* --rows (\d+)$") as error:
        check_memory(agents, 2, SIZES._replace(rows=99_999))
    fits = int(str(error.value).rpartition(" ")[2])
    check_memory(agents, 2, SIZES._replace(rows=fits))
    with pytest.raises(UserError):
        check_memory(agents, 2, SIZES._replace(rows=fits + 9))
    with pytest.raises(UserError, match=r"fits: fewer agents or members$"):
        check_memory(agents, 99, SIZES)


def test_roofline_is_measured_several_times():
    roofline = measure_roofline(ProblemSize(matrix=64, copied=1000), repeats=3)
    for stats in (roofline.tflops, roofline.gb_per_s):
        assert len(stats.each) == 3
        assert 0 < stats.lowest <= stats.median <= stats.highest
    assert (roofline.matrix, roofline.copied) == (64, 1000)
