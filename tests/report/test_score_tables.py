"""Tables of scores against numbers worked out by hand."""

import math

import pytest
from given import Method, column, run, study, texts, whole

from r2r2.report.all_tables import tables_of
from r2r2.report.score_tables import (
    ablation_table,
    aggregates_table,
    main_table,
    score_tables,
)
from r2r2.stats import paper

TD7, OURS = Method("td7", 1), Method("td7+r2r2", 20)
FIVE = [90.0, 95.0, 100.0, 105.0, 110.0]  # mean 100, variance 250 / 4

PAIR = study(
    run(TD7, {"Ant-v5": [80.0, 120.0], "dog-run": [-1.0, -3.0]}),
    run(OURS, {"Ant-v5": [150.0, 250.0], "dog-run": [-1.0, 0.0]}),
)


def by_name(tables):
    return {table.name: table for table in tables}


def test_raw_tables_have_tasks_in_rows_methods_in_columns_mean_and_deviation():
    raw = by_name(score_tables(PAIR))["raw_utd20"]
    assert raw.header == ("task", "td7+r2r2")
    # sqrt(2 * 50^2 / 1) = 70.71, sqrt(2 * 0.5^2 / 1) = 0.7071.
    assert texts(raw) == [["Ant-v5", "200.0 ± 70.7"], ["dog-run", "-0.500 ± 0.707"]]
    numbers = column(raw, "td7+r2r2")[0].numbers
    assert numbers["mean"] == 200.0
    assert numbers["std"] == pytest.approx(math.sqrt(5000))
    # Both of two seeds, twice the one or twice the other: 1/4 each at either end.
    assert (numbers["low"], numbers["high"], numbers["seeds"]) == (150.0, 250.0, 2)


def test_normalised_tables_are_relative_to_the_base_at_utd_1():
    table = by_name(score_tables(PAIR))["normalised_utd20"]
    ant, dog = column(table, "td7+r2r2")
    # 1 + (200 - 100) / 100 = 2; 1 + (-0.5 - -2) / 2 = 1.75.
    assert ant.text == "2.00 [1.50, 2.50]"
    assert dog.numbers["mean"] == pytest.approx(1.75)


def test_the_main_table_has_the_mean_over_tasks_with_an_interval():
    table = main_table(PAIR)
    assert table.header[:2] == ("method", "UTD")
    here = column(table, "this report (2 tasks)")
    assert [entry.numbers["value"] for entry in here] == pytest.approx([1.0, 1.875])
    # The extremes: all of one seed, 1/16 each, so within 2.5 % of neither end.
    assert here[1].numbers["low"] == pytest.approx((1.5 + 1.5) / 2)
    assert here[1].numbers["high"] == pytest.approx((2.5 + 2.0) / 2)
    assert texts(table)[1][:2] == ["td7+r2r2", "20"]


def test_a_suite_with_a_missing_task_has_no_number_and_says_which():
    gym = column(main_table(PAIR), "Gymnasium MuJoCo")
    assert [entry.text for entry in gym] == ["-", "-"]
    assert gym[0].note == "Walker2d-v5, Hopper-v5, Humanoid-v5: missing"
    assert gym[0].numbers == {}


def test_aggregates_are_those_of_the_statistics():
    table = aggregates_table(PAIR)
    ours = next(row for row in table.rows if row[1].text == "td7+r2r2")
    cells = dict(zip(table.header, ours, strict=True)).items()
    values = {name: cell.numbers["value"] for name, cell in cells if cell.numbers}
    # Scores 1.5, 2.5 and 1.5, 2.0: without one at either end 1.5 and 2.0.
    assert values == pytest.approx(
        {"mean": 1.875, "iqm": 1.75, "median": 1.875, "optimality gap": 0.0}
    )


def test_intervals_are_the_same_each_time():
    scores = {"Ant-v5": FIVE, "dog-run": [x**2 for x in FIVE]}
    first, second = (main_table(study(run(TD7, scores))) for _ in range(2))
    assert first == second


