import dataclasses
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.agents.registry import make_agent
from r2r2.bench import updates as bench
from r2r2.bench.bench_fleet import Cost, FullFleet, random_rows, update_flops
from r2r2.bench.roofline import Yardstick, ceiling
from r2r2.bench.updates import Sizes, check_room, measure, stages, with_bases
from r2r2.compute import update
from r2r2.compute.compiled import CompiledUpdates
from r2r2.config.agents import agent_config
from r2r2.config.errors import UserError
from r2r2.envs.spec import Spec
from r2r2.replay import buffer as ring

SPEC = Spec(obs_dim=4, action_dim=2)
SIZES = Sizes(SPEC, rows=300, updates=2, repeats=4)


def tiny(name, width=8):
    small = {"width": width, "latent": width, "batch_size": 8}
    return dataclasses.replace(agent_config(name), **small)


@pytest.fixture(scope="module")
def trained():
    """A fleet of two whose program was compiled, then run once."""
    agent = make_agent(tiny("td7+r2r2"), SPEC, 1)
    fleet = FullFleet(agent, SPEC, 2, SIZES.rows)
    fleet.lend(random_rows(SPEC, 2, SIZES.rows))
    before = np.asarray(fleet.learners.priorities.tree.weights)
    cost = fleet.cost(2)
    return fleet, before, cost, fleet.seconds(2)


def test_the_replay_is_full(trained):
    fleet, weights, _, _ = trained
    assert weights[:, : SIZES.rows].min() == weights.max() == 1
    rows = fleet._rows
    assert rows.obs.shape == (2, SIZES.rows, 4)
    assert np.unique(np.asarray(rows.obs[0, :, 0])).size == SIZES.rows
    assert rows.terminated.dtype == bool


def test_what_is_timed_is_training_in_its_own_program_alone(trained):
    fleet, _, _, seconds = trained
    assert seconds > 0
    fleet.compile_ahead()
    assert list(fleet._updates._compiled) == [(2, True, fleet._stride)]
    losses = fleet.learners.metrics["loss/critic"]
    assert losses.times.tolist() == [2, 2]
    assert np.isfinite(losses.total).all()


def test_what_a_program_costs_is_known_before_it_runs(trained):
    cost = trained[2]
    assert cost.compile_s > 0
    assert cost.kernels > 20
    assert cost.program_bytes > 0
    assert cost.flops > 1000


def test_bytes_are_those_of_the_arrays(trained):
    replay, networks = trained[0].bytes_of_a_member()
    rows = SIZES.rows * ((4 + 2 + 1) * 4 + 1)
    assert rows + 4 * SIZES.rows <= replay < 1.2 * (rows + 4 * SIZES.rows)
    assert networks > 1000


def flops_of_an_update(width, members=1, **changes):
    """Of td7+r2r2, from shapes alone."""
    agent = make_agent(tiny("td7+r2r2", width), SPEC, 1)
    keys = jnp.stack([jax.random.key(seed) for seed in range(members)])
    obs = jnp.zeros((members, SPEC.obs_dim))
    replay = jax.eval_shape(partial(ring.init, SIZES.rows, SPEC), obs)
    states = jax.eval_shape(partial(update.first_states, agent), keys, jnp.ones(()))
    learners = jax.eval_shape(partial(update.init, agent), states, replay)
    programs = CompiledUpdates(agent, (update.Data(replay.rows), learners, keys))
    return update_flops(agent._replace(**changes), programs, members)


def test_flops_grow_with_the_width_and_not_with_the_fleet():
    narrow = flops_of_an_update(width=8)
    assert 4 < flops_of_an_update(width=32) / narrow < 16
    assert flops_of_an_update(width=8, members=3) == narrow


def test_flops_of_delayed_parts_are_spread_over_the_phase():
    every_time = flops_of_an_update(width=8, phase=1)
    assert every_time > 1.05 * flops_of_an_update(width=8)


def test_calls_are_whole_phases(trained):
    assert [trained[0].whole_phases(count) for count in (1, 2, 3)] == [2, 2, 4]


