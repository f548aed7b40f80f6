"""`r2r2 report`: from folders and files to tables, figures and a page."""

import csv
import json
import shutil

import pytest
from forgery import mutations
from rich.console import Console

from made import flat, make_csv, make_run
from r2r2.cli.report import ReportBar
from r2r2.report import figures

SMALL = {"steps": 1000, "eval_every": 200}
HEADER = "exp_name,env_name,seed,metric,env_step,value\n"


@pytest.fixture
def drawn():
    """Figures are drawn as for users, which takes seconds."""


@pytest.fixture(autouse=True)
def sketched(request, monkeypatch):
    """Figures are empty files, but for tests that ask for `drawn`."""
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


def test_a_report_is_a_page_figures_and_tables(r2r2, here, made, drawn):
    said = r2r2("report", made)
    assert said.code == 0
    assert said.err == ""
    last = said.out.splitlines()[-1]
    assert last.endswith("figures are in 'report'; open report/index.html")
    assert last.startswith("2 runs: ")
    found = {path.name for path in (here / "report").iterdir()}
    assert found == {"index.html", "figures", "tables", "report.json"}
    endings = {path.suffix for path in (here / "report" / "figures").iterdir()}
    assert {".svg", ".png", ".pdf"} <= endings
    pictures = (here / "report" / "figures").glob("*.png")
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    endings = {path.suffix for path in (here / "report" / "tables").iterdir()}
    assert endings == {".csv", ".md", ".tex"}
    facts = json.loads((here / "report" / "report.json").read_text())
    assert facts["runs"] == [str(made / "deep" / "ours"), str(made / "plain")]
    assert (facts["resamples"], facts["generator_seed"]) == (10_000, 0)


def test_a_run_that_was_really_trained_can_be_reported(r2r2, here, trained):
    assert r2r2("report", trained).code == 0
    (run,) = table(here / "report", "runs")
    assert (run["status"], run["seeds"], run["environment steps"]) == (
        "finished",
        "0, 3",
        "450",
    )
    (timing,) = table(here / "report", "timing")
    assert float(timing["updates: value"]) > 0


def test_two_runs_are_compared(r2r2, here, made):
    assert r2r2("report", made / "plain", made / "deep/ours", "--out", "o").code == 0
    hopper, overall = table(here / "o", "pairs")
    # 20 and 21 against 10 and 11.
    assert float(hopper["difference: value"]) == 10.0
    assert float(hopper["probability of improvement: value"]) == 1.0
    # Relative to a base of 10.5: 20.5 / 10.5 - 1.
    assert float(overall["difference: value"]) == pytest.approx(10 / 10.5)
    raw = {row["task"]: row for row in table(here / "o", "raw_utd1")}["Hopper-v5"]
    assert float(raw["td7: mean"]) == 10.5
    assert float(raw["td7+r2r2: std"]) == pytest.approx(0.5**0.5)


def test_a_scaled_down_run_is_beside_the_paper_only_as_such(r2r2, here, made):
    assert r2r2("report", made).code == 0
    for row in table(here / "report", "beside_paper"):
        assert row["intervals overlap"] == "not a reproduction"
        assert "steps=1000 (default 500000)" in row["lacks"]
        assert "2 of 5 seeds" in row["lacks"]
    assert all("steps" in row["lacks"] for row in table(here / "report", "lacks"))


def test_a_file_of_results_is_compared_too(r2r2, here, made):
    returns = {("td7_utd1", "Hopper-v5", seed): [5.0, 5.0] for seed in range(2)}
    make_csv(here / "other.csv", returns)
    said = r2r2("report", made / "plain", "other.csv")
    assert said.code == 0
    assert said.out.splitlines()[-1].startswith("1 run and 1 file: ")
    first, _ = table(here / "report", "pairs")
    assert first["second"] == "td7, UTD 1, from other.csv"
    assert float(first["difference: value"]) == 5.5
    status = {row["run"]: row["status"] for row in table(here / "report", "runs")}
    assert status == {"plain": "finished", "other.csv: td7_utd1": "file"}


def test_seeds_of_two_runs_of_one_method_come_together(r2r2, here):
    make_run("a", flat(1.0), seeds="0,1", **SMALL)
    make_run("b", flat(1.0), seeds=[4], **SMALL)
    assert r2r2("report", "a", "b").code == 0
    (row,) = table(here / "report", "raw_utd1")
    # 1, 2 and 5.
    assert float(row["td7+r2r2: mean"]) == pytest.approx(8 / 3)
    assert row["td7+r2r2: seeds"] == "3"


def test_two_runs_of_the_same_settings_and_seeds_are_compared(r2r2, here):
    for name, level in (("before", 10.0), ("after", 20.0)):
        make_run(name, flat(level), agent="td7", **SMALL)
    assert r2r2("report", "before", "after").code == 0
    hopper, overall = table(here / "report", "pairs")
    assert (hopper["first"], hopper["second"]) == (
        "td7, UTD 1, run after",
        "td7, UTD 1, run before",
    )
    assert float(hopper["difference: value"]) == 10.0
    # Both relative to the run that was named first: 20.5 / 10.5 - 1.
    assert float(overall["difference: value"]) == pytest.approx(10 / 10.5)
    rows = {row["method"]: row for row in table(here / "report", "runs")}
    assert rows["td7, run after"]["run"] == "after"
    assert all(
        "(another run with the same settings has different returns)" in row["lacks"]
        for row in table(here / "report", "lacks")
    )


