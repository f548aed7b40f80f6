import functools
import json
import shlex

import gymnasium
import pytest
from rich.console import Console

from r2r2.bench.end_to_end import PARTS, EndToEnd
from r2r2.bench.roofline import Yardstick, ceiling
from r2r2.bench.timing_stats import spread_of
from r2r2.bench.updates import Overhead, Stage
from r2r2.cli import bench as bench_command
from r2r2.cli.bench_display import BenchBar, Forecast
from r2r2.cli.bench_flags import parse_bench
from r2r2.envs.spec import Spec
from r2r2.envs.suites import PAPER_TASKS

TINY = (
    "--agents td7 --members 1 --obs 4 --action 2 --width 8 --batch-size 8 "
    "--rows 64 --updates 1 --repeats 2 --commit abc123 --out bench.json"
)


@pytest.fixture
def small_ceiling(monkeypatch):
    size = Yardstick(matrix=64, copied=1000)
    measured = functools.partial(ceiling, size, repeats=2)
    monkeypatch.setattr(bench_command, "ceiling", measured)


def test_everything_is_in_the_table_and_in_the_file(
    r2r2, here, small_ceiling, monkeypatch
):
    def build(*_, **__):
        raise AssertionError("an environment was built")

    monkeypatch.setattr(gymnasium, "make", build)
    code, out, err = r2r2("bench", *TINY.split())
    assert (code, err) == (0, "")
    for words in (
        "ceiling:",
        "TFLOP/s in a product of 64 x 64 matrices at the default precision",
        "GB/s read and written",
        "us/agent-update",
        "compile s",
        "kernels: computations that XLA has fused; a CPU launches none",
        "of ceiling",
        "fleet GB",
    ):
        assert words in out
    assert [path.name for path in here.iterdir()] == ["bench.json"]
    found = json.loads((here / "bench.json").read_text())
    assert shlex.split(found["command"])[-len(TINY.split()) :] == TINY.split()
    assert found["versions"]["commit"] == "abc123"
    assert {"jax", "device", "matmul_precision"} < set(found["versions"])
    assert found["sizes"]["spec"] == {"obs_dim": 4, "action_dim": 2}
    assert found["agents"]["td7"]["width"] == 8
    assert len(found["ceiling"]["tflops"]["each"]) == 2
    assert found["end_to_end"] == []
    (row,) = found["updates"]
    assert (row["agent"], row["members"]) == ("td7", 1)
    assert len(row["us_per_agent_update"]["each"]) == 2
    for field in (
        "compile_s",
        "kernels_per_update",
        "flops_per_update",
        "tflops",
        "share_of_ceiling",
        "replay_bytes_per_member",
        "network_bytes_per_member",
        "fleet_bytes",
    ):
        assert row[field] > 0


def test_the_overhead_is_shown_for_every_size_of_a_fleet(
    r2r2, here, small_ceiling, monkeypatch
):
    def measured(agents, members, *_):
        asked.append((list(agents), members))
        us, percent = spread_of([10.0, 30.0, 20.0]), spread_of([1.0, -2.0, 4.0])
        return [], [Overhead("td7+r2r2", "td7", members, us, percent)]

    asked = []
    monkeypatch.setattr(bench_command, "measure", measured)
    argv = "--agents td7+r2r2 --members 1 20 --rows 64 --out b.json"
    code, out, _ = r2r2("bench", *argv.split())
    assert code == 0
    assert asked == [(["td7", "td7+r2r2"], 1), (["td7", "td7+r2r2"], 20)]
    assert "R2R2 over its base in the same repeats, median (lowest to highest)" in out
    assert "td7+r2r2 20 20 (10 to 30) 1 (-2 to 4)" in " ".join(out.split())
    found = json.loads((here / "b.json").read_text())["overheads"]
    assert [row["members"] for row in found] == [1, 20]
    assert found[0]["percent"]["each"] == [1.0, -2.0, 4.0]


