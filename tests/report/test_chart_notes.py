"""Charts note everything that they do not show: diverged seeds, missing results."""

import numpy as np
import pytest
from study_helpers import Method, full_run, run, study

from r2r2.report.charts import Note, NoteKind
from r2r2.report.curve_charts import aggregate_curves, profiles, task_curves
from r2r2.report.figures import make_charts, render_chart
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd
from r2r2.report.study import RunData, make_study
from r2r2.report.svg import draw_panel, hover_data
from r2r2.stats import paper
from r2r2.stats.scores import Override, Results
from r2r2.storage.evaluations import Row

NAN = float("nan")
TD7, BASE = Method("td7", 20), Method("td7", 1)
LESS = TD7._replace(overrides=(Override("warmup", "5", "25000"),))


def mean_curves(study):
    return aggregate_curves(study)[0]


def curves(*seeds, method=BASE):
    """Return the chart of a run with these values by seed at steps 1000, 2000, ..."""
    rows = [
        Row("x", "a", seed, "return", 1000 * number, value)
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values, start=1)
    ]
    made = RunData(str(method), "x", "finished", Results(method, rows))
    (chart,) = task_curves(make_study([made]))
    return chart


def test_means_stop_where_a_seed_is_not_finite():
    chart = curves([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, NAN, 6.0])
    (line,) = chart.panels[0].lines
    assert (line.x.tolist(), line.y.tolist()) == ([1000, 2000], [2, 3])
    assert [y.tolist() for _, y in line.seeds] == [[1, 2, 3, 4], [3, 4, 6]]
    (note,) = chart.notes
    assert note.kind is NoteKind.MEAN_STOPS
    assert note.items == ("td7, UTD 1 on a (seed 1 at step 3,000)",)


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
def test_a_seed_that_is_never_finite_leaves_no_mean(value):
    chart = curves([1.0, 2.0], [value, value])
    (line,) = chart.panels[0].lines
    assert len(line.x) == 0
    assert [len(y) for _, y in line.seeds] == [2, 0]
    assert "seed 1 at step 1,000" in chart.notes[0].text
    assert len(draw_panel(chart, chart.panels[0])) > 0
    assert hover_data(chart, chart.panels[0])["lines"][0]["values"] == []
    assert set(render_chart(chart)) == {"svg", "png", "pdf"}


def test_finite_values_of_a_single_seed_are_drawn():
    (line,) = curves([1.0, NAN, 3.0]).panels[0].lines
    assert line.y.tolist() == [1]
    assert [y.tolist() for _, y in line.seeds] == [[1, 3]]


def test_nonfinite_scores_have_a_note_and_no_marker():
    example = study(run(BASE, {"a": [1.0, 2.0]}), run(TD7, {"a": [5.0, 6.0, NAN]}))
    chart = tasks_by_utd(example)
    (line,) = chart.panels[0].lines
    assert [point.y for point in line.points] == [1.5]
    reason = "td7, UTD 20 on a (2 of 3 seeds; seed 2 is not finite)"
    assert chart.notes == (Note(NoteKind.NO_MEAN, (reason,)),)


def test_an_ablation_with_a_nonfinite_score_keeps_its_row_with_the_reason():
    scores = run(TD7, {"a": [1.0, 3.0]}), run(LESS, {"a": [5.0, NAN]})
    (chart,) = ablations(study(*scores))
    complete, broken = chart.panels[0].lines
    assert [point.y for point in complete.points] == [2.0]
    assert list(broken.points) == []
    assert "1 of 2 seeds; seed 1 is not finite" in chart.notes[0].text
    assert "1 of 2 seeds; seed 1 is not finite" in draw_panel(chart, chart.panels[0])


@pytest.mark.parametrize("make", [mean_curves, profiles, suites_by_utd])
def test_methods_without_a_task_of_the_suite_are_noted(make):
    tasks = paper.tasks("gym-mujoco")
    scores = {task: [1.0, 2.0] for task in tasks}
    part = {task: [1.0, 2.0] for task in tasks if task != "Humanoid-v5"}
    runs = [run(BASE, scores), run(TD7, scores), run(Method("td7+r2r2", 20), part)]
    chart = make(study(*runs))
    assert [note.text for note in chart.notes] == [
        "Not shown for Gymnasium MuJoCo: td7+r2r2, UTD 20 (Humanoid-v5: missing)"
    ]


@pytest.mark.parametrize("make", [mean_curves, profiles, suites_by_utd])
def test_methods_that_diverged_on_a_task_of_the_suite_are_noted(make):
    scores = {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    runs = [run(BASE, scores), run(TD7, scores)]
    runs.append(run(Method("td7+r2r2", 20), {**scores, "b": [1.0, NAN]}))
    note = make(study(*runs)).notes[0]
    assert (note.kind, note.suite) == (NoteKind.NO_STATISTIC, "this report (2 tasks)")
    assert note.items == ("td7+r2r2, UTD 20 (b: seed 1 has a score of nan)",)


def test_aggregates_stop_where_a_seed_is_not_finite():
    rows = [
        Row("x", "a", seed, "return", 1000 * n, NAN if (seed, n) == (1, 3) else 1.0)
        for seed in range(2)
        for n in range(1, 15)
    ]
    made = RunData("x", "x", "finished", Results(BASE, rows))
    chart = mean_curves(make_study([made]))
    (line,) = chart.panels[0].lines
    assert line.x.tolist() == [1000, 2000]
    assert chart.notes[0].items == ("td7, UTD 1 on a (seed 1 at step 3,000)",)


@pytest.mark.parametrize("make", [suites_by_utd, tasks_by_utd])
def test_results_with_unknown_utd_are_noted(make):
    runs = [run(one, {"a": [1.0]}) for one in (BASE, TD7, Method("mine"))]
    assert Note(NoteKind.UNKNOWN_UTD, ("mine",)) in make(study(*runs)).notes


def gym(method, seeds):
    scores = np.arange(1.0, seeds + 1).tolist()
    return full_run(method, {task: scores for task in paper.tasks("gym-mujoco")})


def test_only_the_incomplete_utd_is_partial():
    charts = {c.name: c for c in make_charts(study(gym(BASE, 5), gym(TD7, 3))).charts}
    assert charts["curves-utd-1"].notes == ()
    partial = (Note(NoteKind.PARTIAL, ("td7, UTD 20",)),)
    assert charts["curves-utd-20"].notes == partial
    assert charts["score-by-utd-tasks"].notes == partial


def test_scores_normalised_by_a_partial_base_are_partial():
    charts = {c.name: c for c in make_charts(study(gym(BASE, 3), gym(TD7, 5))).charts}
    assert charts["curves-utd-20"].notes == ()
    for name in ("aggregate-mean", "aggregate-iqm", "profiles", "score-by-utd"):
        partial = Note(NoteKind.PARTIAL, ("td7, UTD 1", "td7, UTD 20"))
        assert charts[name].notes == (partial,)
