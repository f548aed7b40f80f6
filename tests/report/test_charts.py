"""Charts show the numbers of the study."""

import csv
import io

import numpy as np
import pytest
from example_study import AGENTS, example_run, example_study
from study_helpers import column

from r2r2.report.charts import Note, NoteKind, chart_csv
from r2r2.report.comparison_tables import paper_aggregates_table
from r2r2.report.curve_charts import (
    aggregate_curves,
    profiles,
    rank_charts,
    spectrum_chart,
    task_curves,
)
from r2r2.report.figures import make_charts
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd, timing
from r2r2.report.score_tables import diagnostics_table
from r2r2.report.study import RunData, Spectrum, make_study
from r2r2.report.svg import hover_data
from r2r2.stats import paper
from r2r2.stats.scores import Method, Override, Results
from r2r2.storage.evaluations import Row

TD7 = Method("td7", 1)
RELATIVE = "UTD 1, relative to td7, UTD 1"


def run_of(agent, utd, by_task, overrides=()):
    """Return a run with returns by task and seed at steps 1000, 2000, ..."""
    method = Method(agent, utd, overrides)
    rows = [
        Row("x", task, seed, "return", 1000 * number, value)
        for task, seeds in by_task.items()
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values, start=1)
    ]
    return RunData(str(method), "x.csv", "finished", Results(method, rows))


def lines_of(chart):
    return {(panel.title, line.name): line for panel in chart.panels for line in panel.lines}


def mean_curves(study):
    return aggregate_curves(study)[0]


@pytest.fixture(scope="module")
def study():
    return example_study(seeds=3, points=6)


def test_learning_curves_are_means_with_the_lines_of_seeds():
    study = make_study([run_of("td7", 1, {"a": [[1.0, 2.0], [3.0, 8.0]]})])
    (chart,) = task_curves(study)
    (line,) = chart.panels[0].lines
    np.testing.assert_array_equal(line.x, [1000, 2000])
    np.testing.assert_array_equal(line.y, [2, 5])
    assert [values.tolist() for _, values in line.seeds] == [[1, 2], [3, 8]]
    # Half of all resamples of two seeds repeat one seed: the bounds are the seeds.
    np.testing.assert_array_equal(line.low, [1, 2])
    np.testing.assert_array_equal(line.high, [3, 8])


def test_one_seed_has_no_interval_and_no_thin_line():
    (chart,) = task_curves(make_study([run_of("td7", 1, {"a": [[1.0, 2.0]]})]))
    (line,) = chart.panels[0].lines
    assert (line.low, line.high, line.seeds, line.detail) == (None, None, (), "1 seed")


def test_results_with_unknown_utd_are_in_the_curves_of_every_utd():
    runs = [run_of("td7", utd, {"a": [[1.0]]}) for utd in (20, 1, None)]
    charts = task_curves(make_study(runs))
    assert [chart.name for chart in charts] == ["curves-utd-1", "curves-utd-20"]
    assert [len(chart.panels[0].lines) for chart in charts] == [2, 2]


def test_aggregates_are_the_mean_and_the_iqm_relative_to_the_base():
    # Base scores are 2 and 10. Relative to them: 0.5, 1, 1.5, 4 and at last 1, 2, 3, 8,
    # with means 1.75 and 3.5; the middle half are 1, 1.5 and 2, 3.
    base = run_of("td7", 1, {"a": [[2.0], [2.0]], "b": [[10.0], [10.0]]})
    ours = {"a": [[1.0, 2.0], [2.0, 4.0]], "b": [[15.0, 30.0], [40.0, 80.0]]}
    charts = aggregate_curves(make_study([base, run_of("td7", 20, ours)]))
    assert [chart.name for chart in charts] == ["aggregate-mean", "aggregate-iqm"]
    assert [chart.y.label for chart in charts] == [
        "normalised score, mean",
        "normalised score, IQM",
    ]
    for chart, expected in zip(charts, ([1.75, 3.5], [1.25, 2.5]), strict=True):
        line = lines_of(chart)["UTD 20, relative to td7, UTD 1", "td7"]
        np.testing.assert_allclose(line.y, expected)
        assert line.detail == "4 runs on 2 tasks"
        assert (line.low <= line.y).all()
        assert (line.y <= line.high).all()


