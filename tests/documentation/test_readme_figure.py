"""docs/example/readme_figure.py, on runs with chosen numbers."""

import csv
import importlib.util

import numpy as np
import pytest
from doc_pages import ROOT

from r2r2 import collect
from r2r2.report.charts import COLORS
from synthetic_runs import flat, make_run, rising


def load_script():
    path = ROOT / "docs" / "example" / "readme_figure.py"
    spec = importlib.util.spec_from_file_location("readme_figure", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A base and R2R2 on two tasks at two UTDs, where R2R2 has no run on dog-run at UTD 20."""
    folder = tmp_path_factory.mktemp("figure")
    for utd, env in ((1, "Hopper-v5"), (20, "Hopper-v5"), (1, "dog-run"), (20, "dog-run")):
        for agent, level in (("td7", 10.0), ("td7+r2r2", 50.0)):
            if (agent, utd, env) != ("td7+r2r2", 20, "dog-run"):
                fields = {"agent": agent, "utd": utd, "env": env, "seeds": 3}
                make_run(folder / "runs" / f"{agent}-{env}-{utd}", flat(level), **fields)
    make_run(folder / "runs" / "ablation", rising(1.0), lambda_rr=0, seeds=3)
    collect([folder / "runs"], folder / "results")
    return folder / "results"


def test_figure_has_both_agents_with_intervals(results, tmp_path, capsys):
    assert SCRIPT.main([str(results), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "".join(
        f"{panel}: td7 (3 seeds), td7+r2r2 (3 seeds)\n"
        for panel in ("Hopper-v5, UTD 1", "Hopper-v5, UTD 20", "dog-run, UTD 1")
    )
    assert {x.name for x in tmp_path.iterdir()} == {
        f"learning_curves.{x}" for x in ("svg", "png", "csv")
    }
    svg = (tmp_path / "learning_curves.svg").read_text()
    assert COLORS[0] in svg  # TD7
    assert COLORS[1] in svg  # TD7+R2R2
    rows = list(csv.DictReader((tmp_path / "learning_curves.csv").read_text().splitlines()))
    ends = [x for x in rows if (x["panel"], x["line"]) == ("Hopper-v5, UTD 1", "td7+r2r2")]
    assert [float(x["return"]) for x in ends] == [51.0] * 5  # the mean of 50, 51 and 52
    assert float(ends[0]["low"]) == 50
    assert float(ends[0]["high"]) == 52
    assert float(ends[-1]["environment steps"]) == 500_000


def test_tasks_and_utd_are_selected(results, tmp_path, capsys):
    options = ["--utd", "20", "--tasks", "Hopper-v5", "--out", str(tmp_path)]
    assert SCRIPT.main([str(results), *options]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_results_without_a_pair_are_an_error(results, tmp_path, capsys):
    options = ["--agent", "minphi", "--out", str(tmp_path / "none")]
    assert SCRIPT.main([str(results), *options]) == 2
    assert "expected evaluations of minphi and minphi+r2r2 on" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_curve_ends_where_a_seed_ends(results):
    loaded = SCRIPT.load_results(results)
    name = SCRIPT.find_experiment(loaded, "td7", 1, "Hopper-v5")
    curve = loaded.curve(name, "Hopper-v5")
    returns = curve.returns.copy()
    returns[1, 3:] = np.nan
    line = SCRIPT.curve_line("td7", curve._replace(returns=returns))
    assert len(line.x) == 3
    assert np.isfinite(line.y).all()
