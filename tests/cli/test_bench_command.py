"""`r2r2 bench`: options, tables, the JSON file, errors."""

import functools
import json
import shlex
from pathlib import Path

import gymnasium
import pytest
from rich.console import Console

from r2r2.bench.end_to_end import PARTS, EndToEnd
from r2r2.bench.updates import (
    CallTiming,
    FleetResults,
    Overhead,
    ProblemSize,
    Stage,
    measure_roofline,
    timing_stats,
)
from r2r2.cli import bench
from r2r2.cli.bench import parse_bench
from r2r2.cli.bench_display import BenchProgress, StageEta
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS

TINY = (
    "--agents td7 --members 1 --obs 4 --action 2 --width 8 --batch-size 8 "
    "--rows 64 --updates 1 --repeats 2 --commit abc123 --out bench.json"
)


@pytest.fixture
def small_roofline(monkeypatch):
    size = ProblemSize(matrix=64, copied=1000)
    measured = functools.partial(measure_roofline, size, repeats=2)
    monkeypatch.setattr(bench, "measure_roofline", measured)


@pytest.mark.slow
def test_results_are_in_the_table_and_in_the_file(cli, workdir, small_roofline, monkeypatch):
    def build(*_, **__):
        raise AssertionError("an environment was built")

    monkeypatch.setattr(gymnasium, "make", build)
    code, out, err = cli("bench", *TINY.split())
    assert (code, err) == (0, "")
    for column in ("us/agent-update", "compile s", "of peak", "fleet GB"):
        assert column in out
    assert [path.name for path in workdir.iterdir()] == ["bench.json"]
    results = json.loads((workdir / "bench.json").read_text())
    assert shlex.split(results["command"])[-len(TINY.split()) :] == TINY.split()
    assert results["versions"]["commit"] == "abc123"
    assert {"jax", "device", "matmul_precision"} < set(results["versions"])
    assert results["sizes"]["spec"] == {"obs_dim": 4, "action_dim": 2}
    assert results["agents"]["td7"]["width"] == 8
    assert len(results["ceiling"]["tflops"]["each"]) == 2
    assert results["end_to_end"] == []
    short = results["short_calls"]
    assert [(row["members"], row["utd"], row["updates"]) for row in short] == [
        (1, 1, 2),
        (1, 10, 10),
        (1, 20, 20),
    ]
    assert all(row["us_per_agent_update"]["median"] > 0 for row in short)
    (row,) = results["updates"]
    assert (row["agent"], row["members"]) == ("td7", 1)
    assert len(row["us_per_agent_update"]["each"]) == 2
    for field in (
        *("compile_s", "kernels_per_update", "flops_per_update", "tflops"),
        *("share_of_ceiling", "replay_bytes_per_member", "network_bytes_per_member"),
        "fleet_bytes",
    ):
        assert row[field] > 0


def test_overheads_are_shown_for_every_fleet_size(cli, workdir, small_roofline, monkeypatch):
    def measured(agents, members, sizes, *_):
        calls.append((list(agents), members, sizes.precision))
        us, percent = timing_stats([10.0, 30.0, 20.0]), timing_stats([1.0, -2.0, 4.0])
        overhead = Overhead("td7+r2r2", "td7", members, us, percent)
        return FleetResults([], [overhead], [CallTiming("td7+r2r2", members, 1, 2, False, us)])

    calls = []
    monkeypatch.setattr(bench, "measure_updates", measured)
    argv = "--agents td7+r2r2 --members 1 20 --rows 64 --precision mixed --out b.json"
    code, out, _ = cli("bench", *argv.split())
    assert code == 0
    assert calls == [(["td7", "td7+r2r2"], members, "mixed") for members in (1, 20)]
    assert "td7+r2r2 20 20 (10 to 30) 1 (-2 to 4)" in " ".join(out.split())
    results = json.loads((workdir / "b.json").read_text())
    assert results["sizes"]["precision"] == "mixed"
    assert "td7+r2r2 20 1 2 20 (10 to 30) updates" in " ".join(out.split())
    short = results["short_calls"][1]
    assert (short["members"], short["utd"], short["updates"]) == (20, 1, 2)
    rows = results["overheads"]
    assert [row["members"] for row in rows] == [1, 20]
    assert rows[0]["percent"]["each"] == [1.0, -2.0, 4.0]