def test_aggregates_are_plotted_against_decision_steps():
    run = run_of("td7", 1, {"Hopper-v5": [[1.0, 1.0]], "dog-run": [[1.0, 1.0]]})
    (panel,) = mean_curves(make_study([run])).panels
    # dog-run repeats actions: its 1000 and 2000 steps are 500 and 1000 decisions.
    assert panel.lines[0].x.tolist() == [1000]


def test_decision_steps_use_the_action_repeat_of_the_run():
    run = run_of("td7", 1, {"cartpole-swingup": [[1.0, 1.0]]})
    swing = run._replace(repeats={"cartpole-swingup": 2})
    chart = mean_curves(make_study([swing]))
    assert chart.panels[0].lines[0].x.tolist() == [500, 1000]
    assert chart.notes == ()
    dog = run_of("td7", 1, {"dog-run": [[1.0, 1.0]]})._replace(repeats={"dog-run": 4})
    chart = mean_curves(make_study([dog]))
    assert chart.panels[0].lines[0].x.tolist() == [250, 500]
    unknown = mean_curves(make_study([run]))
    assert unknown.panels[0].lines[0].x.tolist() == [1000, 2000]
    repeat = Note(NoteKind.UNKNOWN_REPEAT, ("cartpole-swingup",))
    assert unknown.notes == (repeat,)


def test_a_method_without_a_task_has_no_aggregate():
    full = run_of("td7", 1, {"a": [[1.0]], "b": [[1.0]]})
    study = make_study([full, run_of("td7", 20, {"a": [[1.0]]})])
    assert [p.title for p in mean_curves(study).panels] == [RELATIVE]


def test_an_extra_task_does_not_prevent_the_aggregate_of_a_suite():
    tasks = {task: [[1.0]] for task in paper.tasks("gym-mujoco")}
    study = make_study([run_of("td7", 1, tasks), run_of("mine", 1, {"own": [[1.0]]})])
    chart = mean_curves(study)
    assert [panel.title for panel in chart.panels] == [RELATIVE]
    assert "Gymnasium MuJoCo" in chart.caption


def test_methods_with_another_base_are_in_another_panel():
    small = run_of("td7", 1, {"a": [[9.0]]}, (Override("steps", "9", "500000"),))
    runs = [run_of(agent, 1, {"a": [[1.0]]}) for agent in ("td7", "td7+r2r2")]
    study = make_study([*runs, small])
    for chart in (mean_curves(study), profiles(study)):
        names = {p.title: [line.name for line in p.lines] for p in chart.panels}
        assert names == {RELATIVE: ["td7", "td7+r2r2"], f"{RELATIVE}, steps=9": ["td7, steps=9"]}


def test_profiles_are_shares_of_runs_above_a_score(study):
    for line in lines_of(profiles(study)).values():
        assert line.y[0] == pytest.approx(1)
        assert line.y[-1] == pytest.approx(0)
        assert (np.diff(line.y) <= 0).all()
        assert (line.low <= line.y).all()
        assert (line.y <= line.high).all()


def test_scores_by_utd_include_the_published_ones(study):
    lines = lines_of(tasks_by_utd(study))
    ours, published = (lines["dog-trot", name] for name in ("td7", "td7 (paper)"))
    scores = [study.cell(Method("td7", utd), "dog-trot").scores for utd in (1, 10, 20)]
    np.testing.assert_allclose(ours.y, [each.mean() for each in scores])
    raw = [paper.raw_scores()["dog-trot", "td7", utd].mean for utd in (1, 10, 20)]
    np.testing.assert_allclose(published.y, raw)
    assert (published.marker, published.connected, ours.marker) == ("hollow", False, "filled")
    assert ours.style.color == published.style.color
    assert ours.offset != published.offset


