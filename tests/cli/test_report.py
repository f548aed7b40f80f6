"""`r2r2 report`: from run folders and files to tables, figures and a page."""

import csv
import html
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from forgery import mutate
from rich.console import Console

from r2r2.cli.report import progress_bar
from r2r2.config.fields import flatten_config
from r2r2.config.resolve import resolve
from r2r2.experiments.run_report import find_sources, load_study, usual_config
from r2r2.experiments.scaling import scale_config
from r2r2.report import figures
from r2r2.report.study import describe
from r2r2.stats.scores import run_results
from r2r2.storage.run_folder import lock_run, open_run
from r2r2.training.run_config import finalize_config
from synthetic_runs import flat, make_csv, make_run

SMALL = {"steps": 1000, "eval_every": 200}
ROOT = Path(__file__).parents[2]
HEADER = "exp_name,env_name,seed,metric,env_step,value\n"


@pytest.fixture
def drawn():
    """Figures are drawn as for users, which takes seconds."""


@pytest.fixture(autouse=True)
def sketched(request, monkeypatch):
    """Figures are empty files, except in tests that use `drawn`."""
    if "drawn" not in request.fixturenames:
        nothing = dict.fromkeys(figures.FORMATS, b"")
        monkeypatch.setattr(figures, "render_chart", lambda chart: nothing)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of two seeds, below a folder."""
    folder = tmp_path_factory.mktemp("made")
    make_run(folder / "runs" / "plain", flat(10.0), agent="td7", **SMALL)
    make_run(folder / "runs" / "deep" / "ours", flat(20.0), **SMALL)
    return folder / "runs"


@pytest.fixture
def runs(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


def table(folder, name):
    with (folder / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_settings_of_an_agent_in_the_working_folder_are_named(cli, workdir):
    shutil.copy(ROOT / "examples" / "ddpg.py", workdir / "report_ddpg.py")
    short = "--agent report_ddpg:DDPG --env Pendulum-v1 --steps 10 --eval-episodes 1 --random-only"
    for out, noise in (("usual", "0.1"), ("noisy", "0.3")):
        assert cli("train", *short.split(), "--noise", noise, "--out", f"runs/{out}").code == 0
    sys.path.remove("")
    del sys.modules["report_ddpg"]
    assert cli("report", "runs").code == 0
    methods = {row["method"] for row in table(workdir / "report", "last_evaluations")}
    assert methods == {"report_ddpg:DDPG", "report_ddpg:DDPG, noise=0.3"}


def test_a_report_is_a_page_figures_and_tables(cli, workdir, made, drawn):
    completed = cli("report", made)
    assert completed.code == 0
    assert completed.err == ""
    last = completed.out.splitlines()[-1]
    assert last.endswith("figures in 'report'; open report/index.html")
    assert last.startswith("2 runs: ")
    names = {path.name for path in (workdir / "report").iterdir()}
    assert names == {"index.html", "figures", "tables", "report.json"}
    endings = {path.suffix for path in (workdir / "report" / "figures").iterdir()}
    assert {".svg", ".png", ".pdf"} <= endings
    pictures = (workdir / "report" / "figures").glob("*.png")
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    endings = {path.suffix for path in (workdir / "report" / "tables").iterdir()}
    assert endings == {".csv", ".md", ".tex"}
    facts = json.loads((workdir / "report" / "report.json").read_text())
    assert facts["runs"] == [str(made / "deep" / "ours"), str(made / "plain")]
    assert (facts["resamples"], facts["generator_seed"]) == (10_000, 0)


def test_two_runs_are_compared(cli, workdir, made):
    assert cli("report", made / "plain", made / "deep/ours", "--out", "o").code == 0
    hopper, overall = table(workdir / "o", "pairs")
    # 20 and 21 against 10 and 11.
    assert float(hopper["difference: value"]) == 10.0
    assert float(hopper["probability of improvement: value"]) == 1.0
    # Relative to a base of 10.5: 20.5 / 10.5 - 1.
    assert float(overall["difference: value"]) == pytest.approx(10 / 10.5)
    raw = {row["task"]: row for row in table(workdir / "o", "raw_utd1")}["Hopper-v5"]
    assert float(raw["td7: mean"]) == 10.5
    assert float(raw["td7+r2r2: std"]) == pytest.approx(0.5**0.5)


def test_a_scaled_down_run_is_not_a_reproduction(cli, workdir, made):
    assert cli("report", made).code == 0
    for row in table(workdir / "report", "beside_paper"):
        assert row["intervals overlap"] == "not a reproduction"
        assert "steps=1000 (default 500000)" in row["lacks"]
        assert "2 of 5 seeds" in row["lacks"]
    assert all("steps" in row["lacks"] for row in table(workdir / "report", "lacks"))


def make_scaled_run(path, agent, versions, **fields):
    """Write a run as a sweep with --scale 0.01 makes it, and return its path."""
    config = scale_config(resolve({"agent": agent, "env": "Hopper-v5", **fields}), 0.01)
    values = {name: spec.value for name, spec in flatten_config(config).items()}
    del values["agent.name"], values["env"], values["seeds"]
    return make_run(path, flat(10.0), agent=agent, versions=versions, **values)


def test_a_run_of_a_scaled_sweep_is_shown_as_such(cli, workdir):
    stamp = {"experiment": "main-table", "scale": 0.01}
    make_scaled_run(workdir / "runs" / "td7", "td7", stamp)
    make_scaled_run(workdir / "runs" / "minphi", "minphi", stamp, lambda_rr=0.5)
    assert cli("report", "runs").code == 0
    study = load_study(find_sources([workdir / "runs"]))
    overrides = {run.name: [*map(str, run.results.method.overrides)] for run in study.runs}
    ablation = "representation.lambda_rr=0.5 (default 0.0)"
    assert overrides == {"td7": ["scaled by 0.01"], "minphi": ["scaled by 0.01", ablation]}
    assert not any(cell.complete for cell in study.cells)
    for row in table(workdir / "report", "beside_paper"):
        assert row["intervals overlap"] == "not a reproduction"
        assert "scaled by 0.01" in row["lacks"]
    page = (workdir / "report" / "index.html").read_text()
    assert "All runs: scaled by 0.01. " in page
    assert "td7, UTD 1" in page


def test_a_scaled_run_is_no_reproduction_even_with_the_papers_steps(workdir):
    make_run(workdir / "run", points=50, seeds=5, agent="td7", versions={"scale": 0.5})
    (cell,) = load_study(find_sources([workdir / "run"])).cells
    assert "scaled by 0.5" in describe(cell.shortfalls)


@pytest.mark.parametrize("scale", ["0.01", -1, 2, None, [0.1]])
def test_a_damaged_scale_is_marked(workdir, scale):
    make_run(workdir / "run", versions={"scale": scale}, **SMALL)
    (damage,) = load_study(find_sources([workdir / "run"])).damage
    assert damage.endswith(f"damaged; scale: expected a number > 0 and <= 1, got {scale!r}")


def test_a_results_file_is_compared(cli, workdir, made):
    returns = {("td7_utd1", "Hopper-v5", seed): [5.0, 5.0] for seed in range(2)}
    make_csv(workdir / "other.csv", returns)
    completed = cli("report", made / "plain", "other.csv")
    assert completed.code == 0
    assert completed.out.splitlines()[-1].startswith("1 run and 1 file: ")
    first, _ = table(workdir / "report", "pairs")
    assert first["second"] == "td7, UTD 1, from other.csv"
    assert float(first["difference: value"]) == 5.5
    status = {row["run"]: row["status"] for row in table(workdir / "report", "runs")}
    assert status == {"plain": "finished", "other.csv: td7_utd1": "file"}


def test_seeds_of_runs_of_one_method_are_combined(cli, workdir):
    make_run("a", flat(1.0), seeds="0,1", **SMALL)
    make_run("b", flat(1.0), seeds=[4], **SMALL)
    assert cli("report", "a", "b").code == 0
    (row,) = table(workdir / "report", "raw_utd1")
    # 1, 2 and 5.
    assert float(row["td7+r2r2: mean"]) == pytest.approx(8 / 3)
    assert row["td7+r2r2: seeds"] == "3"


def test_runs_of_different_precision_are_different_methods(cli, workdir):
    for precision, level in (("mixed", 1.0), ("tf32", 2.0)):
        make_run(precision, flat(level), precision=precision, **SMALL)
    assert cli("report", "mixed", "tf32").code == 0
    methods = {row["run"]: row["method"] for row in table(workdir / "report", "runs")}
    assert methods == {"mixed": "td7+r2r2, precision=mixed", "tf32": "td7+r2r2, precision=tf32"}


def test_two_runs_of_the_same_settings_and_seeds_are_compared(cli, workdir):
    for name, level in (("before", 10.0), ("after", 20.0)):
        make_run(name, flat(level), agent="td7", **SMALL)
    assert cli("report", "before", "after").code == 0
    hopper, overall = table(workdir / "report", "pairs")
    assert (hopper["first"], hopper["second"]) == (
        "td7, UTD 1, run after",
        "td7, UTD 1, run before",
    )
    assert float(hopper["difference: value"]) == 10.0
    # Both relative to the run that was named first: 20.5 / 10.5 - 1.
    assert float(overall["difference: value"]) == pytest.approx(10 / 10.5)
    rows = {row["method"]: row for row in table(workdir / "report", "runs")}
    assert rows["td7, run after"]["run"] == "after"
    assert all(
        "(another run with the same settings has different returns)" in row["lacks"]
        for row in table(workdir / "report", "lacks")
    )


def test_unfinished_runs_and_stopped_members_are_marked(cli, workdir):
    make_run("a", flat(1.0), finished=False, stopped=1, **SMALL)
    assert cli("report", "a").code == 0
    (run,) = table(workdir / "report", "runs")
    assert run["status"] == "interrupted"
    assert "Hopper-v5_s1 stopped at environment step 400" in run["remarks"]
    (row,) = table(workdir / "report", "lacks")
    assert "seed 1 has 400 environment steps instead of 500,000" in row["lacks"]
    stop = "seed 1 has a run that was interrupted and a stop at environment step 400"
    marked = f"td7+r2r2, UTD 1 (seed 0 has a run that was interrupted; {stop}"
    assert f"Failed, unfinished, untrained or damaged: {marked}" in page_text(workdir / "report")
    with lock_run(Path("a")):
        assert cli("report", "a").code == 0
    assert table(workdir / "report", "runs")[0]["status"] == "running"


def page_text(folder):
    """Return the text of the banners of a page."""
    page = (folder / "index.html").read_text()
    return html.unescape(page.partition('<div class="banner"')[2].partition("<dl")[0])


def test_a_run_of_random_actions_alone_is_marked(cli, workdir):
    events = make_run("random", flat(1.0), **SMALL) / "events.jsonl"
    events.write_text(re.sub(r'"update_step": ?\d+', '"update_step":0', events.read_text()))
    make_run("trained", flat(2.0), utd=2, **SMALL)
    assert cli("report", "random", "trained").code == 0
    remarks = {row["run"]: row["remarks"] for row in table(workdir / "report", "runs")}
    assert remarks["trained"] == "none"
    assert remarks["random"].count("has no updates (untrained)") == 2
    banner = page_text(workdir / "report")
    assert (
        "Failed, unfinished, untrained or damaged: td7+r2r2, UTD 1 (seeds 0, 1 have no updates"
        in banner
    )
    assert "UTD 2" not in banner


def test_a_failed_run_is_marked_wherever_it_counts(cli, workdir):
    for agent, level in (("td7", 1.0), ("td7+r2r2", 2.0)):
        make_run(agent, flat(level), agent=agent, seeds=1, finished=False, stopped=0, **SMALL)
    open_run(Path("td7+r2r2")).finish(["Hopper-v5_s0"])
    assert cli("report", "td7", "td7+r2r2").code == 0
    status = {row["run"]: row["status"] for row in table(workdir / "report", "runs")}
    assert status == {"td7": "interrupted", "td7+r2r2": "failed"}
    why = "seed 0 has a run that failed and a stop at environment step 400"
    assert f"td7+r2r2, UTD 1 ({why}" in page_text(workdir / "report")
    ours = {row["method"]: row for row in table(workdir / "report", "aggregates")}["td7+r2r2"]
    assert "a run that failed" in ours["mean: note"]


def test_a_damaged_run_is_marked_where_its_numbers_are_used(cli, workdir):
    evaluations = make_run("a", flat(1.0), agent="td7", **SMALL) / "evaluations.csv"
    evaluations.write_text(evaluations.read_text() + "a,b,c\n")
    assert cli("report", "a").code == 0
    why = "Failed, unfinished, untrained or damaged: td7, UTD 1 (seeds 0, 1 have damaged files)"
    page = html.unescape((workdir / "report" / "index.html").read_text())
    assert why in page_text(workdir / "report")
    assert why in page.partition('<figure id="figure-aggregate-mean">')[2].partition("</figure>")[0]


def test_scores_stand_beside_last_evaluations(cli, workdir):
    make_run("a", lambda task, seed, part: 100 * part + seed, points=4, **SMALL)
    assert cli("report", "a").code == 0
    (row,) = table(workdir / "report", "last_evaluations")
    # 25, 50, 75 and 100, and one more each.
    assert float(row["mean of the last 10 evaluations: mean"]) == 63.0
    assert float(row["last evaluation: mean"]) == 100.5
    assert row["mean of the last 10 evaluations: note"].startswith("mean of all 4 evaluations")


def test_effective_ranks_stand_beside_the_published_ones(cli, workdir):
    make_run("a", agent="td7", env="humanoid-stand", probe_batch=64, **SMALL)
    assert cli("report", "a").code == 0
    (row,) = table(workdir / "report", "diagnostics")
    assert float(row["effective rank (paper): value"]) == 76.5
    note = "on 64 of the first 40,960 replay rows. The paper has 76.5 for td7"
    assert note in (workdir / "report" / "tables" / "diagnostics.md").read_text()
    assert note in (workdir / "report" / "index.html").read_text()


def test_failed_runs_are_marked(cli, workdir):
    run = open_run(make_run("a", flat(1.0), **SMALL))
    run.finish(run.members)
    assert cli("report", "a").code == 0
    (row,) = table(workdir / "report", "runs")
    assert row["status"] == "failed"


def test_a_run_without_evaluations_has_no_scores(cli, workdir, runs):
    for name in ("events.jsonl", "evaluations.csv", "versions.json"):
        (runs / "plain" / name).unlink()
    assert cli("report", runs).code == 0
    rows = table(workdir / "report", "lacks")
    assert any("seeds 0, 1 have no evaluation" in row["lacks"] for row in rows)


def test_a_run_given_twice_is_read_once(cli, workdir, made):
    assert cli("report", made, made / "plain", made / "." / "plain").code == 0
    assert len(table(workdir / "report", "runs")) == 2


def test_runs_of_the_same_name_are_shown_with_their_folders(cli, workdir):
    for folder, utd in (("one", 1), ("two", 2)):
        make_run(f"{folder}/same", flat(1.0), utd=utd, **SMALL)
    assert cli("report", "one", "two").code == 0
    names = {row["run"] for row in table(workdir / "report", "runs")}
    assert names == {"one/same", "two/same"}


def test_only_reports_are_replaced(cli, workdir, made):
    assert cli("report", made / "plain").code == 0
    before = (workdir / "report" / "index.html").read_text()
    assert cli("report", made).code == 0
    assert (workdir / "report" / "index.html").read_text() != before
    completed = cli("report", made, "--out", made)
    assert completed.code == 2
    assert "not empty and not a report" in completed.err
    assert cli("report", made / "plain", "--out", made / "plain").code == 2
    assert (made / "plain" / "config.toml").exists()


def test_an_interrupted_report_leaves_nothing(cli, workdir, made, monkeypatch):
    def interrupted(chart):
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "render_chart", interrupted)
    assert cli("report", made).code == 130
    assert list(workdir.iterdir()) == []


def test_the_same_runs_give_the_same_tables_and_page(cli, workdir, made):
    for name in ("a", "b"):
        assert cli("report", made, "--out", name).code == 0
    files = [p.relative_to(workdir / "a") for p in sorted((workdir / "a").rglob("*.*"))]
    assert len(files) > 20
    for file in files:
        assert (workdir / "a" / file).read_bytes() == (workdir / "b" / file).read_bytes()


def test_names_from_a_file_are_escaped(cli, workdir):
    name = "<script>alert(1)</script>|_&%"
    rows = f'"{name}","{name}",0,return,10,1.5\n'
    (workdir / "bad.csv").write_text(HEADER + rows)
    assert cli("report", "bad.csv").code == 0
    text = (workdir / "report" / "index.html").read_text()
    assert "<script>alert" not in text
    assert "<script>" not in (workdir / "report" / "tables" / "runs.md").read_text()
    assert table(workdir / "report", "raw_utd_unknown")[0]["task"] == name


def spoil(run, name, text):
    (run / name).write_text(text)


DAMAGES = {
    "events": ("events.jsonl", "{\n"),
    "table": ("evaluations.csv", HEADER + "a,b,c\n"),
    "header": ("evaluations.csv", "a,b\n"),
    "too large": ("evaluations.csv", HEADER + "x,Hopper-v5,0,return,10,1e308\n"),
    "members": ("evaluations.csv", HEADER + "x,Ant-v5,0,return,10,1.0\n"),
    "twice": ("evaluations.csv", HEADER + "".join(f"x,Hopper-v5,0,return,10,{x}\n" for x in "12")),
    "versions": ("versions.json", "["),
    "config": ("config.toml", "utd = ["),
    "field": ("config.toml", "nonsense = 1"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_runs_are_marked(runs, what):
    name, text = DAMAGES[what]
    spoil(runs / "plain", name, text)
    study = load_study(find_sources([runs]))
    assert len(study.runs) == 2
    (damage,) = study.damage
    assert damage.startswith(f"{runs / 'plain' / name}: ")
    marked = [cell for cell in study.cells if "damaged files" in describe(cell.shortfalls)]
    assert {cell.method.agent for cell in marked} == {"td7"}


@pytest.mark.parametrize("content", [None, "{}"])
def test_an_unreadable_run_does_not_stop_the_report_of_a_folder(cli, rejected, runs, content):
    manifest = runs / "plain" / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_text(content)
    assert "manifest.json" in rejected("report", runs / "plain")
    code, out, err = cli("report", runs)
    assert (code, err) == (0, "")
    assert "  damaged: " in out
    assert str(runs / "plain") in out
    for name in ("index.html", "tables/runs.md"):
        assert "manifest.json" in Path("report", name).read_text()


FILES = ("events.jsonl", "evaluations.csv", "config.toml", "versions.json")


@pytest.mark.parametrize("name", FILES)
def test_mutated_files_give_a_report_or_one_sentence(cli, runs, name):
    file = runs / "plain" / name
    for content in mutate(file.read_bytes(), count=12, seed=3):
        file.write_bytes(content)
        completed = cli("report", runs)
        assert completed.code in (0, 2)
        assert completed.err.count("\n") == completed.code // 2


BAD = {
    "report": "expected runs, folders or CSV files, as in 'r2r2 report runs'",
    "report nowhere": "nowhere",
    "report empty": "empty: no runs in this folder or below it",
    "report text.csv": "text.csv",
    "report none.csv": "none.csv",
    "report a --out text.csv": "text.csv",
    "report a --out=": "--out: expected the name of a folder, got ''",
    "report a --to x": "--to: unknown option; did you mean '--out'?",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_arguments_are_rejected(rejected, workdir, line):
    (workdir / "empty").mkdir()
    (workdir / "text.csv").write_text("hello\n")
    (workdir / "none.csv").write_text(HEADER)
    make_run("a", flat(1.0), **SMALL)
    assert BAD[line] in rejected(*line.split())


def test_the_progress_bar_is_delayed(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("r2r2.cli.report.time.monotonic", lambda: now[0])
    with progress_bar(Console(force_terminal=True), 3) as bar:
        bar("first")
        assert capsys.readouterr().out == ""
        now[0] = 10.0
        bar("second")
        assert "second" in capsys.readouterr().out


def test_the_progress_bar_shows_names_literally(cli, workdir, monkeypatch):
    terminal = Console(force_terminal=True, width=100)
    monkeypatch.setattr("r2r2.cli.report.Console", lambda **_: terminal)
    monkeypatch.setattr("r2r2.cli.report.BAR_DELAY", -1.0)
    for folder, agent in (("a[", "td7"), ("c", "td7+r2r2")):
        make_run(workdir / folder / "b]\x1b[31m", flat(1.0), agent=agent, **SMALL)
    completed = cli("report", "a[", "c", "--out", "new\x1b[31m")
    assert (completed.code, completed.err) == (0, "")
    assert "a[/b]<0x1b>[31m" in completed.out
    assert "in 'new<0x1b>[31m'" in completed.out
    assert "b]\x1b[31m" not in completed.out
    assert "new\x1b[31m" not in completed.out


def cut_events(run, most):
    """Drop the events of a run after an environment step."""
    path = run / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if json.loads(x)["env_step"] <= most))


def test_a_truncated_log_is_reported(cli, workdir):
    cut_events(make_run("cut", flat(1.0), **SMALL), 600)
    assert cli("report", "cut").code == 0
    ends = "a log that ends at environment step 600 of 1,000"
    (run,) = table(workdir / "report", "runs")
    assert run["remarks"] == f"Hopper-v5_s0 has {ends}; Hopper-v5_s1 has {ends}"
    (cell,) = table(workdir / "report", "lacks")
    assert ends in cell["lacks"]
    assert ends in (workdir / "report" / "index.html").read_text()


def test_a_missing_log_is_reported(cli, workdir):
    (make_run("cut", flat(1.0), **SMALL) / "events.jsonl").unlink()
    assert cli("report", "cut").code == 0
    (run,) = table(workdir / "report", "runs")
    assert "a log that ends at environment step 0 of 1,000" in run["remarks"]


def test_complete_or_growing_logs_are_not_reported(cli, workdir):
    make_run("runs/whole", flat(1.0), **SMALL)
    make_run("runs/stopped", flat(1.0), stopped=1, utd=5, **SMALL)
    making = make_run("runs/making", flat(1.0), finished=False, utd=2, **SMALL)
    cut_events(making, 600)
    assert cli("report", "runs").code == 0
    assert not any("log" in run["remarks"] for run in table(workdir / "report", "runs"))
    assert not any("log" in cell["lacks"] for cell in table(workdir / "report", "lacks"))


@pytest.mark.parametrize(
    ("rows", "overrides"), [(100_000, []), (1_000_000, ["replay_size=1000000 (default 100000)"])]
)
def test_replay_of_minimalist_phi_is_judged_by_its_release(rows, overrides):
    values = {"agent": "minphi+r2r2", "env": "Humanoid-v5,Ant-v5", "replay_size": rows}
    config = finalize_config(resolve(values))
    method = run_results(config, usual_config(config), []).method
    assert [str(override) for override in method.overrides] == overrides


def test_action_repeats_are_the_runs_own_or_those_of_the_suites(workdir):
    fields = SMALL | {"warmup": 100, "env": "cartpole-swingup"}
    make_run("usual", **fields)
    make_run("custom", action_repeat=4, **fields)
    tasks = ("cartpole-swingup", "Hopper-v5", "unknown")
    make_csv("other.csv", {("td7_utd1", task, 0): [1.0] for task in tasks})
    sources = find_sources([Path("usual"), Path("custom"), Path("other.csv")])
    study = load_study(sources)
    assert [run.repeats for run in study.runs] == [
        {"cartpole-swingup": 2},
        {"cartpole-swingup": 4},
        {"cartpole-swingup": 2, "Hopper-v5": 1},
    ]
