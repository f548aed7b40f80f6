"""Comparison tables: methods in pairs, results beside the paper's, and times."""

import pytest
from study_helpers import Method, Override, column, full_run, run, study, texts

from r2r2.report.comparison_tables import (
    all_tables,
    method_pairs,
    pair_table,
    paper_aggregates_table,
    paper_table,
    timing_table,
)
from r2r2.report.study import RunData, RunTiming
from r2r2.stats import paper
from r2r2.stats.scores import Results
from r2r2.storage.evaluations import Row

TD7, OURS = Method("td7", 20), Method("td7+r2r2", 20)
BASES = [run(m._replace(utd=1), {"Ant-v5": [100.0]}) for m in (TD7, OURS)]


def test_pair_of_two_methods():
    table = pair_table(study(run(TD7, {"Ant-v5": [1.0, 3.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]})))
    task, overall = table.rows
    assert [entry.text for entry in task[:3]] == ["td7+r2r2, UTD 20", "td7, UTD 20", "Ant-v5"]
    assert column(table, "difference")[0].numbers["value"] == 2.0
    # 3 beats 1, equals 3; 5 beats both: (1 + 1/2 + 1 + 1) / 4.
    assert column(table, "probability of improvement")[0].numbers["value"] == 0.875
    assert overall[2].text == "all shared (1)"
    assert overall[6].numbers["value"] == 0.875
    assert overall[5].note == "normalised scores are missing: see their table"


def test_pair_intervals_resample_seeds():
    table = pair_table(study(run(TD7, {"Ant-v5": [0.0, 2.0]}), run(OURS, {"Ant-v5": [10.0, 12.0]})))
    # Means of two draws are 0, 1, 2 and 10, 11, 12: 8 and 12 have 1/16 each.
    numbers = column(table, "difference")[0].numbers
    assert numbers == {"value": 10.0, "low": 8.0, "high": 12.0}
    sure = column(table, "probability of improvement")[0].numbers
    assert sure == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_single_seed_has_no_interval():
    table = pair_table(study(run(TD7, {"Ant-v5": [1.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]})))
    assert column(table, "difference")[0].text == "3.00"


def test_overall_difference_is_of_normalized_scores():
    runs = [
        run(Method("td7", 1), {"Ant-v5": [100.0], "dog-run": [10.0]}),
        run(Method("td7+r2r2", 1), {"Ant-v5": [150.0], "dog-run": [5.0]}),
    ]
    table = pair_table(study(*runs))
    # 1.5 and 0.5 against 1 and 1.
    assert table.rows[-1][5].numbers["value"] == pytest.approx(0.0)
    assert table.rows[-1][6].numbers["value"] == 0.5


def test_methods_with_different_bases_have_no_overall_difference():
    sac = Method("sac", 1, file="a.csv")
    runs = run(Method("td7", 1), {"Ant-v5": [-1351.0]}), run(sac, {"Ant-v5": [-755.0]})
    table = pair_table(study(*runs))
    task, overall = column(table, "difference")
    assert abs(task.numbers["value"]) == 596.0
    assert (overall.text, overall.numbers) == ("-", {})
    bases = "td7, UTD 1; sac, UTD 1, from a.csv"
    other = "sac, UTD 1, from a.csv; td7, UTD 1"
    note = "no overall difference: the bases differ ({})"
    assert overall.note in (note.format(bases), note.format(other))
    assert column(table, "probability of improvement")[1].numbers["value"] in (0, 1)


def test_task_that_one_method_lacks_is_excluded_from_the_overall_row():
    table = pair_table(
        study(
            run(TD7, {"Ant-v5": [1.0, 2.0]}),
            run(OURS, {"Ant-v5": [3.0, 4.0], "dog-run": [5.0, 6.0]}),
        )
    )
    _, dog, overall = table.rows
    assert [entry.text for entry in dog[4:]] == ["-", "-", "-"]
    assert dog[4].note == "missing"
    assert overall[2].text == "all shared (1)"
    assert overall[2].note == "without dog-run, which one of them lacks"


def test_pairs_of_many_methods():
    theirs = TD7._replace(file="a.csv")
    runs = [run(method, {"Ant-v5": [1.0]}) for method in (TD7, OURS)]
    result = study(*BASES, *runs, run(theirs, {"Ant-v5": [1.0]}, status="file"))
    assert set(method_pairs(result)) == {
        (OURS, TD7),
        (OURS._replace(utd=1), TD7._replace(utd=1)),
        (TD7, theirs),
    }