def test_training_is_timed_when_a_task_is_given(cli, workdir, small_roofline, monkeypatch):
    def train(agent, setup, on_fraction, on_trained):
        calls.append((agent, setup))
        on_fraction(0.5)
        shares = dict.fromkeys([*PARTS, "rest"], 1 / 7)
        result = EndToEnd(agent.name, *setup[:3], 900, 3.0, 300.0, 600.0, shares, 1.5)
        on_trained(Path("run"), result)
        on_trained(Path("waits"), result._replace(busy_cores=0.5))
        return result

    calls = []
    monkeypatch.setattr(bench, "measure_updates", lambda *_: FleetResults([], [], []))
    monkeypatch.setattr(bench, "time_training", train)
    recorded = []
    monkeypatch.setattr(bench, "record_speed", lambda *given: recorded.append(given))
    argv = "--agents minphi --members 2 1 --width 8 --task Pendulum-v1 --steps 300"
    code, out, err = cli("bench", *argv.split(), "--utd", "2", "--out", "b.json")
    assert (code, err) == (0, "")
    ((agent, setup),) = calls
    assert agent.width == 8
    assert setup == ("Pendulum-v1", 2, 2, 300, "tf32")
    assert "end to end on Pendulum-v1, UTD 2" in out
    lines = [line.split() for line in out.splitlines()]
    shares = {line[0]: line[1] for line in lines if line[2:] == ["%"]}
    assert shares == dict.fromkeys([*PARTS, "rest"], "14.3")
    (row,) = json.loads((workdir / "b.json").read_text())["end_to_end"]
    assert row["decision_steps_per_s"] == 300
    assert set(row["shares"]) == {*PARTS, "rest"}
    # A fleet of a sweep has one core.
    assert recorded == [(Path("run"), 1.5), (Path("waits"), 1.0)]
    assert "r2r2 paper" in out.splitlines()[-2]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--agents td8", "did you mean 'td7'"),
        ("--agents td7 td7", "--agents: expected different names, got 'td7,td7'"),
        ("--agents simbav2+r2r2", "SimbaV2 has no encoder"),
        ("--members 0", "--members: expected an integer from 1 to 1000, got '0'"),
        ("--members 1 x", "--members: expected an integer from 1 to 1000, got 'x'"),
        ("--members", "--members: value missing; expected different integers"),
        ("--members 2,2", "--members: expected different integers, got '2,2'"),
        ("--short-calls 0", "--short-calls: expected an integer from 1 to 1000, got '0'"),
        ("--env Humanoid-v4", "did you mean 'Humanoid-v5'?"),
        ("--env nothing", "--env: expected one of Ant-v5, "),
        ("--width 1", "--width: expected an integer from 2 "),
        ("--rows 2147483647 --members 1000", "2147483647"),
        ("--steps 5", "--steps: only used with --task"),
        ("--precision fp8", "--precision: expected one of tf32, mixed, float32, got 'fp8'"),
        ("--task Hoper-v5", "did you mean 'Hopper-v5'?"),
        ("--out .", "--out: '.' is a folder; expected a file"),
        ("--out no/b.json", "--out: the folder 'no' does not exist"),
        ("--updates 2 3", "unexpected argument '3'"),
        ("--widht 3", "--widht: unknown option; did you mean '--width'?"),
    ],
)
def test_bad_input_is_rejected_before_anything_is_measured(rejected, monkeypatch, argv, sentence):
    monkeypatch.delattr(bench, "measure_roofline")
    assert sentence in rejected("bench", *argv.split())


def test_fleets_of_five_and_short_calls_are_the_default():
    command = parse_bench([])
    assert command.members == (1, 5)
    assert command.sizes.short_calls == (1, 10, 20)
    assert parse_bench(["--short-calls", "3", "7"]).sizes.short_calls == (3, 7)


@pytest.mark.parametrize("separator", [" ", ","])
def test_lists_are_separated_by_spaces_or_commas(separator):
    agents, members = separator.join(["td7", "minphi"]), separator.join(["1", "20"])
    command = parse_bench(f"--agents {agents} --members {members}".split())
    assert list(command.agents) == ["td7", "minphi"]
    assert command.members == (1, 20)


@pytest.mark.parametrize(("task", "critics"), [("Humanoid-v5", 2), ("dog-run", 1)])
def test_the_task_decides_sizes_and_critics(task, critics):
    command = parse_bench(["--env", task, "--agents", "simbav2-spl+r2r2"])
    assert command.timed["simbav2-spl"].critics == critics
    assert command.sizes.spec == Spec(*PAPER_TASKS[task][1:])


def test_width_sets_every_layer_and_bases_can_be_omitted():
    argv = ["--agents", "simbav2-spl+r2r2", "--width", "64", "--no-bases"]
    (config,) = parse_bench(argv).timed.values()
    widths = {"actor_width", "critic_width", "latent", "model_width"}
    assert {getattr(config, name) for name in widths} == {64}


def test_eta_waits_for_the_first_stage_of_each_kind():
    plan = [Stage("compile", ""), Stage("compile", ""), Stage("time", "")]
    ticks = iter([0.0, 60.0, 120.0])
    eta = StageEta(plan, clock=lambda: next(ticks))
    shown = [eta.start(stage) for stage in plan]
    assert shown == ["ETA -", "ETA > 1:00", "ETA -"]


def test_without_a_terminal_one_line_is_printed_per_kind(capsys):
    plan = [Stage("time 1", "timing, 1 of 2"), Stage("time 1", "timing, 2 of 2")]
    with BenchProgress(Console(), plan) as bar:
        for stage in plan:
            bar(stage)
    assert capsys.readouterr().out == "  timing, 1 of 2\n"
