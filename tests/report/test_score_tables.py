"""Tables of scores, runs and diagnostics, against numbers computed by hand."""

import math

import pytest
from study_helpers import Method, Override, column, full_run, run, study, texts

from r2r2.config.run import DiagnosticsConfig
from r2r2.report.comparison_tables import all_tables
from r2r2.report.score_tables import (
    ablation_table,
    aggregates_table,
    diagnostics_table,
    last_evaluations_table,
    main_table,
    runs_table,
    score_tables,
    shortfalls_table,
)
from r2r2.report.study import MemberData, make_series
from r2r2.stats import paper
from r2r2.storage.evaluations import Row

TD7, OURS = Method("td7", 1), Method("td7+r2r2", 20)
FIVE = [90.0, 95.0, 100.0, 105.0, 110.0]  # mean 100, variance 250 / 4

PAIR = study(
    run(TD7, {"Ant-v5": [80.0, 120.0], "dog-run": [-1.0, -3.0]}),
    run(OURS, {"Ant-v5": [150.0, 250.0], "dog-run": [-1.0, 0.0]}),
)


def by_name(tables):
    return {table.name: table for table in tables}


def test_raw_table():
    raw = by_name(score_tables(PAIR))["raw_utd20"]
    assert raw.header == ("task", "td7+r2r2")
    # sqrt(2 * 50^2 / 1) = 70.71, sqrt(2 * 0.5^2 / 1) = 0.7071.
    assert texts(raw) == [["Ant-v5", "200.0 ± 70.7"], ["dog-run", "-0.500 ± 0.707"]]
    numbers = column(raw, "td7+r2r2")[0].numbers
    assert numbers["mean"] == 200.0
    assert numbers["std"] == pytest.approx(math.sqrt(5000))
    # Both of two seeds, twice the one or twice the other: 1/4 each at either end.
    assert (numbers["low"], numbers["high"], numbers["seeds"]) == (150.0, 250.0, 2)


def test_normalized_table_is_relative_to_the_base_at_utd_1():
    table = by_name(score_tables(PAIR))["normalised_utd20"]
    ant, dog = column(table, "td7+r2r2")
    # 1 + (200 - 100) / 100 = 2; 1 + (-0.5 - -2) / 2 = 1.75.
    assert ant.text == "2.00 [1.50, 2.50]"
    assert dog.numbers["mean"] == pytest.approx(1.75)


def test_main_table_has_means_over_tasks_with_intervals():
    table = main_table(PAIR)
    assert table.header[:2] == ("method", "UTD")
    here = column(table, "this report (2 tasks)")
    assert [entry.numbers["value"] for entry in here] == pytest.approx([1.0, 1.875])
    # The extremes: all of one seed, 1/16 each, so within 2.5 % of neither end.
    assert here[1].numbers["low"] == pytest.approx((1.5 + 1.5) / 2)
    assert here[1].numbers["high"] == pytest.approx((2.5 + 2.0) / 2)
    assert texts(table)[1][:2] == ["td7+r2r2", "20"]


def test_suite_with_missing_tasks_names_them():
    gym = column(main_table(PAIR), "Gymnasium MuJoCo")
    assert [entry.text for entry in gym] == ["-", "-"]
    assert gym[0].note == "Walker2d-v5, Hopper-v5, Humanoid-v5: missing"
    assert gym[0].numbers == {}


def test_aggregates_table():
    table = aggregates_table(PAIR)
    ours = next(row for row in table.rows if row[1].text == "td7+r2r2")
    cells = dict(zip(table.header, ours, strict=True)).items()
    values = {name: cell.numbers["value"] for name, cell in cells if cell.numbers}
    # Scores 1.5, 2.5 and 1.5, 2.0: without one at either end 1.5 and 2.0.
    assert values == pytest.approx(
        {"mean": 1.875, "iqm": 1.75, "median": 1.875, "optimality gap": 0.0}
    )


def test_tables_are_deterministic():
    scores = {"Ant-v5": FIVE, "dog-run": [x**2 for x in FIVE]}
    first, second = (main_table(study(run(TD7, scores))) for _ in range(2))
    assert first == second


