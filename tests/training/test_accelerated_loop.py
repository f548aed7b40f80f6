"""The loop as it runs beside an accelerator, on a CPU that pretends to be one."""

import contextlib
import itertools
import sys
import time
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from interrupted import NEVER
from runs import SMALL, prepared, select

from r2r2 import api, resolve, train
from r2r2.api import Result, RunOptions
from r2r2.compute import update_loop
from r2r2.envs.vector import pool
from r2r2.storage.arrays import read_arrays
from r2r2.storage.events import read_events
from r2r2.training import collector, loop
from r2r2.training.fleet import Fleet
from r2r2.training.loop import Training
from r2r2.training.run_config import finalize_config
from r2r2.training.state import StartedUpdates

pytestmark = pytest.mark.optimized

FIELDS = {
    "env": "Pendulum-v1",
    "seeds": 2,
    "steps": 650,
    "warmup": 210,
    "eval_every": 300,
    "eval_episodes": 2,
    "batch_size": 8,
}
WIDTHS = {
    "td7+r2r2": {"width": 8, "latent": 8},
    "minphi+r2r2": {"width": 8, "latent": 8},
    "simbav2": {"actor_width": 8, "critic_width": 8},
}


@pytest.fixture(autouse=True)
def loops_pack(monkeypatch):
    monkeypatch.setattr(update_loop, "packs", lambda: True)


@pytest.mark.parametrize(("agent", "workers"), [("td7+r2r2", 4), ("minphi+r2r2", 2)])
def test_members_that_do_not_wait_for_each_other_have_a_worker_each(monkeypatch, agent, workers):
    monkeypatch.setattr(api, "is_accelerated", lambda: True)
    monkeypatch.setattr(pool, "available_cores", lambda: 2)
    config = resolve(FIELDS, WIDTHS[agent], {"agent": agent, "seeds": 4})
    with api.make_pool(finalize_config(config)) as made:
        assert len(made.worker_pids) == workers


def pretend(monkeypatch, **settings):
    original = Fleet.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for name, value in settings.items():
            setattr(self, name, value)

    monkeypatch.setattr(Fleet, "__init__", init)