def test_every_marker_has_its_own_detail():
    runs = [
        run_of("td7", 1, {"Hopper-v5": [[1.0], [2.0], [3.0]]}),
        run_of("td7", 20, {"Hopper-v5": [[1.0]]}),
    ]
    chart = tasks_by_utd(make_study(runs))
    # The paper's raw_scores.csv: td7 on Hopper-v5.
    spread = paper.raw_scores()["Hopper-v5", "td7", 20]
    expected = ["3 seeds", "1 seed", f"5 seeds, standard deviation {spread.std:,g}"]
    rows = list(csv.DictReader(io.StringIO(chart_csv(chart))))
    assert [rows[n]["of"] for n in (0, 1, 3)] == expected
    assert rows[2]["of"] != rows[3]["of"]
    ours, theirs = hover_data(chart, chart.panels[0])["lines"]
    details = [value[-1] for value in (*ours["values"], theirs["values"][1])]
    assert details == expected


def test_suite_scores_include_published_ones_only_with_all_tasks():
    tasks = paper.tasks("gym-mujoco")
    chart = suites_by_utd(example_study(("td7",), tasks, (1, 20), 2, 2))
    (panel,) = chart.panels
    theirs = panel.lines[1]
    # aggregates.csv: gym-mujoco, mean, td7.
    assert theirs.name == "td7 (paper)"
    published = {
        (a.utd, a.value)
        for a in paper.aggregates()
        if (a.suite, a.statistic, a.agent) == ("gym-mujoco", "mean", "td7")
    }
    assert {(1, theirs.y[0]), (20, theirs.y[1])} <= published
    part = suites_by_utd(example_study(("td7",), tasks[:2], (1, 20), 2, 2))
    assert [line.name for line in part.panels[0].lines] == ["td7"]


def test_figure_and_table_use_the_same_published_interval():
    # aggregates.csv has this interval's end as 11.04 and, from the main table, 11.0.
    study = example_study(("minphi", "minphi+r2r2"), paper.tasks(), (1, 20), 2, 1)
    lines = lines_of(suites_by_utd(study))
    theirs = lines["all 11 tasks, relative to minphi, UTD 1", "minphi+r2r2 (paper)"]
    which = ["all 11 tasks", "mean", "minphi+r2r2", "20"]
    (high,) = [
        row[5].numbers["high"]
        for row in paper_aggregates_table(study).rows
        if [entry.text for entry in row[:4]] == which
    ]
    assert (theirs.high[1], high) == (11.04, 11.04)


def test_charts_against_utd_require_two_utds(study):
    one = example_study(("td7",), ("a",), (1,), 2, 2)
    assert suites_by_utd(one) is None
    assert tasks_by_utd(one) is None
    reasons = dict(make_charts(one).missing)
    title = "Score against UTD, task by task"
    assert reasons[title] == "requires runs at two or more UTDs"


def test_ablations_compare_variants_with_their_base(study):
    (chart,) = ablations(study)
    assert chart.rows
    assert {panel.title for panel in chart.panels} == set(study.tasks)
    names = [line.name for line in chart.panels[0].lines]
    assert names == ["td7", "td7+r2r2", "td7+r2r2, lambda_var=0.0"]
    colours = [line.style.color for line in chart.panels[0].lines]
    assert len({*colours}) == 3


def test_results_of_a_file_are_not_an_ablation():
    plain = run_of("td7", 1, {"a": [[1.0]]})
    other = run_of("td7", 1, {"a": [[2.0]]}, (Override("warmup", "5", "9"),))
    assert len(ablations(make_study([plain, other]))) == 1
    assert ablations(make_study([plain, other._replace(status="file")])) == []


def test_spectra_are_of_the_last_evaluation(study):
    run = example_run(Method("td7", 1), ("a",), 2, 2)
    spectra = (Spectrum(1, np.array([9.0, 9.0])), Spectrum(2, np.array([4.0, 2.0])))
    both = tuple(member._replace(spectra=spectra) for member in run.members)
    chart = spectrum_chart(make_study([run._replace(members=both)]))
    (line,) = chart.panels[0].lines
    assert (line.x.tolist(), line.y.tolist()) == ([1, 2], [4, 2])
    assert chart.y.log