def test_a_whole_suite_of_the_paper_is_complete_and_has_no_notes():
    scores = dict.fromkeys(paper.tasks("gym-mujoco"), FIVE)
    table = main_table(study(whole(TD7, scores)))
    assert table.header == ("method", "UTD", "Gymnasium MuJoCo")
    assert table.footnotes == ()
    assert column(table, "Gymnasium MuJoCo")[0].text.startswith("1.00 [0.9")


def test_uneven_and_missing_seeds_are_shown_as_such():
    uneven = {"Ant-v5": FIVE, "Hopper-v5": FIVE[:3], "Walker2d-v5": [1.0]}
    raw = by_name(score_tables(study(whole(TD7, uneven))))["raw_utd1"]
    notes = {row[0].text: row[1].note for row in raw.rows}
    assert notes == {
        "Ant-v5": "",
        "Hopper-v5": "3 of 5 seeds",
        "Walker2d-v5": "1 of 5 seeds",
    }
    assert [row[1].text for row in raw.rows if row[0].text == "Walker2d-v5"] == ["1.00"]


def test_a_seed_that_was_never_evaluated_is_named():
    one = whole(TD7, {"Ant-v5": FIVE})
    members = tuple(("Ant-v5", seed) for seed in range(6))
    one = one._replace(results=one.results._replace(members=members))
    raw = by_name(score_tables(study(one)))["raw_utd1"]
    assert raw.rows[0][1].note == "seed 5 has no evaluation"
    assert raw.rows[0][1].numbers["seeds"] == 5


def test_a_score_that_is_not_finite_has_neither_mean_nor_interval_but_is_there():
    raw, relative = score_tables(study(whole(TD7, {"Ant-v5": [*FIVE[:4], math.nan]})))
    assert raw.rows[0][1].text.startswith("nan")
    assert "seed 4 has a score of nan" in raw.rows[0][1].note
    assert relative.rows[0][1].text == "-"
    assert "its base has a mean of nan" in relative.rows[0][1].note


def test_a_suite_with_a_score_that_is_not_finite_has_no_statistic_and_says_why():
    bad = [*FIVE[:4], math.inf]
    found = study(run(TD7, {"Pendulum-v1": FIVE}), run(OURS, {"Pendulum-v1": bad}))
    entry = column(main_table(found), "this report (1 task)")[1]
    assert entry.text == "-"
    assert entry.note == "Pendulum-v1: seed 4 has a score of inf"


def test_a_base_that_has_the_ablated_setting_too_is_taken_first():
    changed = ("representation.zero_centred is True, not False",)
    plain, same = (
        run(TD7._replace(departures=d), {"Ant-v5": [x]})
        for d, x in (((), 2.0), (changed, 4.0))
    )
    ours = run(OURS._replace(departures=changed), {"Ant-v5": [6.0]})
    relative = by_name(score_tables(study(plain, same, ours)))["normalised_utd20"]
    assert relative.rows[0][1].numbers["mean"] == 1.5


def test_what_all_runs_have_in_common_is_said_once():
    small = ("steps is 9, not 500000",)
    one, other = (
        run(m._replace(departures=small), {"Ant-v5": [1.0, 2.0]}) for m in (TD7, OURS)
    )
    found = study(one, other)
    assert found.shared == small
    for table in (main_table(found), *score_tables(found)):
        assert table.notes[0] == (
            "All runs: steps is 9, not 500000. None of them reproduces the paper."
        )
        assert not any("steps is 9" in note for note in table.footnotes)
        assert not any("steps is 9" in name for name in table.header)


def test_ablations_are_runs_of_one_agent_with_other_settings():
    without = OURS._replace(departures=("representation.lambda_rr is 0.0, not 0.01",))
    base, full, less = (
        run(method, {"dog-trot": scores})
        for method, scores in ((TD7, [2.0]), (OURS, [8.0]), (without, [4.0]))
    )
    table = ablation_table(study(base, less, full))
    assert texts(table) == [
        ["td7+r2r2", "20", "none", "8.00"],
        ["td7+r2r2", "20", "representation.lambda_rr is 0.0, not 0.01", "4.00"],
    ]
    assert ablation_table(study(base, full)) is None
    # An ablation has the base of what it ablates: 1 + (4 - 2) / 2.
    relative = by_name(score_tables(study(base, less, full)))["normalised_utd20"]
    assert [entry.text for entry in relative.rows[0]] == ["dog-trot", "4.00", "2.00"]