@pytest.mark.parametrize(
    ("lockstep", "accelerated", "expected"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_only_in_lockstep_with_an_accelerator_workers_expect_device_calls(
    tmp_path, monkeypatch, lockstep, accelerated, expected
):
    calls = []
    monkeypatch.setattr(pool.EnvPool, "expect_device_calls", lambda own: calls.append(own))
    pretend(monkeypatch, accelerated=accelerated)
    changes = {"agent.policy_checkpoints": not lockstep}
    with prepared(tmp_path / "run", **changes):
        assert len(calls) == expected


def trained(path, agent, **changes):
    result = train(resolve(FIELDS, WIDTHS[agent], {"agent": agent}, changes), path, options=NEVER)
    names = result.folder.members
    return result, [read_arrays(result.folder.weights(name)) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "utd"), [("minphi+r2r2", 2), ("simbav2", 1)])
def test_steps_in_one_call_equal_separate_calls(tmp_path, monkeypatch, agent, utd):
    changes = {"utd": utd, "steps": 330, "warmup": 100, "eval_every": 100}
    separate, expected = trained(tmp_path / "separate", agent, **changes)
    calls, update_and_act = [], Fleet.update_and_act

    def counted(self, updates, *rest):
        calls.append(updates)
        return update_and_act(self, updates, *rest)

    monkeypatch.setattr(Fleet, "update_and_act", counted)
    pretend(monkeypatch, fuses_steps=True)
    fused, actual = trained(tmp_path / "fused", agent, **changes)
    assert calls == [utd] * 230  # also the last one, and those before an evaluation
    for one, other in zip(actual, expected, strict=True):
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(fused.returns, separate.returns, rtol=1e-3)


@pytest.mark.slow
def test_steps_that_are_taken_as_they_come_are_all_recorded(tmp_path, monkeypatch):
    pretend(monkeypatch, async_updates=True, accelerated=True)
    result, _ = trained(tmp_path / "run", "td7+r2r2")
    events = read_events(result.folder.events)
    for name in result.folder.members:
        episodes = select(events, "episode", name)
        assert [event["length"] for event in episodes] == [200, 200, 200]
        assert [event["random"] for event in episodes] == [True, True, False]
        evaluations = select(events, "evaluation", name)
        assert [event["decision_step"] for event in evaluations] == [300, 600, 650]
        assert len(select(events, "diagnostics", name)) == 3
    time = select(events, "time")[-1]
    assert time["bound"]
    assert time["physics"] > 0


class Busy(NamedTuple):
    """A run in which some member trains at almost any time."""

    result: Result
    events: list
    beside: list  # whether updates were in flight when policies were handed out
    reasons: set  # why updates paused
    reports: list  # of its progress
    queued: list  # updates in flight after each start


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return busy_run(tmp_path_factory.mktemp("busy") / "run", patch)


def check_policies(patch, seen):
    """Check that members get the policies of their own last updates, which take some time."""
    trained_policies = {}
    begin, fetch, refresh = Fleet._start, Fleet._fetch, Fleet.refresh

    def seen_begin(self, *args):
        result, finished = begin(self, *args), args[-1]
        policies = jax.tree.map(np.array, self._trained_policies(self._state))
        trained_policies.update({member: policies for member in finished})
        return result

    def slow_fetch(self, *args):
        time.sleep(0.02)  # other members end their episodes meanwhile
        return fetch(self, *args)

    def seen_refresh(self, members):
        expected = [trained_policies[member] for member in members]
        refresh(self, members)
        seen.beside.append(bool(self._tasks))
        used = self._copy_to_host._select  # actions depend on no others
        for member, policies in zip(members, expected, strict=True):
            for ours, theirs in zip(used(self.policies), used(policies), strict=True):
                np.testing.assert_array_equal(ours[member], theirs[member])

    patch.setattr(Fleet, "_start", seen_begin)
    patch.setattr(Fleet, "_fetch", slow_fetch)
    patch.setattr(Fleet, "refresh", seen_refresh)


def busy_run(path, patch):
    """Train, and check while training when the next updates begin and who gets which policy."""
    paused, seen = [], Busy(None, [], [], set(), [], [])
    needs_pause, start = Training._needs_pause, Training._start_call

    def seen_pause(self):
        state, due = self.state, set()
        due |= {"evaluation"} if state.evals.startable else set()
        due |= {"losses"} if state.log.losses_due(state.rollout.steps) else set()
        due |= {"checkpoint"} if self._writer.due(state.step()) else set()
        paused.append(needs_pause(self))
        assert paused[-1] == bool(due)
        seen.reasons.update(due)
        return paused[-1]

    def seen_start(self, *args, **options):
        state = self.state
        start(self, *args, **options)
        seen.queued.append(len(state.updates_in_flight))
        early = sys._getframe(2).f_code.co_name == "_finish_updates"
        assert not (early and paused[-1]), state.counts(0)

    patch.setattr(update_loop, "packs", lambda: True)
    patch.setattr(loop, "REPORT_SECONDS", 1e9)
    patch.setattr(Fleet, "ends_soon", property(lambda self: len(self._tasks) == 1))
    check_policies(patch, seen)
    patch.setattr(Training, "_needs_pause", seen_pause)
    patch.setattr(Training, "_start_call", seen_start)
    pretend(patch, async_updates=True, accelerated=True)
    changes = {
        "env": "toys:OwnPace-v0",
        "seeds": 3,
        "utd": 3,
        "steps": 150,
        "log_every": 7,
        "eval_every": 50,
    }
    options = RunOptions(workers=2, checkpoint_every="25")
    config = resolve(SMALL, changes)
    result = train(config, path, on_progress=seen.reports.append, options=options)
    return seen._replace(result=result, events=read_events(result.folder.events))


def test_the_next_updates_begin_before_policies_are_handed_out(busy):
    """Members get the policies of their own last updates, while those of others run."""
    assert {True, False} <= set(busy.beside)


def test_updates_are_queued_behind_those_in_flight(busy):
    """So that the device does not wait; one call at most, so that members train together."""
    assert {*busy.queued} == {1, 2}


def test_updates_pause_for_what_needs_all_of_them_done(busy):
    """Evaluations, losses and checkpoints are not put off while some member always trains."""
    assert busy.reasons == {"evaluation", "losses", "checkpoint"}
    assert len(select(busy.events, "losses")) >= 3 * 5
    evaluations = [event["decision_step"] for event in select(busy.events, "evaluation")]
    assert sorted(evaluations) == sorted([50, 100, 150] * 3)


@pytest.mark.parametrize("reason", ["evaluation", "losses", "checkpoint", "callback"])
def test_each_reason_alone_pauses_updates(tmp_path, monkeypatch, reason):
    with prepared(tmp_path / "run") as (training, _), contextlib.closing(training):
        state, training._writer = training.state, SimpleNamespace(due=lambda _: False)
        monkeypatch.setattr(state.log, "losses_due", lambda _: False)
        assert not training._needs_pause()
        if reason == "evaluation":
            state.evals.due[0] = (20, 0)
        elif reason == "losses":
            monkeypatch.setattr(state.log, "losses_due", lambda _: True)
        elif reason == "checkpoint":
            training._writer.due = lambda _: True
        else:
            monkeypatch.setattr(type(state.log.callbacks), "stops", True)
        assert training._needs_pause()


@pytest.mark.parametrize("soon", [False, True])
def test_the_loop_waits_until_updates_can_be_queued(tmp_path, monkeypatch, soon):
    with prepared(tmp_path / "run") as (training, _), contextlib.closing(training):
        sleeps, made = [], training._collector
        monkeypatch.setattr(training.state.pool, "plays_ahead", lambda _: True)
        monkeypatch.setattr(collector.time, "sleep", sleeps.append)
        monkeypatch.setattr(made, "_can_queue", lambda: soon)
        monkeypatch.setattr(Fleet, "ready", False)
        training.state.updates_in_flight.append(StartedUpdates([0], [0]))
        made._wait_for_rows([])
        assert bool(sleeps) != soon
        training.state.updates_in_flight.clear()


def queued_run(path, patch, tasks, **changes):
    """Train in bursts, with a call queued behind every one in flight; return the longest queue."""
    start, most = Training._start_call, [0]

    def seen_start(self, *args, **options):
        start(self, *args, **options)
        most[0] = max(most[0], len(self.state.updates_in_flight))
        assert len(self.state.fleet._tasks) <= len(self.state.updates_in_flight)

    patch.setattr(Fleet, "ends_soon", property(lambda self: len(self._tasks) == 1))
    patch.setattr(Training, "_start_call", seen_start)
    patch.setattr(loop, "UPDATES_PER_CALL", 8)
    patch.setattr(loop, "UPDATES_PER_OPEN_CALL", 8)
    pretend(patch, async_updates=True, accelerated=True)
    config = resolve(SMALL, {"env": tasks, "utd": 20, "steps": 150, **changes})
    return train(config, path, options=RunOptions(workers=0, checkpoint_every="never")), most[0]


@pytest.mark.filterwarnings("ignore::r2r2.StoppedMembersWarning")
def test_nonfinite_loss_beside_queued_updates_stops_only_its_member(tmp_path, monkeypatch):
    tasks = "fragile:Calm-v0,fragile:Rich-v0,fragile:Quiet0-v0"
    result, queued = queued_run(tmp_path / "run", monkeypatch, tasks)
    assert queued == 2
    assert result.stopped == {"fragile.Rich-v0_s0": "a loss was not finite"}
    events = read_events(result.folder.events)
    for name in ("fragile.Calm-v0_s0", "fragile.Quiet0-v0_s0"):
        (end,) = select(events, "end", name) or [{"updates_not_made": 0}]
        steps = sum(e["length"] for e in select(events, "episode", name) if not e["random"])
        made = read_arrays(result.folder.weights(name))["state/updates"]
        assert made == 20 * steps - end["updates_not_made"] > 0


def test_failure_of_updates_ends_the_run(tmp_path, monkeypatch):
    start, count = Fleet._start, itertools.count()

    def failing(self, *args):
        if next(count) == 2:
            raise RuntimeError("the device is lost")
        return start(self, *args)

    monkeypatch.setattr(Fleet, "_start", failing)
    with pytest.raises(RuntimeError, match="the device is lost"):
        queued_run(tmp_path / "run", monkeypatch, "toys:OwnPace-v0", seeds=3)


def test_every_update_is_made_once(busy):
    """As the device counts them: one per step after warm-up, times the UTD."""
    for name in busy.result.folder.members:
        episodes = select(busy.events, "episode", name)
        steps = sum(event["length"] for event in episodes if not event["random"])
        skipped = sum(e.get("updates_not_made", 0) for e in select(busy.events, "end", name))
        made = read_arrays(busy.result.folder.weights(name))["state/updates"]
        assert made == 3 * steps - skipped > 0


def test_the_end_is_reported(busy):
    assert len(busy.reports) == 3  # before the first step, after the first iteration, at the end
    assert busy.reports[-1].decisions.tolist() == [150] * 3
    assert busy.reports[-1].point == 150


def test_normalizers_learn_from_every_step_of_the_warm_up(tmp_path, monkeypatch):
    pretend(monkeypatch, async_updates=True, accelerated=True)
    changes = {"agent.normalize": True, "random_only": True, "steps": 12}
    with prepared(tmp_path / "run", **changes) as (training, _):
        while members := training.collecting():
            training._collector.step(members)
        assert training.state.normalizer.statistics.obs.samples == pytest.approx([12], abs=1e-3)
        training.close()
