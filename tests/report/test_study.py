"""Studies: the order and labels of methods, curves, suites, and disagreeing runs."""

import math

import numpy as np
import pytest
from study_helpers import Method, Override, run, study

from r2r2.config.errors import UserError
from r2r2.report.comparison_tables import method_pairs
from r2r2.report.score_tables import ablation_table
from r2r2.report.study import RunData, describe, make_study
from r2r2.stats import paper
from r2r2.stats.scores import Results
from r2r2.stats.suites import SAMPLES, suites_for
from r2r2.storage.evaluations import Row

TD7, OURS = Method("td7", 20), Method("td7+r2r2", 20)
SMALL = Override("steps", "9", "500000")
SHORT_WARMUP = Override("warmup", "5", "25000")
TD7_SMALL = Method("td7", 1, (SMALL,))
OURS_SMALL = TD7_SMALL._replace(agent="td7+r2r2")


def test_methods_are_sorted_by_agent_as_in_the_paper_then_utd():
    methods = [
        Method("mine", 1),
        Method("simbav2", 1),
        Method("td7+r2r2", 1),
        OURS,
        OURS._replace(overrides=(SHORT_WARMUP,)),
        TD7,
        TD7._replace(utd=1),
    ]
    result = study(*(run(method, {"Ant-v5": [1.0]}) for method in methods))
    assert result.methods == (
        TD7._replace(utd=1),
        TD7,
        Method("td7+r2r2", 1),
        OURS,
        OURS._replace(overrides=(SHORT_WARMUP,)),
        Method("simbav2", 1),
        Method("mine", 1),
    )


def test_tasks_are_sorted_as_in_the_paper_then_by_appearance():
    scores = {name: [1.0] for name in ("zebra", "dog-run", "Hopper-v5", "ape")}
    result = study(run(TD7, scores))
    assert result.tasks == ("Hopper-v5", "dog-run", "zebra", "ape")
    assert [cell.task for cell in result.cells] == list(result.tasks)
    assert [curve.task for curve in result.curves] == list(result.tasks)
    assert [one.cell for one in result.normalized] == list(result.cells)


def test_label_names_what_distinguishes_a_method():
    plain = OURS._replace(overrides=(SMALL,))
    changed = TD7._replace(overrides=(SMALL, SHORT_WARMUP))
    file = Method("td7", 1, file="a.csv")
    result = study(
        run(plain, {"Ant-v5": [1.0]}),
        run(changed, {"Ant-v5": [1.0]}),
        run(file, {"Ant-v5": [1.0]}, status="file"),
    )
    assert result.shared_overrides == (SMALL,)
    assert result.label(plain) == "td7+r2r2, UTD 20"
    assert result.label(changed) == "td7, UTD 20, warmup=5"
    assert result.label(changed, utd=False) == "td7, warmup=5"
    assert result.label(file) == "td7, UTD 1, from a.csv"


@pytest.mark.parametrize(
    "pair",
    [
        ({"file": "a, b.csv"}, {"file": "a, c.csv"}),
        ({"overrides": (SHORT_WARMUP,)}, {"overrides": (SHORT_WARMUP._replace(default="100"),)}),
    ],
)
def test_labels_are_unique(pair):
    methods = [Method("td7", 1, **fields) for fields in pair]
    result = study(*(run(method, {"Ant-v5": [1.0]}) for method in methods))
    labels = [result.label(method) for method in methods]
    assert len(set(labels)) == 2
    assert all(text.startswith("td7, UTD 1, ") for text in labels)


def test_runs_of_different_precision_are_different_methods():
    methods = [Method("td7", 1, precision=name) for name in ("mixed", "tf32")]
    runs = [run(m, {"Ant-v5": [x]}) for m, x in zip(methods, (2.0, 3.0), strict=True)]
    both = study(*runs)
    assert [both.label(m) for m in both.methods] == [
        "td7, UTD 1, precision=mixed",
        "td7, UTD 1, precision=tf32",
    ]
    # Each is normalized by its own base, and neither is a deviation from the paper.
    assert [one.scores.tolist() for one in both.normalized] == [[1.0], [1.0]]
    assert "precision" not in describe(both.cells[1].shortfalls)
    settings = [row[2].text for row in ablation_table(both).rows]
    assert settings == ["precision=mixed", "precision=tf32"]
    assert study(runs[1]).label(methods[1]) == "td7, UTD 1"


def test_curves_combine_seeds_of_several_runs():
    one = run(TD7, {"Ant-v5": [1.0, 2.0]}, points=3)
    other = run(TD7, {"Ant-v5": [1.0, 2.0, 7.0]}, points=3)
    (curve,) = study(one, other).curves
    assert list(curve.seeds) == [0, 1, 2]
    np.testing.assert_array_equal(curve.seeds[2].steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(curve.seeds[2].values, [7.0, 7.0, 7.0])


def test_empty_study_is_rejected():
    with pytest.raises(UserError, match="expected at least one evaluation or member"):
        make_study([])


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        (["Pendulum-v1"], ["this report"]),
        (paper.tasks("gym-mujoco"), ["gym-mujoco"]),
        (paper.tasks("dmc-hard")[:2], ["dmc-hard", "this report"]),
        (paper.tasks(), ["gym-mujoco", "dmc-hard", "all11"]),
        ((*paper.tasks(), "mine"), ["gym-mujoco", "dmc-hard", "all11", "this report"]),
    ],
)
def test_suites_are_those_with_one_of_the_tasks(tasks, expected):
    assert list(suites_for(tasks)) == expected


