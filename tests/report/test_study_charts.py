"""The numbers that charts show are those of the study."""

import csv
import io

import numpy as np
import pytest
from drawn import drawn_run, drawn_study
from given import column

from r2r2.report.all_charts import gallery_of
from r2r2.report.charts import chart_csv, legend_of
from r2r2.report.comparison_tables import beside_aggregates_table
from r2r2.report.curve_charts import (
    aggregate_curves,
    profiles,
    rank_charts,
    spectrum_chart,
    task_curves,
)
from r2r2.report.run_tables import diagnostics_table
from r2r2.report.score_charts import ablations, suites_by_utd, tasks_by_utd, timing
from r2r2.report.study import RunData, Spectrum, study_of
from r2r2.report.svg_charts import hover_of
from r2r2.stats import paper
from r2r2.stats.scores import Method, Results
from r2r2.storage.evaluations import Row

TD7 = Method("td7", 1)
RELATIVE = "UTD 1, relative to td7, UTD 1"


def run_of(agent, utd, by_task, departures=()):
    """A file of returns: by task, for each seed its values at steps 1000, 2000, ..."""
    method = Method(agent, utd, departures)
    rows = [
        Row("x", task, seed, "return", 1000 * number, value)
        for task, seeds in by_task.items()
        for seed, values in enumerate(seeds)
        for number, value in enumerate(values, start=1)
    ]
    return RunData(str(method), "x.csv", "finished", Results(method, rows))


def lines_of(chart):
    return {
        (panel.title, line.name): line for panel in chart.panels for line in panel.lines
    }


@pytest.fixture(scope="module")
def study():
    return drawn_study(seeds=3, points=6)


def test_a_curve_is_the_mean_over_seeds_with_each_of_them():
    study = study_of([run_of("td7", 1, {"a": [[1.0, 2.0], [3.0, 8.0]]})])
    (chart,) = task_curves(study)
    (line,) = chart.panels[0].lines
    np.testing.assert_array_equal(line.x, [1000, 2000])
    np.testing.assert_array_equal(line.y, [2, 5])
    assert [values.tolist() for _, values in line.each] == [[1, 2], [3, 8]]
    # Of two seeds a resample has both of one in half of all cases: the ends are theirs.
    np.testing.assert_array_equal(line.low, [1, 2])
    np.testing.assert_array_equal(line.high, [3, 8])


def test_one_seed_has_no_interval_and_no_thin_line():
    (chart,) = task_curves(study_of([run_of("td7", 1, {"a": [[1.0, 2.0]]})]))
    (line,) = chart.panels[0].lines
    assert (line.low, line.high, line.each, line.note) == (None, None, (), "1 seed")


def test_each_utd_has_its_curves_and_results_of_unknown_utd_are_in_all():
    runs = [run_of("td7", utd, {"a": [[1.0]]}) for utd in (20, 1, None)]
    charts = task_curves(study_of(runs))
    assert [chart.name for chart in charts] == ["curves-utd-1", "curves-utd-20"]
    assert [len(chart.panels[0].lines) for chart in charts] == [2, 2]


def test_the_aggregate_is_the_iqm_relative_to_the_base():
    # Base scores are 2 and 10. Relative to them: 0.5, 1, 1.5, 2 and at last 1, 2, 3, 4,
    # of which the middle half are 1, 1.5 and 2, 3.
    base = run_of("td7", 1, {"a": [[2.0], [2.0]], "b": [[10.0], [10.0]]})
    ours = {"a": [[1.0, 2.0], [2.0, 4.0]], "b": [[15.0, 30.0], [20.0, 40.0]]}
    chart = aggregate_curves(study_of([base, run_of("td7", 20, ours)]))
    line = lines_of(chart)["UTD 20, relative to td7, UTD 1", "td7"]
    np.testing.assert_allclose(line.y, [1.25, 2.5])
    assert line.note == "4 runs on 2 tasks"


def test_the_aggregates_steps_are_decisions():
    run = run_of("td7", 1, {"Hopper-v5": [[1.0, 1.0]], "dog-run": [[1.0, 1.0]]})
    (panel,) = aggregate_curves(study_of([run])).panels
    # dog-run repeats actions: its 1000 and 2000 steps are 500 and 1000 decisions.
    assert panel.lines[0].x.tolist() == [1000]


