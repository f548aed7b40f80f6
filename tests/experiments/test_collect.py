"""Folders of results: `collect`, `load_results` and their report."""

import csv
import gzip
import json
import shutil

import numpy as np
import pytest

from r2r2 import UserError, collect, iqm, load_results
from r2r2.cli.main import main
from r2r2.envs.suites import clean_task_name
from r2r2.experiments.run_report import find_sources, load_study
from r2r2.report.comparison_tables import all_tables
from synthetic_runs import flat, make_csv, make_run

SMALL = {"steps": 1000, "eval_every": 200}
VERSIONS = {"platform": "cpu", "precision": "tf32"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A base and R2R2 on Hopper-v5, with a stopped seed, and a fleet on two tasks."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "td7", flat(10.0), agent="td7", versions=VERSIONS, **SMALL)
    make_run(folder / "r2r2", flat(20.0), stopped=1, versions=VERSIONS, **SMALL)
    make_run(folder / "dogs", flat(5.0), agent="td7", env="dog-run,dog-walk", **SMALL)
    return folder


@pytest.fixture
def results(runs, tmp_path):
    collect([runs], tmp_path / "results")
    return tmp_path / "results"


def contents(folder):
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_everything_that_was_measured_is_there(runs, results):
    loaded = load_results(results)
    assert loaded.tasks == ("Hopper-v5", "dog-run", "dog-walk")
    assert len(loaded.runs) == 3
    assert len(loaded.members) == 8
    tables = [(path / "evaluations.csv").read_text() for path in runs.iterdir()]
    rows = [row for text in tables for row in csv.DictReader(text.splitlines())]
    assert len(loaded.evaluations) == len(rows)
    assert sorted(loaded.evaluations["value"]) == sorted(float(row["value"]) for row in rows)
    dog = loaded.evaluations.where(env_name="dog-run")
    assert (dog["env_step"] == 2 * dog["decision_step"]).all()
    run = loaded.runs.where(agent="td7+r2r2")[0]
    assert (run["commit"], run["device"], run["precision"]) == ("abc1234", "cpu", "float32")
    assert (run["status"], run["members"]) == ("finished", 2)
    assert run["wall_clock_s"] > 0
    assert 'name = "td7+r2r2"' in loaded.config_text(run["run"])
    ranks = loaded.diagnostics.where(agent="td7+r2r2", metric="effective_rank", seed=0)
    assert list(ranks["update_step"]) == [200, 400, 600, 800, 1000]
    assert (np.diff(loaded.spectra[0]["singular_values"]) < 0).all()


def test_members_have_scores_and_final_returns(results):
    loaded = load_results(results)
    stopped = loaded.members.where(agent="td7+r2r2", seed=1)[0]
    assert stopped["stopped"] == "a loss was not finite"
    assert (stopped["evaluations"], stopped["score"], stopped["final_return"]) == (2, 21.0, 21.0)
    (experiment,) = (x for x in loaded.experiments if x.startswith("td7+r2r2"))
    assert list(loaded.scores()[experiment]["Hopper-v5"]) == [20.0, 21.0]
    assert iqm(loaded.scores()[experiment]) == 20.5
    curve = loaded.curve(experiment, "Hopper-v5")
    assert list(curve.decision_steps) == [200, 400, 600, 800, 1000]
    assert list(curve.returns[1, :2]) == [21.0, 21.0]
    assert np.isnan(curve.returns[1, 2:]).all()


def test_unknown_names_give_the_nearest_one(results):
    loaded = load_results(results)
    with pytest.raises(UserError, match=r"task: expected one of .*, got 'dog_run'; did you mean"):
        loaded.curve(loaded.experiments[0], "dog_run")
    with pytest.raises(UserError, match="run: expected one of"):
        loaded.config_text("../../secret")


def test_equal_runs_give_equal_bytes_in_any_order(runs, results, tmp_path):
    collect([runs / "r2r2"], tmp_path / "other")
    collect([runs / "dogs", runs / "td7"], tmp_path / "other")
    assert contents(tmp_path / "other") == contents(results)
    collect([runs], results)
    assert contents(tmp_path / "other") == contents(results)


def test_a_seed_that_is_collected_again_is_replaced(results, tmp_path):
    make_run(tmp_path / "again", flat(50.0), agent="td7", seeds="1,2", versions=VERSIONS, **SMALL)
    done = collect([tmp_path / "again"], results)
    assert list(done.cells.values()) == [[1, 2]]
    members = load_results(results).members.where(agent="td7", env_name="Hopper-v5")
    assert dict(zip(members["seed"], members["score"], strict=True)) == {0: 10.0, 1: 51.0, 2: 52.0}
    assert len({*members["run"]}) == 2
    study = load_study(find_sources([results]))
    (cell,) = (x for x in study.cells if x.method.agent == "td7" and x.task == "Hopper-v5")
    assert list(cell.scores) == [10.0, 51.0, 52.0]


def test_a_longer_run_replaces_the_shorter_one(results, tmp_path):
    make_run(tmp_path / "again", flat(50.0), agent="td7", steps=2000, eval_every=200)
    collect([tmp_path / "again"], results)
    runs = load_results(results).runs.where(agent="td7", tasks="Hopper-v5")
    assert list(runs["steps"]) == [2000]


def test_runs_that_disagree_are_refused_and_copies_count_once(runs, results, tmp_path):
    before = contents(results)
    shutil.copytree(runs / "td7", tmp_path / "copy")
    collect([runs / "td7", tmp_path / "copy"], results)
    assert contents(results) == before
    make_run(tmp_path / "other", flat(11.0), agent="td7", **SMALL)
    with pytest.raises(UserError, match=r"other: seed 0 of td7_Hopper-v5_utd1_\w+ differs from"):
        collect([runs / "td7", tmp_path / "other"], results)
    assert contents(results) == before


def test_unfinished_and_damaged_runs_are_left_out(runs, tmp_path):
    shutil.copytree(runs / "td7", tmp_path / "runs" / "td7")
    make_run(tmp_path / "runs" / "open", finished=False, **SMALL)
    damaged = make_run(tmp_path / "runs" / "damaged", agent="minphi", **SMALL)
    (damaged / "evaluations.csv").write_text("nonsense\n")
    done = collect([tmp_path / "runs"], tmp_path / "results")
    assert [*done.cells] == [x for x in done.cells if x.startswith("td7_Hopper-v5")]
    first, second = done.left_out
    assert "damaged: left out: " in first
    assert "line 1 is damaged" in first
    assert second.endswith("open: left out: its status is interrupted; expected finished or failed")
    with pytest.raises(UserError, match="its status is interrupted"):
        collect([tmp_path / "runs" / "open"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_report_of_results_is_that_of_the_runs(runs, results):
    ours, theirs = (load_study(find_sources([path])) for path in (results, runs))
    by_name = {table.name: table for table in all_tables(theirs)}
    for table in all_tables(ours):
        if table.name not in ("runs", "timing"):  # have the names of runs
            assert table == by_name[table.name], table.name
    assert len(all_tables(ours)) == len(by_name)
    timings = {run.results.method: run.timing for run in theirs.runs if len(run.tasks) == 1}
    assert {r.results.method: r.timing for r in ours.runs if len(r.tasks) == 1} == timings
    assert ours.abnormal == theirs.abnormal != {}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("evaluations.csv", lambda x: x.replace("10.0", "99.0"), "damaged; not as 'r2r2 collect'"),
        ("results.json", lambda x: x.replace('"format": 1', '"format": 9'), "unsupported format"),
        ("results.json", lambda x: "[]", "damaged or not of results"),
    ],
)
def test_a_damaged_file_gives_one_sentence(results, name, change, message):
    text = (results / name).read_text()
    assert change(text) != text
    (results / name).write_text(change(text))
    with pytest.raises(UserError, match=message) as error:
        load_results(results)
    assert str(error.value).startswith(str(results / name))


def resign(folder, name, text):
    """Write a file with a matching checksum, as another program might."""
    from r2r2.storage.files import file_entry

    (folder / name).write_text(text)
    record = json.loads((folder / "results.json").read_text())
    record["files"][name] = file_entry(folder / name)._asdict()
    (folder / "results.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",seed,", ",sood,", "line 1 is damaged: no column 'seed'"),
        (",0,return", ",zero,return", "line 2 is damaged: seed: expected an integer >= 0, got"),
        (",0,return", ",0,return,1", "line 2 is damaged: a wrong number of columns"),
        ("_s0-1\n", "_s9\n", "damaged; has rows of the unknown run"),
    ],
)
def test_wrong_columns_and_values_are_named(results, old, new, message):
    text = (results / "evaluations.csv").read_text().replace(old, new, 1)
    resign(results, "evaluations.csv", text)
    with pytest.raises(UserError, match=message):
        load_results(results)


