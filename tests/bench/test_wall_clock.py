"""The script that measures the targets of the wall clock: verdicts, the table, merged results."""

import importlib.util
import json
from pathlib import Path

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
    table = script.format_table({"hopper-x5": result, "dogs-x20": {"problem": "too slow"}})
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert set(lines) == {"row", *script.NAMES}
    assert lines["hopper-x5"].split()[1:] == ["5,100", ">=", "5,000", "8,000", "steps/s", "pass"]
    assert lines["dogs-x20"].endswith("too slow")
    assert lines["hopper-x1"].endswith("not measured")


def test_result_files_are_merged(script, tmp_path, capsys):
    row = row_of(script, "hopper-x1")._asdict()
    for number, value in enumerate([100.0, 3000.0]):
        results = {"hopper-x1": {"value": value, "row": row}}
        script.write_results(tmp_path / f"{number}.json", results, [f"run {number}"], "abc")
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    script.main(["--merge", *files, "--out", str(tmp_path / "all.json")])
    assert "3,000" in capsys.readouterr().out
    merged = json.loads((tmp_path / "all.json").read_text())
    assert merged["commands"] == ["run 0", "run 1"]
    assert merged["commit"] == "abc"
    assert merged["rows"]["hopper-x1"]["value"] == 3000
