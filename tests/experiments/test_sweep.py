import dataclasses
import shutil

import pytest
from fake_engine import FIELDS, tiny_experiment

from r2r2.config.errors import UserError
from r2r2.experiments import sweep as sweeps
from r2r2.experiments.costs import Estimate
from r2r2.experiments.experiment import Experiment
from r2r2.experiments.sweep import plan_sweep, run_sweep, sweep
from r2r2.experiments.sweep_folder import SweepFolder, finished_runs, lock_sweep
from r2r2.storage.checkpoints import CheckpointContent, write_checkpoint
from r2r2.training.saved_config import find_config
from r2r2.training.signals import Interrupted
from synthetic_runs import make_run, write_run


def started(fake_engines):
    return [agent for engine in fake_engines[0] for agent, _ in engine.started]


def table(result, name):
    return (result.report / "tables" / f"{name}.md").read_text()


def test_a_sweep_trains_all_runs_and_reports_them(fake_engines, tmp_path):
    result = sweep(tiny_experiment(seeds=2), tmp_path / "out")
    assert started(fake_engines) == ["td7", "td7+r2r2"]
    assert len(result.finished) == 4
    assert result.missing == ()
    assert [(x.method, x.utd, x.task, x.seeds) for x in result.scores] == [
        ("td7", 1, "Pendulum-v1", 2),
        ("td7+r2r2", 1, "Pendulum-v1", 2),
    ]
    assert str(result).splitlines()[1].split()[:3] == ["td7", "1", "Pendulum-v1"]
    assert result.report == tmp_path / "out" / "reports" / "tiny"
    assert (result.report / "index.html").exists()


def test_the_second_sweep_only_reports(fake_engines, tmp_path):
    sweep(tiny_experiment(), tmp_path)
    result = sweep(tiny_experiment(), tmp_path)
    assert len(fake_engines[0]) == 1
    assert len(result.finished) == 2
    assert len(result.scores) == 2


def test_overlapping_sweeps_share_finished_runs_and_their_reports_have_only_their_own(
    fake_engines, tmp_path
):
    sweep(tiny_experiment("few", seeds=2), tmp_path)
    result = sweep(tiny_experiment("many", agent="td7", seeds=5, utd=[1, 2]), tmp_path)
    assert started(fake_engines) == ["td7", "td7+r2r2", "td7", "td7"]
    # Three more seeds at UTD 1 have a folder of their own, named after them.
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert sorted(name.rpartition("_s")[2] for name in names) == ["0-1", "0-1", "0-4", "2-4"]
    assert len(names) == 4
    assert [(x.method, x.utd, x.seeds) for x in result.scores] == [("td7", 1, 5), ("td7", 2, 5)]
    fewer = sweep(tiny_experiment("fewer", agent="td7", seeds=[1]), tmp_path)
    assert len(fake_engines[0]) == 2
    assert [(x.method, x.seeds) for x in fewer.scores] == [("td7", 1)]
    assert "td7+r2r2" not in table(fewer, "runs")


def test_more_steps_are_another_run(fake_engines, tmp_path):
    sweep(tiny_experiment("short", agent="td7"), tmp_path)
    longer = tiny_experiment("long", agent="td7", steps=3000)
    assert len(sweep(longer, tmp_path).finished) == 1
    assert started(fake_engines) == ["td7", "td7"]
    assert sorted(n for _, n in finished_runs(tmp_path / "runs")) == [2000, 3000]
    # Neither takes the other's run for its own, although they have one name.
    assert plan_sweep(tiny_experiment("short", agent="td7"), tmp_path).fleets == ()
    assert plan_sweep(longer, tmp_path).fleets == ()


def test_two_sweeps_that_planned_a_fleet_both_keep_it_if_one_gets_more_steps(
    fake_engines, tmp_path
):
    fake_engines[1]["td7"] = [(1,)] * 3
    sweep(tiny_experiment("first", agent="td7"), tmp_path)  # only plans it: all attempts fail
    assert len(sweep(tiny_experiment("second", agent="td7"), tmp_path).finished) == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1
    longer = sweep(tiny_experiment("second", agent="td7", steps=3000), tmp_path)
    assert (len(longer.finished), longer.missing) == (1, ())
    count = len(fake_engines[0])
    assert sweep(tiny_experiment("first", agent="td7"), tmp_path).missing == ()
    assert len(fake_engines[0]) == count  # nothing was trained again
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_run_that_another_sweep_has_extended_is_trained_again(fake_engines, tmp_path):
    sweep(tiny_experiment("first", agent="td7"), tmp_path)
    assert len(sweep(tiny_experiment("second", agent="td7"), tmp_path).finished) == 1
    (run,) = (tmp_path / "runs").iterdir()
    sweep(tiny_experiment("first", agent="td7", steps=3000), tmp_path)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.name]  # extended
    # The second sweep leaves it, and trains its own.
    assert sweep(tiny_experiment("second", agent="td7"), tmp_path).missing == ()
    assert sweep(tiny_experiment("first", agent="td7", steps=3000), tmp_path).missing == ()
    assert started(fake_engines) == ["td7"] * 3