def test_complete_suite_of_the_paper_has_no_footnotes():
    scores = dict.fromkeys(paper.tasks("gym-mujoco"), FIVE)
    table = main_table(study(full_run(TD7, scores)))
    assert table.header == ("method", "UTD", "Gymnasium MuJoCo")
    assert table.footnotes == ()
    assert column(table, "Gymnasium MuJoCo")[0].text.startswith("1.00 [0.9")


def test_missing_seeds_are_noted():
    uneven = {"Ant-v5": FIVE, "Hopper-v5": FIVE[:3], "Walker2d-v5": [1.0]}
    raw = by_name(score_tables(study(full_run(TD7, uneven))))["raw_utd1"]
    notes = {row[0].text: row[1].note for row in raw.rows}
    assert notes == {"Ant-v5": "", "Hopper-v5": "3 of 5 seeds", "Walker2d-v5": "1 of 5 seeds"}
    assert [row[1].text for row in raw.rows if row[0].text == "Walker2d-v5"] == ["1.00"]


def test_seed_without_evaluation_is_noted():
    one = full_run(TD7, {"Ant-v5": FIVE})
    members = tuple(("Ant-v5", seed) for seed in range(6))
    one = one._replace(results=one.results._replace(members=members))
    raw = by_name(score_tables(study(one)))["raw_utd1"]
    assert raw.rows[0][1].note == "seed 5 has no evaluation"
    assert raw.rows[0][1].numbers["seeds"] == 5


def test_non_finite_score_is_shown_without_interval():
    raw, relative = score_tables(study(full_run(TD7, {"Ant-v5": [*FIVE[:4], math.nan]})))
    assert raw.rows[0][1].text.startswith("nan")
    assert "seed 4 has a score of nan" in raw.rows[0][1].note
    assert relative.rows[0][1].text == "-"
    assert "its base has no usable mean score (nan)" in relative.rows[0][1].note


def test_suite_with_non_finite_score_has_no_statistic():
    bad = [*FIVE[:4], math.inf]
    result = study(run(TD7, {"Pendulum-v1": FIVE}), run(OURS, {"Pendulum-v1": bad}))
    entry = column(main_table(result), "this report (1 task)")[1]
    assert entry.text == "-"
    assert entry.note == "Pendulum-v1: seed 4 has a score of inf"


def test_base_with_the_same_ablated_setting_is_preferred():
    changed = (Override("representation.zero_centred", "True", "False"),)
    plain, same = (
        run(TD7._replace(overrides=d), {"Ant-v5": [x]}) for d, x in (((), 2.0), (changed, 4.0))
    )
    ours = run(OURS._replace(overrides=changed), {"Ant-v5": [6.0]})
    relative = by_name(score_tables(study(plain, same, ours)))["normalised_utd20"]
    assert relative.rows[0][1].numbers["mean"] == 1.5


def test_shared_overrides_are_noted_once():
    small = (Override("steps", "9", "500000"),)
    one, other = (run(m._replace(overrides=small), {"Ant-v5": [1.0, 2.0]}) for m in (TD7, OURS))
    result = study(one, other)
    assert result.shared_overrides == small
    for table in (main_table(result), *score_tables(result)):
        assert table.notes[0] == (
            "All runs: steps=9 (default 500000). None of them reproduces the paper."
        )
        assert not any("steps=9" in note for note in table.footnotes)
        assert not any("steps=9" in name for name in table.header)


def test_ablation_table():
    without = OURS._replace(overrides=(Override("representation.lambda_rr", "0.0", "0.01"),))
    base, full, less = (
        run(method, {"dog-trot": scores})
        for method, scores in ((TD7, [2.0]), (OURS, [8.0]), (without, [4.0]))
    )
    table = ablation_table(study(base, less, full))
    assert texts(table) == [
        ["td7+r2r2", "20", "none", "8.00"],
        ["td7+r2r2", "20", "representation.lambda_rr=0.0 (default 0.01)", "4.00"],
    ]
    assert not ablation_table(study(base, full)).rows
    # An ablation has the base of what it ablates: 1 + (4 - 2) / 2.
    relative = by_name(score_tables(study(base, less, full)))["normalised_utd20"]
    assert [entry.text for entry in relative.rows[0]] == ["dog-trot", "4.00", "2.00"]