def test_other_folders_are_not_touched(runs, results, tmp_path):
    with pytest.raises(UserError, match="not empty and not a folder of results"):
        collect([runs], runs)
    (results / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"also contains 'notes.txt', which would be deleted"):
        collect([runs], results)
    with pytest.raises(UserError, match="expected a run folder or a folder with runs"):
        collect([results], tmp_path / "other")
    with pytest.raises(UserError, match="does not exist; expected a folder of results"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"it has no results\.json"):
        load_results(runs)


def test_the_command_names_the_cells(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["collect", str(runs)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "results: collected 8 seeds of 4 cells"
    assert any("td7+r2r2_Hopper-v5_utd1_" in line and "seeds 0, 1" in line for line in out)
    assert load_results().tasks == ("Hopper-v5", "dog-run", "dog-walk")
    assert main(["collect"]) == 2
    assert "expected runs or folders" in capsys.readouterr().err


def test_names_of_tasks_in_published_files_are_cleaned(results, tmp_path):
    names = {
        **{"dog_run": "dog-run", "Ant_v4": "Ant-v4", "h1_walk_v0": "h1-walk-v0"},
        **{"ball_in_cup_catch": "ball_in_cup-catch", "Hopper-v5": "Hopper-v5"},
        **{"cartpole-balance_sparse": "cartpole-balance_sparse", "my_task": "my_task"},
        **{"h1hand_sit_hard_v0": "h1hand-sit_hard-v0", "my_module:Arm_v0": "my_module:Arm_v0"},
    }
    assert {name: clean_task_name(name) for name in names} == names
    theirs = make_csv(tmp_path / "sac.csv", {("sac", "dog_run", 0): [1.0, 2.0]})
    study = load_study(find_sources([results, theirs]))
    agents = {cell.method.agent for cell in study.cells if cell.task == "dog-run"}
    assert agents == {"td7", "sac"}


def test_short_columns_and_compressed_files_are_read(tmp_path):
    path = tmp_path / "published.csv.gz"
    text = "exp,env,seed,env_step,avg_return\nbro_utd10,dog_walk,1,2000,30.5\n"
    path.write_bytes(gzip.compress(text.encode()))
    (cell,) = load_study(find_sources([path])).cells
    assert (cell.method.agent, cell.method.utd, cell.task) == ("bro", 10, "dog-walk")
    assert list(cell.scores) == [30.5]
    path.write_bytes(b"no gzip")
    with pytest.raises(UserError, match="not a valid gzip file"):
        load_study(find_sources([path]))
    path.with_suffix("").write_text("exp,env,seed,env_step\n")
    with pytest.raises(UserError, match="no column 'metric' of 'exp_name"):
        load_study(find_sources([path.with_suffix("")]))


@pytest.mark.slow
def test_policies_of_one_seed_per_cell_run_without_r2r2(tmp_path):
    from r2r2 import resolve, train

    config = resolve({"env": "Pendulum-v1", "steps": 10, "random_only": True, "seeds": 2})
    train(config, tmp_path / "run")
    done = collect([tmp_path / "run"], tmp_path / "results", policies=True)
    (name,) = done.policies
    assert name.endswith("_s0")
    policy = tmp_path / "results" / "policies" / name
    assert {x.name for x in policy.iterdir()} >= {"policy.npz", "policy.py", "README.md"}
    before = contents(tmp_path / "results")
    collect([tmp_path / "run"], tmp_path / "results", policies=True)
    assert contents(tmp_path / "results") == before
    collect([tmp_path / "run"], tmp_path / "results")
    assert not policy.exists()  # it was of the seed that is replaced