def test_long_spectra_are_thinned_out():
    run = example_run(Method("td7", 1), ("a",), 1, 2)
    spectrum = (Spectrum(2, np.append(np.linspace(5, 1, 255), 0.0)),)
    members = tuple(member._replace(spectra=spectrum) for member in run.members)
    (panel,) = spectrum_chart(make_study([run._replace(members=members)])).panels
    x = panel.lines[0].x
    assert x[:16].tolist() == list(range(1, 17))
    assert x[-1] == 255  # a logarithmic scale has no zero
    assert len(x) < 80


def with_spectra(*spectra, method=TD7):
    """Return a run whose seeds have these singular values."""
    run = example_run(method, ("a",), len(spectra), 2)
    pairs = zip(run.members, spectra, strict=True)
    members = [m._replace(spectra=(Spectrum(2, np.array(s)),)) for m, s in pairs]
    return run._replace(members=tuple(members))


@pytest.mark.parametrize("collapsed", [[3.0], [3.0, 0.0, 0.0], [3.0, 1e-9, 1e-9]])
def test_missing_values_of_a_collapsed_seed_count_as_zero(collapsed):
    chart = spectrum_chart(make_study([with_spectra([5.0, 4.0, 2.0], collapsed)]))
    (line,) = chart.panels[0].lines
    assert line.x.tolist() == [1, 2, 3]
    np.testing.assert_allclose(line.y, [4, 2, 1])
    assert (line.low > 0).all()  # a logarithmic scale has no zero
    assert (line.detail, chart.notes) == ("2 seeds", ())


def test_zero_spectra_count_and_nonfinite_ones_have_a_note():
    study = make_study([with_spectra([6.0, 4.0], [0.0, 0.0])])
    (line,) = spectrum_chart(study).panels[0].lines
    assert line.y.tolist() == [3, 2]
    assert spectrum_chart(make_study([with_spectra([0.0, 0.0])])) is None
    bad = with_spectra([6.0, 4.0], [np.nan, 1.0])
    assert spectrum_chart(make_study([bad])) is None
    good = with_spectra([1.0], method=Method("minphi", 1))
    chart = spectrum_chart(make_study([bad, good]))
    assert [line.name for line in chart.panels[0].lines] == ["minphi"]
    assert chart.notes[0].text == "No mean: td7, UTD 1 on a (seed 1 not finite)"


def test_a_seed_in_two_folders_counts_once():
    run = with_spectra([6.0, 4.0], [2.0, 1.0])
    longer = [m._replace(env_steps=m.env_steps + 1) for m in run.members]
    rank = run.members[0].diagnostics["effective_rank"]
    more = {"effective_rank": rank._replace(values=rank.values + 5)}
    copy = run._replace(
        name="copy", members=tuple(m._replace(diagnostics=more) for m in longer[:1])
    )
    for runs in ([run, copy], [copy, run]):
        study = make_study(runs)
        (line,) = spectrum_chart(study).panels[0].lines
        assert line.detail == "2 seeds"
        (chart,) = rank_charts(study)
        (line,) = chart.panels[0].lines
        assert line.detail == "2 seeds"
        # The copy has more steps, so it is used.
        assert any(np.array_equal(y, rank.values + 5) for _, y in line.seeds)
        (entry,) = column(diagnostics_table(study), "effective rank")
        assert entry.numbers["seeds"] == 2


def test_effective_ranks_are_drawn_over_training(study):
    charts = rank_charts(study)
    assert [chart.name for chart in charts] == [f"rank-utd-{u}" for u in (1, 10, 20)]
    line = lines_of(charts[0])["dog-trot", "td7"]
    assert len(line.seeds) == 3
    assert line.y[0] > line.y[-1]