def test_smaller_run_is_not_relative_to_a_full_one():
    small = OURS._replace(overrides=(Override("steps", "9", "500000"),))
    result = study(run(TD7, {"Ant-v5": [1.0]}), run(small, {"Ant-v5": [2.0]}))
    relative = by_name(score_tables(result))["normalised_utd20"].rows[0][1]
    assert relative.text == "-"
    assert "its base, td7 at UTD 1 with the same settings, is missing" in relative.note


def test_results_at_unknown_utd_have_separate_tables():
    result = study(run(Method("other", None), {"Ant-v5": [1.0]}, status="file"))
    assert [t.name for t in score_tables(result)] == ["raw_utd_unknown", "normalised_utd_unknown"]


def test_tables_have_unique_names_and_full_rows():
    tables = all_tables(PAIR)
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_no_aggregates_without_a_base():
    assert not aggregates_table(study(run(OURS, {"Hopper-v5": [1.0]}))).rows


SAC = Method("sac", 1, file="theirs.csv")
DIFFERENT = "Normalised scores with different bases cannot be compared"


def two_bases():
    """Return a study of two bases with unequal scores, and a third method."""
    return study(
        run(TD7, {"Ant-v5": [-1351.0]}),
        run(OURS._replace(utd=1), {"Ant-v5": [-700.0]}),
        run(SAC, {"Ant-v5": [-755.0]}, status="file"),
    )


def test_different_bases_are_a_column():
    for table in (main_table(two_bases()), aggregates_table(two_bases())):
        methods = [entry.text for entry in column(table, "method")]
        bases = [entry.text for entry in column(table, "base")]
        assert dict(zip(methods, bases, strict=True)) == {
            "td7": "td7, UTD 1",
            "td7+r2r2": "td7, UTD 1",
            "sac, from theirs.csv": "sac, UTD 1, from theirs.csv",
        }
        assert f"{DIFFERENT}: 1.00 is the score of the base." in table.notes


def test_different_bases_are_noted_in_normalized_tables():
    relative = by_name(score_tables(two_bases()))["normalised_utd1"]
    assert relative.notes[0] == (
        f"{DIFFERENT}: 1.00 is td7, UTD 1 for [td7, UTD 1; td7+r2r2, UTD 1], 1.00 is "
        "sac, UTD 1, from theirs.csv for [sac, UTD 1, from theirs.csv]."
    )


def test_runs_with_other_settings_have_other_bases():
    small = TD7._replace(overrides=(Override("steps", "9", "500000"),))
    result = study(run(TD7, {"Ant-v5": [9.0]}), run(small, {"Ant-v5": [1.0]}))
    bases = [entry.text for entry in column(main_table(result), "base")]
    assert bases == ["td7, UTD 1", "td7, UTD 1, steps=9"]


def test_no_column_of_bases_with_a_single_base():
    for table in (main_table(PAIR), aggregates_table(PAIR), *score_tables(PAIR)):
        assert "base" not in table.header
        assert not any(DIFFERENT in note for note in table.notes)


def test_missing_base_is_not_a_different_base():
    result = study(run(TD7, {"Ant-v5": [1.0]}), run(Method("x", 5), {"Ant-v5": [1.0]}))
    assert "base" not in main_table(result).header


@pytest.mark.parametrize(
    ("points", "end"),
    [(10, ""), (9, "; with fewer, the mean of all, including those before training")],
)
def test_scores_are_defined_in_a_note(points, end):
    result = study(run(TD7, {"Ant-v5": [1.0]}, points=points))
    note = (
        f"A score is the mean of a seed's last 10 evaluations{end}. The table of raw returns "
        "also has the last evaluation, as the terminal does."
    )
    for table in (main_table(result), by_name(score_tables(result))["raw_utd1"]):
        assert note in table.notes


def rising(method, points):
    """Return a run of two seeds whose returns are the number of the point, and ten times it."""
    rows = [
        Row("x", "Ant-v5", seed, "return", 1000 * n, n * 10.0**seed)
        for seed in range(2)
        for n in range(1, points + 1)
    ]
    one = run(method, {})
    return one._replace(results=one.results._replace(rows=rows))


