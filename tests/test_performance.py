"""The tables of the pages about speed are those of the code and of the result files."""

import json
import re
import statistics
from pathlib import Path

import pytest

from r2r2.agents.registry import build_agent
from r2r2.cli.bench import parse_bench
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS
from r2r2.training.memory import agent_bytes, row_bytes

ROOT = Path(__file__).parent.parent
PAGES = [(ROOT / "docs" / name).read_text() for name in ("performance.md", "update_speed.md")]
RESULTS = ROOT / "benchmarks" / "results"


def cells(row: str) -> list[str]:
    return [cell.strip().replace(",", "") for cell in row.strip("|").split("|")]


def rows(header: str) -> dict[str, list[str]]:
    """Return the rows of a table by their first column."""
    (page,) = [page for page in PAGES if header in page]
    _, _, rest = page.partition(header)
    lines = rest.split("\n\n")[0].splitlines()[2:]
    return {first: values for first, *values in map(cells, lines)}


def measured(members: int) -> dict[str, dict]:
    """Return the timings of fleets of a size; later measurements take precedence."""
    names = {1: ("1",), 20: ("20", "simbav2_20")}[members]
    files = [RESULTS / f"bench_h200_{name}.json" for name in names]
    updates = [x for file in files for x in json.loads(file.read_text())["updates"]]
    return {x["agent"]: x for x in updates if x["members"] == members}


@pytest.mark.parametrize(("members", "column"), [(1, 1), (20, 2)])
def test_times_are_the_measured_ones(members, column):
    table = rows("| agent | original |")
    timings = measured(members)
    assert set(timings) == set(table)
    for agent, update in timings.items():
        median = update["us_per_agent_update"]["median"]
        assert float(table[agent][column]) == pytest.approx(median, rel=3e-3)
        compile_s = table[agent][3].split("/")[column - 1]
        assert float(compile_s) == pytest.approx(update["compile_s"], abs=0.06)


def test_memory_of_a_million_transitions_is_as_documented():
    table = rows("| task | bytes per transition |")
    documented = {
        f"{first.split('-')[0]}{ending}" if ending.startswith("-") else ending: values
        for first, values in table.items()
        for ending in re.split(r" +", first)
    }
    assert set(documented) == set(PAPER_TASKS)
    for task, (per_row, gigabytes, *networks) in documented.items():
        spec = Spec(*PAPER_TASKS[task][1:])
        assert float(per_row) == pytest.approx(row_bytes(spec), abs=0.5)
        assert float(gigabytes) == pytest.approx(row_bytes(spec) / 1e3, abs=6e-4)
        names = ["td7+r2r2", "minphi+r2r2", "simbav2-spl+r2r2"]
        asked = parse_bench(["--env", task, "--no-bases", "--agents", *names])
        taken = [agent_bytes(build_agent(x, spec, 1)) for x in asked.agents.values()]
        assert [float(x) for x in networks] == pytest.approx([x / 1e6 for x in taken], abs=0.06)


def test_speeds_beside_peers_are_the_measured_ones():
    peers = json.loads((RESULTS / "peers_2cores.json").read_text())["peers"]
    table = rows("| program | critics, layers |")
    names = {"TD7": "torch-td7", "r2r2": "r2r2-td7", "TD3": "sbx-td3", "SAC": "sbx-sac"}
    for program, (_, _, parameters, slow, fast) in table.items():
        name = next(peer for word, peer in names.items() if word in program.replace("TD7+", ""))
        one = peers[f"{name}-utd1"]
        assert int(parameters) == one["repeats"][0]["networks"]["parameters"]
        assert float(slow) == pytest.approx(one["steps_per_s"], abs=0.51)
        if fast:
            assert float(fast) == pytest.approx(peers[f"{name}-utd20"]["updates_per_s"], abs=0.51)
    assert len(table) == 4


def test_speeds_of_peers_on_other_pages_are_the_measured_ones():
    peers = json.loads((RESULTS / "peers_2cores.json").read_text())["peers"]
    comparison = (ROOT / "docs" / "comparison.md").read_text()
    _, _, rest = comparison.partition("| program | parameters | UTD | updates per second |")
    names = {"TD7 in PyTorch": "torch-td7", "r2r2": "r2r2-td7", "TD3": "sbx-td3", "SAC": "sbx-sac"}
    shown = 0
    for row in rest.split("\n\n")[0].splitlines()[2:]:
        program, parameters, utd, speeds = (cell.strip() for cell in row.strip("|").split("|"))
        repeats = peers[f"{next(n for w, n in names.items() if w in program)}-utd{utd}"]["repeats"]
        assert int(parameters.replace(",", "")) == repeats[0]["networks"]["parameters"]
        assert speeds == ", ".join(f"{repeat['updates_per_s']:.0f}" for repeat in repeats)
        shown += 1
    assert shown == len(peers)
    tutorial = (ROOT / "docs" / "tutorials" / "from-stable-baselines3.md").read_text()
    ours, td3, sac = (peers[f"{x}-utd1"]["steps_per_s"] for x in ("r2r2-td7", "sbx-td3", "sbx-sac"))
    assert (
        f"make {td3:.0f} and {sac:.0f} steps per second, and TD7+R2R2 makes {ours:.0f} " in tutorial
    )


def test_host_overhead_is_the_measured_one():
    commits = json.loads((RESULTS / "host_overhead_2cores.json").read_text())["commits"]
    table = list(rows("| median of five runs").values())
    keys = ("bursts", "device_waits_ms_median"), ("lockstep", "loop_us_per_step")
    for (part, key), cells_of_row in zip(keys, table, strict=True):
        for cell, repeats in zip(cells_of_row, commits.values(), strict=True):
            values = [repeat[key] for repeat in repeats[part]]
            shown = [float(x) for x in re.findall(r"[\d.]+", cell)]
            expected = [statistics.median(values), min(values), max(values)]
            assert shown == pytest.approx(expected, rel=0.04)