def test_a_runs_own_action_repeat_makes_its_decisions():
    run = run_of("td7", 1, {"cartpole-swingup": [[1.0, 1.0]]})
    swing = run._replace(repeats={"cartpole-swingup": 2})
    chart = aggregate_curves(study_of([swing]))
    assert chart.panels[0].lines[0].x.tolist() == [500, 1000]
    assert chart.notes == ()
    dog = run_of("td7", 1, {"dog-run": [[1.0, 1.0]]})._replace(repeats={"dog-run": 4})
    chart = aggregate_curves(study_of([dog]))
    assert chart.panels[0].lines[0].x.tolist() == [250, 500]
    unknown = aggregate_curves(study_of([run]))
    assert unknown.panels[0].lines[0].x.tolist() == [1000, 2000]
    assert unknown.notes[0].endswith("action repeat is not known, of: cartpole-swingup")


def test_a_method_that_lacks_a_task_has_no_aggregate():
    whole = run_of("td7", 1, {"a": [[1.0]], "b": [[1.0]]})
    study = study_of([whole, run_of("td7", 20, {"a": [[1.0]]})])
    assert [p.title for p in aggregate_curves(study).panels] == [RELATIVE]


def test_a_task_that_no_other_method_has_does_not_take_a_suites_aggregate_away():
    tasks = {task: [[1.0]] for task in paper.tasks("gym-mujoco")}
    study = study_of([run_of("td7", 1, tasks), run_of("mine", 1, {"own": [[1.0]]})])
    chart = aggregate_curves(study)
    assert [panel.title for panel in chart.panels] == [RELATIVE]
    assert "Gymnasium MuJoCo" in chart.caption


def test_methods_with_another_base_are_in_another_panel():
    small = run_of("td7", 1, {"a": [[9.0]]}, ("steps is 9, not 500000",))
    runs = [run_of(agent, 1, {"a": [[1.0]]}) for agent in ("td7", "td7+r2r2")]
    study = study_of([*runs, small])
    for chart in (aggregate_curves(study), profiles(study)):
        names = {p.title: [line.name for line in p.lines] for p in chart.panels}
        assert names == {
            RELATIVE: ["td7", "td7+r2r2"],
            f"{RELATIVE}, steps is 9": ["td7, steps is 9"],
        }


def test_profiles_are_shares_of_runs_above_a_score(study):
    for line in lines_of(profiles(study)).values():
        assert line.y[0] == pytest.approx(1)
        assert line.y[-1] == pytest.approx(0)
        assert (np.diff(line.y) <= 0).all()
        assert (line.low <= line.y).all()
        assert (line.y <= line.high).all()


def test_scores_by_utd_stand_beside_the_papers(study):
    lines = lines_of(tasks_by_utd(study))
    ours, theirs = (lines["dog-trot", name] for name in ("td7", "td7 (paper)"))
    scores = [study.cell(Method("td7", utd), "dog-trot").scores for utd in (1, 10, 20)]
    np.testing.assert_allclose(ours.y, [each.mean() for each in scores])
    raw = [paper.raw_scores()["dog-trot", "td7", utd].mean for utd in (1, 10, 20)]
    np.testing.assert_allclose(theirs.y, raw)
    assert (theirs.mark, theirs.joined, ours.mark) == ("hollow", False, "full")
    assert ours.style.colour == theirs.style.colour
    assert ours.shift != theirs.shift


def test_each_mark_says_what_it_is_of():
    runs = [
        run_of("td7", 1, {"Hopper-v5": [[1.0], [2.0], [3.0]]}),
        run_of("td7", 20, {"Hopper-v5": [[1.0]]}),
    ]
    chart = tasks_by_utd(study_of(runs))
    # The paper's raw_scores.csv: td7 on Hopper-v5.
    spread = paper.raw_scores()["Hopper-v5", "td7", 20]
    said = ["3 seeds", "1 seed", f"5 seeds, deviation {spread.std:,g}"]
    rows = list(csv.DictReader(io.StringIO(chart_csv(chart))))
    assert [rows[n]["of"] for n in (0, 1, 3)] == said
    assert rows[2]["of"] != rows[3]["of"]
    ours, theirs = hover_of(chart, chart.panels[0])["lines"]
    told = [value[-1] for value in (*ours["values"], theirs["values"][1])]
    assert told == said


def test_suites_by_utd_stand_beside_the_papers_only_where_all_tasks_are_there():
    tasks = paper.tasks("gym-mujoco")
    chart = suites_by_utd(drawn_study(("td7",), tasks, (1, 20), 2, 2))
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
    part = suites_by_utd(drawn_study(("td7",), tasks[:2], (1, 20), 2, 2))
    assert [line.name for line in part.panels[0].lines] == ["td7"]


