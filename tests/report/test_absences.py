"""Nothing leaves a chart without a word: neither what diverged nor what is missing."""

import numpy as np
import pytest
from given import Method, run, study, whole

from r2r2.report.all_charts import gallery_of
from r2r2.report.charts import values_of
from r2r2.report.curve_charts import aggregate_curves, profiles, task_curves
from r2r2.report.figures import drawn
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd
from r2r2.report.study import RunData, study_of
from r2r2.report.svg_charts import draw_panel, hover_of
from r2r2.stats import paper
from r2r2.stats.scores import Results
from r2r2.storage.evaluations import Row

NAN = float("nan")
TD7, BASE = Method("td7", 20), Method("td7", 1)
LESS = TD7._replace(departures=("warmup is 5, not 25000",))


def curves(*seeds, method=BASE):
    """The curves of a run whose seeds have these values at steps 1000, 2000, ..."""
    rows = [
        Row("x", "a", seed, "return", 1000 * number, value)
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values, start=1)
    ]
    made = RunData(str(method), "x", "finished", Results(method, rows))
    (chart,) = task_curves(study_of([made]))
    return chart


def test_a_mean_ends_where_a_seed_stops_being_finite():
    chart = curves([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, NAN, 6.0])
    (line,) = chart.panels[0].lines
    assert (line.x.tolist(), line.y.tolist()) == ([1000, 2000], [2, 3])
    assert [y.tolist() for _, y in line.each] == [[1, 2, 3, 4], [3, 4, 6]]
    assert chart.notes == (
        "Means end where a seed is not finite: td7, UTD 1 on a (seed 1 at step 3,000)",
    )


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
def test_a_seed_that_never_was_finite_leaves_no_mean_and_is_named(value):
    chart = curves([1.0, 2.0], [value, value])
    (line,) = chart.panels[0].lines
    assert len(line.x) == 0
    assert [len(y) for _, y in line.each] == [2, 0]
    assert "seed 1 at step 1,000" in chart.notes[0]
    assert len(draw_panel(chart, chart.panels[0])) > 0
    assert hover_of(chart, chart.panels[0])["lines"][0]["values"] == []
    assert set(drawn(chart)) == {"svg", "png", "pdf"}


def test_what_is_left_of_a_single_seed_is_drawn():
    (line,) = curves([1.0, NAN, 3.0]).panels[0].lines
    assert line.y.tolist() == [1]
    assert [y.tolist() for _, y in line.each] == [[1, 3]]


def test_scores_that_are_not_finite_have_no_mark_but_a_note():
    found = study(run(BASE, {"a": [1.0, 2.0]}), run(TD7, {"a": [5.0, 6.0, NAN]}))
    chart = tasks_by_utd(found)
    (line,) = chart.panels[0].lines
    assert [point.y for point in values_of(line)] == [1.5]
    assert chart.notes == (
        "No mean: td7, UTD 20 on a (2 of 3 seeds; seed 2 is not finite)",
    )


def test_an_ablation_whose_score_is_not_finite_keeps_its_row_and_says_why():
    scores = run(TD7, {"a": [1.0, 3.0]}), run(LESS, {"a": [5.0, NAN]})
    (chart,) = ablations(study(*scores))
    whole_one, broken = chart.panels[0].lines
    assert [point.y for point in values_of(whole_one)] == [2.0]
    assert list(values_of(broken)) == []
    assert "1 of 2 seeds; seed 1 is not finite" in chart.notes[0]
    assert "1 of 2 seeds; seed 1 is not finite" in draw_panel(chart, chart.panels[0])


@pytest.mark.parametrize("make", [aggregate_curves, profiles, suites_by_utd])
def test_a_method_without_a_task_of_the_suite_is_named(make):
    tasks = paper.tasks("gym-mujoco")
    scores = {task: [1.0, 2.0] for task in tasks}
    part = {task: [1.0, 2.0] for task in tasks if task != "Humanoid-v5"}
    runs = [run(BASE, scores), run(TD7, scores), run(Method("td7+r2r2", 20), part)]
    chart = make(study(*runs))
    said = "td7+r2r2, UTD 20 (Humanoid-v5: missing)"
    assert chart.notes == (f"Not here, over Gymnasium MuJoCo: {said}",)


@pytest.mark.parametrize("make", [aggregate_curves, profiles, suites_by_utd])
def test_a_method_that_diverged_on_a_task_of_the_suite_is_named(make):
    scores = {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    runs = [run(BASE, scores), run(TD7, scores)]
    runs.append(run(Method("td7+r2r2", 20), {**scores, "b": [1.0, NAN]}))
    note = make(study(*runs)).notes[0]
    said = "td7+r2r2, UTD 20 (b: seed 1 has a score of nan)"
    assert note == f"Not here, over this report (2 tasks): {said}"


def test_aggregates_end_where_a_seed_is_not_finite():
    rows = [
        Row("x", "a", seed, "return", 1000 * n, NAN if (seed, n) == (1, 3) else 1.0)
        for seed in range(2)
        for n in range(1, 15)
    ]
    made = RunData("x", "x", "finished", Results(BASE, rows))
    chart = aggregate_curves(study_of([made]))
    (line,) = chart.panels[0].lines
    assert line.x.tolist() == [1000, 2000]
    assert "td7, UTD 1 on a (seed 1 at step 3,000)" in chart.notes[0]


@pytest.mark.parametrize("make", [suites_by_utd, tasks_by_utd])
def test_results_whose_utd_is_not_known_are_named(make):
    runs = [run(one, {"a": [1.0]}) for one in (BASE, TD7, Method("mine"))]
    assert "Not here, as their UTD is not known: mine" in make(study(*runs)).notes


def gym(method, seeds):
    scores = np.arange(1.0, seeds + 1).tolist()
    return whole(method, {task: scores for task in paper.tasks("gym-mujoco")})


def test_only_the_utd_that_lacks_something_is_called_partial():
    charts = {c.name: c for c in gallery_of(study(gym(BASE, 5), gym(TD7, 3))).charts}
    assert charts["curves-utd-1"].notes == ()
    said = ("Partial or scaled down, no reproduction: td7, UTD 20",)
    assert charts["curves-utd-20"].notes == said
    assert charts["score-by-utd-tasks"].notes == said


def test_what_is_normalised_by_a_partial_base_is_partial():
    charts = {c.name: c for c in gallery_of(study(gym(BASE, 3), gym(TD7, 5))).charts}
    assert charts["curves-utd-20"].notes == ()
    for name in ("aggregate", "profiles", "score-by-utd"):
        (note,) = charts[name].notes
        assert note.endswith("no reproduction: td7, UTD 1; td7, UTD 20")


def test_all_notes_of_a_chart_are_in_its_picture(monkeypatch):
    seen = []
    monkeypatch.setattr("r2r2.report.figures._remark", lambda _, n: seen.append(n))
    chart = curves([1.0, 2.0])._replace(notes=("one", "two"))
    drawn(chart)
    assert seen == [("one", "two")]