def test_a_smaller_run_is_never_relative_to_a_whole_one():
    small = OURS._replace(departures=("steps is 9, not 500000",))
    found = study(run(TD7, {"Ant-v5": [1.0]}), run(small, {"Ant-v5": [2.0]}))
    relative = by_name(score_tables(found))["normalised_utd20"].rows[0][1]
    assert relative.text == "-"
    assert "its base, td7 at UTD 1 with the same settings, is missing" in relative.note


def test_results_at_an_unknown_utd_have_tables_of_their_own():
    found = study(run(Method("other", None), {"Ant-v5": [1.0]}, status="file"))
    assert [t.name for t in score_tables(found)] == [
        "raw_utd_unknown",
        "normalised_utd_unknown",
    ]


def test_every_table_has_a_name_of_its_own_and_full_rows():
    tables = tables_of(PAIR)
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_without_a_base_there_is_no_table_of_aggregates():
    assert aggregates_table(study(run(OURS, {"Hopper-v5": [1.0]}))) is None


SAC = Method("sac", 1, ("from theirs.csv, whose settings are not known",))
UNLIKE = "Normalised scores that are relative to different bases do not compare"


def two_bases():
    """Two methods that are 1.00 each, of unequal scores, and a third."""
    return study(
        run(TD7, {"Ant-v5": [-1351.0]}),
        run(OURS._replace(utd=1), {"Ant-v5": [-700.0]}),
        run(SAC, {"Ant-v5": [-755.0]}, status="file"),
    )


def test_where_bases_differ_every_row_says_whose_score_is_1():
    for table in (main_table(two_bases()), aggregates_table(two_bases())):
        methods = [entry.text for entry in column(table, "method")]
        bases = [entry.text for entry in column(table, "base")]
        assert dict(zip(methods, bases, strict=True)) == {
            "td7": "td7, UTD 1",
            "td7+r2r2": "td7, UTD 1",
            "sac, from theirs.csv": "sac, UTD 1, from theirs.csv",
        }
        assert f"{UNLIKE}: 1.00 is the score of the base." in table.notes


def test_where_bases_differ_normalised_tables_say_who_is_relative_to_whom():
    relative = by_name(score_tables(two_bases()))["normalised_utd1"]
    assert relative.notes[0] == (
        f"{UNLIKE}: 1.00 is that of td7, UTD 1 for [td7, UTD 1; td7+r2r2, UTD 1], 1.00 "
        "is that of sac, UTD 1, from theirs.csv for [sac, UTD 1, from theirs.csv]."
    )


def test_runs_of_one_agent_with_other_settings_have_bases_of_their_own():
    small = TD7._replace(departures=("steps is 9, not 500000",))
    found = study(run(TD7, {"Ant-v5": [9.0]}), run(small, {"Ant-v5": [1.0]}))
    bases = [entry.text for entry in column(main_table(found), "base")]
    assert bases == ["td7, UTD 1", "td7, UTD 1, steps is 9"]


def test_where_all_have_one_base_there_is_no_column_of_bases():
    for table in (main_table(PAIR), aggregates_table(PAIR), *score_tables(PAIR)):
        assert "base" not in table.header
        assert not any(UNLIKE in note for note in table.notes)


def test_a_missing_base_is_no_base_of_its_own():
    found = study(run(TD7, {"Ant-v5": [1.0]}), run(Method("x", 5), {"Ant-v5": [1.0]}))
    assert "base" not in main_table(found).header


@pytest.mark.parametrize(
    ("points", "end"),
    [
        (10, ""),
        (
            9,
            "; where there are fewer, of all of them, those before any training "
            "included",
        ),
    ],
)
def test_the_summary_and_raw_scores_say_what_a_score_is(points, end):
    found = study(run(TD7, {"Ant-v5": [1.0]}, points=points))
    said = f"A score is the mean of a seed's last 10 evaluations{end}."
    for table in (main_table(found), by_name(score_tables(found))["raw_utd1"]):
        assert said in table.notes
