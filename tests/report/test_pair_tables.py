"""Methods set against each other."""

import pytest
from given import Method, column, run, study, texts

from r2r2.report.comparison_tables import pair_table, pairs_of

TD7, OURS = Method("td7", 20), Method("td7+r2r2", 20)
BASES = [run(m._replace(utd=1), {"Ant-v5": [100.0]}) for m in (TD7, OURS)]


def test_two_methods_are_one_pair_with_hand_computed_numbers():
    table = pair_table(
        study(run(TD7, {"Ant-v5": [1.0, 3.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]}))
    )
    task, overall = table.rows
    assert [entry.text for entry in task[:3]] == [
        "td7+r2r2, UTD 20",
        "td7, UTD 20",
        "Ant-v5",
    ]
    assert column(table, "difference")[0].numbers["value"] == 2.0
    # 3 beats 1, equals 3; 5 beats both: (1 + 1/2 + 1 + 1) / 4.
    assert column(table, "probability of improvement")[0].numbers["value"] == 0.875
    assert overall[2].text == "all shared (1)"
    assert overall[6].numbers["value"] == 0.875
    assert overall[5].note == "normalised scores are missing: see their table"


def test_intervals_are_of_resampled_seeds():
    table = pair_table(
        study(run(TD7, {"Ant-v5": [0.0, 2.0]}), run(OURS, {"Ant-v5": [10.0, 12.0]}))
    )
    # Means of two draws are 0, 1, 2 and 10, 11, 12: 8 and 12 have 1/16 each.
    numbers = column(table, "difference")[0].numbers
    assert numbers == {"value": 10.0, "low": 8.0, "high": 12.0}
    sure = column(table, "probability of improvement")[0].numbers
    assert sure == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_one_seed_has_a_difference_and_no_interval():
    table = pair_table(
        study(run(TD7, {"Ant-v5": [1.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]}))
    )
    assert column(table, "difference")[0].text == "3.00"


def test_over_all_tasks_the_difference_is_of_normalised_scores():
    runs = [
        run(Method("td7", 1), {"Ant-v5": [100.0], "dog-run": [10.0]}),
        run(Method("td7+r2r2", 1), {"Ant-v5": [150.0], "dog-run": [5.0]}),
    ]
    table = pair_table(study(*runs))
    # 1.5 and 0.5 against 1 and 1.
    assert table.rows[-1][5].numbers["value"] == pytest.approx(0.0)
    assert table.rows[-1][6].numbers["value"] == 0.5


def test_methods_with_different_bases_have_a_probability_and_no_overall_difference():
    sac = Method("sac", 1, ("from a.csv, whose settings are not known",))
    runs = run(Method("td7", 1), {"Ant-v5": [-1351.0]}), run(sac, {"Ant-v5": [-755.0]})
    table = pair_table(study(*runs))
    task, overall = column(table, "difference")
    assert abs(task.numbers["value"]) == 596.0
    assert (overall.text, overall.numbers) == ("-", {})
    bases = "td7, UTD 1; sac, UTD 1, from a.csv"
    other = "sac, UTD 1, from a.csv; td7, UTD 1"
    said = "no overall difference, as their bases differ ({})"
    assert overall.note in (said.format(bases), said.format(other))
    assert column(table, "probability of improvement")[1].numbers["value"] in (0, 1)


def test_a_task_that_one_of_them_lacks_is_shown_and_left_out_of_the_whole():
    table = pair_table(
        study(
            run(TD7, {"Ant-v5": [1.0, 2.0]}),
            run(OURS, {"Ant-v5": [3.0, 4.0], "dog-run": [5.0, 6.0]}),
        )
    )
    _, dog, overall = table.rows
    assert [entry.text for entry in dog[4:]] == ["-", "-", "-"]
    assert dog[4].note == "no run of it"
    assert overall[2].text == "all shared (1)"
    assert overall[2].note == "without dog-run, which one of them lacks"


def test_of_many_methods_r2r2_is_set_against_its_agent_and_files_against_runs():
    unknown = ("from a.csv, whose settings are not known",)
    theirs = TD7._replace(departures=unknown)
    runs = [run(method, {"Ant-v5": [1.0]}) for method in (TD7, OURS)]
    found = study(*BASES, *runs, run(theirs, {"Ant-v5": [1.0]}, status="file"))
    assert set(pairs_of(found)) == {
        (OURS, TD7),
        (OURS._replace(utd=1), TD7._replace(utd=1)),
        (TD7, theirs),
    }


def test_a_run_is_set_against_a_file_whatever_their_order():
    file = TD7._replace(departures=("from a.csv, whose settings are not known",))
    other = Method("aaa", 1, file.departures)
    for theirs in (file, other):
        found = study(
            run(theirs, {"Ant-v5": [1.0]}, status="file"), run(TD7, {"Ant-v5": [1.0]})
        )
        assert pairs_of(found) == [(TD7, theirs)]


def test_one_method_has_nobody_to_be_compared_with():
    assert pair_table(study(BASES[0])) is None


def test_the_order_of_arguments_does_not_matter():
    runs = [run(TD7, {"Ant-v5": [1.0, 3.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]})]
    assert texts(pair_table(study(*runs))) == texts(pair_table(study(*runs[::-1])))
