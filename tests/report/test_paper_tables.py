"""Our numbers beside the paper's: what may be compared, and what may not."""

import pytest
from given import Method, column, run, study, texts, whole

from r2r2.report.comparison_tables import (
    beside_aggregates_table,
    beside_normalised_table,
    beside_table,
    timing_table,
)
from r2r2.report.study import Timing
from r2r2.stats import paper

TD7 = Method("td7", 20)


def near(task, shift=0.0):
    """Five scores with the paper's mean and deviation, shifted by parts of its mean."""
    spread = paper.raw_scores()[paper.Which(task, "td7", 20)]
    return (paper.stand_ins(spread) + shift * spread.mean).tolist()


def test_a_reproduction_is_set_beside_the_paper_with_both_intervals():
    table = beside_table(study(whole(TD7, {"Hopper-v5": near("Hopper-v5")})))
    (row,) = table.rows
    ours, theirs, overlap, lacks = row[3:]
    assert theirs.numbers["mean"] == 3281.9
    assert ours.numbers == pytest.approx(theirs.numbers)
    assert ours.text == theirs.text
    assert ours.text.startswith("3,281.9 [3,0")
    assert (overlap.text, lacks.text) == ("yes", "nothing")


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_intervals_that_lie_apart_do_not_overlap(shift):
    table = beside_table(study(whole(TD7, {"Hopper-v5": near("Hopper-v5", shift)})))
    assert column(table, "intervals overlap")[0].text == "no"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (run(TD7, {"Hopper-v5": near("Hopper-v5")}), "1,000 environment steps"),
        (whole(TD7, {"Hopper-v5": near("Hopper-v5")[:4]}), "4 of 5 seeds"),
        (
            whole(
                TD7._replace(departures=("warmup is 5, not 25000",)),
                {"Hopper-v5": near("Hopper-v5")},
            ),
            "warmup is 5, not 25000",
        ),
        (
            whole(
                TD7._replace(departures=("from a.csv, whose settings are not known",)),
                {"Hopper-v5": near("Hopper-v5")},
                status="file",
            ),
            "settings are not known",
        ),
    ],
    ids=["short", "few seeds", "other settings", "file"],
)
def test_what_is_not_the_papers_is_shown_and_never_called_a_reproduction(given, said):
    (row,) = beside_table(study(given)).rows
    assert row[5].text == "not a reproduction"
    assert said in row[6].text
    assert row[3].numbers["mean"] == pytest.approx(3281.9, rel=0.05)


def test_normalised_cells_are_set_beside_the_papers_normalised_table():
    scores = {
        utd: paper.stand_ins(paper.raw_scores()["Hopper-v5", "td7", utd])
        for utd in (1, 20)
    }
    runs = [whole(Method("td7", utd), {"Hopper-v5": x}) for utd, x in scores.items()]
    table = beside_normalised_table(study(*runs))
    ours, theirs, overlap, lacks = table.rows[1][3:]
    spread = paper.normalised_scores()["Hopper-v5", "td7", 20]
    assert (theirs.numbers["mean"], theirs.numbers["std"]) == spread
    # Rounded to two digits, both: what follows from the paper's raw table.
    assert ours.numbers["mean"] == pytest.approx(spread.mean, abs=0.0075)
    assert ours.numbers["std"] == pytest.approx(spread.std, abs=0.0075)
    assert (overlap.text, lacks.text) == ("yes", "nothing")
    alone = beside_normalised_table(study(runs[1]))
    (row,) = alone.rows
    assert (row[3].text, row[5].text) == ("-", "not a reproduction")
    assert "its base, td7, UTD 1, is missing" in row[6].text


def test_a_normalised_cell_whose_base_is_partial_is_no_reproduction():
    hopper = near("Hopper-v5")
    base = whole(Method("td7", 1), {"Hopper-v5": hopper[:3]})
    table = beside_normalised_table(study(base, whole(TD7, {"Hopper-v5": hopper})))
    assert table.rows[1][5].text == "not a reproduction"
    assert "its base: 3 of 5 seeds" in table.rows[1][6].text


