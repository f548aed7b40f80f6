"""What a run's records say, and how damaged ones are refused."""

import json
import math

import pytest

from r2r2.config.errors import UserError
from r2r2.report.load import (
    Event,
    events_of,
    read_members,
    rows_of,
    timing_of,
    versions_of,
)
from r2r2.storage.events import EventLog, StepCounts


def log(path, *events):
    with EventLog(path / "events.jsonl") as file:
        for kind, decisions, fields in events:
            steps = StepCounts(2 * decisions, decisions, 10 * decisions)
            file.write(kind, steps, "a_s0", fields)
    return events_of(path / "events.jsonl")


def member(path, *events):
    (found,) = read_members(["a_s0"], [("a", 0)], log(path, *events))
    return found


def test_diagnostics_are_series_over_environment_steps(tmp_path):
    found = member(
        tmp_path,
        ("diagnostics", 10, {"effective_rank": 3.5, "dead": 2, "collapsed": False}),
        ("value", 10, {"bias": -1.0}),
        ("diagnostics", 20, {"effective_rank": math.nan, "dead": 3, "collapsed": True}),
        ("collapse", 20, {"effective_rank": math.nan}),
        ("losses", 25, {"critic": 1.0}),
    )
    assert found.diagnostics["dead"].steps.tolist() == [20, 40]
    assert found.diagnostics["dead"].values.tolist() == [2, 3]
    assert math.isnan(found.diagnostics["effective_rank"].values[1])
    assert found.diagnostics["bias"].values.tolist() == [-1.0]
    assert "critic" not in found.diagnostics
    assert found.collapses == (40,)
    assert (found.env_steps, found.updates) == (50, 250)


def test_spectra_are_there_by_evaluation(tmp_path):
    events = [("spectrum", n, {"singular_values": [3.0, n, 0.5]}) for n in (1, 2)]
    first, second = member(tmp_path, *events).spectra
    assert (first.env_step, second.env_step) == (2, 4)
    assert second.singular_values.tolist() == [3.0, 2.0, 0.5]


def test_a_member_that_was_stopped_says_why_unless_it_went_on(tmp_path):
    stop = ("stopped", 5, {"why": "a loss was not finite"})
    assert member(tmp_path, stop).stopped == "a loss was not finite"
    assert member(tmp_path, ("losses", 9, {})).stopped == ""


def counted(member, time, decisions, updates, kind="losses"):
    return Event(kind, time, member, decisions, decisions, updates)


def test_rates_leave_warm_up_out_and_begin_when_all_members_have_updates():
    found = timing_of(
        [
            counted("a", 50.0, 100, 0),
            counted("b", 51.0, 100, 0),
            counted("a", 60.0, 100, 20),
            counted("b", 80.0, 120, 420),
            counted("a", 100.0, 140, 820),
        ]
    )
    # From 80 s on: 1240 - 440 updates and 260 - 220 decision steps in 20 s.
    assert found.updates_per_second == pytest.approx(800 / 20)
    assert found.decisions_per_second == pytest.approx(2.0)
    assert (found.seconds, found.members) == (100.0, 2)
    assert (found.updates, found.decisions) == (1240, 260)


def test_a_member_that_was_never_updated_does_not_keep_rates_from_the_others():
    found = timing_of(
        [
            counted("b", 5.0, 50, 0, "stopped"),
            counted("a", 10.0, 100, 20),
            counted("a", 20.0, 200, 220),
        ]
    )
    assert found.updates_per_second == pytest.approx(20.0)


def test_the_end_of_an_evaluation_takes_no_update_back():
    found = timing_of(
        [
            counted("a", 10.0, 100, 20),
            counted("a", 20.0, 200, 220),
            counted("a", 20.0, 150, 120, "evaluation"),
        ]
    )
    assert (found.updates, found.decisions) == (220, 200)
    assert found.updates_per_second == pytest.approx(20.0)


def test_a_run_without_updates_has_no_rates():
    found = timing_of([Event("episode", 5.0, "a", 10, 10, 0)])
    assert math.isnan(found.updates_per_second)
    assert math.isnan(found.seconds_per_step)
    assert timing_of([]) is None


def test_a_run_that_has_just_begun_has_nothing_yet(tmp_path):
    assert events_of(tmp_path / "events.jsonl") == []
    assert rows_of(tmp_path / "evaluations.csv") == []
    assert versions_of(tmp_path / "versions.json") == {}


GOOD = {
    "event": "diagnostics",
    "time": 1.0,
    "member": "a_s0",
    "env_step": 1,
    "decision_step": 1,
    "update_step": 1,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"time": "soon"},
        {"time": None},
        {"env_step": -1},
        {"env_step": 1.5},
        {"update_step": True},
        {"member": 3},
        {"dead": "many"},
        {"dead": [1]},
        {"dead": 10**400},
        {"dead": 1e308},
        {"event": "spectrum"},
        {"event": "spectrum", "singular_values": 3},
        {"event": "spectrum", "singular_values": [[1]]},
        {"event": "stopped"},
    ],
    ids=str,
)
def test_an_event_that_holds_something_else_is_refused_with_its_line(tmp_path, changed):
    path = tmp_path / "events.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(GOOD | changed)}\n")
    with pytest.raises(UserError, match=r"^.*events.jsonl: line 2 is damaged: it do"):
        events_of(path)


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_damaged_versions_are_refused(tmp_path, content):
    path = tmp_path / "versions.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"versions\.json"):
        versions_of(path)