def test_figure_and_table_have_the_same_of_the_papers_two_numbers():
    # aggregates.csv has this interval's end as 11.04 and, from the main table, 11.0.
    study = drawn_study(("minphi", "minphi+r2r2"), paper.tasks(), (1, 20), 2, 1)
    lines = lines_of(suites_by_utd(study))
    theirs = lines["all 11 tasks, relative to minphi, UTD 1", "minphi+r2r2 (paper)"]
    which = ["all 11 tasks", "mean", "minphi+r2r2", "20"]
    (high,) = [
        row[5].numbers["high"]
        for row in beside_aggregates_table(study).rows
        if [entry.text for entry in row[:4]] == which
    ]
    assert (theirs.high[1], high) == (11.04, 11.04)


def test_one_utd_is_no_chart_against_utd(study):
    one = drawn_study(("td7",), ("a",), (1,), 2, 2)
    assert suites_by_utd(one) is None
    assert tasks_by_utd(one) is None
    absent = dict(gallery_of(one).absent)
    assert absent["Score against UTD, task by task"] == (
        "it takes runs at two UTDs or more"
    )


def test_ablations_set_variants_beside_their_base(study):
    (chart,) = ablations(study)
    assert chart.rows
    assert {panel.title for panel in chart.panels} == set(study.tasks)
    names = [line.name for line in chart.panels[0].lines]
    assert names == ["td7", "td7+r2r2", "td7+r2r2, lambda_var is 0.0"]
    colours = [line.style.colour for line in chart.panels[0].lines]
    assert colours[0] == colours[1] != colours[2]


def test_results_of_a_file_are_no_ablation():
    plain = run_of("td7", 1, {"a": [[1.0]]})
    other = run_of("td7", 1, {"a": [[2.0]]}, ("its settings are not known",))
    assert len(ablations(study_of([plain, other]))) == 1
    assert ablations(study_of([plain, other._replace(status="file")])) == []


def test_spectra_are_of_the_last_evaluation(study):
    run = drawn_run(Method("td7", 1), ("a",), 2, 2)
    spectra = (Spectrum(1, np.array([9.0, 9.0])), Spectrum(2, np.array([4.0, 2.0])))
    both = tuple(member._replace(spectra=spectra) for member in run.members)
    chart = spectrum_chart(study_of([run._replace(members=both)]))
    (line,) = chart.panels[0].lines
    assert (line.x.tolist(), line.y.tolist()) == ([1, 2], [4, 2])
    assert chart.y.log


def test_of_a_long_spectrum_the_first_the_last_and_some_between_are_drawn():
    run = drawn_run(Method("td7", 1), ("a",), 1, 2)
    spectrum = (Spectrum(2, np.append(np.linspace(5, 1, 255), 0.0)),)
    members = tuple(member._replace(spectra=spectrum) for member in run.members)
    (panel,) = spectrum_chart(study_of([run._replace(members=members)])).panels
    x = panel.lines[0].x
    assert x[:16].tolist() == list(range(1, 17))
    assert x[-1] == 255  # what is zero has no place on a logarithmic scale
    assert len(x) < 80


def with_spectra(*spectra, method=TD7):
    """A run whose seeds have these singular values."""
    run = drawn_run(method, ("a",), len(spectra), 2)
    pairs = zip(run.members, spectra, strict=True)
    members = [m._replace(spectra=(Spectrum(2, np.array(s)),)) for m, s in pairs]
    return run._replace(members=tuple(members))


@pytest.mark.parametrize("collapsed", [[3.0], [3.0, 0.0, 0.0], [3.0, 1e-9, 1e-9]])
def test_a_collapsed_seed_does_not_cut_the_mean_spectrum_but_counts_as_zero(collapsed):
    chart = spectrum_chart(study_of([with_spectra([5.0, 4.0, 2.0], collapsed)]))
    (line,) = chart.panels[0].lines
    assert line.x.tolist() == [1, 2, 3]
    np.testing.assert_allclose(line.y, [4, 2, 1])
    assert (line.low > 0).all()  # zero has no place on a logarithmic scale
    assert (line.note, chart.notes) == ("2 seeds", ())


def test_a_spectrum_of_zeros_counts_and_one_that_is_not_finite_has_a_note():
    study = study_of([with_spectra([6.0, 4.0], [0.0, 0.0])])
    (line,) = spectrum_chart(study).panels[0].lines
    assert line.y.tolist() == [3, 2]
    assert spectrum_chart(study_of([with_spectra([0.0, 0.0])])) is None
    bad = with_spectra([6.0, 4.0], [np.nan, 1.0])
    assert spectrum_chart(study_of([bad])) is None
    good = with_spectra([1.0], method=Method("minphi", 1))
    chart = spectrum_chart(study_of([bad, good]))
    assert [line.name for line in chart.panels[0].lines] == ["minphi"]
    assert chart.notes == ("No mean: td7, UTD 1 on a (seed 1 not finite)",)


