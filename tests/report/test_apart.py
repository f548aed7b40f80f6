"""Runs of one method that contradict each other are compared, not mixed."""

import math

import pytest

from r2r2.config.errors import UserError
from r2r2.report.comparison_tables import pairs_of
from r2r2.report.labels import nameless
from r2r2.report.study import RunData, study_of
from r2r2.stats.scores import Method, Results
from r2r2.storage.evaluations import Row

TD7 = Method("td7", 1, ("steps is 9, not 10",))
OURS = TD7._replace(agent="td7+r2r2")


def run(name, value, method=TD7, seed=0, step=1000, tasks=("Hopper-v5",)):
    rows = [Row("x", task, seed, "return", step, value) for task in tasks]
    return RunData(name, name, "finished", Results(method, rows))


def labels(study):
    return [study.label(method, utd=False) for method in study.methods]


def test_runs_that_disagree_on_a_seed_are_methods_in_the_order_they_were_named():
    study = study_of([run("z", 1.0), run("a, b", 3.0), run("a, c", 4.0, seed=7)])
    assert labels(study) == ["td7, run z", "td7, run a, b", "td7, run a, c"]
    assert [cell.scores.tolist() for cell in study.cells] == [[1.0], [3.0], [4.0]]
    assert [one.results.method for one in study.runs] == list(study.methods)
    assert "run z, since another run" in "; ".join(study.cells[0].shortfalls)


def test_a_runs_cells_stay_beside_each_other():
    tasks = ("Hopper-v5", "Ant-v5")
    study = study_of([run("z", 1.0, tasks=tasks), run("a", 3.0, tasks=tasks)])
    assert [cell.scores.tolist() for cell in study.cells] == [[1], [1], [3], [3]]


@pytest.mark.parametrize(
    "other",
    [run("b", 1.0), run("b", 2.0, seed=1), run("b", 2.0, step=2000)],
    ids=["copy", "other seed", "later step"],
)
def test_runs_that_agree_where_they_meet_come_together(other):
    assert labels(study_of([run("a", 1.0), other])) == ["td7"]


def test_what_is_not_finite_agrees_only_with_the_same():
    nan = run("a", math.nan)
    assert len(study_of([nan, run("b", math.nan)]).methods) == 1
    assert len(study_of([nan, run("b", math.inf)]).methods) == 2


def test_other_methods_stay_as_they_are():
    study = study_of([run("a", 1.0), run("b", 2.0), run("c", 5.0, OURS)])
    assert labels(study) == ["td7, run a", "td7, run b", "td7+r2r2"]


def test_all_are_relative_to_the_base_that_was_named_first():
    runs = [run("z", 2.0), run("a", 4.0), run("c", 6.0, OURS), run("d", 8.0, OURS)]
    study = study_of(runs)
    assert [one.scores.tolist() for one in study.normalised] == [[1], [2], [3], [4]]
    assert "its base: run z, since" in "; ".join(study.normalised[3].shortfalls)


def test_of_many_methods_runs_kept_apart_are_pairs_too():
    other = TD7._replace(utd=20)
    runs = [run("z", 2.0), run("a", 4.0), run("c", 6.0, OURS), run("e", 1.0, other)]
    study = study_of(runs)
    first, second, far, ours = study.methods
    assert nameless(first) == nameless(second) == TD7
    assert (far, ours) == (other, OURS)
    assert pairs_of(study) == [(ours, first), (ours, second), (second, first)]


def test_a_run_that_contradicts_itself_is_refused():
    one = run("a", 1.0)
    rows = [*one.results.rows, *run("a", 2.0).results.rows]
    with pytest.raises(UserError, match="two returns at env_step 1000"):
        study_of([one._replace(results=one.results._replace(rows=rows)), run("b", 5.0)])