def test_an_unfinished_run_and_a_stopped_member_are_shown_as_such(r2r2, here):
    make_run("a", flat(1.0), finished=False, stopped=1, **SMALL)
    assert r2r2("report", "a").code == 0
    (run,) = table(here / "report", "runs")
    assert run["status"] == "unfinished"
    assert "Hopper-v5_s1 stopped at environment step 400" in run["remarks"]
    (row,) = table(here / "report", "lacks")
    assert "seed 1 has 400 environment steps instead of 500,000" in row["lacks"]


def test_a_run_that_has_just_begun_is_there_without_scores(r2r2, here, runs):
    for name in ("events.jsonl", "evaluations.csv", "versions.json"):
        (runs / "plain" / name).unlink()
    assert r2r2("report", runs).code == 0
    rows = table(here / "report", "lacks")
    assert any("seeds 0, 1 have no evaluation" in row["lacks"] for row in rows)


def test_a_run_named_twice_is_one(r2r2, here, made):
    assert r2r2("report", made, made / "plain", made / "." / "plain").code == 0
    assert len(table(here / "report", "runs")) == 2


def test_runs_of_the_same_name_are_told_apart_by_their_folders(r2r2, here):
    for folder, utd in (("one", 1), ("two", 2)):
        make_run(f"{folder}/same", flat(1.0), utd=utd, **SMALL)
    assert r2r2("report", "one", "two").code == 0
    names = {row["run"] for row in table(here / "report", "runs")}
    assert names == {"one/same", "two/same"}


def test_a_report_is_replaced_and_anything_else_is_left_alone(r2r2, here, made):
    assert r2r2("report", made / "plain").code == 0
    before = (here / "report" / "index.html").read_text()
    assert r2r2("report", made).code == 0
    assert (here / "report" / "index.html").read_text() != before
    said = r2r2("report", made, "--out", made)
    assert said.code == 2
    assert "not empty and not a report" in said.err
    assert r2r2("report", made / "plain", "--out", made / "plain").code == 2
    assert (made / "plain" / "config.toml").exists()


def test_a_report_that_fails_leaves_nothing(r2r2, here, made, monkeypatch):
    def interrupted(chart):
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "render_chart", interrupted)
    assert r2r2("report", made).code == 130
    assert list(here.iterdir()) == []


def test_the_same_runs_give_the_same_tables_and_page(r2r2, here, made):
    for name in ("a", "b"):
        assert r2r2("report", made, "--out", name).code == 0
    files = [p.relative_to(here / "a") for p in sorted((here / "a").rglob("*.*"))]
    assert len(files) > 20
    for file in files:
        assert (here / "a" / file).read_bytes() == (here / "b" / file).read_bytes()


def test_names_from_a_file_stay_text_everywhere(r2r2, here):
    name = "<script>alert(1)</script>|_&%"
    rows = f'"{name}","{name}",0,return,10,1.5\n'
    (here / "bad.csv").write_text(HEADER + rows)
    assert r2r2("report", "bad.csv").code == 0
    text = (here / "report" / "index.html").read_text()
    assert "<script>alert" not in text
    assert "<script>" not in (here / "report" / "tables" / "runs.md").read_text()
    assert table(here / "report", "raw_utd_unknown")[0]["task"] == name


def spoil(run, name, text):
    (run / name).write_text(text)


