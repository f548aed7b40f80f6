"""Records of runs and files of results: what is read, and how damage is reported."""

import json
import math

import pytest

from r2r2.config.errors import UserError
from r2r2.config.run import RunConfig
from r2r2.report.load import (
    Event,
    compute_timing,
    effective_precision,
    load_evaluations,
    load_events,
    load_results_file,
    load_versions,
    member_marks,
    read_members,
    read_results,
    truncated_logs,
)
from r2r2.report.study import MemberData
from r2r2.stats.scores import Method
from r2r2.storage.evaluations import HEADER, Row
from r2r2.storage.events import EventLog, StepCounts
from synthetic_runs import make_csv


def log(path, *events):
    with EventLog(path / "events.jsonl") as file:
        for kind, decisions, fields in events:
            steps = StepCounts(2 * decisions, decisions, 10 * decisions)
            file.write(kind, steps, "a_s0", fields)
    return load_events(path / "events.jsonl")


def member(path, *events):
    (data,) = read_members(["a_s0"], [("a", 0)], log(path, *events))
    return data


def test_diagnostics_are_series_over_environment_steps(tmp_path):
    result = member(
        tmp_path,
        ("diagnostics", 10, {"effective_rank": 3.5, "dead": 2, "collapsed": False}),
        ("value", 10, {"bias": -1.0}),
        ("diagnostics", 20, {"effective_rank": math.nan, "dead": 3, "collapsed": True}),
        ("collapse", 20, {"effective_rank": math.nan}),
        ("losses", 25, {"critic": 1.0}),
    )
    assert result.diagnostics["dead"].steps.tolist() == [20, 40]
    assert result.diagnostics["dead"].values.tolist() == [2, 3]
    assert math.isnan(result.diagnostics["effective_rank"].values[1])
    assert result.diagnostics["bias"].values.tolist() == [-1.0]
    assert "critic" not in result.diagnostics
    assert result.collapses == (40,)
    assert (result.env_steps, result.updates) == (50, 250)


def test_spectra_are_read_per_evaluation(tmp_path):
    events = [("spectrum", n, {"singular_values": [3.0, n, 0.5]}) for n in (1, 2)]
    first, second = member(tmp_path, *events).spectra
    assert (first.env_step, second.env_step) == (2, 4)
    assert second.singular_values.tolist() == [3.0, 2.0, 0.5]


def test_stop_reason_is_read_unless_the_member_resumed(tmp_path):
    stop = ("stopped", 5, {"why": "a loss was not finite"})
    assert member(tmp_path, stop).stopped == "a loss was not finite"
    assert member(tmp_path, ("losses", 9, {})).stopped == ""


def counted(member, time, decisions, updates, kind="losses"):
    return Event(kind, time, member, decisions, decisions, updates)


def test_rates_start_when_all_members_have_updates():
    result = compute_timing(
        [
            counted("a", 50.0, 100, 0),
            counted("b", 51.0, 100, 0),
            counted("a", 60.0, 100, 20),
            counted("b", 80.0, 120, 420),
            counted("a", 100.0, 140, 820),
        ]
    )
    # From 80 s on: 1240 - 440 updates and 260 - 220 decision steps in 20 s.
    assert result.updates_per_second == pytest.approx(800 / 20)
    assert result.decisions_per_second == pytest.approx(2.0)
    assert (result.seconds, result.members) == (100.0, 2)
    assert (result.updates, result.decisions) == (1240, 260)


def test_member_without_updates_does_not_prevent_rates():
    result = compute_timing(
        [
            counted("b", 5.0, 50, 0, "stopped"),
            counted("a", 10.0, 100, 20),
            counted("a", 20.0, 200, 220),
        ]
    )
    assert result.updates_per_second == pytest.approx(20.0)


def test_late_evaluation_events_do_not_reduce_counts():
    result = compute_timing(
        [
            counted("a", 10.0, 100, 20),
            counted("a", 20.0, 200, 220),
            counted("a", 20.0, 150, 120, "evaluation"),
        ]
    )
    assert (result.updates, result.decisions) == (220, 200)
    assert result.updates_per_second == pytest.approx(20.0)


def test_run_without_updates_has_no_rates():
    result = compute_timing([Event("episode", 5.0, "a", 10, 10, 0)])
    assert math.isnan(result.updates_per_second)
    assert math.isnan(result.seconds_per_step)
    assert compute_timing([]) is None


def test_new_run_has_no_records(tmp_path):
    assert load_events(tmp_path / "events.jsonl") == []
    assert load_evaluations(tmp_path / "evaluations.csv") == []
    assert load_versions(tmp_path / "versions.json") == {}


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
def test_invalid_event_is_rejected_with_its_line(tmp_path, changed):
    path = tmp_path / "events.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(GOOD | changed)}\n")
    with pytest.raises(UserError, match=r"line 2.*: invalid fields of event"):
        load_events(path)


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_damaged_versions_are_rejected(tmp_path, content):
    path = tmp_path / "versions.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"versions\.json"):
        load_versions(path)


@pytest.mark.parametrize(
    ("stated", "versions", "expected"),
    [
        ("tf32", {"platform": "gpu", "matmul_precision": "default"}, "tf32"),
        ("mixed", {}, "mixed"),
        ("tf32", {"platform": "cpu"}, "float32"),
        (None, {"platform": "gpu", "matmul_precision": "default"}, "mixed"),
        (None, {"platform": "gpu", "matmul_precision": "tensorfloat32"}, "tf32"),
        (None, {"platform": "gpu", "matmul_precision": "highest"}, "float32"),
        (None, {"platform": "cpu"}, "float32"),
        (None, {}, "mixed"),
    ],
)
def test_effective_precision(stated, versions, expected):
    assert effective_precision(stated, versions) == expected


