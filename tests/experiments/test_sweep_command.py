"""`r2r2 sweep` and `r2r2 watch` on its folder, without training."""

import io
import json
import math
import time

import pytest
from fake_engine import FakeEngine, tiny_plan
from rich.console import Console

from r2r2.cli import sweep as command
from r2r2.cli.main import main
from r2r2.cli.sweep_view import FleetRow, SweepView, SweepWatcher, fleet_rows
from r2r2.cli.watch_view import Size
from r2r2.config.errors import UserError
from r2r2.experiments import runner
from r2r2.experiments import sweep as sweeps
from r2r2.experiments.costs import Estimate
from r2r2.experiments.plan import write_plan
from r2r2.experiments.sweep import plan_sweep
from r2r2.experiments.sweep_folder import SweepFolder, lock_sweep
from r2r2.storage.run_folder import lock_run
from synthetic_runs import write_run

GRID = """
[base]
steps = 2000
warmup = 500
eval_every = 500

[[grids]]
agent = ["td7", "td7+r2r2"]
env = "Pendulum-v1"
seeds = 2
"""
SIZE = Size(200, 0)


class FixedCosts:
    """Costs of fleets by agent, whatever their size."""

    def __init__(self, seconds):
        self._seconds = seconds

    def prepare(self, configs):
        pass

    def estimate(self, config):
        return Estimate(self._seconds[config.agent.name], 2**28, True)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


def texts(rows):
    return [row.plain for row in rows]