def test_run_is_compared_with_file_in_any_order():
    file = TD7._replace(file="a.csv")
    other = Method("aaa", 1, file="a.csv")
    for theirs in (file, other):
        result = study(run(theirs, {"Ant-v5": [1.0]}, status="file"), run(TD7, {"Ant-v5": [1.0]}))
        assert method_pairs(result) == [(TD7, theirs)]


def test_single_method_has_no_pairs():
    assert not pair_table(study(BASES[0])).rows


def test_order_of_runs_does_not_matter():
    runs = [run(TD7, {"Ant-v5": [1.0, 3.0]}), run(OURS, {"Ant-v5": [3.0, 5.0]})]
    assert texts(pair_table(study(*runs))) == texts(pair_table(study(*runs[::-1])))


def near(task, shift=0.0):
    """Return scores with the paper's mean and deviation, shifted relative to it."""
    score = paper.raw_scores()[paper.CellKey(task, "td7", 20)]
    return (paper.synthetic_seeds(score) + shift * score.mean).tolist()


def test_reproduction_is_compared_with_the_paper():
    table = paper_table(study(full_run(TD7, {"Hopper-v5": near("Hopper-v5")})))
    (row,) = table.rows
    final, ours, theirs, overlap, lacks = row[3:]
    assert final.numbers["mean"] == ours.numbers["mean"]  # all points are equal
    assert theirs.numbers["mean"] == 3281.9
    assert ours.numbers == pytest.approx(theirs.numbers)
    assert ours.text == theirs.text
    assert ours.text.startswith("3,281.9 [3,0")
    assert (overlap.text, lacks.text) == ("yes", "nothing")


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_distant_intervals_do_not_overlap(shift):
    table = paper_table(study(full_run(TD7, {"Hopper-v5": near("Hopper-v5", shift)})))
    assert column(table, "intervals overlap")[0].text == "no"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (run(TD7, {"Hopper-v5": near("Hopper-v5")}), "1,000 environment steps"),
        (full_run(TD7, {"Hopper-v5": near("Hopper-v5")[:4]}), "4 of 5 seeds"),
        (
            full_run(
                TD7._replace(overrides=(Override("warmup", "5", "25000"),)),
                {"Hopper-v5": near("Hopper-v5")},
            ),
            "warmup=5 (default 25000)",
        ),
        (
            full_run(TD7._replace(file="a.csv"), {"Hopper-v5": near("Hopper-v5")}, status="file"),
            "settings unknown (from a.csv)",
        ),
    ],
    ids=["short", "few seeds", "other settings", "file"],
)
def test_incomplete_result_is_not_a_reproduction(given, text):
    (row,) = paper_table(study(given)).rows
    assert row[6].text == "not a reproduction"
    assert text in row[7].text
    assert row[4].numbers["mean"] == pytest.approx(3281.9, rel=0.05)


def test_final_returns_stand_beside_the_score_of_the_paper():
    rising = [Row("x", "Hopper-v5", seed, "return", n, n + seed) for seed in (0, 2) for n in (1, 2)]
    table = paper_table(study(RunData("x", "runs/x", "finished", Results(TD7, rising))))
    assert table.header[3:6] == ("final return", "ours", "paper")
    assert (column(table, "final return")[0].text, column(table, "ours")[0].numbers["mean"]) == (
        "3.00 ± 1.41",
        2.5,
    )


def test_the_comparison_of_two_methods_comes_first():
    two = study(run(TD7, {"a": [1.0]}), run(Method("td7+r2r2", 1), {"a": [2.0]}))
    assert all_tables(two)[0].name == "pairs"
    three = study(*two.runs, run(Method("minphi", 1), {"a": [2.0]}))
    names = [table.name for table in all_tables(three)]
    assert names[0] == "main"
    assert names.count("pairs") == 1


def test_normalized_cells_are_compared_with_the_paper():
    scores = {
        utd: paper.synthetic_seeds(paper.raw_scores()["Hopper-v5", "td7", utd]) for utd in (1, 20)
    }
    runs = [full_run(Method("td7", utd), {"Hopper-v5": x}) for utd, x in scores.items()]
    table = paper_table(study(*runs), normalized=True)
    ours, theirs, overlap, lacks = table.rows[1][3:]
    score = paper.normalized_scores()["Hopper-v5", "td7", 20]
    assert (theirs.numbers["mean"], theirs.numbers["std"]) == score
    # Rounded to two digits, both: what follows from the paper's raw table.
    assert ours.numbers["mean"] == pytest.approx(score.mean, abs=0.0075)
    assert ours.numbers["std"] == pytest.approx(score.std, abs=0.0075)
    assert (overlap.text, lacks.text) == ("yes", "nothing")
    alone = paper_table(study(runs[1]), normalized=True)
    (row,) = alone.rows
    assert (row[3].text, row[5].text) == ("-", "not a reproduction")
    assert "its base, td7 at UTD 1 with the same settings, is missing" in row[6].text


