import pytest
from fake_engine import FakeEngine, tiny_plan

from r2r2.experiments import runner
from r2r2.experiments.runner import MAX_LOSSES, RunLimits, run_plan
from r2r2.experiments.sweep_folder import SweepFolder
from r2r2.storage.run_folder import lock_run
from synthetic_runs import write_run


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path, "tiny")


def run(folder, plan, script=None, **options):
    engine = FakeEngine(folder, script=script)
    states = run_plan(folder, plan, engine, **options)
    assert engine.closed
    return engine, {x.fleet.config.agent.name: x for x in states.values()}


def events(folder):
    return [(x["event"], x.get("attempt")) for x in folder.read_events()]


def test_every_fleet_is_trained_and_skipped_the_next_time(folder):
    plan, finished = tiny_plan(), []
    engine, states = run(folder, plan, on_finished=finished.append)
    assert engine.started == [("td7", 1), ("td7+r2r2", 1)]
    assert {status.state for status in states.values()} == {"finished"}
    assert finished == list(plan.fleets)
    engine, states = run(folder, plan, on_finished=finished.append)
    assert engine.started == []
    assert {status.state for status in states.values()} == {"finished"}
    assert len(finished) == 2


def test_a_run_with_fewer_steps_or_a_stopped_member_is_not_finished(folder):
    plan = tiny_plan(seeds=2)
    short, stopped = plan.fleets
    config = short.config
    write_run(folder.run("earlier"), type(config)(**{**vars(config), "steps": 1000}))
    write_run(folder.run(stopped.name), stopped.config)
    (folder.run(stopped.name) / "Pendulum-v1_s1" / "stopped.json").write_text("{}")
    engine = FakeEngine(folder, script={"td7": [(2,)] * 3, "td7+r2r2": [(2,)] * 3})
    states = run_plan(folder, plan, engine)
    assert {status.state for status in states.values()} == {"set aside"}


def test_a_failing_fleet_is_retried_after_the_others_then_set_aside(folder):
    engine, states = run(folder, tiny_plan(), {"td7": [(1,), (-9,), (3,), (0,)]})
    assert engine.started == [("td7", 1), ("td7+r2r2", 1), ("td7", 2), ("td7", 3)]
    assert (states["td7"].state, states["td7"].why) == ("set aside", "code 3")
    assert states["td7+r2r2"].state == "finished"
    failures = [event for event in events(folder) if event[0] in ("failed", "set aside")]
    assert failures == [("failed", 1), ("failed", 2), ("set aside", 3)]


def test_a_fleet_that_fails_once_finishes(folder):
    _, states = run(folder, tiny_plan(), {"td7": [(1,)]})
    assert (states["td7"].state, states["td7"].attempts) == ("finished", 2)
    _, states = run(folder, tiny_plan(utd=2), {"td7": [(1,)]}, limits=RunLimits(retries=0))
    assert states["td7"].state == "set aside"


def test_every_failure_is_shown(folder):
    shown = []
    script = {"td7": [(1,), (3,)]}
    run(folder, tiny_plan(agent="td7"), script, on_status=lambda x: shown.append(state_of(x)))
    failures = [why for state, why in shown if state == "waiting" and why]
    assert failures == ["code 1", "code 3"]


def state_of(statuses):
    (status,) = statuses.values()
    return status.state, status.why


def test_attempts_on_a_lost_machine_do_not_count(folder):
    engine, states = run(folder, tiny_plan(), {"td7": [(1, False)] * 5})
    assert (states["td7"].state, states["td7"].attempts) == ("finished", 1)
    assert engine.started.count(("td7", 1)) == 6
    lost = {"td7": [(1, False)] * (MAX_LOSSES + 2)}
    _, states = run(folder, tiny_plan(utd=3), lost)
    assert states["td7"].state == "set aside"


@pytest.mark.parametrize("code", [130, 143])
def test_a_fleet_that_someone_interrupts_is_not_retried(folder, code):
    engine, states = run(folder, tiny_plan(), {"td7": [(code,)]})
    assert states["td7"].state == "interrupted"
    assert states["td7+r2r2"].state == "finished"
    assert engine.started.count(("td7", 1)) == 1


def test_an_interruption_ends_running_fleets_and_is_raised(folder):
    engine = FakeEngine(folder)

    def on_status(statuses):
        if engine.running:
            raise KeyboardInterrupt

    engine.wait = lambda _, wait=engine.wait: wait(0) if engine.interrupted else []
    with pytest.raises(KeyboardInterrupt):
        run_plan(folder, tiny_plan(), engine, on_status)
    assert engine.interrupted
    assert engine.closed
    assert engine.started == [("td7", 1)]
    assert events(folder) == [("started", 1), ("interrupted", 1)]


def test_a_fleet_that_cannot_be_started_does_not_stop_the_others(folder):
    engine = FakeEngine(folder)
    start = engine.start

    def fail(fleet, attempt):
        if fleet.config.agent.name == "td7":
            raise OSError("no such program")
        start(fleet, attempt)

    engine.start = fail
    states = {x.fleet.config.agent.name: x for x in run_plan(folder, tiny_plan(), engine).values()}
    assert (states["td7"].state, states["td7"].why) == ("set aside", "no such program")
    assert states["td7+r2r2"].state == "finished"


def test_a_fleet_that_would_end_after_the_budget_is_postponed(folder, monkeypatch):
    plan = tiny_plan()
    plan = plan._replace(fleets=tuple(fleet._replace(seconds=10.0) for fleet in plan.fleets))
    now = [0.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: now[0])

    def run_slowly(seconds, codes=(), **options):
        """Run the plan; every process takes so many seconds."""
        engine = FakeEngine(folder, script={"td7": list(codes)})

        def wait(limit, wait=engine.wait):
            now[0] += seconds
            return wait(limit)

        engine.wait = wait
        states = run_plan(folder, plan, engine, **options).values()
        return {x.fleet.config.agent.name: x.state for x in states}, engine.started

    first = ("td7", 1)
    states, started = run_slowly(12.0, [(1,)] * 3, limits=RunLimits(budget=20.0))
    assert states == {"td7": "postponed", "td7+r2r2": "postponed"}  # not tried again, either
    assert started == [first]
    states, started = run_slowly(12.0, limits=RunLimits(budget=20.0))
    assert states == {"td7": "finished", "td7+r2r2": "postponed"}
    assert started == [first]
    assert events(folder)[-1][0] == "postponed"
    states, started = run_slowly(12.0, limits=RunLimits(budget=10.0))
    assert states["td7+r2r2"] == "finished"
    assert started == [("td7+r2r2", 1)]


def test_a_run_in_use_is_waited_for_and_not_trained_again(folder, monkeypatch):
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.0)
    plan = tiny_plan()
    first = plan.fleets[0]
    path = folder.run(first.name)
    path.mkdir(parents=True)
    engine, seen, lock = FakeEngine(folder), [], lock_run(path)

    def on_status(statuses):
        seen.append(statuses[first.name].why)
        if len(seen) == 6:  # the other process finishes the run
            lock.__exit__(None, None, None)
            write_run(path, first.config)

    lock.__enter__()
    states = run_plan(folder, plan, engine, on_status)
    assert runner.IN_USE in seen
    assert engine.started == [("td7+r2r2", 1)]
    assert states[first.name].state == "finished"


def test_a_fleet_that_finds_its_run_in_use_is_started_again(folder):
    engine, states = run(folder, tiny_plan(), {"td7": [(75, False)] * 30})
    assert (states["td7"].state, states["td7"].attempts) == ("finished", 1)
    assert len(engine.started) == 32