class Scripted:
    """In a fleet's place: its calls take given seconds, and are noted."""

    calls: ClassVar = []
    seconds_of: ClassVar = {
        "td7": [9.0, 1.0, 2.0, 4.0],
        "td7+r2r2": [9.0, 1.5, 2.2, 4.4],
    }

    def __init__(self, agent, spec, members, rows):
        self.name, self.size = agent, members
        self.left = iter(self.seconds_of[agent])

    def whole_phases(self, updates):
        return updates

    def cost(self, updates):
        return Cost(compile_s=7.0, kernels=200.0, flops=5e6, program_bytes=100)

    def lend(self, rows):
        pass

    def seconds(self, updates):
        self.calls.append(self.name)
        return next(self.left)

    def bytes_of_a_member(self):
        return 1000, 20


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(bench, "FullFleet", Scripted)
    monkeypatch.setattr(bench, "make_agent", lambda config, spec, utd: config.name)
    monkeypatch.setattr(bench, "random_rows", lambda *_: None)
    monkeypatch.setattr(Scripted, "calls", [])
    agents = {name: agent_config(name) for name in ("td7", "td7+r2r2")}
    heard = []
    sizes = Sizes(SPEC, rows=300, updates=10, repeats=3)
    found = measure(agents, 5, sizes, ceiling=0.5, watch=heard.append)
    return agents, heard, found


def test_agents_take_turns_and_who_comes_first_changes(scripted):
    assert Scripted.calls == ["td7", "td7+r2r2"] * 2 + [
        "td7+r2r2",
        "td7",
        "td7",
        "td7+r2r2",
    ]


def test_a_time_is_the_median_of_the_repeats_without_the_first_call(scripted):
    base, _ = scripted[2][0]
    # Seconds of a call over its 10 updates of 5 members, in us.
    assert base.us_per_agent_update == (40_000, 20_000, 80_000, (2e4, 4e4, 8e4))
    assert (base.agent, base.members, base.compile_s) == ("td7", 5, 7.0)


def test_the_share_is_of_the_ceiling_that_was_measured(scripted):
    base, _ = scripted[2][0]
    assert base.tflops == pytest.approx(5e6 / 0.04 / 1e12)
    assert base.share_of_ceiling == pytest.approx(base.tflops / 0.5)
    assert base.fleet_bytes == 5 * 1020 + 100


def test_the_overhead_is_over_the_base_in_the_same_repeat(scripted):
    (overhead,) = scripted[2][1]
    assert (overhead.agent, overhead.base) == ("td7+r2r2", "td7")
    assert overhead.percent.each == pytest.approx((50.0, 10.0, 10.0))
    assert overhead.percent[:3] == pytest.approx((10.0, 10.0, 50.0))
    assert overhead.us_per_agent_update.each == pytest.approx((1e4, 4e3, 8e3))


def test_the_bar_hears_of_what_was_announced(scripted):
    agents, heard, _ = scripted
    assert heard == stages(agents, 5, repeats=3)
    assert [stage.kind for stage in heard] == ["compile"] * 2 + ["warm 5"] + [
        "time 5"
    ] * 3


def test_bases_are_added_in_front_and_once():
    agents = ("minphi+r2r2", "td7+r2r2", "td7")
    assert with_bases(agents) == ("minphi", "minphi+r2r2", "td7", "td7+r2r2")


def test_fleets_that_do_not_fit_are_refused_with_what_would(monkeypatch):
    agents = {name: tiny(name) for name in ("td7", "td7+r2r2")}
    monkeypatch.setattr(bench, "device_bytes", lambda: 10**6)
    check_room(agents, 1, SIZES)
    with pytest.raises(UserError, match=r"^rows is 99999; .* --rows (\d+)$") as refused:
        check_room(agents, 2, SIZES._replace(rows=99_999))
    fits = int(str(refused.value).rpartition(" ")[2])
    check_room(agents, 2, SIZES._replace(rows=fits))
    with pytest.raises(UserError):
        check_room(agents, 2, SIZES._replace(rows=fits + 9))
    with pytest.raises(UserError, match=r"fit: fewer agents or members$"):
        check_room(agents, 99, SIZES)


def test_the_ceiling_is_measured_several_times():
    found = ceiling(Yardstick(matrix=64, copied=1000), repeats=3)
    for spread in (found.tflops, found.gb_per_s):
        assert len(spread.each) == 3
        assert 0 < spread.lowest <= spread.median <= spread.highest
    assert (found.matrix, found.copied) == (64, 1000)