def test_a_sweep_prints_changes_scores_and_the_report(fake_engines, grid, capsys):
    assert main(["sweep", "grid.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sweep grid in 'sweeps': 4 runs; 2 fleets to train"
    assert [line.split(":")[0] for line in lines[1:5]] == ["running", "finished"] * 2
    assert lines[4].endswith("(2 of 2 fleets)")
    assert lines[5].split() == ["method", "UTD", "task", "mean", "std", "seeds"]
    assert lines[-2].startswith("4 of 4 runs finished in 0:0")
    assert lines[-1] == "report: open sweeps/reports/grid/index.html"
    assert main(["sweep", "grid.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sweep grid in 'sweeps': 4 runs, 4 finished already; nothing to train"
    assert "4 of 4 runs finished" in lines[-2]


def test_what_is_set_aside_is_reported_with_exit_code_1(fake_engines, grid, capsys):
    fake_engines[1]["td7"] = [(1,)] * 2
    assert main(["sweep", "grid.toml", "--out", "here", "--retries", "1"]) == 1
    output = capsys.readouterr()
    name = SweepFolder(grid / "here", "grid").plan().fleets[0].name
    assert output.err == f"set aside: {name}: code 1; see 'here/logs/{name}.log'\n"
    assert f"failed: {name}, will be tried again: code 1" in output.out
    assert f"running: {name}, attempt 2" in output.out
    assert "2 of 4 runs finished" in output.out
    assert ", 2 missing" in output.out
    command = "sweep grid.toml --out here --retries 1"
    assert output.out.splitlines()[-1].endswith(command)


def test_a_dry_run_shows_the_plan_and_writes_nothing(fake_engines, grid, capsys, monkeypatch):
    costs = FixedCosts({"td7": 60.0, "td7+r2r2": 600.0})
    monkeypatch.setattr(sweeps, "load_costs", lambda *_: costs)
    machine = sweeps.this_machine()
    monkeypatch.setattr(sweeps, "this_machine", lambda: machine._replace(cores=2))
    assert main(["sweep", "grid.toml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("; about 11:00 of fleet time")
    assert lines[-2] == "about 10:00 in all, with 2 fleets at a time"
    assert lines[2].startswith("  train      td7 on Pendulum-v1, UTD 1; 2 members; ")
    assert lines[-1] == "dry run: nothing was written"
    assert not (grid / "sweeps").exists()
    assert fake_engines[0] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smok"], "did you mean 'smoke'?"),
        ([], "expected an experiment"),
        (["missing.toml"], "missing.toml: cannot read"),
        (["empty.toml"], "grids"),
        (["grid.toml", "--scale", "0"], "--scale: expected a number > 0 and <= 1"),
        (["grid.toml", "--budget", "soon"], "--budget: expected a time such as 90s, 25m or 2h"),
        (["grid.toml", "--engine", "cloud"], "--engine: expected one of local, ray, slurm"),
        (["grid.toml", "--address", "x:1"], "--address: only used with --engine ray"),
        (["grid.toml", "--retries", "-1"], "--retries: expected an integer >= 0"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(grid, capsys, arguments, message):
    (grid / "empty.toml").write_text("[base]\nsteps = 10\n")
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in grid.iterdir()) == ["empty.toml", "grid.toml"]


def test_ctrl_c_says_how_to_go_on(fake_engines, grid, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.SweepDisplay, "update", interrupt)
    assert main(["sweep", "grid.toml"]) == 130
    err = capsys.readouterr().err
    assert "run the same command again to resume" in err
    assert " report sweeps/runs\n" in err


# The view


def test_the_view_shows_running_fleets_first_with_progress(tmp_path):
    folder, plan = SweepFolder(tmp_path, "tiny"), tiny_plan(utd=[1, 2])
    write_run(folder.run(plan.fleets[1].name), plan.fleets[1].config, finished=False)
    view = SweepView(folder)
    rows = [
        FleetRow(plan.fleets[0], "finished", seconds=75.0),
        FleetRow(plan.fleets[1], "running", seconds=10.0),
        FleetRow(plan.fleets[2], "set aside", "ValueError: no such joint", 3),
        FleetRow(plan.fleets[3], "waiting", "code 1", 1),
    ]
    with lock_run(folder.run(plan.fleets[1].name)):
        view.refresh(rows)
    title, *lines = texts(view.render(rows, time.time(), SIZE))
    states = "1 running, 1 set aside, 1 waiting, 1 finished"
    assert title.startswith(f"sweep tiny: 4 fleets: {states}; about ")
    assert [line.split()[0] for line in lines] == ["running", "set", "waiting", "finished"]
    assert "100%, training" in lines[0]
    assert lines[1].endswith(": ValueError: no such joint")
    assert lines[2].endswith(", attempt 2: code 1")
    assert "in 1:15, " in lines[3]
    small = texts(view.render(rows, time.time(), Size(60, 4)))
    assert len(small) == 4
    assert small[-1] == "  and 1 waiting, 1 finished"
    assert all(len(line) <= 60 for line in small)


def test_the_time_left_is_unknown_until_something_is_measured(tmp_path):
    view, (one, other) = SweepView(SweepFolder(tmp_path, "tiny")), tiny_plan().fleets
    rows = [FleetRow(one, "running"), FleetRow(other, "waiting")]
    assert view.eta(rows, 0.0) is None
    assert "estimating the time left" in texts(view.render(rows, 0.0, SIZE))[0]
    assert "starting" in texts(view.render(rows, 0.0, SIZE))[1]
    # A fleet of the same size took ten seconds.
    rows = [FleetRow(one, "finished", seconds=10.0), FleetRow(other, "waiting")]
    assert view.eta(rows, 0.0) == pytest.approx(10.0)
    # Estimates of the plan; two at a time.
    known = [one._replace(seconds=60.0), other._replace(seconds=100.0)]
    rows = [FleetRow(fleet, "running", seconds=20.0) for fleet in known]
    assert view.eta(rows, 0.0) == pytest.approx(80.0)
    # One of them is overdue.
    assert view.eta([rows[0]._replace(seconds=60.0), rows[1]], 0.0) is None
    assert view.eta([FleetRow(one, "finished", seconds=1.0)], 0.0) == 0.0
    assert math.isnan(one.seconds)


def test_a_terminal_gets_one_table_that_is_redrawn(fake_engines, grid):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=20)
    planned = plan_sweep("grid.toml", "sweeps")
    with command.SweepDisplay(console, planned) as display:
        display.update([FleetRow(fleet, "waiting") for fleet in planned.fleets])
    assert "sweep grid: 2 fleets: 2 waiting" in screen.getvalue()


# Watching from another process


def test_watch_shows_the_state_of_sweeps_beside_their_runs(grid, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    folder, plan = SweepFolder(grid / "sweeps", "tiny"), tiny_plan(utd=[1, 2])
    write_plan(folder.plan_file, plan)
    done, failed, *_ = plan.fleets
    write_run(folder.run(done.name), done.config)
    folder.append("set aside", failed.name, why="ValueError: no such joint")
    assert main(["watch", "--once", "sweeps"]) == 0
    output = capsys.readouterr().out
    assert "sweep tiny: 4 fleets: 1 set aside, 2 waiting, 1 finished" in output
    assert f"set aside   {failed.name}: ValueError: no such joint" in output
    assert "1 run: 1 finished" in output


def test_the_state_of_fleets_follows_from_the_files(tmp_path):
    folder, plan = SweepFolder(tmp_path, "tiny"), tiny_plan(utd=[1, 2])
    write_plan(folder.plan_file, plan)
    one, two, three, four = plan.fleets
    folder.append("started", one.name)
    folder.append("started", two.name)
    folder.append("failed", two.name, why="code 1")
    folder.append("interrupted", three.name)

    def states():
        return [row.state for row in fleet_rows(folder, plan)]

    assert states() == ["interrupted", "waiting", "interrupted", "waiting"]
    with lock_sweep(folder):
        assert states() == ["running", "waiting", "interrupted", "waiting"]
    write_run(folder.run(four.name), four.config, finished=False)
    with lock_run(folder.run(four.name)):  # by a job of a cluster
        assert states()[3] == "running"


def test_the_time_of_finished_fleets_tells_that_of_others(tmp_path):
    folder, plan = SweepFolder(tmp_path, "tiny"), tiny_plan()
    write_plan(folder.plan_file, plan)
    one, other = plan.fleets
    times = {"started": 1000.0, "finished": 1075.0}
    events = [{"time": x, "event": event, "fleet": one.name} for event, x in times.items()]
    folder.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    folder.append("started", other.name)
    with lock_sweep(folder):
        watcher = SweepWatcher(folder)
        watcher.refresh()
        title, _, finished = texts(watcher.render(time.time(), SIZE))
    assert title.endswith("; about 1:15 left")
    assert finished.startswith("  finished    in 1:15, ")


def test_a_damaged_plan_is_shown_as_such(tmp_path):
    folder = SweepFolder(tmp_path, "tiny")
    folder.plan_file.parent.mkdir()
    folder.plan_file.write_text("{}")
    watcher = SweepWatcher(folder)
    watcher.refresh()
    (row,) = texts(watcher.render(0.0, SIZE))
    assert "damaged or not the plan of a sweep" in row


# Other engines


def test_slurm_gets_scripts_and_a_plan_and_nothing_is_trained(fake_engines, grid, capsys):
    assert main(["sweep", "grid.toml", "--engine", "slurm"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "submit with: bash sweeps/slurm/grid/submit.sh"
    )
    assert fake_engines[0] == []
    assert len(SweepFolder(grid / "sweeps", "grid").plan().fleets) == 2
    assert not (grid / "sweeps" / "runs").exists()


def test_an_unreachable_cluster_is_one_sentence_and_nothing_is_written(
    fake_engines, grid, capsys, monkeypatch
):
    monkeypatch.setattr(command, "plan_sweep", None)  # takes a minute for the paper's grid

    def unreachable(*_):
        raise UserError("cannot reach a Ray cluster at 'nowhere:1'", "address")

    monkeypatch.setattr("r2r2.experiments.ray_engine.check_cluster", unreachable)
    assert main(["sweep", "grid.toml", "--engine", "ray", "--address", "nowhere:1"]) == 2
    error = capsys.readouterr().err
    assert error == "r2r2: error: --address: cannot reach a Ray cluster at 'nowhere:1'\n"
    assert [path.name for path in grid.iterdir()] == ["grid.toml"]


def test_a_budget_too_small_says_what_the_smallest_fleet_needs(fake_engines, grid, capsys):
    assert main(["sweep", "grid.toml", "--budget", "2h"]) == 2
    assert "--budget: no speed was measured" in capsys.readouterr().err
    assert [path.name for path in grid.iterdir()] == ["grid.toml"]


def test_only_what_fits_into_the_budget_is_started(fake_engines, grid, capsys, monkeypatch):
    costs = FixedCosts({"td7": 60.0, "td7+r2r2": 600.0})
    monkeypatch.setattr(sweeps, "load_costs", lambda *_: costs)
    assert main(["sweep", "grid.toml", "--budget", "30s"]) == 2
    assert "too small for any run; expected at least 60s" in capsys.readouterr().err
    assert [path.name for path in grid.iterdir()] == ["grid.toml"]
    assert main(["sweep", "grid.toml", "--budget", "5m"]) == 0
    output = capsys.readouterr().out
    assert [agent for agent, _ in fake_engines[0][0].started] == ["td7"]
    assert "2 postponed, as they do not fit into the budget" in output
    assert "2 of 4 runs finished" in output
    # The whole plan is stored, and says which fleets the budget has made short.
    fleets = SweepFolder(grid / "sweeps", "grid").plan().fleets
    assert [fleet.limited for fleet in fleets] == [True] * 3
    # Both runs that were postponed are one fleet now.
    assert main(["sweep", "grid.toml"]) == 0
    assert "4 of 4 runs finished" in capsys.readouterr().out
    names = [fleet.name for fleet in SweepFolder(grid / "sweeps", "grid").plan().fleets]
    assert [name.rpartition("_")[2] for name in names] == ["s0-1", "s0-1"]


def test_what_no_longer_fits_into_the_budget_is_postponed(fake_engines, grid, capsys, monkeypatch):
    costs = FixedCosts({"td7": 60.0, "td7+r2r2": 70.0})
    monkeypatch.setattr(sweeps, "load_costs", lambda *_: costs)
    clock, slow = time.monotonic, [0.0]

    class SlowEngine(FakeEngine):
        def wait(self, seconds):
            slow[0] += 150.0
            return super().wait(seconds)

    monkeypatch.setattr(sweeps, "LocalEngine", SlowEngine)
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock() + slow[0])
    assert main(["sweep", "grid.toml", "--budget", "200s"]) == 0
    output = capsys.readouterr().out
    (name,) = [x.name for x in watched(grid)[1].fleets if x.config.agent.name == "td7+r2r2"]
    assert f"postponed: {name}: it would not finish within the budget\n" in output
    assert "2 of 4 runs finished" in output
    assert ", 2 missing (2 postponed by --budget)\n" in output
    (row,) = [x for x in fleet_rows(*watched(grid)) if x.fleet.name == name]
    assert (row.state, row.why) == ("postponed", "it would not finish within the budget")
    assert main(["sweep", "grid.toml"]) == 0
    assert "4 of 4 runs finished" in capsys.readouterr().out


def watched(grid):
    folder = SweepFolder(grid / "sweeps", "grid")
    return folder, folder.plan()


def test_fleets_that_were_submitted_for_a_budget_stay(fake_engines, grid, monkeypatch):
    costs = FixedCosts({"td7": 60.0, "td7+r2r2": 600.0})
    monkeypatch.setattr(sweeps, "load_costs", lambda *_: costs)
    assert main(["sweep", "grid.toml", "--engine", "slurm", "--budget", "5m"]) == 0
    assert main(["sweep", "grid.toml", "--engine", "slurm"]) == 0
    first, second = SweepFolder(grid / "sweeps", "grid").plan().fleets
    assert (first.config.agent.name, first.limited) == ("td7", False)
    assert second.config.seeds == (0, 1)