def test_cell_with_incomplete_base_is_not_a_reproduction():
    hopper = near("Hopper-v5")
    base = full_run(Method("td7", 1), {"Hopper-v5": hopper[:3]})
    ours = full_run(TD7, {"Hopper-v5": hopper})
    table = paper_table(study(base, ours), normalized=True)
    assert table.rows[1][5].text == "not a reproduction"
    assert "its base: 3 of 5 seeds" in table.rows[1][6].text


def test_task_that_is_not_in_the_paper_is_not_compared():
    assert not paper_table(study(full_run(TD7, {"Pendulum-v1": [1.0]}))).rows
    assert not paper_aggregates_table(study(full_run(TD7, {"Pendulum-v1": [1.0]}))).rows


def gym(utd, shift=0.0):
    tasks = paper.tasks("gym-mujoco")
    return full_run(Method("td7", utd), {task: near(task, shift) for task in tasks})


def test_aggregates_beside_the_paper_are_pooled():
    result = study(gym(1), gym(20))
    table = paper_aggregates_table(result)
    assert "pooled" in table.notes[0]
    ours, theirs = (column(table, name)[-1] for name in ("ours", "paper"))
    assert texts(table)[-1][:4] == ["Gymnasium MuJoCo", "mean", "td7", "20"]
    (suite,) = [one for one in result.suites if one.method.utd == 20]
    pooled = suite.estimates["mean"].pooled
    assert (ours.numbers["low"], ours.numbers["high"]) == (pooled.low, pooled.high)
    assert theirs.numbers["value"] == next(
        a.value
        for a in paper.aggregates()
        if (a.suite, a.statistic, a.agent, a.utd) == ("gym-mujoco", "mean", "td7", 20)
    )
    assert column(table, "lacks")[-1].text == "nothing"


def test_synthetic_seeds_reproduce_the_papers_aggregates():
    scores = paper.raw_scores()
    runs = [
        full_run(
            Method(agent, utd),
            {
                task: paper.synthetic_seeds(scores[paper.CellKey(task, agent, utd)])
                for task in paper.tasks("gym-mujoco")
            },
        )
        for agent in ("td7", "td7+r2r2")
        for utd in (1, 20)
    ]
    table = paper_aggregates_table(study(*runs))
    assert len(table.rows) == 4
    for ours, theirs in zip(column(table, "ours"), column(table, "paper"), strict=True):
        assert ours.numbers == pytest.approx(theirs.numbers, abs=0.015)
    assert {entry.text for entry in column(table, "intervals overlap")} == {"yes"}


def test_aggregate_of_fewer_seeds_is_not_a_reproduction():
    few = {task: near(task)[:3] for task in paper.tasks("gym-mujoco")}
    table = paper_aggregates_table(study(gym(1), full_run(TD7, few)))
    assert column(table, "intervals overlap")[-1].text == "not a reproduction"
    assert "3 of 5 seeds" in column(table, "lacks")[-1].text


def test_times_are_compared_by_agent_task_and_utd():
    timing = RunTiming(7200.0, 5, 50_000, 1_000_000, 200.0, 10.0)
    members = (("Humanoid-v5", 0),)
    one = run(TD7, {"Humanoid-v5": [1.0]}, timing=timing)
    one = one._replace(results=one.results._replace(members=members))
    other = run(Method("td7", 1), {"Humanoid-v5": [1.0]}, timing=timing)
    elsewhere = run(TD7, {"Ant-v5": [1.0]}, timing=timing)
    table = timing_table(study(one, other, elsewhere))
    first, *others = table.rows
    row = dict(zip(table.header, first, strict=True))
    assert row["hours"].numbers["value"] == 2.0
    assert row["µs per update"].numbers["value"] == 5000.0
    # Ten steps a second of five members: the fleet takes two.
    assert row["s per step of a member"].numbers["value"] == pytest.approx(0.1)
    assert row["s per step of the fleet"].numbers["value"] == pytest.approx(0.5)
    assert row["paper: s per step"].text.startswith("0.417 (Humanoid-v5, Intel")
    assert [row[-1].text for row in others] == ["-", "-"]
    assert not timing_table(study(run(TD7, {"Ant-v5": [1.0]}))).rows