def test_suite_has_statistics_only_with_all_tasks():
    base = TD7._replace(utd=1)
    tasks = paper.tasks("gym-mujoco")
    (complete,) = study(run(base, {task: [1.0, 3.0] for task in tasks})).suites
    assert complete.estimates["mean"].value == pytest.approx(1.0)
    # Of four tasks with two seeds each: half a deviation of 0.5 / sqrt(8) either way.
    low, high = complete.estimates["mean"].stratified
    assert 0.6 < low < 0.8 < 1.2 < high < 1.4
    assert complete.estimates["median"].pooled is None
    part = study(run(base, {task: [1.0, 3.0] for task in tasks[:3]})).suites[0]
    assert part.estimates == {}
    assert part.missing_tasks == (tasks[3],)
    assert sorted(part.scores) == sorted(tasks[:3])


def test_suite_of_single_seeds_has_no_intervals():
    (suite,) = study(run(TD7._replace(utd=1), {"Pendulum-v1": [2.0]})).suites
    assert suite.estimates["iqm"] == (1.0, None, None)
    assert SAMPLES == 10_000


def named_run(name, value, method=TD7_SMALL, seed=0, step=1000, tasks=("Hopper-v5",)):
    rows = [Row("x", task, seed, "return", step, value) for task in tasks]
    return RunData(name, name, "finished", Results(method, rows))


def labels(study):
    return [study.label(method, utd=False) for method in study.methods]


def test_runs_that_disagree_are_separate_methods_in_the_given_order():
    runs = [named_run("z", 1.0), named_run("a, b", 3.0), named_run("a, c", 4.0, seed=7)]
    result = make_study(runs)
    assert labels(result) == ["td7, run z", "td7, run a, b", "td7, run a, c"]
    assert [cell.scores.tolist() for cell in result.cells] == [[1.0], [3.0], [4.0]]
    assert [one.results.method for one in result.runs] == list(result.methods)
    assert "run z (another run with" in describe(result.cells[0].shortfalls)


def test_cells_of_a_separate_run_stay_together():
    tasks = ("Hopper-v5", "Ant-v5")
    runs = [named_run("z", 1.0, tasks=tasks), named_run("a", 3.0, tasks=tasks)]
    scores = [cell.scores.tolist() for cell in make_study(runs).cells]
    assert scores == [[1], [1], [3], [3]]


@pytest.mark.parametrize(
    "other",
    [named_run("b", 1.0), named_run("b", 2.0, seed=1), named_run("b", 2.0, step=2000)],
    ids=["copy", "other seed", "later step"],
)
def test_runs_that_agree_are_combined(other):
    assert labels(make_study([named_run("a", 1.0), other])) == ["td7"]


def test_nan_agrees_only_with_nan():
    nan = named_run("a", math.nan)
    assert len(make_study([nan, named_run("b", math.nan)]).methods) == 1
    assert len(make_study([nan, named_run("b", math.inf)]).methods) == 2


def test_disagreement_does_not_affect_other_methods():
    runs = [named_run("a", 1.0), named_run("b", 2.0), named_run("c", 5.0, OURS_SMALL)]
    assert labels(make_study(runs)) == ["td7, run a", "td7, run b", "td7+r2r2"]


def test_disagreeing_runs_share_the_first_base():
    base = [named_run("z", 2.0), named_run("a", 4.0)]
    ours = [named_run("c", 6.0, OURS_SMALL), named_run("d", 8.0, OURS_SMALL)]
    result = make_study(base + ours)
    assert [one.scores.tolist() for one in result.normalized] == [[1], [2], [3], [4]]
    text = describe(result.normalized[3].shortfalls)
    assert "its base: steps=9 (default 500000), run z" in text


def test_disagreeing_runs_are_compared_as_a_pair():
    other = TD7_SMALL._replace(utd=20)
    runs = [named_run("z", 2.0), named_run("a", 4.0)]
    runs += [named_run("c", 6.0, OURS_SMALL), named_run("e", 1.0, other)]
    result = make_study(runs)
    first, second, far, ours = result.methods
    assert first._replace(run="") == second._replace(run="") == TD7_SMALL
    assert (far, ours) == (other, OURS_SMALL)
    assert method_pairs(result) == [(ours, first), (ours, second), (second, first)]


def test_run_that_contradicts_itself_is_rejected():
    one = named_run("a", 1.0)
    rows = [*one.results.rows, *named_run("a", 2.0).results.rows]
    runs = [one._replace(results=one.results._replace(rows=rows)), named_run("b", 5.0)]
    with pytest.raises(UserError, match="expected one return at env_step 1000"):
        make_study(runs)
