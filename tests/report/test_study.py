"""What follows from runs: the order of things, their names, curves and suites."""

import numpy as np
import pytest
from given import Method, run, study

from r2r2.config.errors import UserError
from r2r2.report.study import study_of
from r2r2.stats import paper
from r2r2.stats.suites import SAMPLES, suites_of

TD7, OURS = Method("td7", 20), Method("td7+r2r2", 20)
SMALL = "steps is 9, not 500000"


def test_methods_are_in_the_papers_order_then_by_utd_whatever_the_order_of_runs():
    methods = [
        Method("mine", 1),
        Method("simbav2", 1),
        Method("td7+r2r2", 1),
        OURS,
        OURS._replace(departures=("warmup is 5, not 25000",)),
        TD7,
        TD7._replace(utd=1),
    ]
    found = study(*(run(method, {"Ant-v5": [1.0]}) for method in methods))
    assert found.methods == (
        TD7._replace(utd=1),
        TD7,
        Method("td7+r2r2", 1),
        OURS,
        OURS._replace(departures=("warmup is 5, not 25000",)),
        Method("simbav2", 1),
        Method("mine", 1),
    )


def test_tasks_are_in_the_papers_order_then_as_they_come():
    scores = {name: [1.0] for name in ("zebra", "dog-run", "Hopper-v5", "ape")}
    found = study(run(TD7, scores))
    assert found.tasks == ("Hopper-v5", "dog-run", "zebra", "ape")
    assert [cell.task for cell in found.cells] == list(found.tasks)
    assert [curve.task for curve in found.curves] == list(found.tasks)
    assert [one.cell for one in found.normalised] == list(found.cells)


def test_a_label_has_what_sets_a_method_apart():
    rare = "warmup is 5, not 25000"
    plain, odd = (
        OURS._replace(departures=(SMALL,)),
        TD7._replace(departures=(SMALL, rare)),
    )
    file = Method("td7", 1, ("from a.csv, whose settings are not known",))
    found = study(
        run(plain, {"Ant-v5": [1.0]}),
        run(odd, {"Ant-v5": [1.0]}),
        run(file, {"Ant-v5": [1.0]}, status="file"),
    )
    assert found.shared == (SMALL,)
    assert found.label(plain) == "td7+r2r2, UTD 20"
    assert found.label(odd) == "td7, UTD 20, warmup is 5"
    assert found.label(odd, utd=False) == "td7, warmup is 5"
    assert found.label(file) == "td7, UTD 1, from a.csv"


@pytest.mark.parametrize(
    "ways",
    [
        (
            "from a, b.csv, whose settings are not known",
            "from a, c.csv, whose settings are not known",
        ),
        ("warmup is 5, not 25000", "warmup is 5, not 100"),
        ("hidden is (1, 2), not (3, 4)", "hidden is (1, 5), not (3, 4)"),
    ],
)
def test_no_two_methods_have_the_same_label(ways):
    methods = [Method("td7", 1, (way,)) for way in ways]
    found = study(*(run(method, {"Ant-v5": [1.0]}) for method in methods))
    labels = [found.label(method) for method in methods]
    assert len(set(labels)) == 2
    assert all(text.startswith("td7, UTD 1, ") for text in labels)


def test_curves_bring_seeds_of_several_runs_together():
    one = run(TD7, {"Ant-v5": [1.0, 2.0]}, points=3)
    other = run(TD7, {"Ant-v5": [1.0, 2.0, 7.0]}, points=3)
    (curve,) = study(one, other).curves
    assert list(curve.seeds) == [0, 1, 2]
    np.testing.assert_array_equal(curve.seeds[2].steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(curve.seeds[2].values, [7.0, 7.0, 7.0])


def test_nothing_is_refused():
    with pytest.raises(UserError, match="hold no evaluation and no member"):
        study_of([])


@pytest.mark.parametrize(
    ("tasks", "shown"),
    [
        (["Pendulum-v1"], ["this report"]),
        (paper.tasks("gym-mujoco"), ["gym-mujoco"]),
        (paper.tasks("dmc-hard")[:2], ["dmc-hard", "this report"]),
        (paper.tasks(), ["gym-mujoco", "dmc-hard", "all11"]),
        ((*paper.tasks(), "mine"), ["gym-mujoco", "dmc-hard", "all11", "this report"]),
    ],
)
def test_suites_are_shown_that_have_one_of_the_tasks(tasks, shown):
    assert list(suites_of(tasks)) == shown


def test_a_suite_is_whole_or_has_no_statistic():
    base = TD7._replace(utd=1)
    tasks = paper.tasks("gym-mujoco")
    found = study(run(base, {task: [1.0, 3.0] for task in tasks}))
    (whole,) = found.suites
    assert whole.estimates["mean"].value == pytest.approx(1.0)
    # Of four tasks with two seeds each, half a deviation of 0.5 / sqrt(8) either way.
    low, high = whole.estimates["mean"].stratified
    assert 0.6 < low < 0.8 < 1.2 < high < 1.4
    assert whole.estimates["median"].pooled is None
    part = study(run(base, {task: [1.0, 3.0] for task in tasks[:3]})).suites[0]
    assert part.estimates == {}
    assert f"{tasks[3]} is missing" in part.shortfalls
    assert sorted(part.scores) == sorted(tasks[:3])


def test_a_suite_of_single_seeds_has_numbers_and_no_intervals():
    (whole,) = study(run(TD7._replace(utd=1), {"Pendulum-v1": [2.0]})).suites
    assert whole.estimates["iqm"] == (1.0, None, None)
    assert SAMPLES == 10_000