DAMAGES = {
    "events": lambda run: spoil(run, "events.jsonl", "{\n"),
    "table": lambda run: spoil(run, "evaluations.csv", HEADER + "a,b,c\n"),
    "header": lambda run: spoil(run, "evaluations.csv", "a,b\n"),
    "too large": lambda run: spoil(
        run, "evaluations.csv", HEADER + "x,Hopper-v5,0,return,10,1e308\n"
    ),
    "versions": lambda run: spoil(run, "versions.json", "["),
    "config": lambda run: spoil(run, "config.toml", "utd = ["),
    "field": lambda run: spoil(run, "config.toml", "nonsense = 1"),
    "manifest": lambda run: spoil(run, "manifest.json", "{}"),
    "members": lambda run: spoil(
        run, "evaluations.csv", HEADER + "x,Ant-v5,0,return,10,1.0\n"
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_run_is_one_sentence_and_code_2(r2r2, here, runs, what):
    DAMAGES[what](runs / "plain")
    said = r2r2("report", runs / "plain")
    assert said.code == 2
    assert said.err.startswith("r2r2: ")
    assert said.err.count("\n") == 1
    assert "plain" in said.err
    assert not (here / "report").exists()


FILES = ("events.jsonl", "evaluations.csv", "config.toml", "versions.json")


@pytest.mark.parametrize("name", FILES)
def test_whatever_a_file_holds_there_is_a_report_or_a_sentence(r2r2, runs, name):
    file = runs / "plain" / name
    for content in mutations(file.read_bytes(), count=12, seed=3):
        file.write_bytes(content)
        said = r2r2("report", runs)
        assert said.code in (0, 2)
        assert said.err.count("\n") == said.code // 2


BAD = {
    "report": "runs are missing; allowed are folders of runs",
    "report nowhere": "nowhere: does not exist",
    "report empty": "run is 'empty', which holds no run, nor does any folder in it",
    "report text.csv": "text.csv: line 1 is damaged: no column",
    "report none.csv": "none.csv: has no returns",
    "report twice": "expected one return at env_step 200",
    "report a --out text.csv": "text.csv: not a folder",
    "report a --out=": "out: expected the name of a folder",
    "report a --to x": "to",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_sentence_and_code_2(r2r2, here, line):
    (here / "empty").mkdir()
    (here / "text.csv").write_text("hello\n")
    (here / "none.csv").write_text(HEADER)
    for name, level in (("a", 1.0), ("b", 2.0)):
        make_run(name, flat(level), **SMALL)
    table = make_run("twice", flat(1.0), seeds=1, **SMALL) / "evaluations.csv"
    table.write_text(table.read_text() + "x,Hopper-v5,0,return,200,7.0\n")
    said = r2r2(*line.split())
    assert said.code == 2
    assert BAD[line] in said.err
    assert said.err.count("\n") == 1
    assert not (here / "report").exists()


def test_help_says_what_may_be_named(r2r2):
    said = r2r2("report", "--help")
    assert said.code == 0
    for word in ("RUN", "FOLDER", "FILE.csv", "--out", "reproduction", HEADER.strip()):
        assert word in said.out
    assert "r2r2 report RUNS" in r2r2("--help").out


def test_the_bar_comes_only_after_a_while(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("r2r2.cli.report.time.monotonic", lambda: now[0])
    with ReportBar(Console(force_terminal=True), 3) as bar:
        bar("first")
        assert capsys.readouterr().out == ""
        now[0] = 10.0
        bar("second")
        assert "second" in capsys.readouterr().out


def test_the_bar_shows_names_of_folders_as_plain_text(r2r2, here, monkeypatch):
    terminal = Console(force_terminal=True, width=100)
    monkeypatch.setattr("r2r2.cli.report.Console", lambda: terminal)
    monkeypatch.setattr("r2r2.cli.report.PATIENCE", -1.0)
    for folder, agent in (("a[", "td7"), ("c", "td7+r2r2")):
        make_run(here / folder / "b]\x1b[31m", flat(1.0), agent=agent, **SMALL)
    said = r2r2("report", "a[", "c", "--out", "new\x1b[31m")
    assert (said.code, said.err) == (0, "")
    assert "a[/b]<0x1b>[31m" in said.out
    assert "in 'new<0x1b>[31m'" in said.out
    assert "b]\x1b[31m" not in said.out
    assert "new\x1b[31m" not in said.out


def cut_events(run, most):
    """Drops the events of a run beyond an environment step."""
    path = run / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if json.loads(x)["env_step"] <= most))


def test_a_finished_run_whose_log_was_cut_is_said_to_lack_its_end(r2r2, here):
    cut_events(make_run("cut", flat(1.0), **SMALL), 600)
    assert r2r2("report", "cut").code == 0
    ends = "a log that ends at environment step 600 of 1,000"
    (run,) = table(here / "report", "runs")
    assert run["remarks"] == f"Hopper-v5_s0 has {ends}; Hopper-v5_s1 has {ends}"
    (cell,) = table(here / "report", "lacks")
    assert ends in cell["lacks"]
    assert ends in (here / "report" / "index.html").read_text()


def test_a_log_that_is_gone_is_missed_too(r2r2, here):
    (make_run("cut", flat(1.0), **SMALL) / "events.jsonl").unlink()
    assert r2r2("report", "cut").code == 0
    (run,) = table(here / "report", "runs")
    assert "a log that ends at environment step 0 of 1,000" in run["remarks"]


def test_logs_that_are_whole_or_still_written_or_stopped_lack_nothing(r2r2, here):
    make_run("runs/whole", flat(1.0), **SMALL)
    make_run("runs/stopped", flat(1.0), stopped=1, utd=5, **SMALL)
    making = make_run("runs/making", flat(1.0), finished=False, utd=2, **SMALL)
    cut_events(making, 600)
    assert r2r2("report", "runs").code == 0
    assert not any("log" in run["remarks"] for run in table(here / "report", "runs"))
    assert not any("log" in cell["lacks"] for cell in table(here / "report", "lacks"))


def test_the_log_of_a_run_that_was_really_trained_is_whole(r2r2, here, trained):
    assert r2r2("report", trained).code == 0
    (run,) = table(here / "report", "runs")
    assert run["remarks"] == "none"