def test_published_effective_ranks_are_drawn_beside_ours():
    stand = [example_run(Method(agent, 1), ("humanoid-stand",), 2, 3) for agent in AGENTS[:2]]
    (chart,) = rank_charts(make_study([*stand, example_run(Method("mine", 1), ("a",), 1, 3)]))
    lines = lines_of(chart)
    for agent, rank in (("td7", 76.5), ("td7+r2r2", 65.0)):
        theirs = lines["humanoid-stand", f"{agent} (paper)"]
        assert theirs.y.tolist() == [rank, rank]
        assert theirs.x.tolist() == lines["humanoid-stand", agent].x[[0, -1]].tolist()
        assert theirs.marker == "hollow"
    assert [line.name for line in chart.panels[1].lines] == ["mine"]
    assert "76.5 for td7 on humanoid-stand at UTD 1" in chart.caption


def test_times_per_step_include_published_ones_of_the_same_task():
    runs = [
        example_run(Method("td7", utd), tasks, 2, 1, f"{utd}{tasks}")
        for utd in (1, 20)
        for tasks in (("Humanoid-v5",), ("Ant-v5", "dog-run"))
    ]
    chart = timing(make_study(runs))
    assert [panel.title for panel in chart.panels] == ["Ant-v5, dog-run", "Humanoid-v5"]
    lines = lines_of(chart)
    # example_study.py: 2000 / (UTD + 3) decisions per second.
    assert lines["Humanoid-v5", "td7, UTD 20"].y[0] == pytest.approx(23 / 2000)
    assert lines["Humanoid-v5", "td7, UTD 20 (paper)"].y[0] == 0.417
    assert [line.name for line in chart.panels[0].lines] == ["td7, UTD 1", "td7, UTD 20"]
    assert "td7, UTD 1 (paper)" not in {name for _, name in lines}


def test_runs_on_different_tasks_have_different_times():
    slow, fast = (example_run(Method("td7", 20), (task,), 1, 1, task) for task in ("Ant-v5", "a"))
    rate = fast.timing.decisions_per_second
    fast = fast._replace(timing=fast.timing._replace(decisions_per_second=2 * rate))
    lines = lines_of(timing(make_study([slow, fast])))
    ours = [lines[task, "td7, UTD 20"].y[0] for task in ("Ant-v5", "a")]
    assert ours == [pytest.approx(1 / rate), pytest.approx(0.5 / rate)]


def test_runs_too_short_for_a_rate_are_not_counted():
    runs = [example_run(Method("td7", 1), ("a",), 2, 1, name) for name in "xyz"]
    short = runs[0].timing._replace(decisions_per_second=float("nan"))
    runs[0] = runs[0]._replace(timing=short)
    (line,) = timing(make_study(runs)).panels[0].lines
    assert line.detail == "2 runs, 4 members; 1 too short to measure"
    assert timing(make_study(runs[:1])) is None


def test_a_name_has_the_same_style_in_all_charts(study):
    styles = {}
    for chart in make_charts(study).charts:
        if chart.name != "timing":
            for line in chart.legend:
                assert styles.setdefault(line.name, line.style) == line.style


def test_a_complete_study_has_every_chart(study):
    assert [chart.name for chart in make_charts(study).charts] == [
        "score-by-utd",
        "score-by-utd-tasks",
        "aggregate-mean",
        "aggregate-iqm",
        *(f"curves-utd-{utd}" for utd in (1, 10, 20)),
        "profiles",
        "ablations-td7-utd-20",
        "spectra",
        *(f"rank-utd-{utd}" for utd in (1, 10, 20)),
        "timing",
    ]
    assert make_charts(study).missing == ()


def test_unprintable_characters_are_removed_from_names():
    study = make_study([run_of("a\nb\x1b\udc80", 1, {"t\x00": [[1.0, 2.0]]})])
    (chart,) = task_curves(study)
    assert "\n" in chart.panels[0].lines[0].name
    (shown,) = [c for c in make_charts(study).charts if c.name == chart.name]
    assert (shown.panels[0].title, shown.panels[0].lines[0].name) == ("t?", "a b??")


def test_chart_names_are_valid_file_names():
    study = example_study(("td7", "td7+r2r2"), ("../../x:Y<z>",), (1,), 2, 2)
    for chart in make_charts(study).charts:
        assert set(chart.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
