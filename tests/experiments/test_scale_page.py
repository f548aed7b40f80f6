"""The tables of docs/scale.md are those of the result file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text()
RESULT = json.loads((ROOT / "benchmarks" / "results" / "sweep_simulation.json").read_text())
BY_GPUS = {str(row["gpus"]): row for row in RESULT["table"]}


def rows(header):
    """Return the numbers of a table by its first column; percentages as fractions."""
    _, _, rest = PAGE.partition(header)
    assert rest, header
    lines = rest.split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: [number(x) for x in values] for first, *values in cells}


def number(text):
    value = float(text.removesuffix(" %").replace(",", ""))
    return value / 100 if text.endswith("%") else value


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (
            "| H200s | fleets |",
            "fleets members_per_fleet hours days lower_bound_hours over_lower_bound",
        ),
        (
            "| H200s | GPU hours |",
            "gpu_hours occupied in_updates idle_at_the_end lost_to_splitting hours_with_noise",
        ),
    ],
)
def test_times_are_those_of_the_simulation(header, names):
    table = rows(header)
    assert table.keys() == BY_GPUS.keys()
    for gpus, values in table.items():
        expected = [BY_GPUS[gpus][name] for name in names.split()]
        for name, shown, true in zip(names.split(), values, expected, strict=True):
            tolerance = 0.05 if name in ("days", "members_per_fleet") else 6e-4
            assert shown == pytest.approx(true, rel=3e-3, abs=tolerance), (gpus, name)


def test_rates_are_those_of_the_simulation():
    table = rows("| agent | 1 | 5 | 20 |")
    assert table.keys() == RESULT["update_us"].keys()
    for agent, values in table.items():
        assert values == pytest.approx([*RESULT["update_us"][agent].values()], rel=3e-3)


def test_storage_is_that_of_the_simulation():
    shown = [value for (value,) in rows("| what | GB |").values()]
    running = [row["storage_while_training_gb"] for row in RESULT["table"]]
    storage = RESULT["storage"]
    expected = [storage["results_gb"], storage["checkpoints_gb"], *running]
    assert shown == pytest.approx(expected, abs=0.51)
    largest = max(row["largest_fleet_gb"] for row in RESULT["table"])
    assert f"largest fleet needs {largest:.0f} GB" in PAGE


def test_the_grid_is_the_papers():
    counts = re.search(r"(\d+) cells, with 5 seeds (\d+) runs", PAGE)
    assert [int(x) for x in counts.groups()] == [RESULT["cells"], RESULT["runs"]] == [297, 1485]
    assert f"{RESULT['agent_updates'] / 1e9:.2f} billion agent-updates" in PAGE
    assert all(row["over_lower_bound"] < 0.15 for row in RESULT["table"])


@pytest.mark.slow
def test_the_simulation_gives_the_same_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script, out = ROOT / "benchmarks" / "sweep_simulation.py", tmp_path / "out.json"
    subprocess.run([sys.executable, script, "--out", out], check=True, stdout=subprocess.DEVNULL)
    again = json.loads(out.read_text())
    for row, old in zip(again["table"], RESULT["table"], strict=True):
        assert row["hours"] == pytest.approx(old["hours"], rel=0.01)
        assert row["in_updates"] == pytest.approx(old["in_updates"], rel=0.01)
    assert again["storage"] == pytest.approx(RESULT["storage"], rel=0.01)