def test_a_seed_in_two_folders_counts_once():
    run = with_spectra([6.0, 4.0], [2.0, 1.0])
    longer = [m._replace(env_steps=m.env_steps + 1) for m in run.members]
    rank = run.members[0].diagnostics["effective_rank"]
    more = {"effective_rank": rank._replace(values=rank.values + 5)}
    copy = run._replace(
        name="copy", members=tuple(m._replace(diagnostics=more) for m in longer[:1])
    )
    for runs in ([run, copy], [copy, run]):
        study = study_of(runs)
        (line,) = spectrum_chart(study).panels[0].lines
        assert line.note == "2 seeds"
        (chart,) = rank_charts(study)
        (line,) = chart.panels[0].lines
        assert line.note == "2 seeds"
        # The copy has come further, so that it is the one that counts.
        assert any(np.array_equal(y, rank.values + 5) for _, y in line.each)
        (entry,) = column(diagnostics_table(study), "effective rank")
        assert entry.numbers["seeds"] == 2


def test_effective_ranks_are_drawn_over_training(study):
    charts = rank_charts(study)
    assert [chart.name for chart in charts] == [f"rank-utd-{u}" for u in (1, 10, 20)]
    line = lines_of(charts[0])["dog-trot", "td7"]
    assert len(line.each) == 3
    assert line.y[0] > line.y[-1]


def test_times_are_of_steps_and_beside_the_papers_on_its_task():
    runs = [
        drawn_run(Method("td7", utd), tasks, 2, 1, f"{utd}{tasks}")
        for utd in (1, 20)
        for tasks in (("Humanoid-v5",), ("Ant-v5", "dog-run"))
    ]
    chart = timing(study_of(runs))
    assert [panel.title for panel in chart.panels] == ["Ant-v5, dog-run", "Humanoid-v5"]
    lines = lines_of(chart)
    # drawn.py: 2000 / (UTD + 3) decisions per second.
    assert lines["Humanoid-v5", "td7, UTD 20"].y[0] == pytest.approx(23 / 2000)
    assert lines["Humanoid-v5", "td7, UTD 20 (paper)"].y[0] == 0.417
    assert [line.name for line in chart.panels[0].lines] == [
        "td7, UTD 1",
        "td7, UTD 20",
    ]
    assert "td7, UTD 1 (paper)" not in {name for _, name in lines}


def test_tasks_have_times_of_their_own():
    slow, fast = (
        drawn_run(Method("td7", 20), (task,), 1, 1, task) for task in ("Ant-v5", "a")
    )
    rate = fast.timing.decisions_per_second
    fast = fast._replace(timing=fast.timing._replace(decisions_per_second=2 * rate))
    lines = lines_of(timing(study_of([slow, fast])))
    ours = [lines[task, "td7, UTD 20"].y[0] for task in ("Ant-v5", "a")]
    assert ours == [pytest.approx(1 / rate), pytest.approx(0.5 / rate)]


def test_runs_too_short_for_a_rate_are_not_counted_with_the_others():
    runs = [drawn_run(Method("td7", 1), ("a",), 2, 1, name) for name in "xyz"]
    short = runs[0].timing._replace(decisions_per_second=float("nan"))
    runs[0] = runs[0]._replace(timing=short)
    (line,) = timing(study_of(runs)).panels[0].lines
    assert line.note == "2 runs, 4 members; 1 too short to say"
    assert timing(study_of(runs[:1])) is None


def test_a_name_means_one_style_in_all_charts(study):
    styles = {}
    for chart in gallery_of(study).charts:
        if chart.name != "timing":
            for line in legend_of(chart):
                assert styles.setdefault(line.name, line.style) == line.style


def test_a_study_with_everything_has_every_chart(study):
    assert [chart.name for chart in gallery_of(study).charts] == [
        "score-by-utd",
        "score-by-utd-tasks",
        "aggregate",
        *(f"curves-utd-{utd}" for utd in (1, 10, 20)),
        "profiles",
        "ablations-td7-utd-20",
        "spectra",
        *(f"rank-utd-{utd}" for utd in (1, 10, 20)),
        "timing",
    ]
    assert gallery_of(study).absent == ()


def test_names_lose_what_cannot_be_printed():
    study = study_of([run_of("a\nb\x1b\udc80", 1, {"t\x00": [[1.0, 2.0]]})])
    (chart,) = task_curves(study)
    assert "\n" in chart.panels[0].lines[0].name
    (shown,) = [c for c in gallery_of(study).charts if c.name == chart.name]
    assert (shown.panels[0].title, shown.panels[0].lines[0].name) == ("t?", "a b??")


def test_names_of_figures_are_names_of_files():
    study = drawn_study(("td7", "td7+r2r2"), ("../../x:Y<z>",), (1,), 2, 2)
    for chart in gallery_of(study).charts:
        assert set(chart.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