def test_a_training_is_timed_when_a_task_is_named(
    r2r2, here, small_ceiling, monkeypatch
):
    def train(agent, course, watch):
        trained.append((agent, course))
        watch(0.5)
        shares = dict.fromkeys([*PARTS, "rest"], 1 / 7)
        return EndToEnd(agent.name, *course[:3], 900, 3.0, 300.0, 600.0, shares)

    trained = []
    monkeypatch.setattr(bench_command, "measure", lambda *_: ([], []))
    monkeypatch.setattr(bench_command, "train_timed", train)
    argv = "--agents minphi --members 2 1 --width 8 --task Pendulum-v1 --steps 300"
    code, out, err = r2r2("bench", *argv.split(), "--utd", "2", "--out", "b.json")
    assert (code, err) == (0, "")
    ((agent, course),) = trained
    assert agent.width == 8
    assert course == ("Pendulum-v1", 2, 2, 300)
    assert "end to end on Pendulum-v1, UTD 2" in out
    assert "decision steps/s" in out
    lines = [line.split() for line in out.splitlines()]
    shares = {line[0]: line[1] for line in lines if line[2:] == ["%"]}
    assert shares == dict.fromkeys([*PARTS, "rest"], "14.3")
    (found,) = json.loads((here / "b.json").read_text())["end_to_end"]
    assert found["decision_steps_per_s"] == 300
    assert set(found["shares"]) == {*PARTS, "rest"}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--agents td8", "agent is 'td8'; allowed are "),
        ("--agents td7 td7", "agents is 'td7,td7'; allowed is one name or several"),
        ("--agents simbav2+r2r2", "SimbaV2 has no encoder"),
        ("--members 0", "members is '0'; allowed is a whole number from 1 to 1000"),
        ("--members 1 x", "members is 'x'; allowed is a whole number from 1 to 1000"),
        ("--members", "members is ''; allowed is a whole number"),
        ("--members 2,2", "members is '2,2'; allowed is one whole number or several"),
        ("--env Humanoid-v4", "did you mean 'Humanoid-v5'?"),
        ("--env nothing", "allowed are Ant-v5, "),
        ("--obs 0", "obs is '0'; allowed is a whole number from 1 "),
        ("--width 1", "width is '1'; allowed is a whole number from 2 "),
        ("--repeats 0", "repeats is '0'; allowed is a whole number from 1 "),
        ("--rows 2147483647 --members 1000", "rows is 2147483647; fleets of 1000 "),
        ("--steps 5", "steps is 5, but without --task nothing is trained"),
        ("--task Hoper-v5", "did you mean 'Hopper-v5'?"),
        ("--out .", "out is '.', which is a folder; allowed is a file"),
        ("--out no/b.json", "out is 'no/b.json'; there is no folder 'no'"),
        ("--updates 2 3", "'3' stands alone"),
        ("--widht 3", "'widht' is not a field; did you mean 'width'?"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_measured(
    r2r2, here, monkeypatch, argv, sentence
):
    monkeypatch.delattr(bench_command, "ceiling")
    code, out, err = r2r2("bench", *argv.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("r2r2: ")
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_help_says_what_is_measured_and_how_to_ask(r2r2):
    code, out, _ = r2r2("bench", "--help")
    assert code == 0
    for words in (
        "--members 1 20",
        "--task Hopper-v5",
        "--[no-]bases",
        "[Humanoid-v5]",
    ):
        assert words in out


def test_the_programs_help_names_the_command(r2r2):
    assert "r2r2 bench" in r2r2("--help").out


@pytest.mark.parametrize("between", [" ", ","])
def test_several_values_may_stand_between_spaces_or_commas(between):
    agents, members = between.join(["td7", "minphi"]), between.join(["1", "20"])
    command = parse_bench(f"--agents {agents} --members {members}".split())
    assert list(command.agents) == ["td7", "minphi"]
    assert command.members == (1, 20)


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_sizes_are_those_of_the_task(task):
    sizes = parse_bench(["--env", task]).sizes
    assert sizes.spec == Spec(*PAPER_TASKS[task][1:])


@pytest.mark.parametrize(("task", "critics"), [("Humanoid-v5", 2), ("dog-run", 1)])
def test_simbav2_has_the_critics_of_the_task(task, critics):
    argv = ["--env", task, "--agents", "simbav2-spl+r2r2"]
    assert parse_bench(argv).timed["simbav2-spl"].critics == critics


def test_a_width_is_that_of_every_layer():
    config = parse_bench(["--agents", "simbav2-spl", "--width", "64"]).timed
    widths = {"actor_width", "critic_width", "latent", "model_width"}
    assert {getattr(config["simbav2-spl"], name) for name in widths} == {64}


def test_bases_can_be_left_out():
    command = parse_bench(["--agents", "td7+r2r2", "--no-bases"])
    assert list(command.timed) == ["td7+r2r2"]


def test_an_estimate_knows_that_compiling_is_slow():
    plan = [Stage("compile", ""), Stage("compile", ""), Stage("time", "")]
    ticks = iter([0.0, 60.0, 120.0])
    forecast = Forecast(plan, now=lambda: next(ticks))
    said = [forecast.next(stage) for stage in plan]
    assert said == ["ETA -", "ETA more than 1:00", "ETA -"]


def test_without_a_terminal_there_is_a_line_for_each_kind(capsys):
    plan = [Stage("time 1", "timing, 1 of 2"), Stage("time 1", "timing, 2 of 2")]
    with BenchBar(Console(), plan) as bar:
        for stage in plan:
            bar(stage)
    assert capsys.readouterr().out == "  timing, 1 of 2\n"