def test_what_the_paper_does_not_have_is_not_beside_it():
    assert beside_table(study(whole(TD7, {"Pendulum-v1": [1.0]}))) is None
    assert beside_aggregates_table(study(whole(TD7, {"Pendulum-v1": [1.0]}))) is None


def gym(utd, shift=0.0):
    tasks = paper.tasks("gym-mujoco")
    return whole(Method("td7", utd), {task: near(task, shift) for task in tasks})


def test_aggregates_beside_the_papers_are_pooled():
    found = study(gym(1), gym(20))
    table = beside_aggregates_table(found)
    assert "pooled" in table.notes[0]
    ours, theirs = (column(table, name)[-1] for name in ("ours", "paper"))
    assert texts(table)[-1][:4] == ["Gymnasium MuJoCo", "mean", "td7", "20"]
    (suite,) = [one for one in found.suites if one.method.utd == 20]
    pooled = suite.estimates["mean"].pooled
    assert (ours.numbers["low"], ours.numbers["high"]) == (pooled.low, pooled.high)
    assert theirs.numbers["value"] == next(
        a.value
        for a in paper.aggregates()
        if (a.suite, a.statistic, a.agent, a.utd) == ("gym-mujoco", "mean", "td7", 20)
    )
    assert column(table, "lacks")[-1].text == "nothing"


def test_stand_ins_for_the_papers_seeds_give_its_means_and_intervals():
    scores = paper.raw_scores()
    runs = [
        whole(
            Method(agent, utd),
            {
                task: paper.stand_ins(scores[paper.Which(task, agent, utd)])
                for task in paper.tasks("gym-mujoco")
            },
        )
        for agent in ("td7", "td7+r2r2")
        for utd in (1, 20)
    ]
    table = beside_aggregates_table(study(*runs))
    assert len(table.rows) == 4
    for ours, theirs in zip(column(table, "ours"), column(table, "paper"), strict=True):
        assert ours.numbers == pytest.approx(theirs.numbers, abs=0.015)
    assert {entry.text for entry in column(table, "intervals overlap")} == {"yes"}


def test_an_aggregate_of_less_is_no_reproduction():
    few = {task: near(task)[:3] for task in paper.tasks("gym-mujoco")}
    table = beside_aggregates_table(study(gym(1), whole(TD7, few)))
    assert column(table, "intervals overlap")[-1].text == "not a reproduction"
    assert "3 of 5 seeds" in column(table, "lacks")[-1].text


def test_times_stand_beside_the_papers_of_the_same_agent_task_and_utd():
    timing = Timing(7200.0, 5, 50_000, 1_000_000, 200.0, 10.0)
    members = (("Humanoid-v5", 0),)
    one = run(TD7, {"Humanoid-v5": [1.0]}, timing=timing)
    one = one._replace(results=one.results._replace(members=members))
    other = run(Method("td7", 1), {"Humanoid-v5": [1.0]}, timing=timing)
    elsewhere = run(TD7, {"Ant-v5": [1.0]}, timing=timing)
    table = timing_table(study(one, other, elsewhere))
    first, *others = table.rows
    found = dict(zip(table.header, first, strict=True))
    assert found["hours"].numbers["value"] == 2.0
    assert found["µs per update"].numbers["value"] == 5000.0
    # Ten steps a second of five members: the fleet takes two.
    assert found["s per step of a member"].numbers["value"] == pytest.approx(0.1)
    assert found["s per step of the fleet"].numbers["value"] == pytest.approx(0.5)
    assert found["paper: s per step"].text.startswith("0.417 (Humanoid-v5, Intel")
    assert [row[-1].text for row in others] == ["-", "-"]
    assert timing_table(study(run(TD7, {"Ant-v5": [1.0]}))) is None