@pytest.mark.parametrize(
    ("points", "score", "last", "name"),
    [
        # 5 to 14, and ten times as much.
        (14, "52.25 ± 60.46", "77.00 ± 89.10", ""),
        (3, "11.00 ± 12.73", "16.50 ± 19.09", "mean of all 3 evaluations"),
        (1, "5.50 ± 6.36", "5.50 ± 6.36", "mean of all 1 evaluation"),
    ],
)
def test_scores_stand_beside_last_evaluations(points, score, last, name):
    table = last_evaluations_table(study(rising(TD7, points)))
    assert table.header == (
        "task",
        "method",
        "UTD",
        "mean of the last 10 evaluations",
        "last evaluation",
    )
    (row,) = table.rows
    assert [entry.text for entry in row] == ["Ant-v5", "td7", "1", score, last]
    assert row[3].note.startswith(name)
    assert bool(name) == ("mean of" in row[3].note)


TD7_20 = Method("td7", 20)


def member(seed, rank, **fields):
    series = {"effective_rank": make_series({100: 1.0, 200: rank})}
    data = MemberData(f"Ant-v5_s{seed}", "Ant-v5", seed, 900, 9, series, (), (), "")
    return data._replace(**fields)


def test_runs_table():
    members = (
        member(0, 5.0, collapses=(300, 400)),
        member(1, 7.0, stopped="a loss was not finite"),
    )
    table = runs_table(study(run(TD7_20, {"Ant-v5": [1.0, 2.0, 3.0]}, members=members)))
    (row,) = table.rows
    values = {n: entry.text for n, entry in zip(table.header, row, strict=True)}
    assert values["seeds"] == "0 to 2"
    assert values["environment steps"] == "1,000"
    assert values["remarks"] == (
        "Ant-v5_s0 first collapsed at environment step 300; "
        "Ant-v5_s1 stopped at environment step 900: a loss was not finite"
    )


def test_shortfalls_table_lists_incomplete_cells():
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    table = shortfalls_table(study(full_run(TD7_20, {"Ant-v5": five, "Hopper-v5": five[:2]})))
    (row,) = table.rows
    assert [e.text for e in row] == ["td7", "20", "Hopper-v5", "2", "2 of 5 seeds"]
    assert not shortfalls_table(study(full_run(TD7_20, {"Ant-v5": five}))).rows


def test_diagnostics_are_means_of_each_seeds_last():
    members = (member(0, 5.0), member(1, 7.0))
    table = diagnostics_table(study(run(TD7_20, {"Ant-v5": [1.0]}, members=members)))
    (rank,) = column(table, "effective rank")
    assert rank.numbers["mean"] == 6.0
    assert rank.numbers["std"] == pytest.approx(2**0.5)
    assert column(table, "value bias")[0].text == "-"
    assert not diagnostics_table(study(run(TD7_20, {"Ant-v5": [1.0]}))).rows


def stand(agent, utd=1, **fields):
    one = member(0, 5.0)._replace(task="humanoid-stand")
    return run(Method(agent, utd), {"humanoid-stand": [1.0]}, members=(one,), **fields)


def test_published_effective_ranks_stand_beside_ours():
    table = diagnostics_table(study(stand("td7"), stand("td7+r2r2"), stand("td7", 20)))
    assert table.header[3:5] == ("effective rank", "effective rank (paper)")
    shown = {tuple(e.text for e in row[1:5]) for row in table.rows}
    assert shown == {
        ("td7", "1", "5.00", "76.5"),
        ("td7+r2r2", "1", "5.00", "65.0"),
        ("td7", "20", "5.00", "-"),
    }
    note = table.notes[-1]
    assert "76.5 for td7 on humanoid-stand at UTD 1 and 65.0 for td7+r2r2" in note
    assert "without a formula, batch or step" in note


def test_the_probe_of_the_runs_is_named():
    probes = DiagnosticsConfig(), DiagnosticsConfig(64, 128)
    runs = [stand(a, probe=p) for a, p in zip(("td7", "td7+r2r2"), probes, strict=True)]
    note = diagnostics_table(study(*runs)).notes[-1]
    assert "on 4,096 of the first 40,960 replay rows or 64 of the first 128 replay rows" in note