def test_a_stored_fleet_whose_folder_has_a_longer_run_gets_another_folder(fake_engines, tmp_path):
    sweep(tiny_experiment(agent="td7"), tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    longer = dataclasses.replace(find_config(run), steps=3000)
    shutil.rmtree(run)
    write_run(run, longer)
    assert sweep(tiny_experiment(agent="td7"), tmp_path).missing == ()
    assert find_config(run) == longer


def test_a_changed_experiment_of_the_same_name_trains_what_is_new(fake_engines, tmp_path):
    sweep(tiny_experiment(), tmp_path)
    result = sweep(tiny_experiment(seeds=2, agent="td7"), tmp_path)
    assert started(fake_engines) == ["td7", "td7+r2r2", "td7"]
    assert [key.seed for key in result.finished] == [0, 1]
    longer = sweep(tiny_experiment(agent="td7", steps=3000), tmp_path)
    assert len(longer.finished) == 1
    assert longer.missing == ()


def test_a_moved_folder_is_still_usable(fake_engines, tmp_path):
    fake_engines[1]["td7"] = [(1,)] * 3
    sweep(tiny_experiment(seeds=2), tmp_path / "old")
    shutil.move(tmp_path / "old", tmp_path / "new")
    result = sweep(tiny_experiment(seeds=2), tmp_path / "new")
    assert [agent for agent, _ in fake_engines[0][1].started] == ["td7"]
    assert len(result.finished) == 4
    assert not (tmp_path / "old").exists()


def test_fleets_that_keep_failing_are_set_aside_and_missing_in_the_report(fake_engines, tmp_path):
    fake_engines[1]["td7"] = [(1,)] * 3
    result = sweep(tiny_experiment(seeds=2), tmp_path)
    assert list(result.set_aside.values()) == ["code 1"]
    assert [key.config.split("_")[0] for key in result.missing] == ["td7", "td7"]
    planned = table(result, "planned").splitlines()
    row = next(line for line in planned if line.startswith("| td7 |"))
    assert row.split(" | ")[4:] == ["0 of 2", "0, 1", "missing |"]
    assert not any(line.startswith("| td7+r2r2 |") for line in planned)


def test_the_report_shows_the_cells_of_the_paper_as_missing(fake_engines, tmp_path):
    experiment = tiny_experiment(env="Hopper-v5", seeds=5)
    result = sweep(experiment, tmp_path)
    lines = table(result, "paper_cells").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    header, *rows = rows
    assert len(rows) == 33
    assert len(header) == 11
    cells = {
        (row[0], row[1], agent): x for row in rows for agent, x in zip(header, row, strict=True)
    }
    assert list(cells.values()).count("missing") == 295
    assert cells["1", "Hopper-v5", "td7"] == "partial"
    assert "2 of 297 cells have results" in "\n".join(lines)
    page = (result.report / "index.html").read_text()
    assert 'id="table-paper_cells"' in page[page.index('<section id="missing">') :]


def test_a_report_of_runs_alone_has_no_table_of_the_papers_cells(tmp_path):
    from r2r2.experiments.run_report import find_sources, load_study
    from r2r2.report.comparison_tables import all_tables

    make_run(tmp_path / "run")
    names = {table.name for table in all_tables(load_study(find_sources([tmp_path])))}
    assert not names & {"planned", "paper_cells"}


def test_without_any_result_there_is_no_report(fake_engines, tmp_path):
    fake_engines[1].update({"td7": [(1,)] * 3, "td7+r2r2": [(1,)] * 3})
    result = sweep(tiny_experiment(), tmp_path)
    assert result.report is None
    assert result.scores == ()
    assert len(result.set_aside) == 2


def test_ctrl_c_returns_the_result_so_far_and_the_next_sweep_goes_on(fake_engines, tmp_path):
    planned = plan_sweep(tiny_experiment(), tmp_path)

    def on_status(statuses):
        if {status.state for status in statuses.values()} == {"finished", "running"}:
            raise Interrupted

    result = run_sweep(planned, on_status=on_status)
    assert result.interrupted
    assert result.report is None
    assert len(result.finished) == 1
    assert len(result.missing) == 1
    result = sweep(tiny_experiment(), tmp_path)
    assert started(fake_engines) == ["td7", "td7+r2r2", "td7+r2r2"]
    assert result.missing == ()


def test_one_process_at_a_time_carries_out_a_sweep(fake_engines, tmp_path):
    planned = plan_sweep(tiny_experiment(), tmp_path)
    with lock_sweep(SweepFolder(tmp_path, "tiny")):
        with pytest.raises(UserError, match="another process carries out the sweep 'tiny'"):
            run_sweep(planned)
        sweep(tiny_experiment("other", utd=2), tmp_path)
    sweep(tiny_experiment(), tmp_path)
    with pytest.raises(UserError, match="changed the plan meanwhile"):
        run_sweep(planned)


def test_a_plan_writes_nothing_and_knows_what_is_finished(fake_engines, tmp_path):
    planned = plan_sweep(tiny_experiment(), tmp_path / "out")
    assert len(planned.fleets) == 2
    assert not (tmp_path / "out").exists()
    sweep(tiny_experiment(agent="td7"), tmp_path / "out")
    planned = plan_sweep(tiny_experiment("other"), tmp_path / "out")
    assert [fleet.config.agent.name for fleet in planned.fleets] == ["td7+r2r2"]
    assert len(planned.finished) == 1


def test_an_interrupted_fleet_is_estimated_from_its_checkpoint(fake_engines, tmp_path, monkeypatch):
    class Costs:
        def prepare(self, configs):
            pass

        def estimate(self, config):
            return Estimate(config.steps / 20, 1, True)

    monkeypatch.setattr(sweeps, "load_costs", lambda *_: Costs())
    fake_engines[1]["td7"] = [(130,)]
    sweep(tiny_experiment(), tmp_path)
    (fleet,) = plan_sweep(tiny_experiment(), tmp_path).fleets
    run = write_run(tmp_path / "runs" / fleet.name, fleet.config, finished=False)
    for step in (900, 1500):
        write_checkpoint(run / "checkpoints", CheckpointContent(step, {}, {}, {}, {}, ()), 2)
    with pytest.raises(UserError, match="expected at least 25s"):
        plan_sweep(tiny_experiment(), tmp_path, budget=24.0)
    (fleet,) = plan_sweep(tiny_experiment(), tmp_path, budget=26.0).fleets
    assert fleet.seconds == 25.0
    damaged = max((run / "checkpoints").glob("*.json"))
    damaged.write_text("{}")
    (fleet,) = plan_sweep(tiny_experiment(), tmp_path).fleets
    assert fleet.seconds == 55.0


def test_a_stored_plan_keeps_its_cores(fake_engines, tmp_path, monkeypatch):
    sweep(tiny_experiment(), tmp_path)
    machine = sweeps.this_machine()._replace(cores=6)
    monkeypatch.setattr(sweeps, "this_machine", lambda: machine)
    assert plan_sweep(tiny_experiment(utd=[1, 2]), tmp_path).plan.cores == 1
    assert plan_sweep(tiny_experiment("other", utd=2), tmp_path).plan.cores > 1


@pytest.mark.parametrize(
    ("experiment", "options", "message"),
    [
        ("smok", {}, "did you mean 'smoke'"),
        (Experiment("empty", grids=({"agent": []},)), {}, "empty"),
        (Experiment("twice", base=FIELDS, grids=({"agent": "td7"},) * 2), {}, "two runs"),
        (tiny_experiment(), {"scale": 0}, "scale"),
        (tiny_experiment(), {"scale": 2.0}, "scale"),
        (tiny_experiment(), {"budget": -1.0}, "budget"),
        (tiny_experiment(env="Nowhere-v5"), {}, "Nowhere"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(tmp_path, experiment, options, message):
    with pytest.raises(UserError, match=message):
        sweep(experiment, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_cannot_be_used_leaves_nothing(tmp_path, monkeypatch):
    planned = plan_sweep(tiny_experiment(), tmp_path / "out")
    with pytest.raises(UserError, match="engine: expected one of local, ray, got 'cloud'"):
        run_sweep(planned, "cloud")
    with pytest.raises(UserError, match="address"):
        run_sweep(planned, "local", "10.0.0.1:6379")

    def unreachable(*_):
        raise UserError("cannot connect to 'nowhere:1'", "address")

    monkeypatch.setattr(sweeps, "LocalEngine", unreachable)
    with pytest.raises(UserError, match="nowhere"):
        run_sweep(planned)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_is_checked_before_the_sweep_is_planned(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "plan_sweep", None)  # takes a minute for the paper's grid
    with pytest.raises(UserError, match="address: only used with the engine 'ray'"):
        sweep(tiny_experiment(), tmp_path, address="10.0.0.1:6379")
    with pytest.raises(UserError, match=r"127.0.0.1:1: no Ray cluster .* \(Connection refused\)"):
        sweep(tiny_experiment(), tmp_path, engine="ray", address="127.0.0.1:1")


def test_runs_that_become_equal_are_refused(tmp_path):
    grid = {**FIELDS, "agent": "td7", "action_repeat": [0, 1]}
    with pytest.raises(UserError, match="two runs have the name"):
        plan_sweep(Experiment("equal", grids=(grid,)), tmp_path)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="is a file"):
        plan_sweep(tiny_experiment(), tmp_path / "out")