CONFIG = RunConfig(steps=450, eval_every=200, eval_average=2, action_repeat=2)
STOPPED = "a loss was not finite"


def data(env_steps, stopped=""):
    return MemberData("a_s3", "a", 3, env_steps, 0, {}, (), (), stopped)


@pytest.mark.parametrize(("last", "truncated"), [(798, True), (800, False), (900, False)])
def test_log_must_reach_the_last_scheduled_evaluation(last, truncated):
    # Of 450 decisions, with an evaluation every 100, the last is at 400: 800 steps.
    shortfalls = truncated_logs(CONFIG, [], [data(last)])
    text = f"a log that ends at environment step {last} of 900"
    expected = {("a", 3): text} if truncated else {}
    assert {key: str(x) for key, x in shortfalls.items()} == expected


def test_log_of_a_stopped_member_must_reach_its_own_evaluations():
    rows = [Row("x", "a", 3, "return", 400, 1.0)]
    assert truncated_logs(CONFIG, rows, [data(400, STOPPED)]) == {}
    assert truncated_logs(CONFIG, rows, [data(300, STOPPED)])


@pytest.mark.parametrize(
    ("status", "member", "texts"),
    [
        ("finished", data(900)._replace(updates=5), []),
        ("finished", data(0), []),
        ("finished", data(900), ["no updates (untrained)"]),
        ("interrupted", data(900)._replace(updates=5), ["a run that was interrupted"]),
        ("pruned", data(900)._replace(updates=5), ["a run that was pruned"]),
        (
            "failed",
            data(900, STOPPED)._replace(updates=5),
            ["a run that failed", "a stop at environment step 900 (a loss was not finite)"],
        ),
    ],
)
def test_members_that_were_not_trained_as_planned_are_marked(status, member, texts):
    marks = member_marks(status, [member], {})
    assert [str(mark) for mark in marks.get(("a", 3), ())] == texts
    assert all(mark.seed == 3 for mark in marks.get(("a", 3), ()))


def test_evaluations_of_another_seed_do_not_count():
    rows = [Row("x", "a", 4, "return", 10**6, 1.0)]
    assert truncated_logs(CONFIG, rows, [data(900)]) == {}


ROW = Row("a", "Ant-v5", 0, "return", 10, 1.5)
LINE = "a,Ant-v5,0,return,10,1.5"


def file(path, content):
    (path / "a.csv").write_bytes(content.encode())
    return path / "a.csv"


def test_exp_names_of_a_file_are_methods_of_unknown_settings(tmp_path):
    runs = {("td7_utd20", "Ant-v5", 0): [1.0, 2.0], ("mine", "Ant-v5", 0): [3.0]}
    path = make_csv(tmp_path / "other.csv", runs, metric="avg_return")
    first, second = load_results_file(path, "other.csv")
    assert first.results.method == Method("td7", 20, file="other.csv")
    assert second.results.method == Method("mine", file="other.csv")
    assert [row.value for row in first.results.rows] == [1.0, 2.0]
    assert {row.metric for row in first.results.rows} == {"return"}
    assert first.status == "file"


def test_file_without_returns_is_rejected(tmp_path):
    path = make_csv(tmp_path / "a.csv", {("x", "Ant-v5", 0): [1.0]}, metric="loss")
    with pytest.raises(UserError, match="has no returns; expected rows with the metric"):
        load_results_file(path, "a.csv")


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\n{LINE}\n",
        f"{HEADER}\n{LINE}",
        f"{HEADER}\r\n{LINE}\r\n",
        f"\ufeff{HEADER}\n{LINE}\n",
        f"{HEADER}\n\n{LINE}\n\n",
        "seed,value,note,metric,env_step,env_name,exp_name\n0,1.5,x,return,10,Ant-v5,a\n",
    ],
    ids=["plain", "no last end", "windows", "mark", "empty lines", "other order"],
)
def test_csv_variants_of_other_programs_are_read(tmp_path, content):
    assert read_results(file(tmp_path, content)) == [ROW]


def test_nan_is_kept(tmp_path):
    (row,) = read_results(file(tmp_path, f"{HEADER}\na,Ant-v5,0,return,10,nan\n"))
    assert math.isnan(row.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1.* no column"),
        ("hello\n", "line 1.* no column 'env_name' of 'exp_name,"),
        (f"{HEADER}\n{LINE}\na,b\n", "line 3"),
        (f"{HEADER}\na,Ant-v5,x,return,10,1.5\n", "line 2.* 'x'"),
        (f"{HEADER}\na,Ant-v5,0,return,10,much\n", "line 2.* 'much'"),
        (f"{HEADER}\na,Ant-v5,0,return,10,-1e101\n", "line 2.* too large"),
        (f"{HEADER}\na,Ant-v5,-1,return,10,1\n", "line 2.* expected integers >= 0"),
        (f"{HEADER}\na,Ant-v5,0,return,{2**63},1\n", "line 2.* expected integers >= 0"),
        (f"{HEADER}\na,Ant-v5,{'9' * 5000},return,1,1\n", "line 2"),
        (f'{HEADER}\n"a,Ant-v5,0,return,10,1.5\n', "unexpected end"),
    ],
)
def test_invalid_line_is_rejected_with_its_number(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read_results(file(tmp_path, content))


def test_binary_file_is_rejected(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not valid UTF-8"):
        read_results(tmp_path / "a.csv")
