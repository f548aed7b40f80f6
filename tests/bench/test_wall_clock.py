"""The script that measures the targets of the wall clock: verdicts, the table, merged results."""

import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "wall_clock.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("wall_clock", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row_of(script, name):
    return next(row for row in script.ROWS if row.name == name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hopper-x1", 1599, "MISSED"),
        ("hopper-x1", 1600, "pass"),
        ("hopper-x1", 2500, "reached"),
        ("minphi-step", 401, "MISSED"),
        ("minphi-step", 400, "pass"),
        ("minphi-step", 150, "reached"),
    ],
)
def test_values_are_compared_with_the_targets(script, name, value, expected):
    assert script.verdict(row_of(script, name), value) == expected


def test_every_row_can_be_measured_and_is_in_the_table(script):
    assert {row.measure for row in script.ROWS} == set(script.MEASURES)
    result = {"value": 5100.0, "row": row_of(script, "hopper-x5")._asdict()}
    share = {"value": 91.2, "short": 105.0, "row": row_of(script, "humanoid-utd20")._asdict()}
    results = {"hopper-x5": result, "dogs-x20": {"problem": "too slow"}, "humanoid-utd20": share}
    table = script.format_table(results)
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert set(lines) == {"row", *script.NAMES}
    rate = ["5,100", "-", ">=", "5,000", "8,000", "steps/s", "pass"]
    assert lines["hopper-x5"].split()[1:] == rate
    assert lines["humanoid-utd20"].split()[1:3] == ["91.2", "105"]
    assert lines["dogs-x20"].endswith("too slow")
    assert lines["hopper-x1"].endswith("not measured")


def test_agents_are_those_of_the_task(script):
    """One critic on tasks of DMC, two on those of Gymnasium."""
    row = row_of(script, "simbav2-step")
    assert row.task == "walker-run"
    critics = [
        script.agent_settings(row._replace(task=task), script.Settings(smoke=True)).critics
        for task in (row.task, "Hopper-v5")
    ]
    assert critics == [1, 2]


def test_result_files_are_merged(script, tmp_path, capsys):
    row = row_of(script, "hopper-x1")._asdict()
    for number, value in enumerate([100.0, 3000.0]):
        results = {"hopper-x1": {"value": value, "row": row}}
        about = script.Results(results, [f"run {number}"], ["abc"])
        script.write_results(tmp_path / f"{number}.json", about)
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    script.main(["--merge", *files, "--out", str(tmp_path / "all.json")])
    assert "3,000" in capsys.readouterr().out
    merged = json.loads((tmp_path / "all.json").read_text())
    assert merged["commands"] == ["run 0", "run 1"]
    assert merged["commit"] == "abc"
    assert merged["rows"]["hopper-x1"]["value"] == 3000


@pytest.fixture
def measured(script, monkeypatch):
    """Rows whose process was started, with their limits; hopper-x1 fails, others take a minute."""
    started = {}

    def measure(name, args, cache, limit):
        started[name], script.time.now = limit, script.time.now + 60
        row = row_of(script, name)._asdict()
        return (
            {"problem": "died"} if name == "hopper-x1" else {"value": 1.0, "row": row, "took_s": 60}
        )

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    monkeypatch.setattr(script, "time", Clock())
    monkeypatch.setattr(script, "measure_in_process", measure)
    return started


def test_a_budget_is_kept_and_the_next_command_measures_the_rest(script, tmp_path, measured):
    one, two = (tmp_path / name for name in ("one.json", "two.json"))
    rows = ["--rows", "hopper-x1", "dogs-x20", "simbav2-step", "first-step"]
    script.main([*rows, "--budget", "230", "--commit", "abc", "--out", str(one)])
    assert measured == {"hopper-x1": 144, "simbav2-step": 170, "first-step": 110}
    found = json.loads(one.read_text())["rows"]
    assert found["hopper-x1"]["problem"] == "died"
    assert found["dogs-x20"]["problem"].startswith("not started: 170 s were left")
    measured.clear()
    script.main([*rows, "--done", str(one), "--commit", "abc", "--out", str(two)])
    assert measured == {"hopper-x1": 144, "dogs-x20": 480}
    result = json.loads(two.read_text())
    assert result["commit"] == "abc"
    assert len(result["commands"]) == 2
    assert [name for name, row in result["rows"].items() if "value" in row] == [
        "simbav2-step",
        "first-step",
        "dogs-x20",
    ]


def test_a_process_that_takes_too_long_is_ended(script):
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert script.wait_or_end(process, 0.05) == "took more than 0 s"
    assert process.returncode


def test_moments_are_noted_where_they_happen(script, monkeypatch):
    class Schedule:
        warm = np.zeros(2, dtype=bool)

        def record_step(self, warm):
            self.warm[0] = warm

    monkeypatch.setenv("WALL_CLOCK_START", "0")
    timer = script.StartTimer(until_updates=True)
    step = timer.timed(Schedule.record_step, "step", "warm")
    step(Schedule(), False)
    assert set(timer.moments) == {"step"}
    first = timer.moments["step"]
    step(Schedule(), True)
    assert set(timer.moments) == {"step", "warm"}
    assert timer.moments["step"] == first
    timer.on_progress(None)
    timer.note("first_updates")
    with pytest.raises(KeyboardInterrupt):
        timer.on_progress(None)
